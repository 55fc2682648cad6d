package refocus.recognizer;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A verified bundle: every file that its manifest lists is there, with the size and SHA-256 it says. */
public final class Bundle {
    public static final String MANIFEST = "manifest.json";
    private static final int MAX_FILES = 4096; // in the folder of one artifact
    private static final int MAX_DEPTH = 16;
    public final File folder;
    public final Manifest manifest;
    /** SHA-256 of the manifest, and so of all that the bundle is. */
    public final String sha256;

    private Bundle(File folder, Manifest manifest, String sha256) {
        this.folder = folder;
        this.manifest = manifest;
        this.sha256 = sha256;
    }

    /**
     * Reads the manifest and verifies every file it lists; nothing of a bundle is used before.
     *
     * @throws BundleException no bundle, another schema, a missing or changed file, a file outside the folder, a head
     *     that does not accept the features of the encoder beside it, or programs that do not fit together
     */
    public static Bundle load(File folder) throws BundleException {
        File path = new File(folder, MANIFEST);
        if (!path.isFile()) {
            throw new BundleException(folder + " is not a bundle: " + MANIFEST + " is missing; export or import it again");
        }
        if (path.length() > Manifest.MAX_BYTES) {
            throw new BundleException(path + " has " + path.length() + " bytes, at most " + Manifest.MAX_BYTES + " are read");
        }
        byte[] content = read(path);
        Manifest manifest = Manifest.decode(content, path.getPath());
        Set<String> spaces = new HashSet<String>();
        for (Artifact artifact : manifest.artifacts) {
            verify(folder, artifact.file);
            if (artifact.defaults != null) {
                verify(folder, artifact.defaults);
            }
            if (artifact.featureSpace != null) {
                spaces.add(artifact.featureSpace);
            }
        }
        for (HeadCard head : manifest.heads) {
            for (ListedFile file : head.files) {
                verify(folder, file);
            }
        }
        for (ListedFile photo : manifest.selfTestPhotos) {
            verify(folder, photo);
        }
        if (spaces.isEmpty()) {
            throw new BundleException(Reason.MODEL_UNFIT, folder + " has heads alone; install it with refocus upgrade beside an encoder");
        }
        Bundle bundle = new Bundle(folder, manifest, Hashes.sha256(content));
        for (Artifact artifact : manifest.artifacts) {
            if (artifact.role.equals("head") && Collections.disjoint(artifact.accepts, spaces)) {
                throw new BundleException(Reason.MODEL_UNFIT, folder + ": " + artifact.file + " accepts no feature space of the encoders"
                        + " beside it; features of one model must not meet the head of another");
            }
            Shapes.check(bundle, artifact);
        }
        Shapes.checkWidths(manifest);
        return bundle;
    }

    /**
     * The one program of that role and target.
     *
     * @param role "encoder" or "head"
     * @param target as "onnxruntime:fp32"
     * @param head of a head, its name; "" is the bundle's first
     * @throws BundleException the bundle has none
     */
    public Artifact artifact(String role, String target, String head) throws BundleException {
        String wanted = role.equals("head") ? manifest.head(head).name : "";
        Set<String> has = new java.util.TreeSet<String>();
        for (Artifact artifact : manifest.artifacts) {
            if (artifact.role.equals(role) && artifact.head.equals(wanted)) {
                if (artifact.target.equals(target)) {
                    return artifact;
                }
                has.add(artifact.target);
            }
        }
        throw new BundleException(Reason.MODEL_UNFIT, folder + " has no " + role + " for " + target + "; it has " + has);
    }

    /** Inputs of a program that are each person's own, as they are for somebody who has none; by name. */
    public Map<String, TensorFile.Values> defaults(Artifact artifact) throws BundleException {
        if (artifact.defaults == null) {
            return Collections.emptyMap();
        }
        File path = artifact.defaults.in(folder);
        Map<String, TensorFile.Values> found;
        try {
            found = TensorFile.decode(read(path), path.getPath()).tensors;
        } catch (PersonalWeightsException error) {
            throw new BundleException(path + " holds no tensors (" + error.getMessage() + "); export the bundle again", error);
        }
        for (TensorFile.Values value : found.values()) {
            TensorSpec input = artifact.input(value.name);
            if (input == null || !value.fits(input)) {
                throw new BundleException(path + ": " + value + " is no input of " + artifact.file + "; export again");
            }
        }
        return found;
    }

    private static void verify(File folder, ListedFile listed) throws BundleException {
        File path = listed.in(folder);
        try {
            checkInside(folder, path);
            if (!path.exists()) {
                throw new BundleException(path + " is listed in the manifest but is missing; import the bundle again");
            }
            String digest;
            long size = 0;
            if (path.isDirectory()) {
                List<String> files = Hashes.filesBelow(path);
                if (files.size() > MAX_FILES) {
                    throw new BundleException(path + " holds more than " + MAX_FILES + " files; export the bundle again");
                }
                for (String file : files) {
                    if (!ListedFile.isPlain(file) || file.split("/").length > MAX_DEPTH) {
                        throw new BundleException(path + " holds a file whose name is not plain, or in more than "
                                + MAX_DEPTH + " levels; export the bundle again");
                    }
                    checkInside(folder, new File(path, file));
                    size += new File(path, file).length();
                }
                digest = Hashes.tree(files, path);
            } else {
                size = path.length();
                digest = size == listed.sizeBytes ? Hashes.sha256(path) : "";
            }
            if (size != listed.sizeBytes) {
                throw new BundleException(path + " was changed: it has " + size + " bytes, the manifest says "
                        + listed.sizeBytes + "; import the bundle again");
            }
            if (!digest.equals(listed.sha256)) {
                throw new BundleException(path + " was changed: its SHA-256 differs from the manifest; import the bundle"
                        + " again");
            }
        } catch (IOException error) {
            throw new BundleException(path + " cannot be read (" + error.getMessage() + "); import the bundle again", error);
        }
    }

    private static void checkInside(File folder, File path) throws IOException, BundleException {
        String inside = folder.getCanonicalPath() + File.separator;
        if (!path.getCanonicalPath().startsWith(inside)) {
            throw new BundleException(path + " leads out of the bundle; import it again from its source");
        }
    }

    /** The bytes of one file of the bundle. */
    public byte[] read(ListedFile file) throws BundleException {
        return read(file.in(folder));
    }

    private static byte[] read(File path) throws BundleException {
        try {
            InputStream stream = new FileInputStream(path);
            try {
                ByteArrayOutputStream all = new ByteArrayOutputStream((int) Math.min(path.length(), 1 << 24));
                byte[] chunk = new byte[1 << 16];
                for (int count = stream.read(chunk); count >= 0; count = stream.read(chunk)) {
                    all.write(chunk, 0, count);
                }
                return all.toByteArray();
            } finally {
                stream.close();
            }
        } catch (IOException error) {
            throw new BundleException(path + " cannot be read (" + error.getMessage() + "); import the bundle again", error);
        }
    }
}
