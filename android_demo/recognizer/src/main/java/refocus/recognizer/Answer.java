package refocus.recognizer;

import java.util.ArrayList;
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
    /** (C) of the classifier without history. */
    public final float[] plainLogits;
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
    private final double threshold;
    private final double leastEnergy;

    /** @throws PhotoException the head's numbers are not finite: whatever they would say is no answer */
    Answer(HeadCard card, Program head, float[] attention, float[] feature, Remembered history, boolean known)
            throws PhotoException {
        inOrder = card.labels;
        threshold = card.threshold;
        leastEnergy = card.energy;
        logits = head.copy("logits");
        plainLogits = head.copy("plain_logits");
        calibratedLogits = head.copy("calibrated_logits");
        trust = head.floats("trust").get(0);
        if (!isFinite(logits) || !isFinite(plainLogits) || !isFinite(calibratedLogits)) {
            throw new PhotoException("the model makes no finite answer of the photo; leave it out");
        }
        this.attention = attention;
        this.feature = feature;
        this.history = history;
        this.known = known;
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
        return trust > 0.5f;
    }

    /**
     * Whether the model knows what it sees: the photo's energy, or where the bundle was not calibrated for that the
     * probability of the best label, is at least what the bundle asks for.
     */
    public boolean recognised() {
        return Double.isNaN(leastEnergy) ? probabilities[0] >= threshold : energy() >= leastEnergy;
    }

    /** As {@link #recognised}, of the answer of the photo alone. */
    public boolean plainRecognised() {
        return Double.isNaN(leastEnergy) ? plainProbability() >= threshold : energy() >= leastEnergy;
    }

    /**
     * How much of what the model knows is in the photo: log of the sum of exp of the logits of the classifier without
     * history (the negative energy of Liu et al., Energy-based Out-of-distribution Detection, 2020).
     */
    public double energy() {
        double largest = Double.NEGATIVE_INFINITY;
        for (float logit : plainLogits) {
            largest = Math.max(largest, logit);
        }
        double sum = 0;
        for (float logit : plainLogits) {
            sum += Math.exp(logit - largest);
        }
        return largest + Math.log(sum);
    }

    /** The label that the photo alone would have got. */
    public String plainLabel() {
        return inOrder.get(ranking(plainLogits)[0]);
    }

    /** Probability of {@link #plainLabel} in the answer of the photo alone, in [0, 1]. */
    public float plainProbability() {
        return softmax(plainLogits)[ranking(plainLogits)[0]];
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
