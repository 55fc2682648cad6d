package refocus.recognizer;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.awt.image.BufferedImage;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import javax.imageio.ImageIO;
import org.junit.Assume;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** What Python decided, this decides, from the same pixels: photo by photo, over a history on disk. */
public class GoldenTest {
    private static final float TOLERANCE = 1e-4f;
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();

    @Test
    public void pixelsAreTheSameToTheBitFromTheSameDecodedPhoto() throws Exception {
        for (Golden golden : Golden.all()) {
            Preprocessing contract = golden.bundle.manifest.preprocessing;
            for (int i = 0; i < golden.photos.size(); i++) {
                assertArrayEquals(golden.name + " " + i, golden.row("pixels", i), prepared(contract,
                        golden.decoded(i)), 0f);
            }
        }
    }

    @Test
    public void anExifTurnIsTheTurnThatPythonMakes() throws Exception {
        for (Golden golden : Golden.all()) {
            Preprocessing contract = golden.bundle.manifest.preprocessing;
            for (int turn = 1; turn <= 8; turn++) {
                for (int i = 0; i < golden.photos.size(); i += 5) {
                    PhotoRows turned = Turns.stored(golden.picture(i), turn);
                    assertArrayEquals("orientation " + turn, golden.row("pixels", i), prepared(contract, turned), 0f);
                }
            }
        }
    }

    static float[] prepared(Preprocessing contract, PhotoRows rows) throws Exception {
        Resizer resizer = new Resizer(contract, rows.width(), rows.height(), rows.orientation());
        rows.readInto(resizer);
        FloatBuffer input = FloatBuffer.allocate(3 * contract.crop * contract.crop);
        new Normaliser(contract).write(resizer.finish(), input);
        return input.array();
    }

    @Test
    public void everySequenceIsDecidedAsPythonDecidedIt() throws Exception {
        for (Golden golden : Golden.all()) {
            for (Fields sequence : golden.sequences) {
                String head = sequence.string("head");
                boolean personal = sequence.flag("personal", false);
                File person = new File(golden.folder, "person." + head + ".safetensors");
                PersonalInputs inputs = personal ? PersonalInputs.of(
                        TensorFile.decode(Golden.bytes(person), person.getPath()), "person", golden.bundle, head,
                        golden.target) : null;
                int capacity = sequence.size("capacity", 1);
                Recognizer recognizer = new Recognizer(golden.bundle, head, golden.target, 1);
                try {
                    File file = new File(scratch.newFolder(), "golden.history");
                    replay(golden, sequence, recognizer, file, capacity, inputs, personal ? head + ".personal" : head, "");
                } finally {
                    recognizer.close();
                }
            }
        }
    }

    @Test
    public void theNativeHeadDecidesEverySequenceAsPythonDidToo() throws Exception {
        Assume.assumeTrue(NativeHead.missing(), NativeHead.missing().isEmpty());
        int heads = 0;
        for (Golden golden : Golden.all()) {
            for (Fields sequence : golden.sequences) {
                String head = sequence.string("head");
                if (sequence.flag("personal", false) || !golden.offers(head, Golden.NATIVE)) {
                    continue;
                }
                Recognizer recognizer = new Recognizer(golden.bundle, head, golden.target, Golden.NATIVE, 1);
                try {
                    int capacity = sequence.size("capacity", 1);
                    File file = new File(scratch.newFolder(), "golden.history");
                    replay(golden, sequence, recognizer, file, capacity, null, head, "/" + Golden.NATIVE);
                    heads++;
                } finally {
                    recognizer.close();
                }
            }
        }
        Assume.assumeTrue("no golden vectors of a bundle with a native head", heads > 0);
    }

    private void replay(Golden golden, Fields sequence, Recognizer recognizer, File file, int capacity,
            PersonalInputs inputs, String key, String by) throws Exception {
        FileHistory history = new FileHistory(file, capacity, FileHistory.MAX_BYTES);
        recognizer.switchTo(history, inputs);
        assertEquals(sequence.string("space"), recognizer.space());
        List<Fields> steps = sequence.objects("steps");
        int photos = 0;
        int unknown = 0;
        int moved = 0;
        float features = 0;
        float logits = 0;
        float attention = 0;
        for (int i = 0; i < steps.size(); i++) {
            Fields step = steps.get(i);
            int photo = step.size("photo", 0);
            if (step.flag("restart", false)) {
                recognizer.switchTo(null, null);
                history = new FileHistory(file, capacity, FileHistory.MAX_BYTES);
                recognizer.switchTo(history, inputs);
            }
            golden.erase(history, step);
            FloatBuffer pixels = FloatBuffer.wrap(golden.row("pixels", photo));
            Answer answer = recognizer.recognizePixels(pixels, golden.photo(photo), "", step.flag("remember", true));
            String where = golden.name + " " + key + " step " + i;
            assertEquals(where, step.string("label"), answer.labels.get(0));
            assertEquals(where, step.strings("history"), answer.history.photos());
            assertEquals(where, step.number("trust"), answer.trust, TOLERANCE);
            assertEquals(where, step.number("score"), answer.knownScore(), 1e-3);
            assertEquals(where, step.flag("known", true), answer.isKnown());
            unknown += answer.isKnown() ? 0 : 1;
            moved += answer.labels.get(0).equals(answer.plainLabel()) ? 0 : 1;
            features = Math.max(features, Golden.largest(golden.row(key + ".features", photo), answer.feature));
            logits = Math.max(logits, Golden.largest(golden.row(key + ".logits", i), answer.logits));
            float[] expected = golden.row(key + ".attention", i);
            float[] padded = new float[expected.length];
            System.arraycopy(answer.attention, 0, padded, padded.length - answer.attention.length, answer.attention.length);
            attention = Math.max(attention, Golden.largest(expected, padded));
            if (answer.history.size() == 0 && recognizer.card.window > 0 && recognizer.card.shares == null) {
                assertEquals("with no history the photo alone answers", 0f, answer.trust, 0f);
                assertEquals(answer.plainLabel(), answer.labels.get(0));
                assertEquals(answer.plainProbability(), answer.probabilities[0], 1e-5f);
            }
            photos++;
        }
        System.out.println("golden " + golden.name + " " + key + by + ": " + photos + " decisions as in Python, " + unknown
                + " unknown, " + moved + " moved by the history; features within " + features + ", logits " + logits + ", attention " + attention);
        assertTrue(key + ": features off by " + features, features <= TOLERANCE);
        assertTrue(key + ": logits off by " + logits, logits <= 1e-3f);
        assertTrue(key + ": attention off by " + attention, attention <= TOLERANCE);
    }

    /** What pages show: every photo of an album, with those beside it. */
    @Test
    public void everyAlbumIsAnsweredAsPythonAnsweredIt() throws Exception {
        for (Golden golden : Golden.all()) {
            for (Fields sequence : golden.sequences) {
                if (!sequence.flag("personal", false)) {
                    album(golden, sequence, sequence.string("head"));
                }
            }
        }
    }

    private void album(Golden golden, Fields sequence, String head) throws Exception {
        Recognizer recognizer = new Recognizer(golden.bundle, head, golden.target, 1);
        FileHistory index = new FileHistory(new File(scratch.newFolder(), "index"), 4096, FileHistory.MAX_BYTES);
        List<String> photos = new ArrayList<String>();
        for (int i = 0; i < golden.photos.size(); i++) {
            index.append(recognizer.space(), golden.photo(i), "", golden.row(head + ".features", i));
            photos.add(golden.photo(i));
        }
        List<Fields> expected = sequence.objects("album");
        Map<String, Answer> answers = new Album(recognizer, index).answers(photos);
        float logits = 0;
        int known = 0;
        assertEquals(photos.size(), expected.size());
        for (int i = 0; i < photos.size(); i++) {
            Answer answer = answers.get(photos.get(i));
            String where = golden.name + " " + head + " album " + i;
            assertEquals(where, expected.get(i).string("label"), answer.labels.get(0));
            assertEquals(where, expected.get(i).flag("recognised", true), answer.isKnown());
            assertEquals(where, expected.get(i).strings("beside"), answer.history.photos());
            assertEquals(where, expected.get(i).number("trust"), answer.trust, TOLERANCE);
            logits = Math.max(logits, Golden.largest(golden.row(head + ".album_logits", i), answer.logits));
            known += answer.isKnown() ? 1 : 0;
        }
        index.close();
        recognizer.close();
        System.out.println("golden " + golden.name + " " + head + ": album of " + photos.size() + " as in Python, " + known
                + " of them known; logits within " + logits);
        assertTrue(head + ": logits off by " + logits, logits <= 1e-3f);
    }

    /** Squares of 32, 96 and 224 pixels, three filters, 12 megapixels: from what Python decoded of every format. */
    @Test
    public void everyFormatIsPreparedToTheBitForEveryCrop() throws Exception {
        for (Golden golden : Golden.all()) {
            for (int format = 0; format < golden.formats.size(); format++) {
                Fields entry = golden.formats.get(format);
                for (int contract = 0; contract < golden.contracts.size(); contract++) {
                    Preprocessing by = golden.contracts.get(contract);
                    assertArrayEquals(entry.string("kind") + " " + contract, golden.row("formats." + contract, format),
                            prepared(by, golden.decoded(entry, by)), 0f);
                }
            }
        }
    }

    /** The orientation is our own code, whoever decodes: JPEG, PNG and WebP, EXIF and XMP. */
    @Test
    public void theOrientationOfEveryFormatIsThatOfPython() throws Exception {
        Map<String, Integer> turned = new HashMap<String, Integer>();
        turned.put("jpeg-xmp-turned", 8);
        turned.put("jpeg-turned", 7);
        turned.put("png-turned", 6);
        turned.put("webp-turned", 6);
        for (Golden golden : Golden.all()) {
            for (Fields format : golden.formats) {
                byte[] content = Golden.bytes(new File(golden.folder, format.string("file")));
                String kind = format.string("kind");
                assertEquals(kind, turned.containsKey(kind) ? turned.get(kind) : 1, Exif.orientation(content));
            }
        }
    }

    /** Decoders of JPEG may round otherwise, within the bound that the golden vectors state; all else is exact. */
    @Test
    public void thisJvmsDecoderIsWithinTheBoundOfEveryFormatThatItKnows() throws Exception {
        for (Golden golden : Golden.all()) {
            StringBuilder said = new StringBuilder();
            StringBuilder apart = new StringBuilder();
            int known = 0;
            for (int i = 0; i < golden.formats.size(); i++) {
                Fields format = golden.formats.get(i);
                PhotoRows rows = decoded(golden, format);
                if (rows != null) {
                    double off = off(golden, i, rows, false);
                    said.append(String.format(Locale.ROOT, ", %s %.1f", format.string("kind"), off));
                    assertTrue(format.string("kind") + " off by " + off, within(format, off));
                    if (format.string("kind").startsWith("jpeg")) {
                        apart.append(String.format(Locale.ROOT, ", %s %.1f", format.string("kind"), off(golden, i, rows, true)));
                    }
                    known++;
                }
            }
            System.out.println("decoder " + golden.name + ": of " + known + " formats, levels of 255 off by at most" + said);
            System.out.println("decoder " + golden.name + ": decoded at full size where the contract has a reduced one, off by at most"
                    + apart);
            assertTrue(golden.formats.isEmpty() || known >= 7);
        }
    }

    /** Controls: decoders that leave something out. Each is caught by the bound, or the bound says nothing. */
    @Test
    public void aDecoderThatDiffersByMoreThanTheBoundFails() throws Exception {
        for (Golden golden : Golden.all()) {
            for (int i = 0; i < golden.formats.size(); i++) {
                Fields format = golden.formats.get(i);
                BufferedImage right = ImageIO.read(new File(golden.folder, format.string("decoded")));
                String kind = format.string("kind");
                if (kind.contains("12-megapixels")) {
                    continue; // of the same bound as the others, and each control decodes and resizes it again
                }
                for (int j = 0; j < golden.contracts.size(); j++) {
                    Preprocessing contract = golden.contracts.get(j);
                    assertTrue(kind + " as Python has it", within(format, contract.levels(golden.row("formats." + j, i),
                            prepared(contract, golden.decoded(format, contract)))));
                }
                assertTrue(kind + " brighter", !within(format, off(golden, i, changed(right, "brighter"))));
                if (!kind.contains("grey")) {
                    assertTrue(kind + " red and blue exchanged", !within(format, off(golden, i, changed(right, "exchanged"))));
                }
                assertTrue(kind + " at half its size", !within(format, off(golden, i, changed(right, "halved"))));
                assertTrue(kind + " turned", !within(format, off(golden, i, changed(right, "turned"))));
            }
        }
    }

    private static PhotoRows decoded(Golden golden, Fields format) throws Exception {
        String kind = format.string("kind");
        // What javax.imageio cannot decode, or converts: grey goes through a linear colour space. Android's decoder is
        // held against all of them (FormatsTest).
        boolean unknown = kind.startsWith("webp") || kind.contains("cmyk") || kind.contains("grey") || kind.contains("icc")
                || kind.contains("palette-transparent");
        if (unknown) {
            return null;
        }
        byte[] content = Golden.bytes(new File(golden.folder, format.string("file")));
        return Golden.image(content, Exif.orientation(content));
    }

    private static double off(Golden golden, int format, BufferedImage picture) throws Exception {
        PhotoRows rows = Golden.rows(picture, 1);
        return Math.max(off(golden, format, rows, false), off(golden, format, rows, true));
    }

    /**
     * The largest difference of a prepared pixel in levels of 255, over the contracts by which Python decodes the file at
     * full size, or over the others.
     */
    private static double off(Golden golden, int format, PhotoRows rows, boolean reduced) throws Exception {
        boolean jpeg = golden.formats.get(format).string("kind").startsWith("jpeg");
        double found = 0;
        for (int i = 0; i < golden.contracts.size(); i++) {
            Preprocessing contract = golden.contracts.get(i);
            if (reduced == (jpeg && contract.scale(rows.width(), rows.height()) > 1)) {
                found = Math.max(found, contract.levels(golden.row("formats." + i, format), prepared(contract, rows)));
            }
        }
        return found;
    }

    private static boolean within(Fields format, double off) {
        return off <= format.number("levels") + 0.01;
    }

    private static BufferedImage changed(BufferedImage right, String how) {
        int w = right.getWidth();
        int h = right.getHeight();
        BufferedImage found = new BufferedImage(w, h, BufferedImage.TYPE_INT_RGB);
        for (int y = 0; y < h; y++) {
            for (int x = 0; x < w; x++) {
                int from = how.equals("halved") ? right.getRGB(x / 4 * 4, y / 4 * 4)
                        : how.equals("turned") ? right.getRGB(w - 1 - x, h - 1 - y) : right.getRGB(x, y);
                int red = from >> 16 & 255;
                int green = from >> 8 & 255;
                int blue = from & 255;
                if (how.equals("brighter")) {
                    red = Math.min(255, red + 25);
                    green = Math.min(255, green + 25);
                    blue = Math.min(255, blue + 25);
                } else if (how.equals("exchanged")) {
                    int was = red;
                    red = blue;
                    blue = was;
                }
                found.setRGB(x, y, red << 16 | green << 8 | blue);
            }
        }
        return found;
    }
}
