package refocus.recognizer;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/**
 * Answers to all photos of one person at once, from features that an {@link Indexer} has computed.
 *
 * <p>As {@code edge/recognize/album.py}: a head that sees a window gets the photos nearest to each photo, on both sides; a
 * streaming head sees the photos before it; neither sees the photo itself or a copy of it.
 */
public final class Album {
    private final Recognizer recognizer;
    private final FileHistory index;

    public Album(Recognizer recognizer, FileHistory index) {
        this.recognizer = recognizer;
        this.index = index;
    }

    /** Takes the answers one after the other; none needs to be kept. */
    private interface Taker {
        /** Returns false where no more answers are wanted. */
        boolean take(String photo, Answer answer);
    }

    /**
     * The answers, by identity of the photo, in the order given. Each takes memory for a number of every class; where
     * the label is enough, {@link #labels} needs less.
     *
     * @param photos identities in the album's order; those that the index does not have are left out
     */
    public Map<String, Answer> answers(List<String> photos) throws RefocusException {
        final Map<String, Answer> found = new LinkedHashMap<String, Answer>();
        each(photos, null, new Taker() {
            @Override
            public boolean take(String photo, Answer answer) {
                found.put(photo, answer);
                return true;
            }
        });
        return found;
    }

    /** The most likely label of each photo; otherwise as {@link #answers}. */
    public Map<String, String> labels(List<String> photos) throws RefocusException {
        final Map<String, String> found = new LinkedHashMap<String, String>();
        each(photos, null, new Taker() {
            @Override
            public boolean take(String photo, Answer answer) {
                found.put(photo, answer.labels.get(0));
                return true;
            }
        });
        return found;
    }

    /**
     * The answer to one photo of an album; null where the index does not have it. A head that sees a window runs once, a
     * streaming head over the photos before.
     */
    public Answer answer(List<String> photos, final String wanted) throws RefocusException {
        final Answer[] found = new Answer[1];
        each(photos, wanted, new Taker() {
            @Override
            public boolean take(String photo, Answer answer) {
                found[0] = photo.equals(wanted) ? answer : null;
                return found[0] == null;
            }
        });
        return found[0];
    }

    private void each(List<String> photos, String wanted, Taker taker) throws RefocusException {
        List<String> there = new ArrayList<String>();
        for (String photo : photos) {
            if (index.has(recognizer.space(), photo)) {
                there.add(photo);
            }
        }
        if (recognizer.card.form.equals("window")) {
            inWindows(there, wanted, taker);
        } else {
            inAStream(there, taker);
        }
    }

    private void inWindows(List<String> photos, String wanted, Taker taker) throws RefocusException {
        Map<String, String> names = index.names(recognizer.space());
        Set<String> met = new HashSet<String>();
        for (int position = 0; position < photos.size(); position++) {
            String photo = photos.get(position);
            if (!met.add(photo) || (wanted != null && !wanted.equals(photo))) {
                continue;
            }
            Remembered past = new Remembered();
            for (int other : nearest(photos, position, recognizer.card.window)) {
                past.add(photos.get(other), names.get(photos.get(other)),
                        index.feature(recognizer.space(), photos.get(other)));
            }
            if (!taker.take(photo, recognizer.answerAfter(past, index.feature(recognizer.space(), photo), photo))) {
                return;
            }
        }
    }

    /** One pass in order. A copy of an earlier photo gets that one's answer, and is met once. */
    private void inAStream(List<String> photos, Taker taker) throws RefocusException {
        Map<String, String> names = index.names(recognizer.space());
        List<String> met = new ArrayList<String>();
        for (String photo : new LinkedHashSet<String>(photos)) {
            float[] feature = index.feature(recognizer.space(), photo);
            Remembered past = new Remembered();
            for (String before : met.subList(Math.max(0, met.size() - recognizer.card.window), met.size())) {
                past.add(before, names.get(before), index.feature(recognizer.space(), before));
            }
            Answer answer;
            if (met.isEmpty()) {
                answer = recognizer.answerAfter(past, feature, photo);
            } else {
                String last = met.get(met.size() - 1);
                answer = recognizer.answerNext(past, index.feature(recognizer.space(), last), last, feature, photo);
            }
            if (!taker.take(photo, answer)) {
                return;
            }
            met.add(photo);
        }
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
