package refocus.recognizer;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TimeZone;

/**
 * Times the recogniser photo by photo and writes the document that {@code refocus bench} reads (schema 1).
 *
 * <p>Every sample is kept, nothing is trimmed. One group, "stages": "prepare" (resize and normalise; a phone decodes its
 * photo on the way), "encoder" and "head" are parts of one photo, "whole" is all of it. The document says that nobody
 * watched clocks and load, and so no row is called valid.
 */
public final class Bench {
    private static final int SCHEMA = 2; // of edge's benchmark documents
    private static final String[] STAGES = {"prepare", "encoder", "head", "whole"};
    private final Recognizer recognizer;
    private final int warmUp;
    private final int runs;
    private float[] last = new float[0];

    /** What the caller knows about the device; the rest of the document is measured here. */
    public static final class Device {
        public String kind = "cpu";
        public String id = "";
        public String system = "";
        public String cpu = "";
        public int cores = 1;
        public long memoryBytes;
        public final Map<String, String> extra = new LinkedHashMap<String, String>();
    }

    /**
     * @param warmUp photos before the first sample
     * @param runs samples
     */
    public Bench(Recognizer recognizer, int warmUp, int runs) {
        this.recognizer = recognizer;
        this.warmUp = warmUp;
        this.runs = Math.max(1, runs);
    }

    /** Answers one photo after the other, each behind the photos before it; the history stays in memory alone. */
    public Map<String, Object> measure(List<PhotoRows> photos, Device device, int threads) throws RefocusException {
        long began = System.nanoTime();
        String started = utc();
        double[][] samples = new double[STAGES.length][runs];
        double[] starts = new double[runs];
        Remembered before = new Remembered();
        ClassShares shares = recognizer.noShares();
        for (int i = -warmUp; i < runs; i++) {
            PhotoRows photo = photos.get(Math.floorMod(i, photos.size()));
            long start = System.nanoTime();
            recognizer.prepare(photo);
            long prepared = System.nanoTime();
            float[] feature = recognizer.encodePrepared();
            long encoded = System.nanoTime();
            Answer answer = i == -warmUp ? recognizer.answerAfter(before, feature, "0", shares)
                    : recognizer.answerNext(before, last, "" + (i - 1), feature, "" + i, shares);
            if (shares != null) {
                shares.add("" + i, answer.row);
            }
            long answered = System.nanoTime();
            last = feature;
            if (i >= 0) {
                starts[i] = (start - began) / 1e9;
                samples[0][i] = (prepared - start) / 1e6;
                samples[1][i] = (encoded - prepared) / 1e6;
                samples[2][i] = (answered - encoded) / 1e6;
                samples[3][i] = (answered - start) / 1e6;
            }
        }
        return document(samples, starts, started, (System.nanoTime() - began) / 1e9, photos.size(), device, threads);
    }

    private Map<String, Object> document(double[][] samples, double[] starts, String started, double seconds, int photos,
            Device device, int threads) throws RefocusException {
        Bundle bundle = recognizer.bundle;
        List<Object> rows = new ArrayList<Object>();
        for (int i = 0; i < STAGES.length; i++) {
            rows.add(row(STAGES[i], samples[i], starts));
        }
        Map<String, Object> machine = map("device", device.kind, "id", device.id, "system", device.system, "python", "",
                "cpu", device.cpu, "cores", (long) device.cores, "memory_bytes", device.memoryBytes, "extra", device.extra);
        Map<String, Object> ran = map("bundle", bundle.manifest.name, "target", recognizer.target, "encoder_sha256",
                bundle.artifact("encoder", recognizer.target, "").file.sha256, "head_sha256",
                bundle.artifact("head", recognizer.headTarget, recognizer.card.name).file.sha256, "head", recognizer.card.name,
                "runtime_version", OrtProgram.version(), "asked", "cpu", "used", "CPUExecutionProvider", "threads",
                (long) threads, "telemetry", "none: a version from 1.29 on is refused", "size_bytes",
                recognizer.programBytes());
        Map<String, Object> missing = map("what", "clocks, load, energy and accuracy",
                "why", "this app does not watch them; refocus bench does");
        return map("schema_version", (long) SCHEMA, "kind", "refocus bench", "command", "android_demo benchmark",
                "refocus", "0.1.0", "mode", "custom", "started", started, "seconds", seconds, "machine", machine,
                "photos", map("source", "chosen photos", "count", (long) photos, "fingerprint", ""),
                "ran", Arrays.<Object>asList(ran), "rows", rows, "missing", Arrays.<Object>asList(missing));
    }

    private Map<String, Object> row(String name, double[] samples, double[] starts) {
        Map<String, Object> conditions = map("min_queries", (long) runs, "min_seconds", 0.0, "warm_up", (long) warmUp);
        Map<String, Object> reason = map("code", "lost", "detail", "clock, temperature and load were not watched",
                "advice", "for a verdict, run refocus bench on the device");
        return map("bundle", recognizer.bundle.manifest.name, "target", recognizer.target, "group", "stages", "name", name,
                "conditions", conditions, "samples_ms", list(samples), "starts_s", list(starts), "summary",
                summary(samples, starts), "verdict", map("valid", Boolean.FALSE, "reasons", Arrays.<Object>asList(reason)));
    }

    private static Map<String, Object> summary(double[] samples, double[] starts) {
        double[] sorted = samples.clone();
        Arrays.sort(sorted);
        double sum = 0;
        for (double sample : samples) {
            sum += sample;
        }
        double seconds = starts[starts.length - 1] - starts[0] + samples[samples.length - 1] / 1e3;
        return map("count", (long) samples.length, "seconds", seconds, "mean_ms", sum / samples.length,
                "min_ms", sorted[0], "max_ms", sorted[sorted.length - 1], "p50", percentile(sorted, 0.5),
                "p90", percentile(sorted, 0.9), "p99", percentile(sorted, 0.99), "p99_9", percentile(sorted, 0.999));
    }

    /** The smallest sample that at least this share of all are not above. */
    private static Map<String, Object> percentile(double[] sorted, double share) {
        int at = Math.max(0, (int) Math.ceil(share * sorted.length) - 1);
        return map("ms", sorted[at], "supported", sorted.length - 1 - at >= 10);
    }

    /** The figures of one stage, to show: its median and 90th percentile in ms, from a document. */
    public static double[] figures(Map<?, ?> document, String stage) {
        for (Object each : (List<?>) document.get("rows")) {
            Map<?, ?> row = (Map<?, ?>) each;
            if (stage.equals(row.get("name"))) {
                Map<?, ?> summary = (Map<?, ?>) row.get("summary");
                return new double[] {((Number) ((Map<?, ?>) summary.get("p50")).get("ms")).doubleValue(),
                    ((Number) ((Map<?, ?>) summary.get("p90")).get("ms")).doubleValue()};
            }
        }
        throw new IllegalArgumentException("no stage " + stage);
    }

    private static String utc() {
        java.text.SimpleDateFormat format = new java.text.SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss'Z'", java.util.Locale.ROOT);
        format.setTimeZone(TimeZone.getTimeZone("UTC"));
        return format.format(new java.util.Date());
    }

    private static List<Object> list(double[] numbers) {
        List<Object> found = new ArrayList<Object>(numbers.length);
        for (double number : numbers) {
            found.add(number);
        }
        return found;
    }

    private static Map<String, Object> map(Object... pairs) {
        Map<String, Object> found = new LinkedHashMap<String, Object>();
        for (int i = 0; i < pairs.length; i += 2) {
            found.put((String) pairs[i], pairs[i + 1]);
        }
        return found;
    }
}
