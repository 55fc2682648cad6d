package refocus.recognizer;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.File;
import java.nio.file.Files;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Which of a bundle's programs are run, what the bundle says of its labels, and from where on an answer is one. */
public class TargetsTest {
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();

    /** The golden bundle, with a second target of the same files whose parity says something. */
    private Bundle with(String precision, String parity, boolean alone) throws Exception {
        File folder = Bundles.copied(Golden.all().get(0), scratch.newFolder());
        File manifest = new File(folder, Bundle.MANIFEST);
        Fields fields = Fields.of(Json.parse(Golden.bytes(manifest)), "manifest");
        StringBuilder more = new StringBuilder();
        for (Object each : fields.list("artifacts")) {
            java.util.Map<Object, Object> artifact = new java.util.LinkedHashMap<Object, Object>((java.util.Map<?, ?>) each);
            if (!alone) {
                more.append(Json.write(artifact)).append(",\n");
            }
            artifact.put("precision", precision);
            artifact.put("parity", Json.parse(parity.getBytes("UTF-8")));
            artifact.remove("accuracy");
            more.append(Json.write(artifact)).append(",\n");
        }
        java.util.Map<Object, Object> all = new java.util.LinkedHashMap<Object, Object>(fields.members());
        all.put("artifacts", Json.parse(("[" + more.substring(0, more.length() - 2) + "]").getBytes("UTF-8")));
        Files.write(manifest.toPath(), Json.write(all).getBytes("UTF-8"));
        return Bundle.load(folder);
    }

    private static String chosen(Bundle bundle) throws Exception {
        return Targets.choose(bundle, bundle.manifest.head(""));
    }

    @Test
    public void eightBitIntegersAreTakenWhereTheirAccuracyHolds() throws Exception {
        for (String precision : new String[] {"int8", "w8a8"}) {
            String small = "onnxruntime:" + precision;
            assertEquals(small, chosen(with(precision, "{\"accuracy_loss\": 0.01, \"top1_agreement\": 0.5}", false)));
            assertEquals(Golden.TARGET, chosen(with(precision, "{\"accuracy_loss\": 0.011, \"top1_agreement\": 1.0}", false)));
            assertEquals(small, chosen(with(precision, "{\"top1_agreement\": 0.992}", false)));
            assertEquals(Golden.TARGET, chosen(with(precision, "{\"top1_agreement\": 0.98}", false)));
            assertEquals(Golden.TARGET, chosen(with(precision, "{\"top1_agreement\": 1.0, \"passed\": false}", false)));
            assertEquals("not measured", Golden.TARGET, chosen(with(precision, "{}", false)));
            assertEquals("there is nothing else", small, chosen(with(precision, "{}", true)));
        }
    }

    @Test
    public void otherPrecisionsAreTakenWhereThereIsNothingElseAndOtherRuntimesAreNot() throws Exception {
        for (String precision : new String[] {"fp16", "w16", "w8", "w8a16"}) {
            assertEquals(Golden.TARGET, chosen(with(precision, "{}", false)));
            assertEquals("onnxruntime:" + precision, chosen(with(precision, "{}", true)));
        }
        File folder = Bundles.copied(Golden.all().get(0), scratch.newFolder());
        File manifest = new File(folder, Bundle.MANIFEST);
        String text = new String(Golden.bytes(manifest), "UTF-8");
        Files.write(manifest.toPath(), text.replaceAll("\"runtime\": *\"onnxruntime\"", "\"runtime\":\"coreml\"").getBytes("UTF-8"));
        try {
            new Recognizer(Bundle.load(folder), "", 1);
            fail("run");
        } catch (BundleException error) {
            assertEquals(Reason.MODEL_UNFIT, error.reason);
            assertTrue(error.getMessage(), error.getMessage().contains("coreml:fp32"));
        }
    }

    private static HeadCard card(String training) throws Exception {
        return new HeadCard(Fields.of(Json.parse(("{\"name\":\"h\",\"labels\":[\"fox\",\"сова\"],\"personalisation\":{\"method\":"
                + "\"plain\",\"window\":0,\"gate\":\"none\",\"form\":\"none\"},\"training\":" + training + "}").getBytes("UTF-8")),
                "head"));
    }

    @Test
    public void labelsHaveNamesInALanguageThatHasOneForEach() throws Exception {
        HeadCard named = card("{\"label_names\":{\"de\":[\"Füchsin\",\"Eule\"],\"fr\":[\"renard\"],\"it\":\"volpe\"}}");
        assertEquals("Eule", named.name("сова", "de"));
        for (String language : new String[] {"fr", "it", "en", ""}) {
            assertEquals("сова", named.name("сова", language));
        }
        assertEquals("unheard of", named.name("unheard of", "de"));
    }
}
