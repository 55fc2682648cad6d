package refocus.recognizer;

import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OnnxTensorLike;
import ai.onnxruntime.OnnxValue;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtLoggingLevel;
import ai.onnxruntime.OrtSession;
import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/** A program in an ONNX Runtime session. */
public final class OrtProgram extends Program {
    private static final String PROGRAM = "program.onnx";
    private static final int[] FIRST_WITH_TELEMETRY = {1, 29};
    private static final int[] FIRST_WRONG_WITH_SME = {1, 24};
    private static final int[] FIRST_RIGHT_WITH_SME = {1, 28};
    private final OrtSession session;
    private final Map<String, OnnxTensorLike> inputs = new LinkedHashMap<String, OnnxTensorLike>();
    private final Map<String, OnnxValue> outputs = new LinkedHashMap<String, OnnxValue>();

    /**
     * Loads a verified program.
     *
     * @param threads inside one operator; 0 leaves it to the runtime
     * @throws RuntimeUnavailableException the runtime is missing, refused, or older than the program needs
     * @throws BundleException the file is no program for it, or its inputs and outputs are not those of the manifest
     */
    public OrtProgram(Bundle bundle, Artifact artifact, int threads) throws RefocusException {
        super(artifact);
        OrtEnvironment environment = environment();
        if (compare(numbers(version()), numbers(artifact.minRuntimeVersion)) < 0) {
            throw new RuntimeUnavailableException(artifact.file + " needs onnxruntime " + artifact.minRuntimeVersion
                    + " or newer, this app has " + version() + "; update the app");
        }
        File path = artifact.file.in(bundle.folder);
        path = path.isDirectory() ? new File(path, PROGRAM) : path;
        OrtSession made = null;
        try {
            OrtSession.SessionOptions options = options(environment.getVersion(), threads);
            try {
                if (artifact.target.endsWith(":w8a8") && mayOverflow(new File("/proc/cpuinfo"))) {
                    // Exact where sums of bytes would saturate, and several times slower; arm64 processors ignore it.
                    options.addConfigEntry("session.x64quantprecision", "1");
                }
                made = environment.createSession(path.getPath(), options); // a path: bytes would double the peak
            } finally {
                options.close();
            }
            session = made;
            checkNames();
            for (TensorSpec tensor : artifact.inputs) {
                inputs.put(tensor.name, make(environment, tensor));
            }
            for (TensorSpec tensor : artifact.outputs) {
                outputs.put(tensor.name, make(environment, tensor));
            }
        } catch (OrtException error) {
            closeQuietly(made);
            throw new BundleException(artifact.file + " is no program for onnxruntime " + version() + ": "
                    + error.getMessage() + "; import the bundle again", error);
        } catch (BundleException error) {
            closeQuietly(made);
            throw error;
        }
    }

    static OrtSession.SessionOptions options(String version, int threads) throws OrtException {
        OrtSession.SessionOptions options = new OrtSession.SessionOptions();
        try {
            options.setIntraOpNumThreads(threads);
            options.setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR);
            for (Map.Entry<String, String> entry : sessionEntries(version).entrySet()) {
                options.addConfigEntry(entry.getKey(), entry.getValue());
            }
            return options;
        } catch (OrtException error) {
            options.close();
            throw error;
        }
    }

    /**
     * Session entries without which a version of the runtime computes wrong features on some processors: 1.24 to 1.27
     * have wrong convolutions on arm64 processors with SME, those of KleidiAI. 1.24 cannot be told to leave KleidiAI out;
     * there the self-test alone protects. Other processors pass over the entry.
     */
    static Map<String, String> sessionEntries(String version) {
        int[] numbers = numbers(version);
        boolean wrong = compare(numbers, FIRST_WRONG_WITH_SME) >= 0 && compare(numbers, FIRST_RIGHT_WITH_SME) < 0;
        return wrong ? Collections.singletonMap("mlas.disable_kleidiai", "1") : Collections.<String, String>emptyMap();
    }

    /** Whether a processor is none that Linux lists with VNNI: other x86 processors saturate sums of products of bytes. */
    static boolean mayOverflow(File cpuinfo) {
        try {
            String listed = new String(Files.readAllBytes(cpuinfo.toPath()), "UTF-8");
            return !listed.contains("avx512_vnni") && !listed.contains("avx_vnni");
        } catch (IOException error) {
            return true;
        }
    }

    private OnnxTensor make(OrtEnvironment environment, TensorSpec tensor) throws OrtException {
        ByteBuffer memory = room(tensor);
        return tensor.dtype.equals("int64")
                ? OnnxTensor.createTensor(environment, memory.asLongBuffer(), tensor.forOne())
                : OnnxTensor.createTensor(environment, memory.asFloatBuffer(), tensor.forOne());
    }

    private void checkNames() throws BundleException {
        Set<String> declared = new HashSet<String>();
        for (TensorSpec tensor : artifact.inputs) {
            declared.add(tensor.name);
        }
        for (TensorSpec tensor : artifact.outputs) {
            declared.add(tensor.name);
        }
        Set<String> found = new HashSet<String>(session.getInputNames());
        found.addAll(session.getOutputNames());
        if (!declared.equals(found)) {
            throw new BundleException(artifact.file + " has inputs and outputs " + found + ", its manifest says " + declared
                    + "; export it again");
        }
    }

    @Override
    public void run() throws RuntimeUnavailableException {
        try {
            session.run(inputs, outputs).close(); // the outputs are ours, and stay
        } catch (OrtException error) {
            throw new RuntimeUnavailableException(artifact.file + " stopped: " + error.getMessage(), error);
        }
    }

    @Override
    public void close() {
        for (OnnxTensorLike input : inputs.values()) {
            input.close();
        }
        for (OnnxValue output : outputs.values()) {
            output.close();
        }
        closeQuietly(session);
    }

    /** The one environment of the process. */
    private static OrtEnvironment environment() throws RuntimeUnavailableException {
        try {
            OrtEnvironment environment = OrtEnvironment.getEnvironment(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR);
            refuseTelemetry(environment.getVersion());
            return environment;
        } catch (UnsatisfiedLinkError | NoClassDefFoundError error) {
            throw new RuntimeUnavailableException("this build has no ONNX Runtime for this device (" + error.getMessage()
                    + "); build the app with the runtime's Android archive", error);
        }
    }

    /** Version of the runtime, as "1.28.0". */
    public static String version() throws RuntimeUnavailableException {
        return environment().getVersion();
    }

    /** Official builds from 1.29 report to their maker's servers unless told not to: photos must stay on the device. */
    static void refuseTelemetry(String version) throws RuntimeUnavailableException {
        if (compare(numbers(version), FIRST_WITH_TELEMETRY) >= 0) {
            throw new RuntimeUnavailableException("onnxruntime " + version + " carries telemetry; build the app with one"
                    + " below 1.29");
        }
    }

    private static int[] numbers(String version) {
        String[] parts = version.split("[^0-9]+");
        int[] found = new int[Math.min(3, parts.length)];
        for (int i = 0; i < found.length; i++) {
            String part = parts[i].substring(0, Math.min(9, parts[i].length())); // longer ones are no version of anything
            found[i] = part.isEmpty() ? 0 : Integer.parseInt(part);
        }
        return found;
    }

    private static int compare(int[] one, int[] other) {
        for (int i = 0; i < Math.max(one.length, other.length); i++) {
            int difference = (i < one.length ? one[i] : 0) - (i < other.length ? other[i] : 0);
            if (difference != 0) {
                return difference;
            }
        }
        return 0;
    }

    private static void closeQuietly(OrtSession session) {
        if (session != null) {
            try {
                session.close();
            } catch (OrtException error) {
                throw new IllegalStateException("a session could not be closed", error);
            }
        }
    }
}
