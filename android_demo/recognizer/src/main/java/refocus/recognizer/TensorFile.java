package refocus.recognizer;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Named tensors in one file, in the layout of safetensors.
 *
 * <p>Eight bytes give the length of a JSON header, the header gives each tensor's type, shape and place, the rest is the
 * tensors. All of it is checked before a number is used.
 */
public final class TensorFile {
    private static final int MAX_HEADER = 1 << 20;
    private static final int MAX_AXES = 32;
    private static final int ALIGNMENT = 64;
    private static final String METADATA = "__metadata__";
    /** By name. */
    public final Map<String, Values> tensors;
    /** What the header says beside the tensors. */
    public final Map<String, String> metadata;

    private TensorFile(Map<String, Values> tensors, Map<String, String> metadata) {
        this.tensors = Collections.unmodifiableMap(tensors);
        this.metadata = Collections.unmodifiableMap(metadata);
    }

    /** One tensor: numbers in little-endian order, in the file's own bytes. */
    public static final class Values {
        public final String name;
        /** "F32", "F16", "I64" or "I8". */
        public final String type;
        private final long[] shape;
        private final ByteBuffer bytes;

        Values(String name, String type, long[] shape, ByteBuffer bytes) {
            this.name = name;
            this.type = type;
            this.shape = shape;
            this.bytes = bytes;
        }

        public long[] shape() {
            return shape.clone();
        }

        /** A view of the numbers' bytes, in native order of their own. */
        public ByteBuffer bytes() {
            return bytes.duplicate().order(ByteOrder.LITTLE_ENDIAN);
        }

        /** The numbers of a float32 tensor. */
        public float[] floats() {
            float[] found = new float[bytes.remaining() / 4];
            bytes().asFloatBuffer().get(found);
            return found;
        }

        /** Whether it can be this input: the same type and shape. */
        boolean fits(TensorSpec input) {
            String wanted = input.dtype.equals("float32") ? "F32" : "I64";
            return wanted.equals(type) && input.is(shape);
        }

        @Override
        public String toString() {
            return name + " " + type + " " + Arrays.toString(shape);
        }
    }

    /**
     * Reads a whole file's bytes; nothing of the tensors is copied.
     *
     * @throws PersonalWeightsException the bytes are not such a file, or a tensor lies outside it, over another or
     *     unaligned
     */
    public static TensorFile decode(byte[] content, String where) throws PersonalWeightsException {
        ByteBuffer all = ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN);
        long length = content.length < 8 ? 0 : all.getLong(0);
        if (length <= 0 || length > MAX_HEADER || 8 + length > content.length) {
            throw notOurs(where, "a header of " + length + " bytes in a file of " + content.length);
        }
        int start = 8 + (int) length;
        try {
            Map<?, ?> header = (Map<?, ?>) Json.parse(Arrays.copyOfRange(content, 8, start));
            Map<String, String> metadata = new LinkedHashMap<String, String>();
            List<Place> places = new ArrayList<Place>();
            for (Map.Entry<?, ?> entry : header.entrySet()) {
                if (METADATA.equals(entry.getKey())) {
                    for (Map.Entry<?, ?> fact : ((Map<?, ?>) entry.getValue()).entrySet()) {
                        metadata.put((String) fact.getKey(), (String) fact.getValue());
                    }
                } else {
                    places.add(new Place((String) entry.getKey(), Fields.of(entry.getValue(), "tensor")));
                }
            }
            Collections.sort(places);
            Map<String, Values> tensors = new LinkedHashMap<String, Values>();
            long end = 0;
            for (Place place : places) {
                boolean follows = place.begin == end && place.end - place.begin == place.count * place.size;
                end = place.end;
                if (!follows || start + end > content.length || (start + place.begin) % place.size != 0) {
                    throw notOurs(where, "tensor " + place.name + " at " + place.begin);
                }
                ByteBuffer bytes = ByteBuffer.wrap(content, (int) (start + place.begin), (int) (place.end - place.begin));
                tensors.put(place.name, new Values(place.name, place.type, place.shape, bytes.slice()));
            }
            if (start + end != content.length) {
                throw notOurs(where, (content.length - start - end) + " bytes belong to no tensor");
            }
            return new TensorFile(tensors, metadata);
        } catch (ClassCastException | IllegalArgumentException | ArithmeticException error) {
            throw notOurs(where, String.valueOf(error.getMessage()));
        }
    }

    /** Where the header says that a tensor is; they are sorted by that. */
    private static final class Place implements Comparable<Place> {
        final String name;
        final String type;
        final long[] shape;
        final long begin;
        final long end;
        final int size;
        final long count;

        Place(String name, Fields fields) {
            this.name = name;
            type = fields.choice("dtype", null, "F32", "F16", "I64", "I8");
            shape = TensorSpec.sizes(name, fields.list("shape"));
            List<?> offsets = fields.list("data_offsets");
            fields.end();
            if (offsets.size() != 2) {
                throw new IllegalArgumentException("tensor " + name + ": expected two offsets");
            }
            long[] places = TensorSpec.sizes(name, offsets);
            begin = places[0];
            end = places[1];
            size = sizeOf(type);
            count = TensorSpec.count(shape);
            if (shape.length > MAX_AXES) {
                throw new IllegalArgumentException("tensor " + name + " has more than " + MAX_AXES + " axes");
            }
        }

        @Override
        public int compareTo(Place other) {
            return begin != other.begin ? Long.compare(begin, other.begin) : Long.compare(end, other.end);
        }
    }

    /**
     * The file that {@code edge/bundle/tensor_file.py} writes of the same tensors, byte for byte: what a person's tensors are
     * known by is its SHA-256.
     */
    static byte[] encode(Map<String, Values> tensors) {
        List<Values> ordered = new ArrayList<Values>(tensors.values());
        Collections.sort(ordered, new Comparator<Values>() {
            @Override
            public int compare(Values one, Values other) {
                int bySize = sizeOf(other.type) - sizeOf(one.type);
                return bySize != 0 ? bySize : one.name.compareTo(other.name);
            }
        });
        Map<String, Object> header = new LinkedHashMap<String, Object>();
        long end = 0;
        for (Values tensor : ordered) {
            Map<String, Object> place = new LinkedHashMap<String, Object>();
            place.put("dtype", tensor.type);
            List<Object> shape = new ArrayList<Object>();
            for (long size : tensor.shape) {
                shape.add(size);
            }
            place.put("shape", shape);
            place.put("data_offsets", Arrays.<Object>asList(end, end + tensor.bytes.remaining()));
            end += tensor.bytes.remaining();
            header.put(tensor.name, place);
        }
        StringBuilder text = new StringBuilder(Json.write(header));
        while ((8 + text.toString().getBytes(StandardCharsets.UTF_8).length) % ALIGNMENT != 0) {
            text.append(' ');
        }
        byte[] head = text.toString().getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        byte[] length = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(head.length).array();
        out.write(length, 0, length.length);
        out.write(head, 0, head.length);
        for (Values tensor : ordered) {
            byte[] bytes = new byte[tensor.bytes.remaining()];
            tensor.bytes().get(bytes);
            out.write(bytes, 0, bytes.length);
        }
        return out.toByteArray();
    }

    private static int sizeOf(String type) {
        return type.equals("I64") ? 8 : type.equals("F32") ? 4 : type.equals("F16") ? 2 : 1;
    }

    private static PersonalWeightsException notOurs(String where, String why) {
        return new PersonalWeightsException(where + " is no file of tensors (" + why + "); fetch the file again");
    }
}
