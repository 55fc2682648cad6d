package refocus.recognizer;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;

/** Puts a bundle from a zip file (an asset, or a file that the user picked) into place: whole and verified, or not. */
public final class BundleImport {
    private static final long MAX_BYTES = 4L << 30;
    private static final int MAX_FILES = 4096;

    private BundleImport() {}

    /**
     * Unpacks beside the target, verifies every file, and only then renames; what was there before stays until then.
     *
     * @param zip the file's bytes; closed by the caller
     * @param target folder of the bundle
     * @throws BundleException not a zip, a path that leads out of it, or not a whole bundle; the target is unchanged
     * @throws RefocusException it cannot be run here, or there is no room; the target is unchanged
     */
    public static void unpack(InputStream zip, File target) throws RefocusException {
        unpack(zip, target, null);
    }

    /**
     * As {@link #unpack(InputStream, File)}, and the bundle must pass its self-test before it takes a place.
     *
     * @param decoder of the self-test's photos; null leaves the self-test out
     */
    public static void unpack(InputStream zip, File target, SelfTest.Decoder decoder) throws RefocusException {
        File made = new File(target.getPath() + ".new");
        File old = new File(target.getPath() + ".old");
        delete(made);
        try {
            copy(new ZipInputStream(zip), made);
            // All of it, and whether it runs here, before it takes a place.
            tryOut(Bundle.load(inner(made)), decoder);
            sync(made);
            delete(old);
            if (target.exists() && !target.renameTo(old)) {
                throw new BundleException(Reason.STORAGE, target + " cannot make way; free some space");
            }
            if (!inner(made).renameTo(target)) {
                old.renameTo(target);
                throw new BundleException(Reason.STORAGE, target + " cannot be put in place; free some space");
            }
            Durable.folder(target.getAbsoluteFile().getParentFile());
            delete(old);
        } catch (IOException error) {
            throw new BundleException("the file is no bundle (" + error.getMessage() + "); pick the zip of an exported"
                    + " bundle", error);
        } finally {
            delete(made);
        }
    }

    /** A power cut after the import leaves the whole bundle, or the one that was there. */
    private static void sync(File made) throws BundleException {
        try {
            Durable.tree(made);
        } catch (IOException error) {
            throw noRoom(made + " cannot be written", error);
        }
    }

    private static void tryOut(Bundle bundle, SelfTest.Decoder decoder) throws RefocusException {
        Recognizer recognizer = new Recognizer(bundle, "", 1);
        try {
            if (decoder != null) {
                SelfTest.require(recognizer, decoder);
            }
        } finally {
            recognizer.close();
        }
    }

    /** Whether there is a bundle; one that a kill left aside, in the middle of an import, is put back. */
    public static boolean restore(File target) {
        return target.exists() || new File(target.getPath() + ".old").renameTo(target);
    }

    /** The bundle in the folder, or in the one folder that a zip tool put around it. */
    private static File inner(File made) {
        File[] files = made.listFiles();
        boolean wrapped = files != null && files.length == 1 && files[0].isDirectory();
        return wrapped ? files[0] : made;
    }

    private static void copy(ZipInputStream zip, File folder) throws IOException, BundleException {
        long total = 0;
        int entries = 0;
        int files = 0;
        byte[] chunk = new byte[1 << 16];
        for (ZipEntry entry = next(zip); entry != null; entry = next(zip)) {
            if (entry.isDirectory()) {
                continue;
            }
            if (++entries > MAX_FILES) {
                throw new IOException("more than any bundle holds");
            }
            String path = path(entry);
            File to = new File(folder, path);
            if (!to.getCanonicalPath().startsWith(folder.getCanonicalPath() + File.separator)) {
                throw new BundleException("'" + entry.getName() + "' leads out of the file; pick another one");
            }
            if (isOfTheSystem(path)) {
                continue;
            }
            files++;
            if (!to.getParentFile().isDirectory() && !to.getParentFile().mkdirs()) {
                refuseFileAbove(to, folder, path);
                throw noRoom(to.getParentFile() + " cannot be made", null);
            }
            if (to.isDirectory()) {
                throw new IOException("its '" + path + "' is a file and a folder");
            }
            OutputStream out = open(to);
            try {
                for (int count = zip.read(chunk); count >= 0; count = zip.read(chunk)) {
                    total += count;
                    if (total > MAX_BYTES) {
                        throw new IOException("more than any bundle holds");
                    }
                    write(out, chunk, count, to);
                }
            } finally {
                out.close();
            }
        }
        if (files == 0) {
            throw new IOException("not a zip file, or an empty one");
        }
    }

    private static ZipEntry next(ZipInputStream zip) throws IOException {
        try {
            return zip.getNextEntry();
        } catch (IllegalArgumentException error) { // which Java throws for such a name
            throw new IOException("a name in it is not UTF-8", error);
        }
    }

    /** A file's path in the bundle; some tools write ./manifest.json. */
    private static String path(ZipEntry entry) {
        String path = entry.getName();
        while (path.startsWith("./")) {
            path = path.substring(2);
        }
        return path;
    }

    private static void refuseFileAbove(File to, File folder, String path) throws IOException {
        for (File above = to.getParentFile(); above != null && !above.equals(folder); above = above.getParentFile()) {
            if (above.isFile()) {
                throw new IOException("its '" + path + "' lies in a file");
            }
        }
    }

    /** Whether a file is one that desktop systems put into zips beside what is packed; no bundle has such files. */
    private static boolean isOfTheSystem(String path) {
        return path.startsWith("__MACOSX/") || path.startsWith(".") || path.contains("/.");
    }

    /** What is wrong with the disk is told apart from what is wrong with the file. */
    private static OutputStream open(File to) throws BundleException {
        try {
            return new FileOutputStream(to);
        } catch (IOException error) {
            throw noRoom(to + " cannot be made", error);
        }
    }

    private static void write(OutputStream out, byte[] chunk, int count, File to) throws BundleException {
        try {
            out.write(chunk, 0, count);
        } catch (IOException error) {
            throw noRoom(to + " cannot be written", error);
        }
    }

    private static BundleException noRoom(String what, IOException cause) {
        return new BundleException(Reason.STORAGE, what + (cause == null ? "" : " (" + cause.getMessage() + ")") + "; free some space, and"
                + " import again", cause);
    }

    /** Deletes a file or folder; what cannot be deleted stays. */
    public static void delete(File path) {
        File[] files = path.listFiles();
        for (File file : files == null ? new File[0] : files) {
            delete(file);
        }
        path.delete();
    }
}
