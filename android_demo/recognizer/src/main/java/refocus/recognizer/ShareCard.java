package refocus.recognizer;

import java.util.Arrays;
import java.util.List;

/**
 * How a device estimates the classes that a person meets: {@code shares} of a manifest, as docs/formats/bundle.md describes them.
 *
 * <p>Fields, ranges and defaults are those of {@code ShareCard} in {@code edge/bundle/manifest.py}.
 */
final class ShareCard {
    private static final int VERSION = 3; // of the estimate; of earlier ones the calibration counts alone
    private static final double BELOW_ONE = Math.nextDown(1.0);
    private static final double MOST_PHOTOS = 1e9;
    /** Whether the classifier gives probabilities instead of logits. */
    final boolean probabilities;
    final double temperature;
    final double[] scale;
    final double[] bias;
    final double[] base;
    final double strength;
    final double halfLife;
    final double noShift;
    final double penalty;
    final double evidenceHalfLife;
    final double elsewhere;
    final double withHead;
    final boolean gated;
    final double support;
    /** Number of most likely classes that are kept of a photo. */
    final int top;
    /** Number of photos that count. */
    final int capacity;
    private final int version;

    ShareCard(Fields fields) {
        version = (int) fields.whole("version", 1, 4);
        probabilities = fields.choice("outputs", null, "logits", "probabilities").equals("probabilities");
        temperature = fields.number("temperature", Double.MIN_VALUE, 1000);
        withHead = fields.number("with_head", 0, 1);
        top = (int) fields.whole("top", 1, 256);
        capacity = (int) fields.whole("capacity", 1, HeadCard.MAX_WINDOW);
        scale = fields.numbers("scale", Double.MIN_VALUE, 1e6);
        bias = fields.numbers("bias", -1e6, 1e6);
        base = fields.numbers("base", 1e-9, BELOW_ONE);
        gated = fields.flag("gated", false);
        double photos = fields.number("strength", 1e-3, MOST_PHOTOS, 2);
        double fading = fields.number("half_life", 0, MOST_PHOTOS, 46);
        double same = fields.number("no_shift", 0, BELOW_ONE, 0.73);
        double cost = fields.number("penalty", 0, 100, 0.1);
        double forgetting = fields.number("evidence_half_life", 0, MOST_PHOTOS, 34);
        double anywhere = fields.number("elsewhere", 0, 1, 0.25);
        double least = fields.number("support", 0, BELOW_ONE, 0.15);
        fields.numbers("strengths", -Double.MAX_VALUE, Double.MAX_VALUE);
        fields.numbers("half_lives", -Double.MAX_VALUE, Double.MAX_VALUE);
        if (fields.names("revisit")) {
            fields.whole("revisit", Long.MIN_VALUE);
        }
        fields.end();
        boolean ours = version >= VERSION;
        check(!ours || (same >= 1e-6 && same <= 1 - 1e-6), "no_shift is " + same + ", expected 0.000001 to 0.999999");
        check(!ours || ((fading == 0 || fading >= 0.5) && (forgetting == 0 || forgetting >= 0.5)),
                "half-lives are " + fading + " and " + forgetting + ", expected 0, or 0.5 photos or more");
        check(isOfSets() || sumsToOne(base), "base does not sum to 1");
        strength = ours ? photos : 2;
        halfLife = ours ? fading : 46;
        noShift = ours ? same : 0.73;
        penalty = ours ? cost : 0.1;
        evidenceHalfLife = ours ? forgetting : 34;
        elsewhere = ours ? anywhere : 0.25;
        support = ours ? least : 0.15;
    }

    /** Whether each label is estimated for itself. */
    boolean isOfSets() {
        return version % 2 == 0;
    }

    /** Whether they fit a head whose photos have one label each; else an {@code IllegalArgumentException}. */
    void check(int classes) {
        check(!isOfSets(), "version " + version + " is of a head with thresholds");
        check(classes > 1, "a head of " + classes + " labels has none");
        for (double[] vector : new double[][] {scale, bias, base}) {
            check(vector.length == 0 || vector.length == classes, vector.length + " numbers for " + classes + " labels");
        }
    }

    private static boolean sumsToOne(double[] shares) {
        double sum = 0;
        for (double share : shares) {
            sum += share;
        }
        return shares.length == 0 || Math.abs(sum - 1) <= 1e-3;
    }

    private static void check(boolean holds, String message) {
        if (!holds) {
            throw new IllegalArgumentException("shares: " + message);
        }
    }

    /** Hash of the settings, and of the head's scores of correct answers, that decide what is kept of a photo. */
    String identity(List<String> labels, KnownScores known) {
        return Hashes.sha256(probabilities + " " + temperature + Arrays.toString(scale) + Arrays.toString(bias) + top
                + Json.write(labels) + known);
    }
}
