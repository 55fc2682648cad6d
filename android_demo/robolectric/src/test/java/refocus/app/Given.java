package refocus.app;

import android.graphics.Bitmap;
import android.graphics.BitmapFactory;
import android.net.Uri;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import refocus.recognizer.PhotoRows;
import refocus.recognizer.Resizer;

/** What a test finds on its device: photos of Python's golden vectors, and the bundle that it was given. */
final class Given {
    private Given() {}

    private static File home() {
        return new File(System.getProperty("refocus.golden"));
    }

    /** Where pictures and documents go that outlive the test. */
    static File out() {
        return new File(System.getProperty("refocus.out"));
    }

    /** The first golden photos, served as documents of another app. */
    static List<Uri> photos(File folder, int count) throws IOException {
        File[] files = new File(home(), "golden/photos").listFiles();
        Arrays.sort(files);
        Folder.serve(folder);
        List<Uri> found = new ArrayList<>();
        for (File file : Arrays.asList(files).subList(0, count)) {
            Files.copy(file.toPath(), new File(folder, file.getName()).toPath());
            found.add(Folder.document(file.getName()));
        }
        return found;
    }

    /** Makes the native library loadable: each class loader of Robolectric's needs a file of its own. */
    static void library() throws IOException {
        File copy = File.createTempFile("head", ".so");
        Files.copy(new File(System.getProperty("refocus.head")).toPath(), copy.toPath(), StandardCopyOption.REPLACE_EXISTING);
        System.setProperty("refocus.head", copy.getPath());
    }

    /** A file of a format that no decoder knows. */
    static Uri heic(File folder, String name) throws IOException {
        byte[] content = new byte[4096];
        byte[] box = {0, 0, 0, 24, 'f', 't', 'y', 'p', 'h', 'e', 'i', 'c', 0, 0, 0, 0, 'm', 'i', 'f', '1', 'h', 'e', 'i', 'c'};
        System.arraycopy(box, 0, content, 0, box.length);
        Files.write(new File(folder, name).toPath(), content);
        return Folder.document(name);
    }

    /** What Python decoded of a golden photo, upright. */
    static Bitmap decoded(Uri photo) {
        String name = photo.getLastPathSegment().replaceAll("\\.\\w+$", ".png");
        return BitmapFactory.decodeFile(new File(home(), "golden/decoded/" + name).getPath());
    }

    static PhotoRows rows(Bitmap picture) {
        return new PhotoRows() {
            @Override
            public int width() {
                return picture.getWidth();
            }

            @Override
            public int height() {
                return picture.getHeight();
            }

            @Override
            public int orientation() {
                return 1;
            }

            @Override
            public void readInto(Resizer resizer) {
                int[] row = new int[picture.getWidth()];
                for (int y = 0; y < picture.getHeight(); y++) {
                    picture.getPixels(row, 0, row.length, 0, y, row.length, 1);
                    resizer.row(row, 0);
                }
            }
        };
    }

    /** Raises anything, also where the compiler expects something else. */
    @SuppressWarnings("unchecked")
    static <E extends Throwable> void raise(Throwable error) throws E {
        throw (E) error;
    }

    /** A file of the bundle, changed. */
    interface Change {
        byte[] of(String name, byte[] content) throws IOException;
    }

    /** The bundle as a zip among the documents. */
    static Uri bundle(File folder, String name, Change change) throws IOException {
        try (ZipOutputStream zip = new ZipOutputStream(Files.newOutputStream(new File(folder, name).toPath()))) {
            pack(new File(home(), "bundle"), "", zip, change);
        }
        return Folder.document(name);
    }

    private static void pack(File folder, String prefix, ZipOutputStream zip, Change change) throws IOException {
        for (File file : folder.listFiles()) {
            if (file.isDirectory()) {
                pack(file, prefix + file.getName() + "/", zip, change);
            } else {
                zip.putNextEntry(new ZipEntry(prefix + file.getName()));
                zip.write(change.of(file.getName(), Files.readAllBytes(file.toPath())));
            }
        }
    }
}
