package refocus.recognizer;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;

/**
 * What the recogniser says about one photo.
 *
 * <p>Notation: C classes, n history photos. Logits are in the order of the bundle's labels.
 */
public final class Answer {
    /** The C labels, most likely first. */
    public final List<String> labels;
    /** (C) in the same order. */
    public final float[] probabilities;
    /** Weight of the answer with history in the delivered one, in [0, 1]; 0: the plain classifier answers. */
    public final float trust;
    /** (C) of the delivered answer. */
    public final float[] logits;
    /** (C) of the classifier without history, as the program gives them. */
    public final float[] plainLogits;
    /** (C) of the photo without history: {@link #plainLogits}, calibrated where class shares calibrate the answer. */
    public final float[] aloneLogits;
    /** Probability that the photo's class is drawn from the person's class shares, in [0, 1]; NaN where they are not counted. */
    public final double shareTrust;
    /** What class shares keep of the photo; null where they are not counted. */
    final float[] row;
    /** (C) of the head with history, however much of it was delivered. */
    public final float[] calibratedLogits;
    /** (n + 1) weight of each history photo, oldest first, and last of the photo itself. */
    public final float[] attention;
    /** (D) of the photo. */
    public final float[] feature;
    /** The n history photos. */
    public final Remembered history;
    /** Whether the photo was stored before, and so joined no history now. */
    public final boolean known;
    private final List<String> inOrder;
    private final KnownScores scores;

    /**
     * @param shares of the photos before; null: they have no part in the answer
     * @throws PhotoException the head's numbers are not finite: whatever they would say is no answer
     */
    Answer(HeadCard card, Program head, float[] attention, float[] feature, Remembered history, boolean known,
            ClassShares shares) throws PhotoException {
        inOrder = card.labels;
        scores = card.known;
        float[] delivered = head.copy("logits");
        plainLogits = head.copy("plain_logits");
        calibratedLogits = head.copy("calibrated_logits");
        trust = head.floats("trust").get(0);
        if (!isFinite(delivered) || !isFinite(plainLogits) || !isFinite(calibratedLogits)) {
            throw new PhotoException("the model makes no finite answer of the photo; leave it out");
        }
        this.attention = attention;
        this.feature = feature;
        this.history = history;
        this.known = known;
        boolean reads = !card.form.equals("none"); // a history of its own
        double length = KnownScores.length(feature);
        ClassShares.Said said = shares == null ? null : reads ? shares.answer(doubles(plainLogits), length, doubles(delivered))
                : shares.answer(doubles(delivered), length, null);
        ClassShares.Said alone = said == null || reads || Arrays.equals(delivered, plainLogits) ? said
                : shares.answer(doubles(plainLogits), length, null);
        logits = said == null ? delivered : floats(said.logits);
        aloneLogits = alone == null || (reads && !card.shares.gated) ? plainLogits : floats(alone.plain);
        shareTrust = said == null ? Double.NaN : said.trust;
        row = alone == null ? null : alone.row;
        int[] order = ranking(logits);
        float[] chances = softmax(logits);
        List<String> ranked = new ArrayList<String>(inOrder.size());
        probabilities = new float[logits.length];
        for (int i = 0; i < order.length; i++) {
            ranked.add(inOrder.get(order[i]));
            probabilities[i] = chances[order[i]];
        }
        this.labels = Collections.unmodifiableList(ranked);
    }

    /** Whether the history had more say in the answer than the photo alone. */
    public boolean personalised() {
        return trust > 0.5f || shareTrust > 0.5;
    }

    /**
     * Score of the hypothesis that the photo shows one of the labels: the largest logit of the classifier without history, divided by
     * the length of the feature where the bundle has quantiles of such scores.
     */
    public double knownScore() {
        return scores.score(doubles(plainLogits), KnownScores.length(feature));
    }

    /** Whether the photo shows one of the labels; if not, the answer is a guess. */
    public boolean isKnown() {
        return scores.isKnown(knownScore());
    }

    /** Probability of the label, averaged over the answers with and without history, in [0, 1]. */
    public float confidence() {
        return (probabilities[0] + softmax(aloneLogits)[ranking(logits)[0]]) / 2;
    }

    /** The label that the photo alone would have got. */
    public String plainLabel() {
        return inOrder.get(ranking(aloneLogits)[0]);
    }

    /** Probability of {@link #plainLabel} in the answer of the photo alone, in [0, 1]. */
    public float plainProbability() {
        return softmax(aloneLogits)[ranking(aloneLogits)[0]];
    }

    static double[] doubles(float[] numbers) {
        double[] found = new double[numbers.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = numbers[i];
        }
        return found;
    }

    private static float[] floats(double[] numbers) {
        float[] found = new float[numbers.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = (float) numbers[i];
        }
        return found;
    }

    static boolean isFinite(float[] numbers) {
        for (float number : numbers) {
            if (Float.isNaN(number) || Float.isInfinite(number)) {
                return false;
            }
        }
        return true;
    }

    /** Indices from the largest number to the smallest; of equals, the first comes first. */
    static int[] ranking(final float[] numbers) {
        List<Integer> order = new ArrayList<Integer>(numbers.length);
        for (int i = 0; i < numbers.length; i++) {
            order.add(i);
        }
        Collections.sort(order, new Comparator<Integer>() {
            @Override
            public int compare(Integer one, Integer other) {
                return Float.compare(numbers[other], numbers[one]);
            }
        });
        int[] found = new int[numbers.length];
        for (int i = 0; i < found.length; i++) {
            found[i] = order.get(i);
        }
        return found;
    }

    private static float[] softmax(float[] logits) {
        float largest = Float.NEGATIVE_INFINITY;
        for (float logit : logits) {
            largest = Math.max(largest, logit);
        }
        float[] found = new float[logits.length];
        double sum = 0;
        for (int i = 0; i < found.length; i++) {
            found[i] = (float) Math.exp(logits[i] - largest);
            sum += found[i];
        }
        for (int i = 0; i < found.length; i++) {
            found[i] /= (float) sum;
        }
        return found;
    }
}
