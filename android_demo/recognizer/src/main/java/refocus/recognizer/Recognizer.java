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
    /** Why the bundle's native head does not serve; "" where it does, or the bundle has none. */
    public final String passedOver;
    private final Program encoder;
    private final Program head;
    private final Normaliser normaliser;
    private final int width;
    private FileHistory history;
    private String space;
    private Past past;
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
        passedOver = serving == null ? reasons.toString() : "";
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

    /** Targets of encoder and head, as "onnxruntime:fp32 + native:fp32"; one where both are the same. */
    public String programs() {
        return target.equals(headTarget) ? target : target + " + " + headTarget;
    }

    /** Whether the bundle has class shares counted, which this recogniser leaves out: photos are answered without them. */
    public boolean leavesSharesOut() {
        return card.shares;
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
            return made(past.answer(feature, photo), feature, new Remembered(), false);
        }
        boolean known = history.has(space, photo);
        if (known) {
            version = -1;
            newest = history.recall(space, card.window, width, photo);
            past.restart(newest);
        } else if (version != history.version()) {
            newest = history.recall(space, card.window, width, null);
            past.restart(newest);
            version = history.version();
        }
        Answer answer = made(past.answer(feature, photo), feature, newest, known);
        if (remember && !known) {
            history.append(space, photo, name, feature);
            past.takeIn(feature, photo);
            newest = newer(newest, photo, name, feature);
            version = history.version();
        }
        return answer;
    }

    /** The head alone, over a history of the caller's, of which the newest photos of the window count. */
    public Answer answerAfter(Remembered before, float[] feature, String photo) throws RefocusException {
        version = -1;
        Remembered kept = new Remembered();
        for (int i = Math.max(0, before.size() - card.window); i < before.size(); i++) {
            kept.add(before.photo(i), before.name(i), before.feature(i));
        }
        past.restart(kept);
        return made(past.answer(feature, photo), feature, kept, false);
    }

    /** The photo that {@link #answerAfter} or this answered last joins the caller's history; the next one is answered. */
    Answer answerNext(Remembered before, float[] lastFeature, String last, float[] feature, String photo)
            throws RefocusException {
        past.takeIn(lastFeature, last);
        return made(past.answer(feature, photo), feature, before, false);
    }

    private Answer made(float[] attention, float[] feature, Remembered before, boolean known) throws PhotoException {
        return new Answer(card, head, attention, feature, before, known);
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
