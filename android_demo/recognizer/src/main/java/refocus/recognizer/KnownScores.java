package refocus.recognizer;

import java.util.Arrays;

/**
 * Scores of the correct answers of a head: which answers are guesses, and which votes for class shares count.
 *
 * <p>The Java counterpart of {@code KnownScores} in {@code edge/recognize/rejection.py}, which describes both.
 */
final class KnownScores {
    static final double MOST_CREDIT = 2.5;
    private static final double[] LEVELS = {0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9};
    private static final double STEEPNESS = 5;
    private static final double MOST = 1000; // of a score, and with a minus the least
    /** Minimum score of photos that count; NaN: every photo counts. */
    final double rejection;
    private final double[] quantiles; // scores at LEVELS; none: the score is the largest logit, and photos get no credit

    KnownScores(double rejection, double... quantiles) {
        this.rejection = rejection;
        this.quantiles = quantiles;
    }

    /** What a head states. */
    static KnownScores of(Fields head) {
        double rejection = head.number("rejection", -MOST, MOST, Double.NaN);
        double[] quantiles = head.numbers("known_scores", -MOST, MOST);
        boolean complete = quantiles.length == LEVELS.length && !Double.isNaN(rejection);
        if (head.names("known_scores") && !(complete && isAscending(quantiles))) {
            throw new IllegalArgumentException("known_scores: expected " + LEVELS.length
                    + " ascending numbers and a rejection threshold");
        }
        return new KnownScores(rejection, quantiles);
    }

    private static boolean isAscending(double[] numbers) {
        for (int i = 1; i < numbers.length; i++) {
            if (numbers[i] < numbers[i - 1]) {
                return false;
            }
        }
        return true;
    }

    /** Euclidean length of a feature (D). */
    static double length(float[] feature) {
        double sum = 0;
        for (float number : feature) {
            sum += (double) number * number;
        }
        return Math.sqrt(sum);
    }

    /** Whether the credits of a class decide how far its votes count. */
    boolean vouches() {
        return quantiles.length > 0;
    }

    /**
     * The score of a photo.
     *
     * @param logits (C) of the classifier without history
     * @param length of the photo's feature
     */
    double score(double[] logits, double length) {
        double largest = Double.NEGATIVE_INFINITY;
        for (double logit : logits) {
            largest = Math.max(largest, logit);
        }
        return vouches() ? largest / Math.max(length, 1e-12) : largest;
    }

    /** Whether a photo of this score shows one of the labels. */
    boolean isKnown(double score) {
        return !(score < rejection);
    }

    /** The credit of a photo that counts, in nats. */
    float credit(double score) {
        if (!vouches()) {
            return 0;
        }
        double credit = -Math.log(STEEPNESS) - (STEEPNESS - 1) * Math.log1p(-level(score));
        return (float) Math.min(credit, MOST_CREDIT);
    }

    /** Level of a score among the quantiles, interpolated. */
    private double level(double score) {
        int last = LEVELS.length - 1;
        int at = -1; // the last quantile that is not above the score
        while (at < last && quantiles[at + 1] <= score) {
            at++;
        }
        if (at < 0 || at == last) {
            return LEVELS[Math.max(at, 0)];
        }
        double slope = (LEVELS[at + 1] - LEVELS[at]) / (quantiles[at + 1] - quantiles[at]);
        return slope * (score - quantiles[at]) + LEVELS[at];
    }

    /** What decides the scores and credits of photos. */
    @Override
    public String toString() {
        return rejection + (vouches() ? Arrays.toString(quantiles) : "");
    }
}
