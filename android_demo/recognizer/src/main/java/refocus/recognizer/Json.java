package refocus.recognizer;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * A strict reader of JSON (RFC 8259), and a writer of compact JSON.
 *
 * <p>Objects become {@link LinkedHashMap}, arrays {@link List}, integers {@link Long}, other numbers {@link Double}. The
 * platform's own org.json is lenient and absent from a desktop JVM, where this code is tested.
 */
public final class Json {
    private static final int MAX_DEPTH = 64;
    private static final Pattern NUMBER = Pattern.compile("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Bytes in UTF-8 to the value that they hold; {@code IllegalArgumentException} where they are not one JSON value. */
    public static Object parse(byte[] content) {
        String text;
        try {
            text = StandardCharsets.UTF_8.newDecoder()
                    .onMalformedInput(CodingErrorAction.REPORT)
                    .onUnmappableCharacter(CodingErrorAction.REPORT)
                    .decode(ByteBuffer.wrap(content))
                    .toString();
        } catch (CharacterCodingException error) {
            throw new IllegalArgumentException("not UTF-8");
        }
        Json reader = new Json(text);
        Object value = reader.value(0);
        reader.space();
        if (reader.at < text.length()) {
            throw reader.wrong("nothing more");
        }
        return value;
    }

    private Object value(int depth) {
        if (depth > MAX_DEPTH) {
            throw wrong("at most " + MAX_DEPTH + " levels");
        }
        space();
        char next = peek();
        if (next == '{') {
            return object(depth);
        }
        if (next == '[') {
            return array(depth);
        }
        if (next == '"') {
            return string();
        }
        if (next == '-' || (next >= '0' && next <= '9')) {
            return number();
        }
        if (text.startsWith("true", at)) {
            at += 4;
            return Boolean.TRUE;
        }
        if (text.startsWith("false", at)) {
            at += 5;
            return Boolean.FALSE;
        }
        if (text.startsWith("null", at)) {
            at += 4;
            return null;
        }
        throw wrong("a value");
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> found = new LinkedHashMap<String, Object>();
        at++;
        space();
        if (take('}')) {
            return found;
        }
        while (true) {
            space();
            if (peek() != '"') {
                throw wrong("a name in quotes");
            }
            String name = string();
            space();
            expect(':');
            if (found.containsKey(name)) {
                throw wrong("each name once; '" + name + "' comes twice");
            }
            found.put(name, value(depth + 1));
            space();
            if (take('}')) {
                return found;
            }
            expect(',');
        }
    }

    private List<Object> array(int depth) {
        List<Object> found = new ArrayList<Object>();
        at++;
        space();
        if (take(']')) {
            return found;
        }
        while (true) {
            found.add(value(depth + 1));
            space();
            if (take(']')) {
                return found;
            }
            expect(',');
        }
    }

    private String string() {
        StringBuilder found = new StringBuilder();
        at++;
        while (true) {
            char next = peek();
            at++;
            if (next == '"') {
                return whole(found);
            }
            if (next < 0x20) {
                throw wrong("no control characters in a string");
            }
            found.append(next == '\\' ? escaped() : next);
        }
    }

    /** A string of whole characters: an escape may spell half of one, which is no text. */
    private String whole(CharSequence found) {
        for (int i = 0; i < found.length(); i++) {
            boolean high = Character.isHighSurrogate(found.charAt(i));
            if (high && i + 1 < found.length() && Character.isLowSurrogate(found.charAt(i + 1))) {
                i++;
            } else if (high || Character.isLowSurrogate(found.charAt(i))) {
                throw wrong("both halves of a character");
            }
        }
        return found.toString();
    }

    private char escaped() {
        char kind = peek();
        at++;
        int plain = "\"\\/bfnrt".indexOf(kind);
        if (plain >= 0) {
            return "\"\\/\b\f\n\r\t".charAt(plain);
        }
        if (kind != 'u' || at + 4 > text.length()) {
            throw wrong("an escape");
        }
        int code = 0;
        for (int i = 0; i < 4; i++) {
            int digit = "0123456789abcdef".indexOf(Character.toLowerCase(text.charAt(at++)));
            if (digit < 0) {
                throw wrong("four hexadecimal digits");
            }
            code = code * 16 + digit;
        }
        return (char) code;
    }

    /** A whole number without fraction or exponent is a Long, any other a Double; so is one beyond 64 bits. */
    private Object number() {
        int start = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String found = text.substring(start, at);
        if (!NUMBER.matcher(found).matches()) {
            throw wrong("a number");
        }
        if (found.length() < 19 && found.indexOf('.') < 0 && found.indexOf('e') < 0 && found.indexOf('E') < 0) {
            return Long.valueOf(found);
        }
        Double value = Double.valueOf(found);
        if (value.isInfinite()) {
            throw wrong("a number that fits");
        }
        return value;
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() {
        if (at >= text.length()) {
            throw wrong("more");
        }
        return text.charAt(at);
    }

    private boolean take(char wanted) {
        if (at < text.length() && text.charAt(at) == wanted) {
            at++;
            return true;
        }
        return false;
    }

    private void expect(char wanted) {
        if (!take(wanted)) {
            throw wrong("'" + wanted + "'");
        }
    }

    private IllegalArgumentException wrong(String expected) {
        return new IllegalArgumentException("JSON: expected " + expected + " at character " + at);
    }

    /** Maps, lists, strings, numbers and booleans as compact JSON, names in the map's order. */
    public static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map) {
            String between = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(between);
                quote(String.valueOf(entry.getKey()), out);
                out.append(':');
                write(entry.getValue(), out);
                between = ",";
            }
            out.append(between.equals("{") ? "{}" : "}");
        } else if (value instanceof List) {
            String between = "[";
            for (Object item : (List<?>) value) {
                out.append(between);
                write(item, out);
                between = ",";
            }
            out.append(between.equals("[") ? "[]" : "]");
        } else if (value instanceof String) {
            quote((String) value, out);
        } else if (value instanceof Double && (((Double) value).isNaN() || ((Double) value).isInfinite())) {
            out.append("null");
        } else {
            out.append(value);
        }
    }

    private static void quote(String value, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
