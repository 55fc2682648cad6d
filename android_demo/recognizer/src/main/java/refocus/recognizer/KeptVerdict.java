package refocus.recognizer;

import java.io.DataInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The verdict of the {@link SelfTest}, kept in a file: the test runs once for each bundle, version of the runtime and
 * state of the device, and before the first answer.
 *
 * <p>A file that is missing, damaged or of other circumstances leads to another run. One that cannot be written does not
 * stop the app: the next start tests again.
 */
public final class KeptVerdict {
    private static final int MAX_BYTES = 1 << 16;
    private final File file;

    public KeptVerdict(File file) {
        this.file = file;
    }

    /**
     * The verdict about a recogniser, made now unless it was made in the same circumstances.
     *
     * @param circumstances what may change the answers beside bundle and runtime: the system's build, the app's update
     * @throws BundleException the bundle failed its self-test here, now or before
     * @throws RefocusException the self-test could not be run
     */
    public SelfTest.Verdict require(Recognizer recognizer, String circumstances, SelfTest.Decoder decoder)
            throws RefocusException {
        String key = Hashes.sha256(recognizer.bundle.sha256 + "\n" + recognizer.card.name + "\n" + recognizer.programs() + "\n"
                + OrtProgram.version() + "\n"
                + circumstances);
        Map<?, ?> kept = read();
        SelfTest.Verdict verdict = kept != null && key.equals(kept.get("key")) ? verdict(kept) : null;
        if (verdict == null) {
            verdict = SelfTest.run(recognizer, decoder);
            write(key, verdict);
        }
        return SelfTest.accept(verdict, recognizer.bundle);
    }

    /** The verdict that was made last, whatever it was about; null where there is none. */
    public SelfTest.Verdict last() {
        Map<?, ?> kept = read();
        return kept == null ? null : verdict(kept);
    }

    private static SelfTest.Verdict verdict(Map<?, ?> kept) {
        try {
            return SelfTest.Verdict.of(Fields.of(kept.get("verdict"), "verdict"));
        } catch (IllegalArgumentException damaged) {
            return null;
        }
    }

    private Map<?, ?> read() {
        if (!file.isFile() || file.length() > MAX_BYTES) {
            return null;
        }
        try (DataInputStream in = new DataInputStream(new FileInputStream(file))) {
            byte[] content = new byte[(int) file.length()];
            in.readFully(content);
            Object found = Json.parse(content);
            return found instanceof Map ? (Map<?, ?>) found : null;
        } catch (IOException | RuntimeException damaged) {
            return null;
        }
    }

    private void write(String key, SelfTest.Verdict verdict) {
        Map<String, Object> kept = new LinkedHashMap<String, Object>();
        kept.put("key", key);
        kept.put("verdict", verdict.toJson());
        try (FileOutputStream out = new FileOutputStream(file)) {
            out.write(Json.write(kept).getBytes("UTF-8"));
        } catch (IOException full) {
            file.delete(); // tested again at the next start
        }
    }
}
