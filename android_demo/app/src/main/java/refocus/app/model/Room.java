package refocus.app.model;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * How a person's folders share the room of one index: the newest photos of all of them are indexed, and photos that were
 * chosen one by one give way to none. With a limit for each folder, two of them would push each other's photos out.
 */
public final class Room {
    private Room() {}

    /**
     * The newest photos; of equals, the last by name.
     *
     * @param changedMs times of change, by place
     */
    public static Set<String> newest(final Map<String, Long> changedMs, int most) {
        List<String> places = new ArrayList<String>(changedMs.keySet());
        Collections.sort(places, new Comparator<String>() {
            @Override
            public int compare(String one, String other) {
                int byTime = Long.compare(changedMs.get(one), changedMs.get(other));
                return byTime != 0 ? byTime : one.compareTo(other);
            }
        });
        return new HashSet<String>(places.subList(Math.max(0, places.size() - Math.max(0, most)), places.size()));
    }

    /**
     * Photos that leave an index, the oldest first, so that nothing else has to when more come.
     *
     * @param indexed places by identity, oldest first
     * @param givingWay places that others may take
     * @param added photos that come
     * @return identities
     */
    public static List<String> leaving(Map<String, String> indexed, Collection<String> givingWay, int added, int capacity) {
        int tooMany = indexed.size() + added - capacity;
        List<String> found = new ArrayList<String>();
        for (Map.Entry<String, String> photo : indexed.entrySet()) {
            if (found.size() < tooMany && givingWay.contains(photo.getValue())) {
                found.add(photo.getKey());
            }
        }
        return found;
    }
}
