package refocus.app.model;

import java.util.Collection;
import java.util.EnumMap;
import java.util.Map;
import refocus.recognizer.Reason;

/** Photos that could not be used, counted by kind: what one summary says of any number of them. */
public final class Failures {
    private final Map<Reason, Integer> counts = new EnumMap<Reason, Integer>(Reason.class);
    private int all;

    public synchronized void add(Collection<Reason> reasons) {
        for (Reason reason : reasons) {
            Integer before = counts.get(reason);
            counts.put(reason, before == null ? 1 : before + 1);
            all++;
        }
    }

    /** All there are, and none from now on. */
    public synchronized Map<Reason, Integer> take() {
        Map<Reason, Integer> found = new EnumMap<Reason, Integer>(counts);
        counts.clear();
        all = 0;
        return found;
    }

    public synchronized int size() {
        return all;
    }
}
