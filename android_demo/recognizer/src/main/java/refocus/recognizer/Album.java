package refocus.recognizer;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
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
 * streaming head sees the photos before it; neither sees the photo itself or a copy of it. Class shares are those of the
 * photos before it. Golden vectors hold the two together: this is what the app shows.
 */
public final class Album {
    private final Recognizer recognizer;
    private final Features features;

    /** Where the features of an album's photos are. */
    public abstract static class Features {
        /** (D) of a photo, or null. */
        public abstract float[] of(String photo);

        /** Where the photo is. */
        public abstract String name(String photo);

        /** What {@link #keep} was given of a photo; null if it is unknown. */
        public float[] row(String photo) {
            return null;
        }

        /** Keeps what class shares count of a photo: k classes, their probabilities and its credit. */
        public void keep(String photo, float[] row) throws HistoryException {
            // it is computed again
        }
    }

    /** Knows which answers are there already. */
    public interface Kept {
        /**
         * Whether there is an answer to the photo that was made with these photos beside it.
         *
         * @param past what {@link Taker#take} was told of them
         */
        boolean has(String photo, String past);
    }

    /** Takes the answers one after the other; none needs to be kept. */
    public interface Taker {
        /**
         * @param past a digest of the identities that the answer was made with
         * @return false where no more answers are wanted
         */
        boolean take(String photo, String past, Answer answer);
    }

    public Album(Recognizer recognizer, Features features) {
        this.recognizer = recognizer;
        this.features = features;
    }

    /** The album of an index. */
    public Album(Recognizer recognizer, FileHistory index) {
        this(recognizer, features(recognizer, index));
    }

    /** What an index has of the photos of the recogniser's feature space. */
    static Features features(final Recognizer recognizer, final FileHistory index) {
        return new Features() {
            @Override
            public float[] of(String photo) {
                return index.feature(recognizer.space(), photo);
            }

            @Override
            public String name(String photo) {
                return index.name(recognizer.space(), photo);
            }

            @Override
            public float[] row(String photo) {
                return index.likely(recognizer.space(), photo, recognizer.classifier());
            }

            @Override
            public void keep(String photo, float[] row) throws HistoryException {
                if (!Arrays.equals(row, row(photo))) {
                    index.putLikely(recognizer.space(), photo, recognizer.classifier(), row);
                }
            }
        };
    }

    /**
     * The answers, by identity of the photo, in the order given. Each takes memory for a number of every class; where
     * less is enough, {@link #changed} needs less.
     *
     * @param photos identities in the album's order; those that have no feature, or no finite answer, are left out
     */
    public Map<String, Answer> answers(List<String> photos) throws RefocusException {
        final Map<String, Answer> found = new LinkedHashMap<String, Answer>();
        each(photos, null, null, new Taker() {
            @Override
            public boolean take(String photo, String past, Answer answer) {
                found.put(photo, answer);
                return true;
            }
        });
        return found;
    }

    /** Answers the photos of an album whose answers are not there, or were made with other photos beside them. */
    public void changed(List<String> photos, Kept kept, Taker taker) throws RefocusException {
        each(photos, null, kept, taker);
    }

    /**
     * The answer to one photo of an album; null where it has no feature. A streaming head runs over the photos before, any
     * other once.
     */
    public Answer answer(List<String> photos, final String wanted) throws RefocusException {
        final Answer[] found = new Answer[1];
        each(photos, wanted, null, new Taker() {
            @Override
            public boolean take(String photo, String past, Answer answer) {
                found[0] = photo.equals(wanted) ? answer : null;
                return found[0] == null;
            }
        });
        return found[0];
    }

    private void each(List<String> photos, String wanted, Kept kept, Taker taker) throws RefocusException {
        List<String> there = new ArrayList<String>();
        for (String photo : photos) {
            if (features.of(photo) != null) {
                there.add(photo);
            }
        }
        if (recognizer.card.form.equals("streaming")) {
            inAStream(there, kept, taker);
        } else {
            inWindows(there, wanted, kept, taker);
        }
    }

    private void inWindows(List<String> photos, String wanted, Kept kept, Taker taker) throws RefocusException {
        Counted counted = new Counted();
        Set<String> met = new HashSet<String>();
        for (int position = 0; position < photos.size(); position++) {
            String photo = photos.get(position);
            if (!met.add(photo)) {
                continue;
            }
            List<String> beside = new ArrayList<String>();
            for (int other : nearest(photos, position, recognizer.card.window)) {
                beside.add(photos.get(other));
            }
            String past = counted.digest(beside);
            if ((wanted != null && !wanted.equals(photo)) || (kept != null && kept.has(photo, past))) {
                counted.add(photo);
                continue;
            }
            Answer answer;
            try {
                answer = recognizer.answerAfter(remembered(beside), features.of(photo), photo, counted.shares);
            } catch (PhotoException none) { // one photo less
                continue;
            }
            counted.add(photo, answer.row);
            if (!taker.take(photo, past, answer)) {
                return;
            }
        }
    }

    /** One pass in order. A copy of an earlier photo gets that one's answer, and is met once. */
    private void inAStream(List<String> photos, Kept kept, Taker taker) throws RefocusException {
        Counted counted = new Counted();
        List<String> met = new ArrayList<String>();
        String last = null; // the photo that the head answered just before; null where that one was left out
        for (String photo : new LinkedHashSet<String>(photos)) {
            List<String> before = met.subList(Math.max(0, met.size() - recognizer.card.window), met.size());
            String past = counted.digest(before);
            if (kept != null && kept.has(photo, past)) {
                counted.add(photo);
                last = null;
            } else {
                Remembered remembered = remembered(before);
                Answer answer = null;
                try {
                    answer = last == null ? recognizer.answerAfter(remembered, features.of(photo), photo, counted.shares)
                            : recognizer.answerNext(remembered, features.of(last), last, features.of(photo), photo, counted.shares);
                } catch (PhotoException none) { // one photo less
                    last = null;
                }
                if (answer != null) {
                    counted.add(photo, answer.row);
                    if (!taker.take(photo, past, answer)) {
                        return;
                    }
                    last = photo;
                }
            }
            met.add(photo);
        }
    }

    /** The class shares of the photos of one pass so far, and which photos these are. */
    private final class Counted {
        final ClassShares shares = recognizer.noShares();
        private String seen = ""; // digest of the photos

        /** Counts a photo that needs no answer. */
        void add(String photo) throws RefocusException {
            add(photo, shares == null ? null : recognizer.row(features, photo));
        }

        void add(String photo, float[] row) throws HistoryException {
            if (row != null) {
                features.keep(photo, row);
                shares.add(photo, row);
                seen = Hashes.sha256(seen + photo);
            }
        }

        /** Of what an answer rests on: the photos that the head is given, and those that are counted. */
        String digest(List<String> photos) {
            return Hashes.sha256(photos + seen).substring(0, 32);
        }
    }

    private Remembered remembered(List<String> photos) {
        Remembered found = new Remembered();
        for (String photo : photos) {
            found.add(photo, features.name(photo), features.of(photo));
        }
        return found;
    }

    /**
     * The positions of the photos nearest to one photo, on both sides, in order; no two of one identity, none of the
     * photo's own. Of two that are equally near, the earlier is nearer.
     */
    static List<Integer> nearest(List<String> photos, int position, int count) {
        if (count == 0) {
            return Collections.emptyList();
        }
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
