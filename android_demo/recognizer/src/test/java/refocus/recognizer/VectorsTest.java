package refocus.recognizer;

import static org.junit.Assert.assertEquals;
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
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Bundles, tensor files and profiles are accepted and refused as docs/formats says; edge runs the same vectors. */
public class VectorsTest {
    /** What this reader does not support; a bundle that needs it is refused. */
    private static final List<String> UNSUPPORTED = Arrays.asList("bank", "clips", "sets", "upgrade");
    /** What this reader checks; what is wrong elsewhere it may accept. */
    private static final List<String> CHECKED = Arrays.asList("core");
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
