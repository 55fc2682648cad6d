package refocus.recognizer;

import java.io.File;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The head as one C function: {@code edge/runtimes/native_head}, through JNI.
 *
 * <p>Its file is numbers alone ({@code docs/formats/native-head.md}). Everything about it is checked before a pointer is
 * formed: sizes by the library, inputs and outputs by the manifest.
 */
public final class NativeHead extends Program {
    static final String RUNTIME = "native";
    private static final String LIBRARY = "refocus_native";
    private static final int VERSION = 1;
    private static final int ALIGNMENT = 64; // bytes, of the numbers
    private static final String[] STREAMS = {"config", "floats", "int16", "int8"};
    // In the order of native_head_jni.c.
    private static final String[] SINGLE = {"feature", "history_length", "history", "traits", "plain_logits",
        "calibrated_logits", "logits", "attention", "trust", "trait"};
    // Members of the configuration.
    private static final int FORM = 1;
    private static final int WIDTH = 2;
    private static final int SIGNATURE = 3;
    private static final int LAYERS = 5;
    private static final int HEADS = 6;
    private static final int WINDOW = 7;
    private static final int ROWS = 8;
    private static final int CLASSES = 9;
    private static final int TRAITS = 10;
    private static final int CONFIG = 16;
    private static String missing; // why there is no library; "" where there is one, null before it was looked for
    private final Map<String, ByteBuffer> memory = new HashMap<String, ByteBuffer>();
    private final ByteBuffer[] kept; // what the library reads: alive as long as this
    private long bound;

    /**
     * Loads a verified weight file.
     *
     * @throws RuntimeUnavailableException the app has no such library for this device, or it is of another version
     * @throws BundleException the file is no head for it, or its inputs and outputs are not those of the manifest
     */
    NativeHead(Bundle bundle, Artifact artifact) throws RefocusException {
        super(artifact);
        String reason = missing();
        if (!reason.isEmpty()) {
            throw new RuntimeUnavailableException(artifact.file + ": " + reason);
        }
        Map<String, TensorFile.Values> tensors = tensors(bundle);
        long[] config = config(tensors);
        long[] sizes = sizes(config);
        if (sizes[0] != 0) {
            throw new BundleException(artifact.file + ": member " + (sizes[0] - 1) + " of its configuration is "
                    + config[(int) sizes[0] - 1] + ", out of range; export the bundle again");
        }
        checkLengths(tensors, sizes);
        checkInterface(config);
        kept = new ByteBuffer[STREAMS.length + 1];
        for (int i = 0; i < STREAMS.length; i++) {
            kept[i] = aligned(tensors.get(STREAMS[i]).bytes());
        }
        kept[STREAMS.length] = aligned((int) (4 * sizes[4]));
        for (TensorSpec tensor : artifact.inputs) {
            memory.put(tensor.name, room(tensor));
        }
        for (TensorSpec tensor : artifact.outputs) {
            memory.put(tensor.name, room(tensor));
        }
        bound = bindAll(config);
        if (bound == 0) {
            throw new RuntimeUnavailableException(artifact.file + ": there is no memory for it");
        }
    }

    private Map<String, TensorFile.Values> tensors(Bundle bundle) throws BundleException {
        byte[] content = bundle.read(artifact.file);
        if (!Hashes.sha256(content).equals(artifact.file.sha256)) {
            throw new BundleException(artifact.file + " was changed: its SHA-256 differs from the manifest; import the bundle"
                    + " again");
        }
        try {
            return TensorFile.decode(content, artifact.file.toString()).tensors;
        } catch (PersonalWeightsException error) {
            throw new BundleException(artifact.file + " holds no tensors (" + error.getMessage() + "); export the bundle again",
                    error);
        }
    }

    /** Why no native head can run here; "" where one can. */
    static synchronized String missing() {
        if (missing == null) {
            missing = load();
        }
        return missing;
    }

    private static String load() {
        try {
            String named = System.getProperty("refocus.head", "");
            if (named.isEmpty()) {
                System.loadLibrary(LIBRARY);
            } else {
                System.load(new File(named).getAbsolutePath());
            }
            int found = version();
            return found == VERSION ? "" : "the library of the native head has version " + found + ", this app needs "
                    + VERSION + "; build the app again";
        } catch (UnsatisfiedLinkError error) {
            return "this app has no library of the native head for this device (" + error.getMessage() + ")";
        }
    }

    /** Instruction set that it runs on, as "avx2". */
    static String ranOn() {
        return missing().isEmpty() ? variantName(variant()) : "";
    }

    private long[] config(Map<String, TensorFile.Values> tensors) throws BundleException {
        String[] types = {"I64", "F32", "I8", "I8"};
        int[] axes = {1, 1, 2, 1};
        for (int i = 0; i < STREAMS.length; i++) {
            TensorFile.Values found = tensors.get(STREAMS[i]);
            if (found == null || !found.type.equals(types[i]) || found.shape().length != axes[i]) {
                throw new BundleException(artifact.file + ": tensor " + STREAMS[i] + " is " + found + ", expected "
                        + types[i] + " of " + axes[i] + " axes; export the bundle again");
            }
        }
        long[] config = new long[(int) tensors.get("config").shape()[0]];
        tensors.get("config").bytes().asLongBuffer().get(config);
        if (config.length != CONFIG || tensors.get("int16").shape()[1] != 2) {
            throw new BundleException(artifact.file + " is no head of this layout; export the bundle again");
        }
        if (config[0] != VERSION) {
            throw new BundleException(artifact.file + " has version " + config[0] + " of the native head's layout, this app"
                    + " reads " + VERSION + "; export the bundle again, or update the app");
        }
        return config;
    }

    private void checkLengths(Map<String, TensorFile.Values> tensors, long[] sizes) throws BundleException {
        for (int i = 1; i < STREAMS.length; i++) {
            long found = tensors.get(STREAMS[i]).shape()[0];
            if (found != sizes[i]) {
                throw new BundleException(artifact.file + ": " + STREAMS[i] + " has " + found + " numbers, a head of its"
                        + " configuration has " + sizes[i] + "; export the bundle again");
            }
        }
        if (sizes[4] > TensorSpec.MAX_NUMBERS) {
            throw new BundleException(artifact.file + " needs " + sizes[4] + " numbers to work in; export a smaller head");
        }
    }

    private void checkInterface(long[] config) throws BundleException {
        Map<String, long[]> inputs = new LinkedHashMap<String, long[]>();
        Map<String, long[]> outputs = new LinkedHashMap<String, long[]>();
        boolean streaming = config[FORM] == 1;
        long row = config[WIDTH] + config[SIGNATURE];
        inputs.put("feature", new long[] {1, row});
        inputs.put("history_length", new long[] {1});
        for (String name : new String[] {"plain_logits", "calibrated_logits", "logits"}) {
            outputs.put(name, new long[] {1, config[CLASSES]});
        }
        outputs.put("attention", new long[] {1, streaming ? config[WINDOW] : config[ROWS] + 1});
        outputs.put("trust", new long[] {1});
        long size = config[WIDTH] / config[HEADS];
        for (String cache : caches(config)) {
            inputs.put(cache, new long[] {config[HEADS], config[WINDOW] - 1, size});
            outputs.put(source(cache), new long[] {config[HEADS], 1, size});
        }
        if (!streaming) {
            inputs.put("history", new long[] {1, config[ROWS], row});
        }
        if (config[TRAITS] > 0) {
            inputs.put("traits", streaming ? new long[] {config[ROWS], config[TRAITS]}
                    : new long[] {1, config[ROWS], config[TRAITS]});
            outputs.put("trait", new long[] {1, config[TRAITS]});
        }
        compare("takes", inputs, artifact.inputs);
        compare("gives", outputs, artifact.outputs);
    }

    private void compare(String kind, Map<String, long[]> wanted, Iterable<TensorSpec> declared) throws BundleException {
        int count = 0;
        for (TensorSpec tensor : declared) {
            count++;
            long[] shape = wanted.get(tensor.name);
            String type = tensor.name.equals("history_length") ? "int64" : "float32";
            if (shape == null || !tensor.is(shape) || !tensor.dtype.equals(type)) {
                throw new BundleException(artifact.file + " " + kind + " " + tensor.name + " of shape "
                        + Arrays.toString(shape) + ", its manifest says " + tensor + "; export the bundle again");
            }
        }
        if (count != wanted.size()) {
            throw new BundleException(artifact.file + " " + kind + " " + wanted.keySet() + ", its manifest names " + count
                    + " of them; export the bundle again");
        }
    }

    /** Names of the rings of a streaming head, keys and values of each layer in turn. */
    private static String[] caches(long[] config) {
        int layers = config[FORM] == 1 ? (int) config[LAYERS] : 0;
        String[] found = new String[2 * layers];
        for (int layer = 0; layer < layers; layer++) {
            found[2 * layer] = "keys_" + layer;
            found[2 * layer + 1] = "values_" + layer;
        }
        return found;
    }

    private static String source(String cache) {
        return cache.replace("keys", "key").replace("values", "value");
    }

    private long bindAll(long[] config) {
        String[] names = caches(config);
        ByteBuffer[] caches = new ByteBuffer[names.length];
        ByteBuffer[] rows = new ByteBuffer[names.length];
        for (int i = 0; i < names.length; i++) {
            caches[i] = memory.get(names[i]);
            rows[i] = memory.get(source(names[i]));
        }
        ByteBuffer[] single = new ByteBuffer[SINGLE.length];
        for (int i = 0; i < SINGLE.length; i++) {
            single[i] = memory.get(SINGLE[i]); // null where this form has none
        }
        ByteBuffer[] weights = Arrays.copyOf(kept, STREAMS.length);
        return bind(weights, kept[STREAMS.length], single, caches, rows, variant());
    }

    private static ByteBuffer aligned(ByteBuffer numbers) {
        ByteBuffer found = aligned(numbers.remaining());
        found.duplicate().put(numbers);
        return found;
    }

    /** Memory at a multiple of {@link #ALIGNMENT}. */
    private static ByteBuffer aligned(int bytes) {
        ByteBuffer room = ByteBuffer.allocateDirect(Math.addExact(bytes, ALIGNMENT));
        int start = (int) (-address(room) & (ALIGNMENT - 1));
        room.position(start).limit(start + bytes);
        return room.slice().order(ByteOrder.nativeOrder());
    }

    @Override
    public void run() throws RuntimeUnavailableException {
        if (bound == 0) {
            throw new IllegalStateException(artifact.file + " was closed; load it again");
        }
        if (run(bound) != 0) {
            throw new RuntimeUnavailableException(artifact.file + " cannot run on this processor");
        }
    }

    @Override
    public void close() {
        release(bound);
        bound = 0;
    }

    private static native int version();

    private static native int variant();

    private static native String variantName(int variant);

    /** 0 or the place of the first wrong member plus one, then the numbers of each stream and of the scratch memory. */
    private static native long[] sizes(long[] config);

    private static native long address(ByteBuffer buffer);

    private static native long bind(ByteBuffer[] weights, ByteBuffer scratch, ByteBuffer[] single, ByteBuffer[] caches,
            ByteBuffer[] rows, int variant);

    private static native int run(long bound);

    private static native void release(long bound);
}
