package refocus.recognizer;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;

/** SHA-256 of bytes, files and folders, in lower-case hexadecimal digits. */
public final class Hashes {
    private static final int CHUNK = 1 << 16;

    private Hashes() {}

    public static String sha256(byte[] content) {
        return hex(digest().digest(content));
    }

    public static String sha256(String text) {
        return sha256(text.getBytes(StandardCharsets.UTF_8));
    }

    static String sha256(File file) throws IOException {
        MessageDigest digest = digest();
        InputStream stream = new FileInputStream(file);
        try {
            byte[] chunk = new byte[CHUNK];
            for (int count = stream.read(chunk); count >= 0; count = stream.read(chunk)) {
                digest.update(chunk, 0, count);
            }
        } finally {
            stream.close();
        }
        return hex(digest.digest());
    }

    /** Of the sorted list of a folder's files with the SHA-256 of each. */
    static String tree(List<String> sortedPaths, File folder) throws IOException {
        StringBuilder lines = new StringBuilder();
        for (String path : sortedPaths) {
            lines.append(path).append(' ').append(sha256(new File(folder, path))).append('\n');
        }
        return sha256(lines.toString());
    }

    /** The files below a folder, relative to it, in the order that {@link #tree} needs: by their paths, part by part. */
    static List<String> filesBelow(File folder) throws IOException {
        List<String> found = new ArrayList<String>();
        collect(folder, "", found);
        Collections.sort(found, new Comparator<String>() {
            @Override
            public int compare(String one, String other) {
                return one.replace('/', '\0').compareTo(other.replace('/', '\0')); // no name has this character
            }
        });
        return found;
    }

    private static void collect(File folder, String prefix, List<String> found) throws IOException {
        File[] files = folder.listFiles();
        if (files == null) {
            throw new IOException(folder + " cannot be listed");
        }
        for (File file : files) {
            if (file.isDirectory()) {
                collect(file, prefix + file.getName() + "/", found);
            } else {
                found.add(prefix + file.getName());
            }
        }
    }

    static MessageDigest digest() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every Java has SHA-256", error);
        }
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte value : bytes) {
            text.append(Character.forDigit((value >> 4) & 15, 16)).append(Character.forDigit(value & 15, 16));
        }
        return text.toString();
    }
}
