package refocus.recognizer;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.Assume;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Bundles, tensor files and profiles are accepted and refused as docs/formats says; edge runs the same vectors. */
public class VectorsTest {
    /** What this reader does not support; a bundle that needs it is refused. */
    private static final List<String> UNSUPPORTED = Arrays.asList("bank", "clips", "sets", "upgrade");
    /** What this reader checks; what is wrong elsewhere it may accept. */
    private static final List<String> CHECKED = Arrays.asList("core", "shares");
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();

    private static Fields read(String name) throws Exception {
        File folder = new File(System.getProperty("refocus.vectors", "../../tests/formats/vectors"));
        return Fields.of(Json.parse(Files.readAllBytes(new File(folder, name + ".json").toPath())), name);
    }

    private static byte[] decoded(Object base64) {
        return Base64.getDecoder().decode((String) base64);
    }

    private static byte[] manifest(Fields about, Map<?, ?> bases) {
        if (about.has("base64")) {
            return decoded(about.string("base64"));
        }
        String base = (String) bases.get(about.string("base"));
        int at = about.size("at", 0);
        String made = base.substring(0, at) + about.string("text") + base.substring(at + about.size("cut", 0));
        return made.getBytes(StandardCharsets.UTF_8);
    }

    private static void put(File folder, Map<?, ?> files) throws Exception {
        for (Map.Entry<?, ?> file : files.entrySet()) {
            if (file.getValue() != null) {
                File path = new File(folder, (String) file.getKey());
                path.getParentFile().mkdirs();
                Files.write(path.toPath(), decoded(file.getValue()));
            }
        }
    }

    @Test
    public void bundles() throws Exception {
        Fields given = read("bundles");
        List<String> wrong = new ArrayList<String>();
        int count = 0;
        for (Fields vector : given.objects("vectors")) {
            File folder = scratch.newFolder();
            Map<Object, Object> files = new LinkedHashMap<Object, Object>(given.members("files"));
            files.putAll(vector.members("files"));
            put(folder, files);
            Files.write(new File(folder, Bundle.MANIFEST).toPath(), manifest(vector.object("manifest"), given.members("bases")));
            boolean supported = java.util.Collections.disjoint(vector.strings("needs"), UNSUPPORTED);
            boolean valid = vector.flag("valid", false) && supported;
            if (!valid && supported && !CHECKED.contains(vector.string("part"))) {
                continue;
            }
            count++;
            try {
                Bundle.load(folder);
                if (!valid) {
                    wrong.add(vector.string("name") + " was accepted: " + vector.string("rule"));
                }
            } catch (BundleException error) {
                if (valid) {
                    wrong.add(vector.string("name") + ": " + error.getMessage());
                }
            } catch (RuntimeException error) {
                wrong.add(vector.string("name") + ": " + error);
            }
        }
        assertEquals("", String.join("\n", wrong));
        assertTrue("there are vectors", count > 200);
    }

    @Test
    public void aBundleOfClipsIsRefusedInOneSentence() throws Exception {
        Fields given = read("bundles");
        for (Fields vector : given.objects("vectors")) {
            if (vector.string("name").equals("clips")) {
                File folder = scratch.newFolder();
                put(folder, given.members("files"));
                Files.write(new File(folder, Bundle.MANIFEST).toPath(), manifest(vector.object("manifest"), given.members("bases")));
                try {
                    Bundle.load(folder);
                } catch (BundleException error) {
                    assertTrue(error.getMessage(), error.getMessage().endsWith("manifest.json recognises clips of 3 frames, and this app"
                            + " recognises photos; import a bundle for photos"));
                    return;
                }
            }
        }
        assertTrue("the bundle of clips was accepted", false);
    }

    @Test
    public void tensorFiles() throws Exception {
        List<String> wrong = new ArrayList<String>();
        for (Fields vector : read("tensors").objects("vectors")) {
            String name = vector.string("name");
            try {
                TensorFile.decode(decoded(vector.string("base64")), name);
                if (!vector.flag("valid", false)) {
                    wrong.add(name + " was accepted: " + vector.string("rule"));
                }
            } catch (PersonalWeightsException error) {
                if (vector.flag("valid", false)) {
                    wrong.add(name + ": " + error.getMessage());
                }
            } catch (RuntimeException error) {
                wrong.add(name + ": " + error);
            }
        }
        assertEquals("", String.join("\n", wrong));
    }

    private static float[] floats(double[] numbers) {
        float[] found = new float[numbers.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = (float) numbers[i];
        }
        return found;
    }

    /** Also with photos that are forgotten, and a state that is built again from its rows half-way. */
    @Test
    public void classShares() throws Exception {
        Assume.assumeTrue(ClassShares.missing(), ClassShares.missing().isEmpty());
        double off = 0;
        for (Fields vector : read("class-shares").objects("vectors")) {
            Map<?, ?> settings = vector.members("settings");
            int classes = vector.size("classes", 1);
            if (Long.valueOf(4).equals(settings.get("version"))) {
                for (int label = 0; label < classes; label++) {
                    Map<Object, Object> one = new LinkedHashMap<Object, Object>(settings);
                    double rate = ((Number) ((List<?>) settings.get("base")).get(label)).doubleValue();
                    one.put("version", 3L);
                    one.put("base", Arrays.asList(rate, 1 - rate));
                    off = Math.max(off, ofLabel(vector.objects("photos"), one, label));
                }
            } else {
                off = Math.max(off, ofClasses(vector, new ShareCard(Fields.of(settings, "shares")), classes));
            }
        }
        System.out.println("class shares as in Python, within " + off);
        assertTrue("off by " + off, off <= 1e-9);
    }

    private static double ofClasses(Fields vector, ShareCard card, int classes) throws Exception {
        Map<String, float[]> rows = new LinkedHashMap<String, float[]>();
        List<Fields> photos = vector.objects("photos");
        KnownScores known = new KnownScores(vector.number("rejection"), numbers(vector, "known_scores"));
        ClassShares state = new ClassShares(card, classes, known);
        double off = 0;
        for (int i = 0; i < photos.size(); i++) {
            state = begun(state, rows, photos, i, new ClassShares(card, classes, known));
            double[] logits = numbers(photos.get(i), "logits");
            double length = photos.get(i).number("length");
            ClassShares.Said beside = state.answer(logits, length, reversed(logits));
            off = Math.max(off, off(numbers(photos.get(i), "beside_head"), beside.logits));
            ClassShares.Said said = state.answer(logits, length, null);
            off = Math.max(off, off(numbers(photos.get(i), "answer"), said.logits));
            off = Math.max(off, off(numbers(photos.get(i), "shares"), said.shares));
            int k = said.row.length / 2;
            off = Math.max(off, off(numbers(photos.get(i), "classes"), Answer.doubles(Arrays.copyOf(said.row, k))));
            off = Math.max(off, off(numbers(photos.get(i), "probabilities"), Answer.doubles(Arrays.copyOfRange(said.row, k, 2 * k))));
            off = Math.max(off, Math.abs(photos.get(i).number("credit") - said.row[2 * k]));
            rows.put("" + i, said.row);
            state.add("" + i, said.row);
        }
        double[] last = state.answer(new double[classes], 1, null).shares;
        return Math.max(off, off(numbers(vector, "shares"), last));
    }

    /** One label and its absence, as two classes. */
    private static double ofLabel(List<Fields> photos, Map<?, ?> settings, int label) throws Exception {
        double temperature = ((Number) settings.get("temperature")).doubleValue();
        Map<Object, Object> calibrated = new LinkedHashMap<Object, Object>(settings);
        calibrated.put("temperature", 1.0);
        ShareCard card = new ShareCard(Fields.of(calibrated, "shares"));
        Map<String, float[]> rows = new LinkedHashMap<String, float[]>();
        ClassShares state = new ClassShares(card, 2, new KnownScores(Double.NaN), true);
        double off = 0;
        for (int i = 0; i < photos.size(); i++) {
            state = begun(state, rows, photos, i, new ClassShares(card, 2, new KnownScores(Double.NaN), true));
            double[] logits = numbers(photos.get(i), "logits");
            double[] both = {logits[label] / temperature, 0};
            double[] beside = state.answer(both, 1, new double[] {reversed(logits)[label], 0}).logits;
            off = Math.max(off, Math.abs(numbers(photos.get(i), "beside_head")[label] - (beside[0] - beside[1])));
            ClassShares.Said said = state.answer(both, 1, null);
            off = Math.max(off, Math.abs(numbers(photos.get(i), "answer")[label] - (said.logits[0] - said.logits[1])));
            off = Math.max(off, Math.abs(numbers(photos.get(i), "shares")[label] - said.shares[0]));
            float there = (float) numbers(photos.get(i), "probabilities")[label];
            float[] row = {0, 1, there, (float) (1 - (double) there), 0};
            rows.put("" + i, row);
            state.add("" + i, row);
        }
        return off;
    }

    /** The state before a photo: others were forgotten, and half-way a new one is built from the rows. */
    private static ClassShares begun(ClassShares state, Map<String, float[]> rows, List<Fields> photos, int number,
            ClassShares fresh) throws Exception {
        for (double gone : photos.get(number).numbers("forgotten", 0, number)) {
            state.forget("" + (int) gone);
            rows.remove("" + (int) gone);
        }
        if (number != photos.size() / 2) {
            return state;
        }
        for (Map.Entry<String, float[]> row : rows.entrySet()) {
            fresh.add(row.getKey(), row.getValue());
        }
        return fresh;
    }

    private static double[] numbers(Fields from, String name) {
        return from.numbers(name, -Double.MAX_VALUE, Double.MAX_VALUE);
    }

    private static double[] reversed(double[] numbers) {
        double[] found = new double[numbers.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = numbers[found.length - 1 - i];
        }
        return found;
    }

    private static double off(double[] one, double[] other) {
        assertEquals(one.length, other.length);
        double found = 0;
        for (int i = 0; i < one.length; i++) {
            double each = Math.abs(one[i] - other[i]);
            found = each <= found ? found : each; // what is not a number counts as largest
        }
        return found;
    }

    @Test
    public void profiles() throws Exception {
        for (Fields vector : read("android-profiles").objects("vectors")) {
            File path = new File(scratch.newFolder(), "anna.history");
            Files.write(path.toPath(), decoded(vector.string("base64")));
            String name = vector.string("name");
            try (FileHistory history = new FileHistory(path, 3, 1 << 20)) {
                assertTrue(name, vector.flag("valid", false));
                assertEquals(name, vector.members("labels"), history.labels());
                assertEquals(name, vector.members("settings"), history.settings());
                String space = name.startsWith("release") ? "space" : "s";
                float[] likely = history.likely("s", "p", "c");
                assertArrayEquals(name, vector.has("likely") ? floats(numbers(vector, "likely")) : null, likely, 0f);
                assertNull(name, history.likely("s", "p", "another"));
                assertEquals(name, vector.strings("photos"), new ArrayList<String>(history.names(space).keySet()));
                history.setLabel("another", "badger");
            } catch (HistoryException error) {
                assertTrue(name + ": " + error.getMessage(), !vector.flag("valid", false));
                continue;
            }
            try (FileHistory again = new FileHistory(path, 3, 1 << 20)) {
                assertEquals(name, "badger", again.labels().get("another"));
            }
        }
    }
}
