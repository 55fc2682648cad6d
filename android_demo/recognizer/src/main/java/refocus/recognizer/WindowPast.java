package refocus.recognizer;

import java.nio.FloatBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The newest features, padded in front to the window, with what the head derives from each of them.
 *
 * <p>Derived rows depend on a photo's own feature alone, so nothing but features need be stored.
 */
final class WindowPast implements Past {
    private static final int ROWS_KEPT = 4096;
    private final Program program;
    private final int window;
    private final List<HeadCard.State> derived = new ArrayList<HeadCard.State>();
    private final Deque<Known> past = new ArrayDeque<Known>();
    private final Map<String, float[]> rows = new LinkedHashMap<String, float[]>(); // by source and photo

    private static final class Known {
        final String photo;
        final float[] feature;

        Known(String photo, float[] feature) {
            this.photo = photo;
            this.feature = feature;
        }
    }

    WindowPast(Program program, HeadCard card) {
        this.program = program;
        window = card.window;
        for (HeadCard.State state : card.state) {
            if (!state.source.equals("feature")) {
                derived.add(state);
            }
        }
    }

    @Override
    public void restart(Remembered remembered) {
        past.clear();
        for (int i = 0; i < remembered.size(); i++) {
            takeIn(remembered.feature(i), remembered.photo(i));
        }
    }

    @Override
    public void takeIn(float[] feature, String photo) {
        past.addLast(new Known(photo, feature));
        if (past.size() > window) {
            past.removeFirst();
        }
    }

    @Override
    public float[] answer(float[] feature, String photo) throws RefocusException {
        List<Known> before = new ArrayList<Known>(past);
        for (Known known : before) { // rows that are missing first: computing one overwrites the buffers
            for (HeadCard.State state : derived) {
                if (!rows.containsKey(state.source + known.photo)) {
                    run(known.feature, known.photo, new ArrayList<Known>());
                }
            }
        }
        run(feature, photo, before);
        float[] attention = program.copy("attention");
        return Arrays.copyOfRange(attention, window - before.size(), attention.length);
    }

    private void run(float[] feature, String photo, List<Known> before) throws RefocusException {
        program.floats("feature").put(feature);
        program.longs("history_length").put(before.size());
        FloatBuffer history = padded("history", before.size(), feature.length);
        for (Known known : before) {
            history.put(known.feature);
        }
        for (HeadCard.State state : derived) {
            FloatBuffer to = padded(state.name, before.size(), state.rowSize());
            for (Known known : before) {
                to.put(rows.get(state.source + known.photo));
            }
        }
        program.run();
        for (HeadCard.State state : derived) {
            rows.put(state.source + photo, program.copy(state.source));
        }
        while (rows.size() > Math.max(ROWS_KEPT, (window + 1) * derived.size())) {
            rows.remove(rows.keySet().iterator().next());
        }
    }

    /** An input of one row for each photo of the window, zeros in front, at the first row that is filled. */
    private FloatBuffer padded(String name, int filled, int rowSize) {
        FloatBuffer to = program.floats(name);
        int zeros = (window - filled) * rowSize;
        for (int i = 0; i < zeros; i++) {
            to.put(0f);
        }
        return to;
    }
}
