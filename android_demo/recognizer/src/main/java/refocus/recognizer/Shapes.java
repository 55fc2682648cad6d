package refocus.recognizer;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Labels, window, state and programs must fit together before the first photo. */
final class Shapes {
    private static final int ANSWERS = 5; // outputs that every head has: three times logits, attention and trust

    private Shapes() {}

    static void check(Bundle bundle, Artifact artifact) throws BundleException {
        Manifest manifest = bundle.manifest;
        Set<String> own = bundle.defaults(artifact).keySet();
        checkNamesAndTypes(bundle, artifact, own);
        Map<String, TensorSpec> inputs = new HashMap<String, TensorSpec>();
        for (TensorSpec input : artifact.inputs) {
            inputs.put(input.name, input);
        }
        inputs.keySet().removeAll(own);
        String wanted;
        boolean fits;
        if (artifact.role.equals("encoder")) {
            int side = manifest.preprocessing.crop;
            wanted = "photos of " + side + " pixels";
            TensorSpec photo = inputs.get("photo");
            TensorSpec feature = artifact.output("feature");
            boolean shaped = photo != null && photo.rank() == 4 && photo.takesOne() && photo.size(1) == 3 && photo.size(2) == side
                    && photo.size(3) == side;
            fits = shaped && (inputs.size() == 1 || anyTakesInputs(manifest)) && artifact.outputs.size() == 1
                    && feature != null && feature.rank() == 2 && feature.takesOne() && feature.size(1) != TensorSpec.FREE;
        } else {
            HeadCard head = manifest.head(artifact.head);
            wanted = head.labels.size() + " labels and a window of " + head.window;
            fits = headFits(head, artifact, inputs);
        }
        if (!fits) {
            throw new BundleException(bundle.folder + ": " + artifact.file + " does not fit " + wanted + ": it takes "
                    + artifact.inputs + " and gives " + artifact.outputs + "; export the bundle again");
        }
    }

    /** Names are unique, and everything but the number of photos and a person's own inputs is float32. */
    private static void checkNamesAndTypes(Bundle bundle, Artifact artifact, Set<String> own) throws BundleException {
        for (List<TensorSpec> tensors : Arrays.asList(artifact.inputs, artifact.outputs)) {
            Set<String> names = new HashSet<String>();
            for (TensorSpec tensor : tensors) {
                String wanted = tensor.name.equals("history_length") ? "int64" : "float32";
                if (!names.add(tensor.name)) {
                    throw new BundleException(bundle.folder + ": " + artifact.file + " has two inputs or outputs of one"
                            + " name; export it again");
                }
                if (!own.contains(tensor.name) && !tensor.dtype.equals(wanted)) {
                    throw new BundleException(bundle.folder + ": " + tensor.name + " of " + artifact.file + " is "
                            + tensor.dtype + ", expected " + wanted + "; export the bundle again");
                }
            }
        }
    }

    /** A head takes features of the width that the encoders of the spaces it accepts give. */
    static void checkWidths(Manifest manifest) throws BundleException {
        for (Artifact head : manifest.artifacts) {
            for (Artifact encoder : manifest.artifacts) {
                if (head.role.equals("head") && encoder.role.equals("encoder")
                        && head.accepts.contains(encoder.featureSpace)
                        && head.input("feature").size(1) != encoder.output("feature").size(1)) {
                    throw new BundleException(head.file + " does not fit the encoder beside it: it takes features of other"
                            + " width; export the bundle again");
                }
            }
        }
    }

    private static boolean anyTakesInputs(Manifest manifest) {
        for (HeadCard head : manifest.heads) {
            if (head.carrier.equals("inputs")) {
                return true;
            }
        }
        return false;
    }

    /** A head takes the photo's feature and every state, and gives its answers and every row that state is made of. */
    private static boolean headFits(HeadCard head, Artifact artifact, Map<String, TensorSpec> inputs) {
        int classes = head.labels.size();
        TensorSpec feature = inputs.get("feature");
        TensorSpec attention = artifact.output("attention");
        TensorSpec trust = artifact.output("trust");
        boolean answers = feature != null && feature.rank() == 2 && feature.is(1, feature.size(1)) && attention != null
                && attention.rank() == 2 && trust != null && trust.is(1);
        for (String name : new String[] {"plain_logits", "calibrated_logits", "logits"}) {
            answers = answers && artifact.output(name) != null && artifact.output(name).is(1, classes);
        }
        if (!answers) {
            return false;
        }
        Set<String> given = new HashSet<String>(inputs.keySet());
        given.remove("feature");
        if (head.form.equals("none")) {
            return head.state.isEmpty() && head.window == 0 && given.isEmpty() && attention.is(1, 1)
                    && artifact.outputs.size() == ANSWERS;
        }
        boolean streaming = head.form.equals("streaming");
        long seen = attention.size(1);
        boolean shaped = given.remove("history_length") && inputs.get("history_length").is(1)
                && seen >= 1 && seen <= head.window + 1 && (streaming || seen == head.window + 1);
        boolean history = streaming;
        Set<String> rows = new HashSet<String>();
        for (HeadCard.State state : head.state) {
            TensorSpec input = inputs.get(state.name);
            shaped = shaped && given.remove(state.name) && stateFits(head, state, input, artifact.output(state.source));
            if (!state.source.equals("feature")) {
                rows.add(state.source);
            }
            history = history || (state.name.equals("history") && state.source.equals("feature")
                    && state.rowSize() == feature.size(1));
        }
        return shaped && history && given.isEmpty() && artifact.outputs.size() == ANSWERS + rows.size();
    }

    private static boolean stateFits(HeadCard head, HeadCard.State state, TensorSpec input, TensorSpec row) {
        boolean streaming = head.form.equals("streaming");
        long[] shape = state.shape();
        long[] taken = new long[shape.length + (streaming ? 0 : 1)];
        taken[0] = 1;
        System.arraycopy(shape, 0, taken, streaming ? 0 : 1, shape.length);
        long[] one = shape.clone();
        if (!streaming && one.length > 0) {
            one[0] = 1;
        }
        boolean whole = streaming ? row != null && row.count() == state.rowSize()
                : state.source.equals("feature") || (row != null && row.is(one));
        boolean slots = streaming ? state.ring && state.slots() > 0 && state.slots() <= head.window
                : !state.ring && state.axis == 0 && state.slots() == head.window;
        return input != null && input.is(taken) && whole && slots;
    }
}
