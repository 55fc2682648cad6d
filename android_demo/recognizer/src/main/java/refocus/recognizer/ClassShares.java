package refocus.recognizer;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Class shares of one person, updated photo by photo: {@code edge/runtimes/native_head/shares.c}, through JNI.
 *
 * <p>The Java counterpart of {@code edge/recognize/class_shares.py}, which describes the estimate. The state is a function of the
 * settings and of the rows in their order.
 *
 * <p>Notation: C classes, k most likely classes that are kept of a photo. A row has k classes, their k probabilities and the credit
 * of the photo.
 */
final class ClassShares {
    /** Answer to one photo. */
    static final class Said {
        /** (C) of the answer. */
        double[] logits;
        /** (C) of the classifier alone, calibrated. */
        double[] plain;
        /** (C) shares before the photo. */
        double[] shares;
        /** Probability that the photo's class is drawn from the person's shares rather than from those of training. */
        double trust;
        /** (2 k + 1) what is kept of the photo. */
        float[] row;
    }

    static final int MOST = 256; // classes that are kept of a photo
    private static final int VERSION = 6; // of the C interface
    private static final double LEAST_ODDS = -3; // of a class, and least evidence
    private static final double MOST_ODDS = 6;
    private static final double PASSING = 0.3; // unknown photos above the threshold, for each one below it
    private static final int FADED = 12; // half-lives after which the newest photos alone decide
    private static final int SLOTS = 64; // at first
    private static String missing; // why there is no library; "" where there is one, null before it was looked for
    private final ShareCard card;
    private final KnownScores known;
    private final int classes;
    private final int k;
    private final Map<String, Integer> slots = new LinkedHashMap<String, Integer>(); // by photo, oldest first
    private final Deque<Integer> free = new ArrayDeque<Integer>();
    private int voters; // photos above the rejection threshold
    private boolean stale; // whether a photo was forgotten since the last fold
    private IntBuffer index;
    private FloatBuffer kept;
    // What the library reads and writes, alive as long as this.
    private final ByteBuffer[] vectors = new ByteBuffer[3];
    private final ByteBuffer[] memory;
    private final ByteBuffer room = direct(size());
    private final ByteBuffer head;
    private ByteBuffer indexBytes;
    private ByteBuffer keptBytes;

    /**
     * @param card of a head of C classes that it was checked with; {@link #missing} is ""
     * @param known which photos and classes count
     */
    ClassShares(ShareCard card, int classes, KnownScores known) {
        this(card, classes, known, false);
    }

    /** As before. With {@code expected} a photo counts for all of its classes, instead of the most likely one. */
    ClassShares(ShareCard card, int classes, KnownScores known, boolean expected) {
        this.card = card;
        this.known = known;
        this.classes = classes;
        k = Math.min(card.top, classes);
        double[] even = new double[classes];
        Arrays.fill(even, 1.0 / classes);
        double[][] given = {normalised(card.base.length > 0 ? card.base : even), card.scale, card.bias};
        for (int i = 0; i < given.length; i++) {
            vectors[i] = given[i].length > 0 ? doubles(classes) : null;
            if (vectors[i] != null) {
                vectors[i].asDoubleBuffer().put(given[i]);
            }
        }
        head = doubles(classes);
        memory = new ByteBuffer[] {doubles(2 * classes), doubles(5), doubles(classes), doubles(classes), doubles(classes),
            doubles(classes), doubles(classes), doubles(classes), doubles(classes), doubles(2 * classes), doubles(2), doubles(4),
            direct(4 * k), direct(4 * k)};
        double[] numbers = {card.temperature, card.strength, fade(card.halfLife), fade(card.evidenceHalfLife), Math.log(card.noShift / (1 - card.noShift)), card.penalty, LEAST_ODDS, MOST_ODDS,
            card.elsewhere, card.support, card.withHead, PASSING};
        bind(room, classes, k, vectors, numbers, expected, card.gated, known.vouches(), memory);
        place(Math.min(SLOTS, card.capacity));
    }

    private static double fade(double halfLife) {
        return halfLife > 0 ? Math.pow(2, -1 / halfLife) : 1;
    }

    private static double[] normalised(double[] shares) {
        double sum = 0;
        for (double share : shares) {
            sum += share;
        }
        double[] found = shares.clone();
        for (int i = 0; i < found.length; i++) {
            found[i] /= sum;
        }
        return found;
    }

    private static ByteBuffer doubles(int count) {
        return direct(Math.multiplyExact(8, count));
    }

    private static ByteBuffer direct(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    /** Why class shares cannot be counted here; "" where they can. */
    static synchronized String missing() {
        if (missing == null) {
            missing = NativeHead.missing();
            if (missing.isEmpty()) {
                try {
                    int found = version();
                    missing = found == VERSION ? "" : "the library of the native head has class shares of version " + found
                            + ", this app needs " + VERSION + "; build the app again";
                } catch (UnsatisfiedLinkError error) {
                    missing = "the library of the native head has no class shares; build the app again";
                }
            }
        }
        return missing;
    }

    /** Memory for more photos; those that are there stay. */
    private void place(int photos) {
        IntBuffer before = index;
        FloatBuffer keptBefore = kept;
        indexBytes = direct(Math.multiplyExact(4 * k, photos));
        keptBytes = direct(Math.multiplyExact(4 * (k + 1), photos));
        index = indexBytes.asIntBuffer();
        kept = keptBytes.asFloatBuffer();
        if (before != null) {
            before.rewind();
            keptBefore.rewind();
            index.put(before);
            kept.put(keptBefore);
        }
        place(room, indexBytes, keptBytes);
    }

    // ---- the state

    /** Photos that count, oldest first. */
    List<String> photos() {
        return new ArrayList<String>(slots.keySet());
    }

    boolean has(String photo) {
        return slots.containsKey(photo);
    }

    /** The photo that was added first; null where there is none. */
    String oldest() {
        return slots.isEmpty() ? null : slots.keySet().iterator().next();
    }

    void clear() {
        slots.clear();
        free.clear();
        voters = 0;
        stale = true;
    }

    /** Whether a stored row may be one of this classifier. */
    boolean fits(float[] row) {
        if (row == null || row.length != 2 * k + 1) {
            return false;
        }
        float[] ordered = Arrays.copyOf(row, k);
        Arrays.sort(ordered);
        double sum = 0;
        for (int i = 0; i < k; i++) {
            boolean isClass = ordered[i] >= 0 && ordered[i] < classes && ordered[i] == Math.rint(ordered[i]);
            if (!isClass || (i > 0 && ordered[i] == ordered[i - 1]) || !(row[k + i] >= 0)) {
                return false;
            }
            sum += row[k + i];
        }
        return sum <= 1.001 && Math.abs(row[2 * k]) <= KnownScores.MOST_CREDIT;
    }

    /**
     * Counts one photo, after it was answered; a photo that is there already is replaced.
     *
     * @throws HistoryException the row is not of this classifier; nothing is changed
     */
    void add(String photo, float[] row) throws HistoryException {
        if (!fits(row)) {
            throw new HistoryException("a row of class shares is not of " + k + " classes below " + classes
                    + ": it is of another classifier, or damaged");
        }
        forget(photo);
        while (slots.size() >= card.capacity) {
            forget(oldest());
        }
        int slot = free.isEmpty() ? slots.size() : free.pop();
        if (slot >= index.capacity() / k) {
            place((int) Math.min(2L * slot, card.capacity));
        }
        for (int i = 0; i < k; i++) {
            index.put(slot * k + i, (int) row[i]);
        }
        for (int i = 0; i <= k; i++) {
            kept.put(slot * (k + 1) + i, row[k + i]);
        }
        slots.put(photo, slot);
        voters += votes(slot);
        if (!stale) {
            fold(room, new long[] {slot});
        }
    }

    /** Forgets one photo. The estimate is then that of the others; of an oldest one that has faded, what is left stays. */
    void forget(String photo) {
        if (!slots.containsKey(photo)) {
            return;
        }
        double longest = Math.max(card.halfLife, card.evidenceHalfLife);
        boolean faded = card.halfLife > 0 && card.evidenceHalfLife > 0 && voters > FADED * longest;
        stale |= !faded || !oldest().equals(photo);
        int slot = slots.remove(photo);
        voters -= votes(slot);
        free.push(slot);
    }

    /** 1 for a photo above the rejection threshold, else 0. */
    private int votes(int slot) {
        return kept.get(slot * (k + 1)) > 0 ? 1 : 0;
    }

    /** Counts all photos again after one was forgotten. */
    private void settle() {
        if (!stale) {
            return;
        }
        stale = false;
        memory[0].asDoubleBuffer().put(new double[2 * classes]);
        memory[1].asDoubleBuffer().put(new double[5]);
        long[] all = new long[slots.size()];
        int next = 0;
        for (int slot : slots.values()) {
            all[next++] = slot;
        }
        fold(room, all);
    }

    // ---- what it says

    /**
     * Answers one photo with the shares of those before it.
     *
     * @param outputs (C) of the classifier without history, as the card says
     * @param length of the photo's feature
     * @param delivered (C) logits of a head with a history of its own, which then answers with shares; or null
     * @throws PhotoException the outputs are not finite, or not probabilities
     */
    Said answer(double[] outputs, double length, double[] delivered) throws PhotoException {
        settle();
        memory[2].asDoubleBuffer().put(logits(outputs));
        if (delivered != null) {
            head.asDoubleBuffer().put(delivered);
        }
        if (answer(room, slots.size(), delivered == null ? null : head) != 0) {
            throw new PhotoException("the model makes no finite answer of the photo; leave it out");
        }
        Said said = new Said();
        said.logits = copy(memory[3]);
        said.plain = copy(memory[5]);
        said.shares = copy(memory[8]);
        DoubleBuffer numbers = memory[11].asDoubleBuffer();
        said.trust = numbers.get(1);
        said.row = new float[2 * k + 1];
        IntBuffer named = memory[12].asIntBuffer();
        for (int i = 0; i < k; i++) {
            said.row[i] = named.get(i);
        }
        double score = known.score(outputs, length);
        if (known.isKnown(score)) { // else its probabilities are zeros, and it does not count
            memory[13].asFloatBuffer().get(said.row, k, k);
            said.row[2 * k] = known.credit(score);
        }
        return said;
    }

    private static double[] copy(ByteBuffer numbers) {
        double[] found = new double[numbers.capacity() / 8];
        numbers.asDoubleBuffer().get(found);
        return found;
    }

    private double[] logits(double[] outputs) throws PhotoException {
        if (outputs.length != classes) {
            throw new PhotoException("the model gives " + outputs.length + " numbers for " + classes + " labels");
        }
        if (!card.probabilities) {
            return outputs;
        }
        double sum = 0;
        double[] found = new double[classes];
        for (int i = 0; i < classes; i++) {
            sum += outputs[i] >= 0 ? outputs[i] : Double.NaN;
            found[i] = Math.log(Math.max(outputs[i], Float.MIN_NORMAL));
        }
        if (!(Math.abs(sum - 1) <= 1e-2)) {
            throw new PhotoException("the model's answer is not one of probabilities; leave the photo out, or export the bundle"
                    + " again with the outputs that it has");
        }
        return found;
    }

    private static native int version();

    /** Bytes of {@code room}. */
    private static native int size();

    private static native void bind(ByteBuffer room, int classes, int top, ByteBuffer[] vectors, double[] numbers,
            boolean expected, boolean gated, boolean vouched, ByteBuffer[] memory);

    private static native void place(ByteBuffer room, ByteBuffer index, ByteBuffer kept);

    private static native void fold(ByteBuffer room, long[] slots);

    private static native int answer(ByteBuffer room, int photos, ByteBuffer head);
}
