package refocus.recognizer;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import ai.onnxruntime.OrtSession;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.Map;
import org.junit.Assume;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** The bundle's own photos on this device: what answers otherwise is refused before anybody sees an answer. */
public class SelfTestTest {
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();
    private int decoded;

    private final SelfTest.Decoder decoder = new SelfTest.Decoder() {
        @Override
        public PhotoRows decode(byte[] content, String where) throws PhotoException {
            decoded++;
            try {
                return Golden.image(content, Exif.orientation(content));
            } catch (IOException error) {
                throw new PhotoException(where + " cannot be decoded", error);
            }
        }
    };

    /** A bundle with a self-test, whose name is changed. */
    private Recognizer renamed() throws Exception {
        File folder = Bundles.copied(withSelfTest(), scratch.newFolder());
        Bundles.change(new File(folder, Bundle.MANIFEST), "\"name\": \"", "\"name\": \"other-");
        return new Recognizer(Bundle.load(folder), "", 1);
    }

    /** A bundle whose self-test expects something else of the first photo. */
    private Recognizer wrong(String pattern, String replacement) throws Exception {
        File folder = Bundles.copied(withSelfTest(), scratch.newFolder());
        File manifest = new File(folder, Bundle.MANIFEST);
        String text = new String(Files.readAllBytes(manifest.toPath()), "UTF-8");
        int at = text.indexOf(Golden.TARGET + "\": [", text.indexOf("\"self_test\": {"));
        text = text.substring(0, at) + text.substring(at).replaceFirst(pattern, replacement);
        Files.write(manifest.toPath(), text.getBytes("UTF-8"));
        return new Recognizer(Bundle.load(folder), "", 1);
    }

    private Recognizer wrongLabel() throws Exception {
        return wrong("\"label\": \"", "\"label\": \"not ");
    }

    private Recognizer right() throws Exception {
        return new Recognizer(withSelfTest().bundle, "", 1);
    }

    private static Golden withSelfTest() throws Exception {
        for (Golden golden : Golden.all()) {
            if (golden.bundle.manifest.heads.get(0).selfTest != null) {
                return golden;
            }
        }
        Assume.assumeTrue("no bundle with a self-test", false);
        throw new IllegalStateException();
    }

    @Test
    public void everyPhotoOfTheBundleIsAnsweredAsWhenItWasExported() throws Exception {
        for (Golden golden : Golden.all()) {
            Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
            SelfTest.Verdict verdict = SelfTest.require(recognizer, decoder);
            recognizer.close();
            int photos = recognizer.card.selfTest == null ? 0 : golden.bundle.manifest.selfTestPhotos.size();
            assertEquals(photos, verdict.photos);
            assertEquals(photos, verdict.same);
            assertTrue("" + verdict, verdict.passed && verdict.largest < 1e-3);
        }
    }

    @Test
    public void aDeviceThatComputesOtherAnswersIsRefusedInOneSentence() throws Exception {
        for (Recognizer recognizer : new Recognizer[] {wrongLabel(), wrong("\"logit\": [-+.e\\d]+", "\"logit\": 99.5")}) {
            SelfTest.Verdict verdict = SelfTest.run(recognizer, decoder);
            try {
                SelfTest.accept(verdict, recognizer.bundle);
                fail("a wrong answer would have been shown: " + verdict);
            } catch (BundleException error) {
                assertTrue(error.getMessage(), error.getMessage().contains("self-test/00") && !error.getMessage().contains("\n"));
                assertTrue(error.getMessage(), error.getMessage().contains("it is not used here"));
            } finally {
                recognizer.close();
            }
        }
    }

    @Test
    public void theSelfTestRunsOnceUntilBundleOrSystemChange() throws Exception {
        KeptVerdict kept = new KeptVerdict(new File(scratch.getRoot(), "verdict.json"));
        assertNull(kept.last());
        Recognizer recognizer = right();
        int photos = recognizer.bundle.manifest.selfTestPhotos.size();
        String[] systems = {"one", "one", "two", "two"};
        int[] runs = {1, 1, 2, 2};
        for (int i = 0; i < systems.length; i++) {
            assertTrue(kept.require(recognizer, systems[i], decoder).passed);
            assertEquals(runs[i] * photos, decoded);
        }
        assertEquals(photos, kept.last().same);
        recognizer.close();
        Recognizer other = renamed();
        kept.require(other, "two", decoder);
        other.close();
        assertEquals("another bundle", 3 * photos, decoded);
    }

    @Test
    public void aFailureIsKeptAndRefusesWithoutAnotherRun() throws Exception {
        KeptVerdict kept = new KeptVerdict(new File(scratch.getRoot(), "verdict.json"));
        Recognizer recognizer = wrongLabel();
        for (int i = 0; i < 2; i++) {
            try {
                kept.require(recognizer, "one", decoder);
                fail("used");
            } catch (BundleException error) {
                assertEquals(recognizer.bundle.manifest.selfTestPhotos.size(), decoded);
            }
        }
        assertFalse(kept.last().passed);
        assertTrue(kept.last().toString(), kept.last().toString().startsWith("failed: "));
        recognizer.close();
    }

    @Test
    public void aDamagedVerdictLeadsToAnotherRun() throws Exception {
        File file = new File(scratch.getRoot(), "verdict.json");
        Recognizer recognizer = right();
        int photos = recognizer.bundle.manifest.selfTestPhotos.size();
        KeptVerdict kept = new KeptVerdict(file);
        kept.require(recognizer, "one", decoder);
        String whole = new String(Files.readAllBytes(file.toPath()), "UTF-8");
        String[] damages = {"", "{}", whole.substring(0, whole.length() / 2), whole.replace("\"same\"", "\"sam\"")};
        for (int i = 0; i < damages.length; i++) {
            Files.write(file.toPath(), damages[i].getBytes("UTF-8"));
            assertTrue(kept.require(recognizer, "one", decoder).passed);
            assertEquals((i + 2) * photos, decoded);
        }
        recognizer.close();
    }

    @Test
    public void aBundleThatFailsItsSelfTestTakesNoPlace() throws Exception {
        File target = new File(scratch.getRoot(), "installed");
        byte[] good = Bundles.zip(withSelfTest().bundle.folder, "", null);
        BundleImport.unpack(new ByteArrayInputStream(good), target, decoder);
        Recognizer wrong = wrongLabel();
        wrong.close();
        byte[] bad = Bundles.zip(wrong.bundle.folder, "", null);
        try {
            BundleImport.unpack(new ByteArrayInputStream(bad), target, decoder);
            fail("imported");
        } catch (BundleException error) {
            assertEquals(withSelfTest().bundle.sha256, Bundle.load(target).sha256);
        }
    }

    @Test
    public void versionsThatAreWrongOnSomeProcessorsAreToldToLeaveKleidiAiOut() throws Exception {
        for (String version : new String[] {"1.24.1", "1.25.0", "1.26.0", "1.27.9"}) {
            OrtSession.SessionOptions options = OrtProgram.options(version, 1);
            assertEquals("1", options.getConfigEntries().get("mlas.disable_kleidiai"));
            options.close();
        }
        for (String version : new String[] {"1.23.2", "1.28.0", "2.0"}) {
            assertTrue(version, OrtProgram.sessionEntries(version).isEmpty());
        }
    }

    @Test
    public void onlyProcessorsWithVnniAreSparedTheSlowSums() throws Exception {
        File listed = scratch.newFile();
        for (String flags : new String[] {"fma avx2 avx512_vnni", "avx_vnni"}) {
            Files.write(listed.toPath(), ("flags : " + flags + "\n").getBytes("UTF-8"));
            assertFalse(flags, OrtProgram.mayOverflow(listed));
        }
        Files.write(listed.toPath(), "flags : fma avx2 avx512f\n".getBytes("UTF-8"));
        assertTrue(OrtProgram.mayOverflow(listed));
        assertTrue("a system that lists no instructions", OrtProgram.mayOverflow(new File(scratch.getRoot(), "none")));
    }

    /** Told to tests of arm64 libraries, which run without a JVM. */
    @Test
    public void theSessionEntriesOfThisRuntimeArePrinted() throws Exception {
        OrtSession.SessionOptions options = OrtProgram.options(OrtProgram.version(), 1);
        for (Map.Entry<String, String> entry : options.getConfigEntries().entrySet()) {
            System.out.println("session entry " + entry.getKey() + "=" + entry.getValue());
        }
        options.close();
    }

    /** {@code -Drefocus.native} names the folder of Android's libraries where the suite runs on them. */
    @Test
    public void theLibraryThatAnswersIsTheOneThatWasAskedFor() throws Exception {
        String wanted = System.getProperty("refocus.native", "");
        OrtProgram.version();
        Assume.assumeTrue("the desktop's own library", !wanted.isEmpty() && !wanted.startsWith("$"));
        String maps = new String(Files.readAllBytes(new File("/proc/self/maps").toPath()), "UTF-8");
        for (String line : maps.split("\n")) {
            assertTrue(line, !line.contains("libonnxruntime") || line.contains(" " + wanted + "/"));
        }
        assertTrue(maps.contains(wanted + "/libonnxruntime.so"));
    }
}
