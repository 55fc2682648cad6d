package refocus.recognizer;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * The bundle's own photos, recognised on this device in order from an empty history, and compared with the answers that the
 * manifest expects; the Java counterpart of {@code edge/recognize/check.py}.
 *
 * <p>A photo passes if its best logit is within the manifest's tolerance and its best label is the expected one; another
 * label is accepted where the expected margin is within the tolerance.
 */
public final class SelfTest {
    private static final String EAGER = "eager";
    /** For photos that are compressed with loss: decoders differ by far more than processors do. */
    static final double LOSSY_TOLERANCE = 0.5;

    /** Decodes a photo of the bundle with the decoder that the app's photos go through. */
    public interface Decoder {
        PhotoRows decode(byte[] content, String where) throws PhotoException;
    }

    /** What a self-test found. */
    public static final class Verdict {
        /** False where an answer differed. True of a bundle that expects nothing: there is nothing to hold against it. */
        public final boolean passed;
        /** Photos recognised; 0 of a bundle that carries no self-test. */
        public final int photos;
        /** How many of them got the expected label. */
        public final int same;
        /** Largest difference of a best logit. */
        public final double largest;
        /** The first photo that was answered otherwise; "" where none was. */
        public final String failure;

        Verdict(int photos, int same, double largest, String failure) {
            this.passed = failure.isEmpty();
            this.photos = photos;
            this.same = same;
            this.largest = largest;
            this.failure = failure;
        }

        /** As "passed: 8 of 8 photos, logits within 2.1e-06". */
        @Override
        public String toString() {
            if (photos == 0) {
                return "none: the bundle carries no self-test";
            }
            String counted = String.format(Locale.ROOT, "%d of %d photos, logits within %.1e", same, photos, largest);
            return passed ? "passed: " + counted : "failed: " + counted + "; " + failure;
        }

        Map<String, Object> toJson() {
            Map<String, Object> found = new LinkedHashMap<String, Object>();
            found.put("photos", (long) photos);
            found.put("same", (long) same);
            found.put("largest", largest);
            found.put("failure", failure);
            return found;
        }

        static Verdict of(Fields fields) {
            Verdict found = new Verdict(fields.size("photos", 0), fields.size("same", 0), fields.number("largest"),
                    fields.string("failure"));
            fields.end();
            return found;
        }
    }

    private final Recognizer recognizer;
    private final Decoder decoder;
    private double tolerance;
    private int same;
    private double largest;
    private String failure = "";

    private SelfTest(Recognizer recognizer, Decoder decoder) {
        this.recognizer = recognizer;
        this.decoder = decoder;
    }

    /**
     * Runs the self-test of the head that the recogniser uses. Nobody's history is read or written.
     *
     * @throws BundleException the manifest's self-test cannot be read
     * @throws RefocusException a photo of the bundle cannot be decoded, or the runtime stopped
     */
    public static Verdict run(Recognizer recognizer, Decoder decoder) throws RefocusException {
        return new SelfTest(recognizer, decoder).run();
    }

    /**
     * As {@link #run}, for those who have no use for a bundle that fails.
     *
     * @throws BundleException an answer differs
     */
    public static Verdict require(Recognizer recognizer, Decoder decoder) throws RefocusException {
        return accept(run(recognizer, decoder), recognizer.bundle);
    }

    /** The verdict, if it is no refusal. */
    static Verdict accept(Verdict verdict, Bundle bundle) throws BundleException {
        if (!verdict.passed) {
            throw new BundleException(Reason.MODEL_SELF_TEST, "the model " + bundle.manifest.name + " does not compute on this device what it"
                    + " computed when it was exported (" + verdict.failure + "); it is not used here: import another model,"
                    + " or update the app");
        }
        return verdict;
    }

    private Verdict run() throws RefocusException {
        if (recognizer.card.selfTest == null) {
            return new Verdict(0, 0, 0, "");
        }
        try {
            Fields test = Fields.of(recognizer.card.selfTest, "self_test");
            Fields answers = test.object("answers");
            String whose = answers.has(recognizer.target) ? recognizer.target : EAGER;
            if (recognizer.target.endsWith(":fp32") && answers.has(recognizer.headTarget)) {
                whose = recognizer.headTarget; // answers of other heads were written behind an fp32 encoder
            }
            Fields tolerances = test.object("tolerance");
            tolerance = Math.max(of(tolerances, recognizer.target), of(tolerances, recognizer.headTarget));
            return compare(answers.objects(whose));
        } catch (IllegalArgumentException error) {
            throw new BundleException(recognizer.bundle.folder + ": " + error.getMessage() + "; export the bundle again",
                    error);
        }
    }

    private static double of(Fields tolerances, String target) {
        String precision = target.substring(target.indexOf(':') + 1);
        return tolerances.has(precision) ? tolerances.number(precision) : 0;
    }

    private Verdict compare(List<Fields> expected) throws RefocusException {
        List<ListedFile> photos = recognizer.bundle.manifest.selfTestPhotos;
        if (photos.isEmpty() || photos.size() != expected.size()) {
            throw new IllegalArgumentException("self_test has " + expected.size() + " answers to " + photos.size() + " photos");
        }
        Remembered none = new Remembered();
        float[] last = null;
        for (int i = 0; i < photos.size(); i++) {
            byte[] content = recognizer.bundle.read(photos.get(i));
            float[] feature = recognizer.encode(decoder.decode(content, photos.get(i).path));
            Answer answer = last == null ? recognizer.answerAfter(none, feature, "0", null)
                    : recognizer.answerNext(none, last, "" + (i - 1), feature, "" + i, null);
            judge(photos.get(i).path, answer, expected.get(i), isLossless(content) ? tolerance
                    : Math.max(tolerance, LOSSY_TOLERANCE));
            last = feature;
        }
        return new Verdict(photos.size(), same, largest, failure);
    }

    private void judge(String photo, Answer answer, Fields expected, double allowed) {
        String label = expected.string("label");
        double logit = expected.number("logit");
        double margin = expected.number("margin");
        expected.end();
        float best = answer.logits[Answer.ranking(answer.logits)[0]];
        double off = Math.abs(best - logit);
        boolean agrees = label.equals(answer.labels.get(0));
        same += agrees ? 1 : 0;
        off = off <= Double.MAX_VALUE ? off : Double.MAX_VALUE; // so that what is not a number fails
        largest = Math.max(largest, off);
        boolean passed = off <= allowed && (agrees || margin <= allowed);
        if (!passed && failure.isEmpty()) {
            failure = String.format(Locale.ROOT, "%s: expected '%s' with logit %.4f, got '%s' with %.4f", photo, label, logit,
                    answer.labels.get(0), best);
        }
    }

    /** Whether every decoder makes the same of a file: PNG. */
    private static boolean isLossless(byte[] content) {
        return content.length > 4 && content[0] == (byte) 0x89 && content[1] == 'P' && content[2] == 'N' && content[3] == 'G';
    }
}
