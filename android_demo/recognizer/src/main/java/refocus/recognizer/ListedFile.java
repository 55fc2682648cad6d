package refocus.recognizer;

import java.io.File;
import java.util.Arrays;
import java.util.List;

/** A file that the manifest lists: where it is below the bundle's folder, its SHA-256 and its size in bytes. */
public final class ListedFile {
    static final int MAX_PATH = 200;
    /** Of a photo, or of a file of defaults. */
    static final long MAX_SMALL_BYTES = 256L << 20;
    public final String path;
    public final String sha256;
    public final long sizeBytes;

    ListedFile(Fields fields, long maxBytes) {
        path = fields.string("file");
        sha256 = fields.sha256("sha256");
        sizeBytes = fields.whole("size_bytes", 0, maxBytes);
        if (!isPlain(path)) {
            throw new IllegalArgumentException("file '" + path + "' must stay inside the bundle's folder: letters,"
                    + " digits, '.', '_', '-' and '/' alone");
        }
    }

    /** Plain names only: no drive letters, no bytes that one file system reads as another does. */
    static boolean isPlain(String path) {
        List<String> parts = Arrays.asList(path.split("/"));
        return path.length() <= MAX_PATH && path.matches("[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
                && !parts.contains("..") && !parts.contains(".");
    }

    public File in(File folder) {
        return new File(folder, path);
    }

    @Override
    public String toString() {
        return path;
    }
}
