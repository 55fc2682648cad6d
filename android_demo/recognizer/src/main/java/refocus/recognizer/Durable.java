package refocus.recognizer;

import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.channels.FileChannel;
import java.nio.file.StandardOpenOption;

/** What a power cut must not undo: content that is on the disk before its file takes a place, and the place itself. */
public final class Durable {
    private Durable() {}

    /** Waits until a folder's names are on the disk, where the system offers that for folders. */
    public static void folder(File folder) {
        try (FileChannel channel = FileChannel.open(folder.toPath(), StandardOpenOption.READ)) {
            channel.force(true);
        } catch (IOException notOffered) {
            return; // the names come later, as those of any file
        }
    }

    /** Waits until a folder, with all that is in it, is on the disk. */
    static void tree(File path) throws IOException {
        File[] files = path.listFiles();
        if (files == null) {
            try (RandomAccessFile file = new RandomAccessFile(path, "rw")) {
                file.getFD().sync();
            }
            return;
        }
        for (File file : files) {
            tree(file);
        }
        folder(path);
    }
}
