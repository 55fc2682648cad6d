package refocus.recognizer;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Which of a bundle's programs this app runs: runtime and precision, of ONNX Runtime. */
public final class Targets {
    static final String RUNTIME = "onnxruntime";
    /** Largest net loss of right answers, or share of other labels, at which 8-bit integers are taken before floats. */
    static final double MOST_LOSS = 0.01;
    /** In 8 bits, weights and activations; "int8" is what bundles of Refocus 0.1 and 0.2 call it. */
    private static final List<String> SMALL = Arrays.asList("w8a8", "int8");
    private static final List<String> OTHERS = Arrays.asList("fp32", "fp16", "w16", "w8", "w8a16");

    private Targets() {}

    /**
     * The target that is run: 8-bit integers where the bundle was measured to lose at most {@link #MOST_LOSS} by them,
     * else floats, else whatever there is.
     *
     * @throws BundleException encoder and head have no target in common that this app runs
     */
    static String choose(Bundle bundle, HeadCard card) throws BundleException {
        Set<String> there = complete(bundle, card);
        List<String> order = new ArrayList<String>();
        for (String precision : SMALL) {
            if (there.contains(RUNTIME + ":" + precision) && holds(bundle, card, RUNTIME + ":" + precision)) {
                order.add(precision);
            }
        }
        order.addAll(OTHERS);
        order.addAll(SMALL);
        for (String precision : order) {
            if (there.contains(RUNTIME + ":" + precision)) {
                return RUNTIME + ":" + precision;
            }
        }
        Set<String> has = new LinkedHashSet<String>();
        for (Artifact artifact : bundle.manifest.artifacts) {
            has.add(artifact.target);
        }
        throw new BundleException(Reason.MODEL_UNFIT, bundle.folder + " has no complete recogniser for " + RUNTIME
                + "; it has " + has + ": export it with --to onnx:fp32");
    }

    /** Targets of which there is an encoder and the head. */
    private static Set<String> complete(Bundle bundle, HeadCard card) {
        Set<String> encoders = new LinkedHashSet<String>();
        Set<String> heads = new LinkedHashSet<String>();
        for (Artifact artifact : bundle.manifest.artifacts) {
            if (artifact.role.equals("encoder")) {
                encoders.add(artifact.target);
            } else if (artifact.head.equals(card.name)) {
                heads.add(artifact.target);
            }
        }
        encoders.retainAll(heads);
        return encoders;
    }

    private static boolean holds(Bundle bundle, HeadCard card, String target) throws BundleException {
        return loss(bundle.artifact("head", target, card.name)) <= MOST_LOSS;
    }

    /**
     * What the export measured: the mean change of right answers to fp32, or else the net loss to PyTorch, or else the
     * share of other labels. 1 where nothing was measured, or parity was not reached.
     */
    static double loss(Artifact head) {
        Object change = head.accuracy.get("change");
        if (change instanceof List && !((List<?>) change).isEmpty() && ((List<?>) change).get(0) instanceof Number) {
            return -((Number) ((List<?>) change).get(0)).doubleValue();
        }
        Map<?, ?> parity = head.parity;
        if (parity.isEmpty() || Boolean.FALSE.equals(parity.get("passed"))) {
            return 1;
        }
        if (parity.get("accuracy_loss") instanceof Number) {
            return ((Number) parity.get("accuracy_loss")).doubleValue();
        }
        return parity.get("top1_agreement") instanceof Number ? 1 - ((Number) parity.get("top1_agreement")).doubleValue() : 1;
    }
}
