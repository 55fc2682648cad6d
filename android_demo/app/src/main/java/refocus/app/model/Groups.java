package refocus.app.model;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Photos by what was recognised in them: the largest group first, of equals by name, and last what no name fits. */
public final class Groups {
    /** Photos of one label, in the album's order. */
    public static final class Group {
        /** In the reader's language; null of the photos that are not among what the model knows. */
        public final String label;
        public final List<AnswerCache.Entry> photos = new ArrayList<AnswerCache.Entry>();

        Group(String label) {
            this.label = label;
        }
    }

    private Groups() {}

    /** @param language as "de", in which labels are said where the bundle brings names */
    public static List<Group> of(AnswerCache answers, String language) {
        Map<String, Group> found = new LinkedHashMap<String, Group>();
        for (AnswerCache.Entry entry : answers.entries) {
            String label = entry.recognised ? answers.name(entry.label, language) : null;
            Group group = found.get(label);
            if (group == null) {
                group = new Group(label);
                found.put(label, group);
            }
            group.photos.add(entry);
        }
        List<Group> ordered = new ArrayList<Group>(found.values());
        Collections.sort(ordered, new Comparator<Group>() {
            @Override
            public int compare(Group one, Group other) {
                if (one.label == null || other.label == null) {
                    return one.label == null ? 1 : -1; // there is one such group at most
                }
                int bySize = other.photos.size() - one.photos.size();
                return bySize != 0 ? bySize : one.label.compareTo(other.label);
            }
        });
        return ordered;
    }
}
