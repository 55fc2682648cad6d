package refocus.recognizer;

import java.util.LinkedHashMap;
import java.util.Map;

/** One person's tensors for the programs of a bundle whose personal weights are inputs (the carrier "inputs"). */
public final class PersonalInputs {
    static final String METHOD = "method";
    static final String CHECKPOINT = "checkpoint_sha256";
    /** SHA-256 of the tensors' canonical file: the same tensors have the same on every device. */
    public final String sha256;
    final Map<String, TensorFile.Values> tensors;

    private PersonalInputs(Map<String, TensorFile.Values> tensors) {
        this.tensors = tensors;
        this.sha256 = Hashes.sha256(TensorFile.encode(tensors));
    }

    /**
     * Reads a person's file as it arrives from the cloud.
     *
     * @param content the whole file
     * @param where named in errors
     * @param head the head that the person is to be served with; "" is the bundle's first
     * @param target of the recogniser that serves, as "onnxruntime:fp32"
     * @throws PersonalWeightsException not such a file, made for another model, or not exactly the personal inputs of
     *     the bundle's programs
     */
    public static PersonalInputs read(byte[] content, String where, Bundle bundle, String head, String target)
            throws RefocusException {
        TensorFile file = TensorFile.decode(content, where);
        HeadCard card = bundle.manifest.head(head);
        String made = file.metadata.get(CHECKPOINT);
        if (!file.metadata.containsKey(METHOD) || made == null || !made.equals(card.checkpoint)) {
            throw new PersonalWeightsException(where + " was made for model " + brief(made) + ", " + bundle.folder
                    + " is of " + brief(card.checkpoint) + "; fetch the person's file for this bundle");
        }
        return of(file, where, bundle, card.name, target);
    }

    /** As {@link #read}, for tensors that were found to belong to this model already. */
    static PersonalInputs of(TensorFile file, String where, Bundle bundle, String head, String target)
            throws RefocusException {
        Map<String, TensorFile.Values> wanted = new LinkedHashMap<String, TensorFile.Values>();
        wanted.putAll(bundle.defaults(bundle.artifact("encoder", target, "")));
        wanted.putAll(bundle.defaults(bundle.artifact("head", target, head)));
        boolean fits = wanted.keySet().equals(file.tensors.keySet()) && !wanted.isEmpty();
        for (TensorFile.Values value : file.tensors.values()) {
            fits = fits && value.toString().equals(String.valueOf(wanted.get(value.name)));
        }
        if (!fits) {
            throw new PersonalWeightsException(where + " holds " + file.tensors.values() + "; the programs of "
                    + bundle.folder + " take " + wanted.values() + " of each person; fetch the person's file again");
        }
        return new PersonalInputs(file.tensors);
    }

    /** The space of an encoder's features under these inputs; {@code base} is that of the shared encoder. */
    String featureSpace(String base) {
        return Hashes.sha256(base + ":" + sha256);
    }

    private static String brief(String sha256) {
        return sha256 == null ? "unknown" : sha256.substring(0, Math.min(12, sha256.length()));
    }
}
