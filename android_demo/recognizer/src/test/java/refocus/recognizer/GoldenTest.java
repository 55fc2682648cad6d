package refocus.recognizer;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.nio.FloatBuffer;
import java.util.List;
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
                assertArrayEquals(golden.name + " " + i, golden.row("pixels", i), prepared(contract, golden.decoded(i)), 0f);
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
                        TensorFile.decode(Golden.bytes(person), person.getPath()), "person", golden.bundle, head) : null;
                int capacity = sequence.size("capacity", 1);
                Recognizer recognizer = new Recognizer(golden.bundle, head, 1);
                try {
                    File file = new File(scratch.newFolder(), "golden.history");
                    recognizer.switchTo(new FileHistory(file, capacity, FileHistory.MAX_BYTES), inputs);
                    assertEquals(sequence.string("space"), recognizer.space());
                    replay(golden, sequence, recognizer, file, capacity, inputs, personal ? head + ".personal" : head);
                } finally {
                    recognizer.close();
                }
            }
        }
    }

    private void replay(Golden golden, Fields sequence, Recognizer recognizer, File file, int capacity,
            PersonalInputs inputs, String key) throws Exception {
        List<Fields> steps = sequence.objects("steps");
        int photos = 0;
        float features = 0;
        float logits = 0;
        float attention = 0;
        for (int i = 0; i < steps.size(); i++) {
            Fields step = steps.get(i);
            int photo = step.size("photo", 0);
            if (step.flag("restart", false)) {
                recognizer.switchTo(null, null);
                recognizer.switchTo(new FileHistory(file, capacity, FileHistory.MAX_BYTES), inputs);
            }
            FloatBuffer pixels = FloatBuffer.wrap(golden.row("pixels", photo));
            Answer answer = recognizer.recognizePixels(pixels, golden.photo(photo), "", step.flag("remember", true));
            String where = golden.name + " " + key + " step " + i;
            assertEquals(where, step.string("label"), answer.labels.get(0));
            assertEquals(where, step.strings("history"), answer.history.photos());
            assertEquals(where, step.number("trust"), answer.trust, TOLERANCE);
            features = Math.max(features, Golden.largest(golden.row(key + ".features", photo), answer.feature));
            logits = Math.max(logits, Golden.largest(golden.row(key + ".logits", i), answer.logits));
            float[] expected = golden.row(key + ".attention", i);
            float[] padded = new float[expected.length];
            System.arraycopy(answer.attention, 0, padded, padded.length - answer.attention.length, answer.attention.length);
            attention = Math.max(attention, Golden.largest(expected, padded));
            if (answer.history.size() == 0 && recognizer.card.window > 0) {
                assertEquals("with no history the photo alone answers", 0f, answer.trust, 0f);
                assertEquals(answer.plainLabel(), answer.labels.get(0));
                assertEquals(answer.plainProbability(), answer.probabilities[0], 1e-5f);
            }
            photos++;
        }
        System.out.println("golden " + golden.name + " " + key + ": " + photos + " decisions as in Python; features within "
                + features + ", logits " + logits + ", attention " + attention);
        assertTrue(key + ": features off by " + features, features <= TOLERANCE);
        assertTrue(key + ": logits off by " + logits, logits <= 1e-3f);
        assertTrue(key + ": attention off by " + attention, attention <= TOLERANCE);
    }

    /** Not a promise: another JPEG decoder may round otherwise. The figure is told apart from the ones above. */
    @Test
    public void theJpegDecoderOfThePlatformIsReportedApart() throws Exception {
        for (Golden golden : Golden.all()) {
            float largest = 0;
            int jpegs = 0;
            for (int i = 0; i < golden.photos.size(); i++) {
                String file = golden.photos.get(i).string("file");
                if (!file.endsWith(".jpg")) {
                    continue;
                }
                byte[] content = Golden.bytes(new File(golden.folder, file));
                PhotoRows rows = Golden.image(content, Exif.orientation(content));
                largest = Math.max(largest, Golden.largest(golden.row("pixels", i),
                        prepared(golden.bundle.manifest.preprocessing, rows)));
                jpegs++;
            }
            if (jpegs > 0) {
                System.out.println("jpeg " + golden.name + ": " + jpegs + " photos through this JVM's decoder, input off by up"
                        + " to " + largest);
                assertTrue("another picture altogether, or turned otherwise: " + largest, largest < 2.0f);
            }
        }
    }
}
