package refocus.recognizer;

import static org.junit.Assert.assertTrue;

import java.awt.image.BufferedImage;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import javax.imageio.ImageIO;
import org.junit.Assume;

/**
 * Golden vectors that the Python runtime wrote, each beside its bundle: {@code -Drefocus.golden} names folders that hold
 * {@code bundle/} and {@code golden/}, separated by commas.
 */
final class Golden {
    static final String TARGET = "onnxruntime:fp32";
    static final String NATIVE = "native:fp32";
    final String name;
    /** Of the bundle, whose answers these are. */
    final String target;
    final File folder;
    final Bundle bundle;
    final Fields json;
    final List<Fields> photos;
    final List<Fields> sequences;
    /** Files of other kinds, each with its bound, and the preprocessings that they are prepared by. */
    final List<Fields> formats;
    final List<Preprocessing> contracts = new ArrayList<Preprocessing>();
    final Map<String, TensorFile.Values> tensors;

    private Golden(File home) throws Exception {
        name = home.getName();
        folder = new File(home, "golden");
        bundle = Bundle.load(new File(home, "bundle"));
        json = Fields.of(Json.parse(bytes(new File(folder, "golden.json"))), "golden");
        photos = json.objects("photos");
        sequences = json.objects("sequences");
        target = json.string("target");
        formats = json.objectsIfAny("formats");
        for (Fields contract : json.objectsIfAny("contracts")) {
            contracts.add(new Preprocessing(contract));
        }
        File file = new File(folder, "golden.safetensors");
        tensors = TensorFile.decode(bytes(file), file.getPath()).tensors;
        assertTrue("golden vectors of another bundle", json.string("manifest_sha256").equals(bundle.sha256));
    }

    /** All that were given; the test is skipped, saying why, where none were. */
    static List<Golden> all() throws Exception {
        String given = System.getProperty("refocus.golden", "");
        boolean some = !given.isEmpty() && !given.startsWith("$");
        Assume.assumeTrue("no golden vectors: -Drefocus.golden names none", some);
        List<Golden> found = new ArrayList<Golden>();
        for (String home : given.split(",")) {
            found.add(new Golden(new File(home)));
        }
        return found;
    }

    /** The first whose first head has a form; the test is skipped where there is none. */
    static Golden withForm(String... forms) throws Exception {
        for (Golden golden : all()) {
            for (String form : forms) {
                if (golden.bundle.manifest.heads.get(0).form.equals(form)) {
                    return golden;
                }
            }
        }
        Assume.assumeTrue("no golden vectors of a head of that form", false);
        throw new IllegalStateException();
    }

    /** The first of a bundle that has a native head; the test is skipped where there is none. */
    static Golden withNativeHead() throws Exception {
        for (Golden golden : all()) {
            if (golden.offers(golden.bundle.manifest.heads.get(0).name, NATIVE)) {
                return golden;
            }
        }
        Assume.assumeTrue("no golden vectors of a bundle with a native head", false);
        throw new IllegalStateException();
    }

    /** Whether the bundle has a program of that target for a head. */
    boolean offers(String head, String wanted) {
        for (Artifact artifact : bundle.manifest.artifacts) {
            if (artifact.target.equals(wanted) && artifact.head.equals(head)) {
                return true;
            }
        }
        return false;
    }

    String photo(int number) {
        return photos.get(number).string("sha256");
    }

    /** Erases the photos that are erased before a step. */
    void erase(FileHistory history, Fields step) throws HistoryException {
        for (double number : step.numbers("erased", 0, photos.size())) {
            history.erase(photo((int) number));
        }
    }

    /** The numbers of one row of a tensor. */
    float[] row(String tensor, int number) {
        TensorFile.Values values = tensors.get(tensor);
        int size = (int) (TensorSpec.count(values.shape()) / values.shape()[0]);
        float[] found = new float[size];
        java.nio.FloatBuffer numbers = values.bytes().asFloatBuffer();
        numbers.position(number * size);
        numbers.get(found);
        return found;
    }

    /** What Python decoded of a photo for the bundle. */
    PhotoRows decoded(int number) throws Exception {
        return decoded(photos.get(number), bundle.manifest.preprocessing);
    }

    /**
     * What Python decoded of a file, for one contract: upright at full size; or, where a JPEG is decoded at a reduced
     * size, those pixels as the file stores them.
     *
     * @param entry of {@link #photos} or {@link #formats}
     */
    PhotoRows decoded(Fields entry, Preprocessing contract) throws Exception {
        byte[] content = bytes(new File(folder, entry.string("file")));
        final BufferedImage whole = ImageIO.read(new File(folder, entry.string("decoded")));
        final int scale = contract.scale(whole.getWidth(), whole.getHeight());
        if (scale == 1 || content[0] != (byte) 0xFF || content[1] != (byte) 0xD8) {
            return rows(whole, 1);
        }
        File file = new File(folder, entry.string("decoded").replaceFirst("png$", scale + ".png"));
        final PhotoRows stored = rows(ImageIO.read(file), Exif.orientation(content));
        final boolean swapped = stored.orientation() >= 5;
        return new PhotoRows() {
            @Override
            public int width() {
                return swapped ? whole.getHeight() : whole.getWidth();
            }

            @Override
            public int height() {
                return swapped ? whole.getWidth() : whole.getHeight();
            }

            @Override
            public int orientation() {
                return stored.orientation();
            }

            @Override
            public void readInto(Resizer resizer) throws PhotoException {
                resizer.scaled(scale);
                stored.readInto(resizer);
            }
        };
    }

    /** As {@link #decoded}, as a picture. */
    BufferedImage picture(int number) throws Exception {
        return ImageIO.read(new File(folder, photos.get(number).string("decoded")));
    }

    static byte[] bytes(File file) throws IOException {
        return Files.readAllBytes(file.toPath());
    }

    static PhotoRows image(byte[] content, int orientation) throws IOException {
        BufferedImage image = ImageIO.read(new ByteArrayInputStream(content));
        if (image == null) {
            throw new IOException("no decoder for it");
        }
        return rows(image, orientation);
    }

    /** A picture in memory as a photo. */
    static PhotoRows rows(final BufferedImage image, final int orientation) {
        return new PhotoRows() {
            @Override
            public int width() {
                return image.getWidth();
            }

            @Override
            public int height() {
                return image.getHeight();
            }

            @Override
            public int orientation() {
                return orientation;
            }

            @Override
            public void readInto(Resizer resizer) {
                int[] row = new int[image.getWidth()];
                for (int y = 0; y < image.getHeight(); y++) {
                    image.getRGB(0, y, row.length, 1, row, 0, row.length);
                    resizer.row(row, 0);
                }
            }
        };
    }

    static float largest(float[] one, float[] other) {
        assertTrue("as many numbers", one.length == other.length);
        float found = 0;
        for (int i = 0; i < one.length; i++) {
            float off = Math.abs(one[i] - other[i]);
            found = off <= found ? found : off; // what is not a number counts as largest
        }
        return found;
    }
}
