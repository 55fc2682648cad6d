package refocus.app.model;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Photos by what was recognised in them: the largest group first, of equals by name. */
public final class Groups {
    /** Photos of one label, in the album's order. */
    public static final class Group {
        public final String label;
        /** Identities of the photos. */
        public final List<String> photos = new ArrayList<String>();

        Group(String label) {
            this.label = label;
        }
    }

    private Groups() {}

    /** @param labels by identity of the photo, in the album's order */
    public static List<Group> of(Map<String, String> labels) {
        Map<String, Group> found = new LinkedHashMap<String, Group>();
        for (Map.Entry<String, String> entry : labels.entrySet()) {
            Group group = found.get(entry.getValue());
            if (group == null) {
                group = new Group(entry.getValue());
                found.put(entry.getValue(), group);
            }
            group.photos.add(entry.getKey());
        }
        List<Group> ordered = new ArrayList<Group>(found.values());
        Collections.sort(ordered, new Comparator<Group>() {
            @Override
            public int compare(Group one, Group other) {
                int bySize = other.photos.size() - one.photos.size();
                return bySize != 0 ? bySize : one.label.compareTo(other.label);
            }
        });
        return ordered;
    }
}
