package refocus.recognizer;

import java.util.List;
import java.util.Map;

/** One program of a bundle for one runtime and precision. */
public final class Artifact {
    static final long MAX_BYTES = 4L << 30;
    /** "encoder" turns pixels into a feature; "head" turns a feature and a history into logits. */
    public final String role;
    /** Of a head, its name among the bundle's heads; else "". */
    public final String head;
    /** Runtime and precision, as "onnxruntime:fp32". */
    public final String target;
    /** The program: a file, or a folder of a program with its weights beside it. */
    public final ListedFile file;
    public final List<TensorSpec> inputs;
    public final List<TensorSpec> outputs;
    public final String minRuntimeVersion;
    /** Of an encoder, the space its features live in; else null. */
    public final String featureSpace;
    /** Of a head, the feature spaces whose features it may meet. */
    public final List<String> accepts;
    /** Tensors of the inputs that are each person's own, for somebody who has none; null where there are none. */
    public final ListedFile defaults;
    /** What the export measured, to choose among targets; empty where nothing was. */
    final Map<?, ?> parity;
    final Map<?, ?> accuracy;
    /** Whether tensors inside the program may be each person's own (the carriers "weights" and "whole"). */
    public final boolean takesWeights;

    Artifact(Fields fields) {
        role = fields.choice("role", null, "encoder", "head");
        head = fields.string("head", "");
        // "int8" is what Refocus 0.1 called w8a8 and w8.
        target = fields.string("runtime") + ":" + fields.choice("precision", null, "fp32", "fp16", "w8a8", "w8a16",
                "w16", "w8", "palette6", "int8");
        file = new ListedFile(fields, MAX_BYTES);
        inputs = TensorSpec.all(fields.objects("inputs"));
        outputs = TensorSpec.all(fields.objects("outputs"));
        minRuntimeVersion = fields.version("min_runtime_version");
        featureSpace = fields.has("feature_space") ? fields.sha256("feature_space") : null;
        accepts = fields.sha256sIfAny("accepts");
        Fields own = fields.has("defaults") ? fields.object("defaults") : null;
        defaults = own == null ? null : new ListedFile(own, ListedFile.MAX_SMALL_BYTES);
        if (own != null) {
            own.end();
        }
        takesWeights = fields.has("personal");
        parity = fields.informative("parity");
        accuracy = fields.informative("accuracy");
        // Where a person's tensors are, in programs that the recogniser refuses; and what is for people: what was measured
        // when the bundle was made, and how.
        fields.ignore("personal", "feature_space", "defaults", "producer", "parts_bytes", "placement", "parity_note",
                "recipe", "calibration");
        fields.end();
        check();
    }

    private void check() {
        boolean encoder = role.equals("encoder");
        long numbers = TensorSpec.numbers(inputs) + TensorSpec.numbers(outputs);
        if (numbers > TensorSpec.MAX_NUMBERS) {
            throw new IllegalArgumentException("'" + file + "' has tensors of more than " + TensorSpec.MAX_NUMBERS
                    + " numbers together");
        }
        if (encoder != (featureSpace != null)) {
            throw new IllegalArgumentException("'" + file + "': an encoder, and only an encoder, names its feature_space");
        }
        if (encoder == !accepts.isEmpty()) {
            throw new IllegalArgumentException("'" + file + "': a head, and only a head, lists the spaces it accepts");
        }
        if (encoder != head.isEmpty()) {
            throw new IllegalArgumentException("'" + file + "': a head, and only a head, has a name");
        }
    }

    /** The input of that name, or null. */
    public TensorSpec input(String name) {
        return named(inputs, name);
    }

    /** The output of that name, or null. */
    public TensorSpec output(String name) {
        return named(outputs, name);
    }

    private static TensorSpec named(List<TensorSpec> tensors, String name) {
        for (TensorSpec tensor : tensors) {
            if (tensor.name.equals(name)) {
                return tensor;
            }
        }
        return null;
    }
}
