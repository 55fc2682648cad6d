package refocus.recognizer;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.util.HashMap;
import java.util.Map;

/**
 * One loaded program, with a fixed place for every input and output.
 *
 * <p>Inputs and outputs are direct buffers in native order that the program reads and writes where they are: after
 * loading, a photo allocates nothing and copies nothing. Not for several threads at once.
 */
public abstract class Program implements AutoCloseable {
    public final Artifact artifact;
    private final Map<String, Buffer> buffers = new HashMap<String, Buffer>();

    Program(Artifact artifact) {
        this.artifact = artifact;
    }

    /** New memory for an input or output, under its name. */
    final ByteBuffer room(TensorSpec tensor) {
        boolean whole = tensor.dtype.equals("int64");
        ByteBuffer memory = ByteBuffer.allocateDirect(Math.multiplyExact(tensor.count(), whole ? 8 : 4));
        memory.order(ByteOrder.nativeOrder());
        buffers.put(tensor.name, whole ? memory.asLongBuffer() : memory.asFloatBuffer());
        return memory;
    }

    /** The memory of a float32 input or output, from its first number; what it holds is good until the next run. */
    public FloatBuffer floats(String name) {
        FloatBuffer found = ((FloatBuffer) buffers.get(name)).duplicate();
        found.clear();
        return found;
    }

    /** As {@link #floats}, for an int64 input. */
    public LongBuffer longs(String name) {
        LongBuffer found = ((LongBuffer) buffers.get(name)).duplicate();
        found.clear();
        return found;
    }

    /** A copy of an output. */
    public float[] copy(String name) {
        FloatBuffer from = floats(name);
        float[] found = new float[from.remaining()];
        from.get(found);
        return found;
    }

    /** Puts a person's tensors, or those for a stranger, where the program reads its personal inputs. */
    void settle(Map<String, TensorFile.Values> values) {
        for (TensorFile.Values value : values.values()) {
            if (artifact.input(value.name) == null) {
                continue;
            }
            if (value.type.equals("I64")) {
                longs(value.name).put(value.bytes().asLongBuffer());
            } else {
                floats(value.name).put(value.bytes().asFloatBuffer());
            }
        }
    }

    /** Runs the program on what its inputs hold now. */
    public abstract void run() throws RuntimeUnavailableException;

    @Override
    public abstract void close();
}
