package refocus.recognizer;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** One input or output of a program. A dimension that is not fixed is {@link #FREE}. */
public final class TensorSpec {
    public static final long FREE = -1;
    static final int MAX_AXES = 16;
    /** Numbers in all inputs and outputs of a program, or in all states of a head. */
    static final long MAX_NUMBERS = 1L << 26;
    public final String name;
    /** "float32" or "int64". */
    public final String dtype;
    private final long[] shape;

    private TensorSpec(String name, String dtype, long[] shape) {
        this.name = name;
        this.dtype = dtype;
        this.shape = shape;
    }

    static List<TensorSpec> all(List<Fields> listed) {
        List<TensorSpec> found = new ArrayList<TensorSpec>();
        for (Fields fields : listed) {
            String name = fields.string("name");
            String dtype = fields.choice("dtype", null, "float32", "int64");
            List<?> sizes = fields.list("shape");
            fields.end();
            found.add(new TensorSpec(name, dtype, limited(name, shape(name, sizes))));
        }
        return Collections.unmodifiableList(found);
    }

    /** The shape, if a manifest may have it; tensor files have other limits. */
    static long[] limited(String name, long[] shape) {
        for (long size : shape) {
            if (shape.length > MAX_AXES || size > Integer.MAX_VALUE) {
                throw new IllegalArgumentException("tensor " + name + " has more than " + MAX_AXES + " axes, or one above "
                        + Integer.MAX_VALUE);
            }
        }
        return shape;
    }

    /** Sizes of a shape; a name in place of a size is {@link #FREE}. */
    static long[] shape(String name, List<?> sizes) {
        long[] shape = new long[sizes.size()];
        for (int i = 0; i < shape.length; i++) {
            Object size = sizes.get(i);
            boolean fits = size instanceof String || (size instanceof Long && (Long) size >= 0);
            if (!fits) {
                throw new IllegalArgumentException("tensor " + name + ": expected sizes, got " + sizes);
            }
            shape[i] = size instanceof Long ? (Long) size : FREE;
        }
        return shape;
    }

    /** Sizes of a shape that is fixed. */
    static long[] sizes(String name, List<?> sizes) {
        for (Object size : sizes) {
            if (!(size instanceof Long)) {
                throw new IllegalArgumentException("tensor " + name + ": expected whole numbers, got " + sizes);
            }
        }
        return shape(name, sizes);
    }

    public int rank() {
        return shape.length;
    }

    public long size(int axis) {
        return shape[axis];
    }

    /** The shape for one photo: what is free is 1. */
    public long[] forOne() {
        long[] one = shape.clone();
        for (int i = 0; i < one.length; i++) {
            one[i] = one[i] == FREE ? 1 : one[i];
        }
        return one;
    }

    /** Whether the program takes or gives one photo's numbers: the first axis is 1 or free. */
    boolean takesOne() {
        return shape[0] == 1 || shape[0] == FREE;
    }

    /** Numbers in a tensor for one photo. */
    public int count() {
        return count(forOne());
    }

    static int count(long[] shape) {
        long count = 1;
        for (long size : shape) {
            count = Math.multiplyExact(count, size);
        }
        return Math.toIntExact(count);
    }

    /** Numbers of all tensors together, a free axis counted as one; no more than a little above the limit is told. */
    static long numbers(List<TensorSpec> tensors) {
        long sum = 0;
        for (TensorSpec tensor : tensors) {
            sum = Math.min(sum + numbers(tensor.forOne()), MAX_NUMBERS + 1);
        }
        return sum;
    }

    /** Numbers of one shape; {@code MAX_NUMBERS + 1} where there are more. */
    static long numbers(long[] shape) {
        long product = 1;
        boolean none = false;
        for (long size : shape) {
            none = none || size == 0;
            product = Math.min(product * Math.max(size, 1), MAX_NUMBERS + 1); // below 2^27 * 2^31
        }
        return none ? 0 : product;
    }

    /** Whether the shape is exactly this one. */
    boolean is(long... wanted) {
        return java.util.Arrays.equals(shape, wanted);
    }

    @Override
    public String toString() {
        return name + " " + java.util.Arrays.toString(shape).replace("-1", "?");
    }
}
