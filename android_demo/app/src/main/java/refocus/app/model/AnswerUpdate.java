package refocus.app.model;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import refocus.recognizer.Album;
import refocus.recognizer.Answer;
import refocus.recognizer.FileHistory;
import refocus.recognizer.HeadCard;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/** Brings a person's answers up to date: what the model, the photo and the photos beside it leave as it was is kept. */
public final class AnswerUpdate {
    private final Recognizer recognizer;
    private final FileHistory index;
    private final Profiles profiles;
    private final String person;
    /** Photos that the last {@link #update} answered. */
    public int answered;
    /** Whether the last {@link #update} left nothing to answer. */
    public boolean whole;

    /** @param index of the person */
    public AnswerUpdate(Recognizer recognizer, FileHistory index, Profiles profiles, String person) {
        this.recognizer = recognizer;
        this.index = index;
        this.profiles = profiles;
        this.person = person;
    }

    /** What answers of a model are known by. */
    public static String model(Recognizer recognizer) {
        return recognizer.bundle.sha256 + " " + recognizer.card.name + " " + recognizer.programs();
    }

    /**
     * Answers what changed.
     *
     * @param before the answers until now; those of another model stay until the photo has a feature of this one
     * @param millis after this time the rest is left for the next call
     */
    public AnswerCache update(AnswerCache before, long millis) throws RefocusException {
        final long until = System.nanoTime() + millis * 1_000_000L;
        final String model = model(recognizer);
        final Map<String, String> places = index.names(recognizer.space());
        final Map<String, AnswerCache.Entry> known = new HashMap<String, AnswerCache.Entry>();
        for (AnswerCache.Entry entry : before.entries) {
            known.put(entry.photo, entry);
        }
        final Map<String, AnswerCache.Entry> made = new HashMap<String, AnswerCache.Entry>();
        answered = 0;
        whole = true;
        new Album(recognizer, index).changed(new ArrayList<String>(places.keySet()), new Album.Kept() {
            @Override
            public boolean has(String photo, String past) {
                AnswerCache.Entry entry = known.get(photo);
                boolean same = entry != null && entry.model.equals(model) && entry.past.equals(past);
                if (same) {
                    made.put(photo, entry);
                }
                return same;
            }
        }, new Album.Taker() {
            @Override
            public boolean take(String photo, String past, Answer answer) {
                made.put(photo, new AnswerCache.Entry(photo, places.get(photo), answer.labels.get(0), answer.isKnown(),
                        model, past));
                answered++;
                whole = System.nanoTime() < until;
                return whole;
            }
        });
        String stamp = whole ? profiles.stamp(person) : ""; // of the index with what the answers left in it
        return new AnswerCache(stamp, model, entries(before, places, made, known), names(made.values(), before));
    }

    /** First what only another model answered, then this one's, in the album's order. */
    private List<AnswerCache.Entry> entries(AnswerCache before, Map<String, String> places,
            Map<String, AnswerCache.Entry> made, Map<String, AnswerCache.Entry> known) {
        List<AnswerCache.Entry> found = new ArrayList<AnswerCache.Entry>();
        String model = model(recognizer);
        Set<String> anywhere = index.allPhotos();
        for (AnswerCache.Entry entry : before.entries) {
            if (!places.containsKey(entry.photo) && !entry.model.equals(model) && anywhere.contains(entry.photo)) {
                found.add(entry);
            }
        }
        for (Map.Entry<String, String> photo : places.entrySet()) {
            AnswerCache.Entry entry = made.get(photo.getKey());
            entry = entry == null ? known.get(photo.getKey()) : entry; // an earlier answer, until its turn comes
            if (entry != null) {
                found.add(new AnswerCache.Entry(entry.photo, photo.getValue(), entry.label, entry.recognised, entry.model,
                        entry.past));
            }
        }
        return found;
    }

    private Map<String, Map<String, String>> names(Iterable<AnswerCache.Entry> made, AnswerCache before) {
        HeadCard card = recognizer.card;
        Map<String, Map<String, String>> found = new LinkedHashMap<String, Map<String, String>>(before.names);
        for (AnswerCache.Entry entry : made) {
            Map<String, String> byLanguage = new LinkedHashMap<String, String>();
            for (String language : card.names.keySet()) {
                byLanguage.put(language, card.name(entry.label, language));
            }
            if (!byLanguage.isEmpty()) {
                found.put(entry.label, byLanguage);
            }
        }
        return found;
    }
}
