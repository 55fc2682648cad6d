package refocus.app.model;

import java.io.DataInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import refocus.recognizer.Json;
import refocus.recognizer.Recognizer;

/** What a page says about the model before it is loaded: which one it is, and what it knows. */
public final class ModelSummary {
    private static final int EXAMPLES = 3;
    /** As {@link AnswerUpdate#model}. */
    public final String model;
    /** State of the installed bundle that this is about. */
    public final String stamp;
    /** How many labels it tells apart. */
    public final int labels;
    private final Map<String, Object> examples;

    private ModelSummary(String model, String stamp, int labels, Map<String, Object> examples) {
        this.model = model;
        this.stamp = stamp;
        this.labels = labels;
        this.examples = examples;
    }

    public static ModelSummary of(Recognizer recognizer, String stamp) {
        List<String> all = known(recognizer);
        List<String> chosen = new ArrayList<String>();
        for (int i = 0; i < Math.min(EXAMPLES, all.size()); i++) {
            chosen.add(all.get(i * all.size() / EXAMPLES));
        }
        Map<String, Object> examples = new LinkedHashMap<String, Object>();
        examples.put("", chosen);
        for (String language : recognizer.card.names.keySet()) {
            List<String> named = new ArrayList<String>();
            for (String label : chosen) {
                named.add(recognizer.card.name(label, language));
            }
            examples.put(language, named);
        }
        return new ModelSummary(AnswerUpdate.model(recognizer), stamp, all.size(), examples);
    }

    /** The labels that the model can answer: all of them, or those that a condensed bundle was made for. */
    public static List<String> known(Recognizer recognizer) {
        List<String> task = recognizer.bundle.manifest.taskClasses;
        return task == null ? recognizer.card.labels : task;
    }

    /** Some labels, in a language where the bundle has names in it. */
    public List<String> examples(String language) {
        List<String> found = new ArrayList<String>();
        for (Object each : (List<?>) examples.get(examples.containsKey(language) ? language : "")) {
            found.add((String) each);
        }
        return found;
    }

    public void write(File file) throws IOException {
        Map<String, Object> kept = new LinkedHashMap<String, Object>();
        kept.put("model", model);
        kept.put("stamp", stamp);
        kept.put("labels", (long) labels);
        kept.put("examples", examples);
        try (FileOutputStream out = new FileOutputStream(file)) {
            out.write(Json.write(kept).getBytes("UTF-8"));
        }
    }

    /** What the file holds; null where it holds nothing of use. */
    public static ModelSummary read(File file) {
        if (!file.isFile() || file.length() > 1 << 20) {
            return null;
        }
        byte[] content = new byte[(int) file.length()];
        try (DataInputStream in = new DataInputStream(new FileInputStream(file))) {
            in.readFully(content);
            Map<?, ?> kept = (Map<?, ?>) Json.parse(content);
            Map<String, Object> examples = new LinkedHashMap<String, Object>();
            for (Map.Entry<?, ?> each : ((Map<?, ?>) kept.get("examples")).entrySet()) {
                examples.put((String) each.getKey(), each.getValue());
            }
            return examples.get("") instanceof List ? new ModelSummary((String) kept.get("model"), (String) kept.get("stamp"),
                    ((Long) kept.get("labels")).intValue(), examples) : null;
        } catch (IOException | RuntimeException damaged) {
            return null;
        }
    }
}
