package refocus.recognizer;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The class shares of one person, in step with their history; the Java counterpart of {@code edge/recognize/profile_shares.py}.
 *
 * <p>The history has a row with each feature. Rows that it lacks are computed from the features, once.
 */
final class ProfileShares {
    private final Recognizer recognizer;
    private final FileHistory history;
    private final Album.Features photos;
    private final ClassShares now;
    private long version = -1; // of the history, when the shares were last in step with it

    ProfileShares(Recognizer recognizer, FileHistory history) {
        this.recognizer = recognizer;
        this.history = history;
        photos = Album.features(recognizer, history);
        now = recognizer.noShares();
    }

    /**
     * The shares of the photos before one: before its own place, if it is stored.
     *
     * @throws HistoryException the history cannot be written
     */
    ClassShares before(String photo, boolean known) throws RefocusException {
        if (known) {
            ClassShares found = recognizer.noShares();
            Map<String, float[]> rows = rows();
            for (String before : rows.keySet()) {
                if (before.equals(photo)) {
                    break;
                }
                found.add(before, rows.get(before));
            }
            return found;
        }
        if (version != history.version()) {
            refresh();
        }
        return now;
    }

    /** The photo that was answered last was just stored. */
    void stored(String photo, float[] row) throws HistoryException {
        photos.keep(photo, row);
        while (now.oldest() != null && !history.has(recognizer.space(), now.oldest())) { // evicted for it
            now.forget(now.oldest());
        }
        now.add(photo, row);
        version = history.version();
    }

    /** Takes in what is new; begins again where something else than the newest photos changed. */
    private void refresh() throws RefocusException {
        Map<String, float[]> rows = rows();
        List<String> all = new ArrayList<String>(rows.keySet());
        int end = 0;
        for (int i = 0; i < all.size(); i++) {
            end = now.has(all.get(i)) ? i + 1 : end;
        }
        int capacity = recognizer.card.shares.capacity;
        if (!all.subList(Math.max(0, end - capacity), end).equals(now.photos())) {
            now.clear();
        }
        for (String photo : all.subList(Math.max(0, all.size() - capacity), all.size())) {
            if (!now.has(photo)) {
                now.add(photo, rows.get(photo));
            }
        }
        version = history.version();
    }

    /** The rows of all photos, oldest first; those without a finite answer have none. */
    private Map<String, float[]> rows() throws RefocusException {
        Map<String, float[]> found = new LinkedHashMap<String, float[]>();
        for (String photo : history.names(recognizer.space()).keySet()) {
            float[] row = recognizer.row(photos, photo);
            if (row != null) {
                found.put(photo, row);
            }
        }
        return found;
    }
}
