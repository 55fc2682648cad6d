package refocus.recognizer;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.Assume;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** A native head that cannot serve: one message says why, and the stock head answers. */
public class NativeHeadTest {
    /** Beside the library of {@code -Drefocus.head}: the same of another version. */
    private static final String OTHER_VERSION = "other_version.so";
    // Members of the configuration.
    private static final int ROWS = 8;
    private static final int CLASSES = 9;
    private static final SelfTest.Decoder DECODER = new SelfTest.Decoder() {
        @Override
        public PhotoRows decode(byte[] content, String where) throws PhotoException {
            try {
                return Golden.image(content, Exif.orientation(content));
            } catch (IOException error) {
                throw new PhotoException(where + " cannot be decoded", error);
            }
        }
    };
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();
    private float[] expected; // of the stock head

    private static Golden golden() throws Exception {
        Assume.assumeTrue(NativeHead.missing(), NativeHead.missing().isEmpty());
        return Golden.withNativeHead();
    }

    private static Artifact artifact(Golden golden) throws Exception {
        return golden.bundle.artifact("head", Golden.NATIVE, "");
    }

    @Test
    public void theNativeHeadOfABundleServesUnlessAnotherIsAskedFor() throws Exception {
        Golden golden = golden();
        try (Recognizer chosen = new Recognizer(golden.bundle, "", 1);
                Recognizer stock = new Recognizer(golden.bundle, "", Golden.TARGET, 1)) {
            assertEquals(Golden.NATIVE, chosen.headTarget);
            assertEquals("", chosen.passedOver);
            assertTrue(SelfTest.require(chosen, DECODER).photos > 0);
            assertEquals(Golden.TARGET, stock.headTarget);
            assertEquals("", stock.passedOver);
        }
        System.out.println("the native head runs on " + NativeHead.ranOn());
    }

    /**
     * 16-bit weights, and 8-bit classifiers: answers as near as the precision allows, with a history. Both round numbers
     * in proportion to their size, so an answer may be off by a share of its largest logit; a few, whose weight between
     * the two classifiers changes as well, by more.
     */
    @Test
    public void otherPrecisionsAnswerNearTheStockHead() throws Exception {
        Golden golden = golden();
        Fields sequence = golden.sequences.get(0);
        String head = sequence.string("head");
        List<Fields> steps = sequence.objects("steps");
        String[] targets = {"native:w16", "native:w8"};
        float[] bounds = {0.001f, 0.02f};
        for (int kind = 0; kind < targets.length; kind++) {
            Assume.assumeTrue("no head for " + targets[kind], golden.offers(head, targets[kind]));
            float[] off = new float[steps.size()];
            try (Recognizer recognizer = new Recognizer(golden.bundle, head, golden.target, targets[kind], 1)) {
                FileHistory history = new FileHistory(new File(scratch.newFolder(), "p.history"), sequence.size("capacity", 1),
                        FileHistory.MAX_BYTES);
                recognizer.switchTo(history, null);
                for (int i = 0; i < steps.size(); i++) {
                    golden.erase(history, steps.get(i));
                    int photo = steps.get(i).size("photo", 0);
                    FloatBuffer pixels = FloatBuffer.wrap(golden.row("pixels", photo));
                    Answer answer = recognizer.recognizePixels(pixels, golden.photo(photo), "",
                            steps.get(i).flag("remember", true));
                    float[] stock = golden.row(head + ".logits", i);
                    off[i] = Golden.largest(stock, answer.logits) / Golden.largest(stock, new float[stock.length]);
                }
                SelfTest.Verdict verdict = SelfTest.require(recognizer, DECODER);
                assertTrue("" + verdict, verdict.photos > 0);
            }
            Arrays.sort(off);
            float most = off[off.length * 9 / 10];
            float all = off[off.length - 1];
            System.out.println(targets[kind] + ": logits within " + most + ", all within " + all + " of the largest");
            assertTrue(targets[kind] + ": logits off by " + most + " of the largest", most <= bounds[kind]);
            assertTrue(targets[kind] + ": logits off by " + all + " of the largest", all <= 10 * bounds[kind]);
        }
    }

    /** A file that was changed after the bundle had been verified. */
    @Test
    public void aWeightFileThatWasChangedIsNotUsed() throws Exception {
        Golden golden = golden();
        File folder = Bundles.copied(golden, scratch.newFolder());
        Bundle bundle = Bundle.load(folder);
        File file = artifact(golden).file.in(folder);
        byte[] content = Files.readAllBytes(file.toPath());
        for (int at : new int[] {0, 9, content.length / 2, content.length - 1}) {
            byte[] flipped = content.clone();
            flipped[at] ^= 1;
            Files.write(file.toPath(), flipped);
            stockServes(golden, bundle, "SHA-256 differs from the manifest; import the bundle again");
        }
        for (int length : new int[] {0, 7, 100, content.length - 1}) {
            Files.write(file.toPath(), Arrays.copyOf(content, length));
            stockServes(golden, bundle, "SHA-256 differs from the manifest; import the bundle again");
        }
        assertTrue(file.delete());
        stockServes(golden, bundle, "cannot be read");
    }

    @Test
    public void aConfigurationThatIsWrongIsRefused() throws Exception {
        Golden golden = golden();
        long[] config = config(golden);
        Object[][] changes = { // member, value, words of the message
            {0, 2L, "has version 2 of the native head's layout, this app reads 1"},
            {0, 0L, "has version 0 of the native head's layout"},
            {1, 5L, "member 1 of its configuration is 5, out of range"},
            {2, -1L, "member 2 of its configuration is -1, out of range"},
            {2, Long.MAX_VALUE, "member 2 of its configuration is " + Long.MAX_VALUE + ", out of range"},
            {CLASSES, config[CLASSES] + 16, "numbers, a head of its configuration has"},
            // A head for one history photo more, which would be read past the end of the history.
            {ROWS, config[ROWS] + 1, "takes history of shape [1, " + (config[ROWS] + 1) + ", "},
            {CLASSES, 0L, "member 9 of its configuration is 0, out of range"},
        };
        for (Object[] change : changes) {
            long[] wrong = config.clone();
            wrong[(Integer) change[0]] = (Long) change[1];
            stockServes(golden, rewritten(golden, integers("config", wrong)), (String) change[2]);
        }
        stockServes(golden, rewritten(golden, integers("config", Arrays.copyOf(config, 15))), "is no head of this layout");
    }

    @Test
    public void tensorsOfOtherTypesAndLengthsAreRefused() throws Exception {
        Golden golden = golden();
        TensorFile.Values floats = tensors(golden).get("floats");
        int count = (int) floats.shape()[0];
        ByteBuffer shorter = floats.bytes();
        shorter.limit(4 * (count - 16));
        ByteBuffer pairs = floats.bytes();
        stockServes(golden, rewritten(golden, new TensorFile.Values("floats", "F32", new long[] {count - 16}, shorter.slice())),
                "floats has " + (count - 16) + " numbers, a head of its configuration has " + count);
        stockServes(golden, rewritten(golden, new TensorFile.Values("floats", "F16", new long[] {2L * count}, pairs)),
                "expected F32 of 1 axes");
        stockServes(golden, rewritten(golden, new TensorFile.Values("floats", "F32", new long[] {count, 1}, pairs)),
                "expected F32 of 1 axes");
        stockServes(golden, rewritten(golden, new TensorFile.Values("floats", "F32", null, pairs)),
                "tensor floats is null, expected F32");
        stockServes(golden, bundle(golden, "no tensors".getBytes("UTF-8")), "holds no tensors");
    }

    @Test
    public void withoutALibraryOfThisVersionTheStockHeadServes() throws Exception {
        Golden golden = golden();
        File library = new File(System.getProperty("refocus.head", ""));
        File other = new File(library.getParentFile(), OTHER_VERSION);
        File text = new File(scratch.getRoot(), "text.so");
        Files.write(text.toPath(), "no library".getBytes("UTF-8"));
        assertEquals(Golden.NATIVE + " ", served(golden, library));
        String[] found = {served(golden, new File(scratch.getRoot(), "nowhere.so")), served(golden, text), served(golden, null)};
        for (String each : found) {
            assertTrue(each, each.startsWith(Golden.TARGET + " ") && each.contains("this app has no library of the native head"));
        }
        Assume.assumeTrue("no library of another version is beside " + library, other.isFile());
        String said = served(golden, other);
        assertTrue(said, said.startsWith(Golden.TARGET + " ") && said.contains("has version 9, this app needs 1"));
    }

    /** Which head serves in a new process with that library, and why no other does; null: with that of the system. */
    private String served(Golden golden, File library) throws Exception {
        Process process = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp",
                System.getProperty("java.class.path"), "-Djava.io.tmpdir=" + System.getProperty("java.io.tmpdir"),
                "-Drefocus.head=" + (library == null ? "" : library.getPath()), Serving.class.getName(),
                golden.bundle.folder.getPath()).redirectErrorStream(true).start();
        BufferedReader out = new BufferedReader(new InputStreamReader(process.getInputStream(), "UTF-8"));
        String said = null;
        for (String line = out.readLine(); line != null; line = out.readLine()) {
            said = line;
        }
        assertEquals(said, 0, process.waitFor());
        return said;
    }

    /** Loads a bundle and says which head serves. */
    public static final class Serving {
        private Serving() {}

        public static void main(String[] arguments) throws Exception {
            try (Recognizer recognizer = new Recognizer(Bundle.load(new File(arguments[0])), "", 1)) {
                System.out.println(recognizer.headTarget + " " + recognizer.passedOver);
            }
        }
    }

    /** The stock head answers as if it had been asked for, and one line says why the native one does not. */
    private void stockServes(Golden golden, Bundle bundle, String words) throws Exception {
        if (expected == null) {
            try (Recognizer stock = new Recognizer(golden.bundle, "", Golden.TARGET, 1)) {
                expected = logits(golden, stock);
            }
        }
        try (Recognizer left = new Recognizer(bundle, "", 1)) {
            assertEquals(words, Golden.TARGET, left.headTarget);
            assertTrue(left.passedOver, left.passedOver.contains(words) && left.passedOver.contains(artifact(golden).file.path));
            assertFalse(left.passedOver, left.passedOver.contains("\n"));
            assertArrayEquals(expected, logits(golden, left), 0f);
        }
    }

    private static float[] logits(Golden golden, Recognizer recognizer) throws Exception {
        return recognizer.recognizePixels(FloatBuffer.wrap(golden.row("pixels", 0)), golden.photo(0), "", false).logits;
    }

    private static Map<String, TensorFile.Values> tensors(Golden golden) throws Exception {
        return TensorFile.decode(golden.bundle.read(artifact(golden).file), "weights").tensors;
    }

    private static long[] config(Golden golden) throws Exception {
        TensorFile.Values values = tensors(golden).get("config");
        long[] config = new long[(int) values.shape()[0]];
        values.bytes().asLongBuffer().get(config);
        return config;
    }

    private static TensorFile.Values integers(String name, long[] numbers) {
        ByteBuffer bytes = ByteBuffer.allocate(8 * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asLongBuffer().put(numbers);
        return new TensorFile.Values(name, "I64", new long[] {numbers.length}, bytes);
    }

    /** A bundle, whole by its manifest, with another tensor in the weight file; one without a shape is left out. */
    private Bundle rewritten(Golden golden, TensorFile.Values changed) throws Exception {
        Map<String, TensorFile.Values> tensors = new LinkedHashMap<String, TensorFile.Values>(tensors(golden));
        tensors.put(changed.name, changed);
        if (changed.toString().endsWith("null")) {
            tensors.remove(changed.name);
        }
        return bundle(golden, TensorFile.encode(tensors));
    }

    /** A bundle, whole by its manifest, with another weight file. */
    private Bundle bundle(Golden golden, byte[] content) throws Exception {
        ListedFile listed = artifact(golden).file;
        File folder = Bundles.copied(golden, scratch.newFolder());
        Files.write(listed.in(folder).toPath(), content);
        File manifest = new File(folder, Bundle.MANIFEST);
        Bundles.change(manifest, listed.sha256, Hashes.sha256(content));
        Bundles.change(manifest, "\"size_bytes\": " + listed.sizeBytes, "\"size_bytes\": " + content.length);
        return Bundle.load(folder);
    }
}
