package refocus.recognizer;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The fields of one JSON object, each read with its type and range; {@link #end} refuses the ones nobody asked for.
 *
 * <p>A field with a default may be missing, and is never null; only the fields of which {@link #has} is asked may be null.
 *
 * <p>Whatever is wrong is an {@code IllegalArgumentException} that names the field by its path.
 */
final class Fields {
    /** Something sound that this app does not read. */
    static final class Unread extends IllegalArgumentException {
        private static final long serialVersionUID = 1L;
        final Reason reason;

        Unread(Reason reason, String message) {
            super(message);
            this.reason = reason;
        }
    }

    private final Map<?, ?> map;
    private final String where;
    private final Set<Object> unread;

    private Fields(Map<?, ?> map, String where) {
        this.map = map;
        this.where = where;
        this.unread = new HashSet<Object>(map.keySet());
    }

    static Fields of(Object value, String where) {
        if (!(value instanceof Map)) {
            throw new IllegalArgumentException(where + ": expected an object");
        }
        return new Fields((Map<?, ?>) value, where);
    }

    /** Whether a field that may be missing or null has a value. */
    boolean has(String name) {
        unread.remove(name);
        return map.get(name) != null;
    }

    /** Whether a field is there, be it null. */
    boolean names(String name) {
        return map.containsKey(name);
    }

    String string(String name) {
        return expect(name, String.class, "a string");
    }

    String string(String name, String otherwise) {
        return optional(name, String.class, "a string", otherwise);
    }

    long whole(String name, long least) {
        long value = expect(name, Long.class, "a whole number");
        if (value < least) {
            throw new IllegalArgumentException(where + "." + name + " is " + value + ", expected at least " + least);
        }
        return value;
    }

    int size(String name, long least) {
        long value = whole(name, least);
        if (value > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(where + "." + name + " is " + value + ", which no program has");
        }
        return (int) value;
    }

    /** A whole number from {@code least} to {@code most}. */
    long whole(String name, long least, long most) {
        long value = whole(name, least);
        if (value > most) {
            throw new IllegalArgumentException(where + "." + name + " is " + value + ", expected at most " + most);
        }
        return value;
    }

    /** As {@link #size(String, long)}, with a default. */
    int size(String name, long least, int otherwise) {
        return map.containsKey(name) ? size(name, least) : otherwise;
    }

    double number(String name) {
        return expect(name, Number.class, "a number").doubleValue();
    }

    /** A number from {@code least} to {@code most}. */
    double number(String name, double least, double most) {
        return within(name, number(name), least, most);
    }

    /** As before, with a default. */
    double number(String name, double least, double most, double otherwise) {
        return map.containsKey(name) ? number(name, least, most) : otherwise;
    }

    private double within(String name, double value, double least, double most) {
        if (!(value >= least && value <= most)) {
            throw new IllegalArgumentException(where + "." + name + " is " + value + ", expected " + least + " to " + most);
        }
        return value;
    }

    /** The numbers of an array, each from {@code least} to {@code most}; none where it is missing. */
    double[] numbers(String name, double least, double most) {
        List<?> given = map.containsKey(name) ? list(name) : Collections.emptyList();
        double[] found = new double[given.size()];
        for (int i = 0; i < found.length; i++) {
            if (!(given.get(i) instanceof Number)) {
                throw new IllegalArgumentException(where + "." + name + ": expected numbers");
            }
            found[i] = within(name, ((Number) given.get(i)).doubleValue(), least, most);
        }
        return found;
    }

    boolean flag(String name, boolean otherwise) {
        return optional(name, Boolean.class, "true or false", otherwise);
    }

    /** A string that is one of a few. */
    String choice(String name, String otherwise, String... choices) {
        String value = otherwise == null ? string(name) : string(name, otherwise);
        for (String choice : choices) {
            if (choice.equals(value)) {
                return value;
            }
        }
        throw new IllegalArgumentException(where + "." + name + " is '" + value + "', which this app does not know");
    }

    /** The version of a runtime. */
    String version(String name) {
        String value = string(name);
        if (!value.matches("[0-9]{1,9}(\\.[0-9]{1,9}){0,5}[-+.a-zA-Z0-9]{0,40}")) {
            throw new IllegalArgumentException(where + "." + name + " is no version; expected numbers as in 1.20");
        }
        return value;
    }

    String sha256(String name) {
        String value = string(name);
        checkSha256(name, value);
        return value;
    }

    private void checkSha256(String name, String value) {
        if (!value.matches("[0-9a-f]{64}")) {
            throw new IllegalArgumentException(where + "." + name + " is no SHA-256");
        }
    }

    Fields object(String name) {
        return of(expect(name, Map.class, "an object"), where + "." + name);
    }

    /** All members of this object. */
    Map<?, ?> members() {
        return map;
    }

    /** The members of an object of any names; empty where it is missing. */
    Map<?, ?> members(String name) {
        return optional(name, Map.class, "an object", Collections.emptyMap());
    }

    /** The members of an object that is for people; empty where it is missing or something else. */
    Map<?, ?> informative(String name) {
        unread.remove(name);
        Object value = map.get(name);
        return value instanceof Map ? (Map<?, ?>) value : Collections.emptyMap();
    }

    /** The objects of an array. */
    List<Fields> objects(String name) {
        List<Fields> found = new ArrayList<Fields>();
        for (Object item : list(name)) {
            found.add(of(item, where + "." + name + "[" + found.size() + "]"));
        }
        return found;
    }

    /** As {@link #objects}; none where the array is missing. */
    List<Fields> objectsIfAny(String name) {
        return map.containsKey(name) ? objects(name) : Collections.<Fields>emptyList();
    }

    /** The strings of an array. */
    List<String> strings(String name) {
        List<String> found = new ArrayList<String>();
        for (Object item : list(name)) {
            if (!(item instanceof String)) {
                throw new IllegalArgumentException(where + "." + name + ": expected strings");
            }
            found.add((String) item);
        }
        return found;
    }

    /** The SHA-256s of an array; none where it is missing. */
    List<String> sha256sIfAny(String name) {
        List<String> found = map.containsKey(name) ? strings(name) : Collections.<String>emptyList();
        for (String value : found) {
            checkSha256(name, value);
        }
        return found;
    }

    List<?> list(String name) {
        return expect(name, List.class, "an array");
    }

    /** Fields that the device has no use for; what they hold is not looked at. docs/formats/bundle.md lists them. */
    void ignore(String... names) {
        for (String name : names) {
            unread.remove(name);
        }
    }

    void end() {
        if (!unread.isEmpty()) {
            throw new Unread(Reason.MODEL_NEWER, where + " has an unknown field '" + unread.iterator().next()
                    + "'; a newer Refocus may have written it: update the app");
        }
    }

    private <T> T optional(String name, Class<T> type, String expected, T otherwise) {
        return map.containsKey(name) ? expect(name, type, expected) : otherwise;
    }

    private <T> T expect(String name, Class<T> type, String expected) {
        unread.remove(name);
        Object value = map.get(name);
        if (!type.isInstance(value)) {
            throw new IllegalArgumentException(where + "." + name + ": expected " + expected);
        }
        return type.cast(value);
    }
}
