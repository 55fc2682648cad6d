package refocus.recognizer;

import java.nio.FloatBuffer;

/**
 * Photo in, ranked labels out, history grown by one: one bundle at work for one person at a time.
 *
 * <p>The Java counterpart of {@code edge/recognize/recognizer.py}; golden vectors hold the two together. Not for several threads at
 * once.
 */
public final class Recognizer implements AutoCloseable {
    public final Bundle bundle;
    public final HeadCard card;
    /** Runtime and precision of the programs, as "onnxruntime:fp32". */
    public final String target;
    /** The same of the head, as "native:fp32". */
    public final String headTarget;
    /** Why the bundle's native head does not serve, and why its class shares are not counted; "" where nothing is passed over. */
    public final String passedOver;
    /** Least {@link Answer#knownScore} of what is known; NaN: there is none, and every photo is named. */
    public final double rejection;
    private final Program encoder;
    private final Program head;
    private final Normaliser normaliser;
    private final int width;
    private final ClassShares empty; // without photos; null where class shares are not counted
    private final String classifier; // identity of what derives likely classes
    private FileHistory history;
    private String space;
    private Past past;
    private ProfileShares shares; // of the history; null where they are not counted
    private Remembered newest = new Remembered();
    private long version = -1; // of the history, when the past was last in step with it

    /**
     * Loads a bundle's programs; nobody is served yet: photos are answered without a history.
     *
     * @param head name of the head; "" is the bundle's first
     * @param threads inside one operator; 0 leaves it to the runtime
     * @throws BundleException no such programs, or the head refuses this encoder's features
     * @throws RuntimeUnavailableException the runtime is missing or refused
     */
    public Recognizer(Bundle bundle, String head, int threads) throws RefocusException {
        this(bundle, head, Targets.choose(bundle, bundle.manifest.head(head)), null, threads);
    }

    /** As {@link #Recognizer(Bundle, String, int)}, for one target of the bundle, as "onnxruntime:fp32". */
    public Recognizer(Bundle bundle, String head, String target, int threads) throws RefocusException {
        this(bundle, head, target, target, threads);
    }

    /** As before, with the head of another target, as "native:fp32"; null: the first native one that runs here, else that of
     * the encoder's own. */
    Recognizer(Bundle bundle, String head, String target, String headTarget, int threads) throws RefocusException {
        this.bundle = bundle;
        this.target = target;
        card = bundle.manifest.head(head);
        if (takesWeights()) {
            throw new BundleException(Reason.MODEL_UNFIT, bundle.folder + " takes weights of each person in its graph, which this app does not"
                    + " load; export a method whose personal weights are inputs, or condense a bundle");
        }
        Artifact encoding = bundle.artifact("encoder", target, "");
        encoder = new OrtProgram(bundle, encoding, threads);
        StringBuilder reasons = new StringBuilder();
        Program serving = headTarget == null ? nativeHead(encoding, reasons) : null;
        try {
            this.head = serving != null ? serving : load(encoding, headTarget == null ? target : headTarget, threads);
        } catch (RefocusException error) {
            encoder.close();
            throw error;
        }
        this.headTarget = this.head.artifact.target;
        String uncounted = card.shares == null ? "" : ClassShares.missing();
        if (serving != null) {
            reasons.setLength(0);
        }
        passedOver = reasons + (reasons.length() > 0 && !uncounted.isEmpty() ? "; " : "")
                + (uncounted.isEmpty() ? "" : "your photos are not counted: " + uncounted);
        rejection = card.rejection;
        empty = card.shares != null && uncounted.isEmpty() ? new ClassShares(card.shares, card.labels.size(), card.known) : null;
        classifier = empty == null ? "" : Hashes.sha256((card.checkpoint.isEmpty() ? this.head.artifact.file.sha256
                : card.checkpoint) + card.shares.identity(card.labels, card.known));
        normaliser = new Normaliser(bundle.manifest.preprocessing);
        width = (int) encoding.output("feature").size(1);
        switchTo(null, null);
    }

    /** The first native head of the bundle that accepts an encoder's features and runs here, or null. */
    private Program nativeHead(Artifact encoding, StringBuilder reasons) {
        for (Artifact artifact : bundle.manifest.artifacts) {
            boolean offered = artifact.head.equals(card.name) && artifact.target.startsWith(NativeHead.RUNTIME + ":");
            if (offered && artifact.accepts.contains(encoding.featureSpace)) {
                try {
                    return new NativeHead(bundle, artifact);
                } catch (RefocusException error) {
                    reasons.append(reasons.length() > 0 ? "; " : "").append(error.getMessage());
                }
            }
        }
        return null;
    }

    private Program load(Artifact encoding, String wanted, int threads) throws RefocusException {
        Artifact answering = bundle.artifact("head", wanted, card.name);
        if (!answering.accepts.contains(encoding.featureSpace)) {
            throw new BundleException(Reason.MODEL_UNFIT, answering.file + " does not accept features of " + encoding.file);
        }
        return wanted.startsWith(NativeHead.RUNTIME + ":") ? new NativeHead(bundle, answering)
                : new OrtProgram(bundle, answering, threads);
    }

    /** What answers, as "onnxruntime:fp32 + native:fp32 + class shares": targets of encoder and head, one where both are the same. */
    public String programs() {
        return (target.equals(headTarget) ? target : target + " + " + headTarget) + (empty == null ? "" : " + class shares");
    }

    /** Whether answers take into account which classes the person's photos show. */
    public boolean countsShares() {
        return empty != null;
    }

    /** Class shares before the first photo; null where they have no part in answers. */
    ClassShares noShares() {
        return empty == null ? null : new ClassShares(card.shares, card.labels.size(), card.known);
    }

    /** Identity of what derives the likely classes of a photo. */
    String classifier() {
        return classifier;
    }

    /**
     * What class shares count of a photo: what is kept of it, or else computed from its feature and then kept.
     *
     * @return k classes, their probabilities and the credit of the photo; null where the photo has no feature, or no finite answer
     */
    float[] row(Album.Features photos, String photo) throws RefocusException {
        float[] row = photos.row(photo);
        float[] feature = photos.of(photo);
        if (empty.fits(row) || feature == null || feature.length != width) {
            return empty.fits(row) ? row : null;
        }
        version = -1;
        past.restart(new Remembered());
        past.answer(feature, photo);
        try {
            row = empty.answer(Answer.doubles(head.copy("plain_logits")), KnownScores.length(feature), null).row;
        } catch (PhotoException none) {
            return null;
        }
        photos.keep(photo, row);
        return row;
    }

    private boolean takesWeights() {
        for (Artifact artifact : bundle.manifest.artifacts) {
            if (artifact.takesWeights) {
                return true;
            }
        }
        return false;
    }

    /**
     * Serves another person from now on; programs stay loaded. The history that was open is closed.
     *
     * @param person open history of the person; null keeps nothing
     * @param inputs tensors of the person's own; null: those of a stranger
     */
    public void switchTo(FileHistory person, PersonalInputs inputs) throws RefocusException {
        if (history != null && history != person) {
            history.close();
        }
        history = person;
        String shared = encoder.artifact.featureSpace;
        encoder.settle(bundle.defaults(encoder.artifact));
        head.settle(bundle.defaults(head.artifact));
        if (inputs != null) {
            encoder.settle(inputs.tensors);
            head.settle(inputs.tensors);
        }
        space = inputs == null ? shared : inputs.featureSpace(shared);
        past = Pasts.of(head, card);
        newest = new Remembered();
        version = -1;
        shares = person == null || empty == null ? null : new ProfileShares(this, person);
    }

    /** Feature space of the person's features. */
    public String space() {
        return space;
    }

    /** Numbers of a feature. */
    public int featureWidth() {
        return width;
    }

    /**
     * Recognises one photo and, once the answer is known, remembers its feature.
     *
     * <p>A photo that is stored already is recognised from the photos before it, and stays where it is.
     *
     * @param rows the decoded photo
     * @param photo what identifies it: the SHA-256 of its bytes
     * @param name where the photo is, for explanations
     * @param remember false leaves the history as it is
     * @throws PhotoException not one whole photo; the history is unchanged
     * @throws HistoryException the history could not be read or written
     */
    public Answer recognize(PhotoRows rows, String photo, String name, boolean remember) throws RefocusException {
        return answer(encode(rows), photo, name, remember);
    }

    /** As {@link #recognize}, for pixels (1, 3, S, S) that were prepared elsewhere. */
    public Answer recognizePixels(FloatBuffer pixels, String photo, String name, boolean remember)
            throws RefocusException {
        encoder.floats("photo").put(pixels.duplicate());
        return answer(encodePrepared(), photo, name, remember);
    }

    /** One photo to its feature (D). */
    public float[] encode(PhotoRows rows) throws RefocusException {
        prepare(rows);
        return encodePrepared();
    }

    /** The first half of {@link #encode}: the photo becomes the encoder's input. */
    void prepare(PhotoRows rows) throws PhotoException {
        Resizer resizer = new Resizer(bundle.manifest.preprocessing, rows.width(), rows.height(), rows.orientation());
        rows.readInto(resizer);
        if (resizer.missing() > 0) {
            throw new PhotoException("the photo ends " + resizer.missing() + " rows early; copy it again from its source");
        }
        normaliser.write(resizer.finish(), encoder.floats("photo"));
    }

    /** The second half of {@link #encode}. */
    float[] encodePrepared() throws RefocusException {
        encoder.run();
        float[] feature = encoder.copy("feature");
        if (!Answer.isFinite(feature)) {
            throw new PhotoException("the model makes no finite feature of the photo; leave it out");
        }
        return feature;
    }

    /** The answer to a photo of feature (D) from the profile's history, which it joins if it is to be remembered. */
    public Answer answer(float[] feature, String photo, String name, boolean remember) throws RefocusException {
        if (history == null) {
            past.restart(new Remembered());
            return made(past.answer(feature, photo), feature, new Remembered(), false, empty);
        }
        boolean known = history.has(space, photo);
        ClassShares before = shares == null ? null : shares.before(photo, known); // first: it may ask the head
        if (known) {
            version = -1;
            newest = history.recall(space, card.window, width, photo);
            past.restart(newest);
        } else if (version != history.version()) {
            newest = history.recall(space, card.window, width, null);
            past.restart(newest);
            version = history.version();
        }
        Answer answer = made(past.answer(feature, photo), feature, newest, known, before);
        if (remember && !known) {
            history.append(space, photo, name, feature);
            if (shares != null) {
                shares.stored(photo, answer.row);
            }
            past.takeIn(feature, photo);
            newest = newer(newest, photo, name, feature);
            version = history.version();
        }
        return answer;
    }

    /**
     * The head alone, over a history of the caller's, of which the newest photos of the window count.
     *
     * @param shares of the photos before; null: they have no part in the answer
     */
    Answer answerAfter(Remembered before, float[] feature, String photo, ClassShares shares) throws RefocusException {
        version = -1;
        Remembered kept = new Remembered();
        for (int i = Math.max(0, before.size() - card.window); i < before.size(); i++) {
            kept.add(before.photo(i), before.name(i), before.feature(i));
        }
        past.restart(kept);
        return made(past.answer(feature, photo), feature, kept, false, shares);
    }

    /** The photo that {@link #answerAfter} or this answered last joins the caller's history; the next one is answered. */
    Answer answerNext(Remembered before, float[] lastFeature, String last, float[] feature, String photo, ClassShares shares)
            throws RefocusException {
        past.takeIn(lastFeature, last);
        return made(past.answer(feature, photo), feature, before, false, shares);
    }

    private Answer made(float[] attention, float[] feature, Remembered before, boolean known, ClassShares shares)
            throws PhotoException {
        return new Answer(card, head, attention, feature, before, known, shares);
    }

    private Remembered newer(Remembered before, String photo, String name, float[] feature) {
        Remembered found = new Remembered();
        for (int i = Math.max(0, before.size() + 1 - card.window); i < before.size(); i++) {
            found.add(before.photo(i), before.name(i), before.feature(i));
        }
        if (card.window > 0) {
            found.add(photo, name, feature);
        }
        return found;
    }

    /** Size in bytes of what was loaded. */
    public long programBytes() {
        return encoder.artifact.file.sizeBytes + head.artifact.file.sizeBytes;
    }

    @Override
    public void close() {
        if (history != null) {
            history.close();
            history = null;
        }
        encoder.close();
        head.close();
    }
}
