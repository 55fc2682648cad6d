package refocus.app.model;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import refocus.recognizer.Answer;

/** What one photo's page shows: the answer of the photo alone, the delivered one, and the photos that made it. */
public final class BeforeAfter {
    /** A photo of the history and its part of the attention, in per cent. */
    public static final class Attended {
        public final String photo;
        public final String name;
        public final int percent;

        Attended(String photo, String name, int percent) {
            this.photo = photo;
            this.name = name;
            this.percent = percent;
        }
    }

    public final String before;
    /** Whether the model knows what it sees, before and after. */
    public final boolean beforeRecognised;
    public final boolean afterRecognised;
    public final int beforePercent;
    public final String after;
    public final int afterPercent;
    /** Weight of the history in the delivered answer, in per cent. */
    public final int trustPercent;
    /** Probability that the photo shows what the person's photos show, in per cent; -1 where these are not counted. */
    public final int sharePercent;
    /** Photos that the history had. */
    public final int history;
    /** The most attended first. */
    public final List<Attended> attended;

    /** @param most photos to show at most */
    public BeforeAfter(Answer answer, int most) {
        before = answer.plainLabel();
        beforeRecognised = answer.isKnown();
        afterRecognised = answer.isKnown();
        beforePercent = percent(answer.plainProbability());
        after = answer.labels.get(0);
        afterPercent = percent(answer.confidence());
        trustPercent = percent(answer.trust);
        sharePercent = Double.isNaN(answer.shareTrust) ? -1 : percent((float) answer.shareTrust);
        history = answer.history.size();
        List<Attended> all = new ArrayList<Attended>();
        for (int i = 0; i < history; i++) {
            all.add(new Attended(answer.history.photo(i), answer.history.name(i), percent(answer.attention[i])));
        }
        Collections.sort(all, new Comparator<Attended>() { // stable: of equals the older comes first
            @Override
            public int compare(Attended one, Attended other) {
                return other.percent - one.percent;
            }
        });
        attended = Collections.unmodifiableList(all.subList(0, Math.min(most, all.size())));
    }

    /** Whether the history changed what is shown. */
    public boolean changed() {
        return !before.equals(after);
    }

    private static int percent(float share) {
        return Math.round(100 * share);
    }
}
