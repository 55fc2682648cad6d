package refocus.recognizer;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What a bundle says about one of its heads, whatever runtime runs it. */
public final class HeadCard {
    /** What a head needs to be kept between photos, and how it changes with each one. */
    public static final class State {
        public final String name;
        /** "feature", or the head's output that a photo leaves behind. */
        public final String source;
        /** True: slots in any order, photo t (from 0) in slot t modulo their number. False: rows, oldest first. */
        public final boolean ring;
        public final int axis;
        private final long[] shape;

        State(Fields fields) {
            name = fields.string("name");
            source = fields.string("source");
            fields.choice("dtype", null, "float32");
            shape = TensorSpec.limited(name, TensorSpec.sizes(name, fields.list("shape")));
            ring = fields.choice("update", null, "append", "ring").equals("ring");
            axis = fields.size("axis", 0, 0);
            fields.end();
            if (axis >= Math.max(1, shape.length)) {
                throw new IllegalArgumentException("state " + name + " has no axis " + axis);
            }
        }

        /** Photos it holds. */
        public int slots() {
            return shape.length == 0 ? 0 : (int) shape[axis];
        }

        /** Numbers of one photo. */
        public int rowSize() {
            return slots() == 0 ? 0 : TensorSpec.count(shape) / slots();
        }

        /** Numbers before the next index of the axis, and how many such blocks stand before it. */
        int inner() {
            return TensorSpec.count(Arrays.copyOfRange(shape, axis + 1, shape.length));
        }

        long[] shape() {
            return shape.clone();
        }
    }

    static final int MAX_WINDOW = 1 << 20;
    public final String name;
    /** C class names in the order of the logits. */
    public final List<String> labels;
    public final List<State> state;
    public final String method;
    /** "window", "streaming" or "none": what the head is given of the photos before. */
    public final String form;
    /** "none", "inputs", "weights" or "whole": how personal weights travel. */
    public final String carrier;
    /** How the classes that the person meets are estimated; null: they are not. */
    final ShareCard shares;
    /** Features that the head can look back on, its own photo not counted. */
    public final int window;
    /** SHA-256 of the training that made it; "" where it does not say. */
    public final String checkpoint;
    /** Answers to the bundle's own photos from an empty history, or null: best label of each, by target. */
    public final Map<?, ?> selfTest;
    /** A network's own classifier, from which training goes on, and hashes of training photos. Nothing here reads them. */
    public final List<ListedFile> files;

    /** Score ({@link Answer#knownScore}) below which an answer is a guess; NaN where the bundle cannot tell. */
    public final double rejection;
    final KnownScores known;
    /** By language, as "de", the C names in the order of {@link #labels}; empty where the bundle brings none. */
    public final Map<String, List<String>> names;

    HeadCard(Fields fields) {
        name = fields.string("name");
        labels = Collections.unmodifiableList(fields.strings("labels"));
        if (fields.names("thresholds")) {
            throw new Fields.Unread(Reason.MODEL_UNFIT, "head '" + name + "' answers with a set of labels for each photo, which this"
                    + " library does not read; import a bundle whose photos have one label each");
        }
        known = KnownScores.of(fields);
        rejection = known.rejection;
        Fields how = fields.object("personalisation");
        method = how.string("method");
        window = (int) how.whole("window", 0, MAX_WINDOW);
        how.string("gate");
        form = how.choice("form", "window", "window", "streaming", "none");
        carrier = how.choice("carrier", "none", "none", "inputs", "weights", "whole");
        shares = how.has("shares") ? new ShareCard(how.object("shares")) : null;
        how.end();
        List<State> states = new ArrayList<State>();
        long numbers = 0;
        for (Fields each : fields.objectsIfAny("state")) {
            states.add(new State(each));
            numbers += TensorSpec.numbers(states.get(states.size() - 1).shape);
        }
        state = Collections.unmodifiableList(states);
        Map<?, ?> training = fields.members("training");
        Object made = training.get("checkpoint_sha256");
        checkpoint = made instanceof String ? (String) made : "";
        names = names(training, labels.size());
        selfTest = fields.has("self_test") ? fields.members("self_test") : null;
        List<ListedFile> listed = new ArrayList<>();
        for (String role : new String[] {"classifier", "taught_by"}) {
            Fields own = fields.has(role) ? fields.object(role) : null;
            if (own != null) {
                listed.add(new ListedFile(own, ListedFile.MAX_SMALL_BYTES));
                own.end();
            }
        }
        files = Collections.unmodifiableList(listed);
        fields.ignore("self_test", "classifier", "taught_by");
        fields.end();
        if (numbers > TensorSpec.MAX_NUMBERS) {
            throw new IllegalArgumentException("the states of head " + name + " have more than " + TensorSpec.MAX_NUMBERS
                    + " numbers");
        }
        if (labels.isEmpty()) {
            throw new IllegalArgumentException("labels are empty");
        }
        if (shares != null) {
            shares.check(labels.size());
        }
        if (!name.matches("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")) {
            throw new IllegalArgumentException("head '" + name + "': use letters, digits, '.', '_' and '-', at most 64");
        }
    }

    /** {@code training.label_names}: a language's list counts where it has a name for every label. */
    private static Map<String, List<String>> names(Map<?, ?> training, int classes) {
        Map<String, List<String>> found = new HashMap<String, List<String>>();
        Object all = training.get("label_names");
        for (Map.Entry<?, ?> each : (all instanceof Map ? (Map<?, ?>) all : Collections.emptyMap()).entrySet()) {
            List<String> names = new ArrayList<String>();
            for (Object name : each.getValue() instanceof List ? (List<?>) each.getValue() : Collections.emptyList()) {
                if (name instanceof String && !((String) name).isEmpty()) {
                    names.add((String) name);
                }
            }
            if (names.size() == classes) {
                found.put(String.valueOf(each.getKey()), Collections.unmodifiableList(names));
            }
        }
        return Collections.unmodifiableMap(found);
    }

    /** A label in a language, as "de"; the label itself where the bundle has no name for it. */
    public String name(String label, String language) {
        List<String> translated = names.get(language);
        int at = translated == null ? -1 : labels.indexOf(label);
        return at < 0 ? label : translated.get(at);
    }
}
