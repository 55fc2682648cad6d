package refocus.recognizer;

import java.io.File;
import java.util.Arrays;

/** A file that the manifest lists: where it is below the bundle's folder, its SHA-256 and its size in bytes. */
public final class ListedFile {
    private static final int MAX_PATH = 200;
    public final String path;
    public final String sha256;
    public final long sizeBytes;

    ListedFile(Fields fields) {
        path = fields.string("file");
        sha256 = fields.sha256("sha256");
        sizeBytes = fields.whole("size_bytes", 0);
        // Plain names only: no drive letters, no bytes that one file system reads as another does.
        if (!path.matches("[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*") || path.length() > MAX_PATH
                || Arrays.asList(path.split("/")).contains("..") || Arrays.asList(path.split("/")).contains(".")) {
            throw new IllegalArgumentException("file '" + path + "' must stay inside the bundle's folder: letters,"
                    + " digits, '.', '_', '-' and '/' alone");
        }
    }

    public File in(File folder) {
        return new File(folder, path);
    }

    @Override
    public String toString() {
        return path;
    }
}
