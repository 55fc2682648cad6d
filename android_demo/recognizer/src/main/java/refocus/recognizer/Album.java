package refocus.recognizer;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Answers to all photos of one person at once, from features that an {@link Indexer} has computed.
 *
 * <p>As {@code edge/album.py}: a head that sees a window gets the photos nearest to each photo, on both sides; a
 * streaming head sees the photos before it; neither sees the photo itself or a copy of it.
 */
public final class Album {
    private final Recognizer recognizer;
    private final FileHistory index;

    public Album(Recognizer recognizer, FileHistory index) {
        this.recognizer = recognizer;
        this.index = index;
    }

    /**
     * The answers, by identity of the photo, in the order given.
     *
     * @param photos identities in the album's order; those that the index does not have are left out
     */
    public Map<String, Answer> answers(List<String> photos) throws RefocusException {
        List<String> there = new ArrayList<String>();
        for (String photo : photos) {
            if (index.has(recognizer.space(), photo)) {
                there.add(photo);
            }
        }
        return recognizer.card.form.equals("window") ? inWindows(there) : inAStream(there);
    }

    private Map<String, Answer> inWindows(List<String> photos) throws RefocusException {
        Map<String, String> names = index.names(recognizer.space());
        Map<String, Answer> found = new LinkedHashMap<String, Answer>();
        for (int position = 0; position < photos.size(); position++) {
            Remembered past = new Remembered();
            for (int other : nearest(photos, position, recognizer.card.window)) {
                String photo = photos.get(other);
                past.add(photo, names.get(photo), index.feature(recognizer.space(), photo));
            }
            String photo = photos.get(position);
            if (!found.containsKey(photo)) {
                found.put(photo, recognizer.answerAfter(past, index.feature(recognizer.space(), photo), photo));
            }
        }
        return found;
    }

    /** One pass in order. A copy of an earlier photo gets that one's answer, and is met once. */
    private Map<String, Answer> inAStream(List<String> photos) throws RefocusException {
        Map<String, String> names = index.names(recognizer.space());
        Map<String, Answer> found = new LinkedHashMap<String, Answer>();
        List<String> met = new ArrayList<String>();
        for (String photo : photos) {
            if (found.containsKey(photo)) {
                continue;
            }
            float[] feature = index.feature(recognizer.space(), photo);
            Remembered past = new Remembered();
            for (String before : met.subList(Math.max(0, met.size() - recognizer.card.window), met.size())) {
                past.add(before, names.get(before), index.feature(recognizer.space(), before));
            }
            if (met.isEmpty()) {
                found.put(photo, recognizer.answerAfter(past, feature, photo));
            } else {
                String last = met.get(met.size() - 1);
                found.put(photo, recognizer.answerNext(past, index.feature(recognizer.space(), last), last, feature, photo));
            }
            met.add(photo);
        }
        return found;
    }

    /**
     * The positions of the photos nearest to one photo, on both sides, in order; no two of one identity, none of the
     * photo's own. Of two that are equally near, the earlier is nearer.
     */
    static List<Integer> nearest(List<String> photos, int position, int count) {
        Map<String, Integer> found = new LinkedHashMap<String, Integer>();
        for (int distance = 1; distance < photos.size() && found.size() < count; distance++) {
            for (int other : new int[] {position - distance, position + distance}) {
                boolean inside = other >= 0 && other < photos.size() && found.size() < count;
                if (inside && !photos.get(other).equals(photos.get(position)) && !found.containsKey(photos.get(other))) {
                    found.put(photos.get(other), other);
                }
            }
        }
        TreeMap<Integer, String> ordered = new TreeMap<Integer, String>();
        for (Map.Entry<String, Integer> entry : found.entrySet()) {
            ordered.put(entry.getValue(), entry.getKey());
        }
        return new ArrayList<Integer>(ordered.keySet());
    }
}
