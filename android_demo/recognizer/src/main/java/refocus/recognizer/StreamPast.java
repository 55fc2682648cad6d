package refocus.recognizer;

import java.nio.FloatBuffer;
import java.util.List;

/**
 * Rings of what the head left behind at each photo; the program reads them where they are.
 *
 * <p>A photo costs one run and one row per ring, whatever the length of the history.
 */
final class StreamPast implements Past {
    private final Program program;
    private final List<HeadCard.State> rings;
    private final int window;
    private final int looksBack;
    private long seen;

    StreamPast(Program program, HeadCard card) {
        this.program = program;
        rings = card.state;
        window = card.window;
        looksBack = (int) program.artifact.output("attention").size(1) - 1;
    }

    /** Replays the newest photos: the rings then hold what they would after the whole stream. */
    @Override
    public void restart(Remembered remembered) throws RefocusException {
        seen = 0;
        for (int i = Math.max(0, remembered.size() - window); i < remembered.size(); i++) {
            answer(remembered.feature(i), remembered.photo(i));
            takeIn(remembered.feature(i), remembered.photo(i));
        }
    }

    @Override
    public float[] answer(float[] feature, String photo) throws RefocusException {
        program.floats("feature").put(feature);
        program.longs("history_length").put(seen);
        program.run();
        FloatBuffer found = program.floats("attention");
        float[] attention = new float[(int) Math.min(seen, window) + 1];
        int near = (int) Math.min(seen, looksBack);
        int first = attention.length - 1 - near;
        int oldest = near == 0 ? 0 : (int) (seen % near); // its slot, once the ring is full; else photos lie in order
        for (int i = 0; i < near; i++) {
            attention[first + i] = found.get((oldest + i) % near);
        }
        attention[attention.length - 1] = found.get(looksBack);
        return attention;
    }

    @Override
    public void takeIn(float[] feature, String photo) {
        for (HeadCard.State ring : rings) {
            FloatBuffer row = program.floats(ring.source);
            FloatBuffer to = program.floats(ring.name);
            int slots = ring.slots();
            int inner = ring.inner();
            int slot = (int) (seen % slots);
            float[] part = new float[inner];
            for (int outer = 0; outer < ring.rowSize() / inner; outer++) {
                row.get(part);
                to.position((outer * slots + slot) * inner);
                to.put(part);
            }
        }
        seen++;
    }
}
