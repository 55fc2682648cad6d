package refocus.recognizer;

import static org.junit.Assert.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.nio.file.Files;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;

/** Copies of bundles to be changed, and zips of them. */
final class Bundles {
    private Bundles() {}

    static File copied(Golden golden, File parent) throws Exception {
        File to = new File(parent, "bundle");
        for (String path : Hashes.filesBelow(golden.bundle.folder)) {
            File target = new File(to, path);
            target.getParentFile().mkdirs();
            Files.copy(new File(golden.bundle.folder, path).toPath(), target.toPath());
        }
        return to;
    }

    /** Changes the first place of a manifest that has some words. */
    static void change(File manifest, String from, String to) throws Exception {
        String text = new String(Files.readAllBytes(manifest.toPath()), "UTF-8");
        int at = text.indexOf(from);
        assertTrue("the manifest has " + from, at >= 0);
        Files.write(manifest.toPath(), (text.substring(0, at) + to + text.substring(at + from.length())).getBytes("UTF-8"));
    }

    static byte[] zip(File folder, String prefix, String more) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ZipOutputStream zip = new ZipOutputStream(out);
        if (more != null) {
            zip.putNextEntry(new ZipEntry(more));
            zip.write(1);
        }
        for (String path : Hashes.filesBelow(folder)) {
            zip.putNextEntry(new ZipEntry(prefix + path));
            zip.write(Files.readAllBytes(new File(folder, path).toPath()));
        }
        zip.close();
        return out.toByteArray();
    }
}
