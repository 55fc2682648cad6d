package refocus.app;

import android.content.Context;
import android.content.SharedPreferences;
import java.util.HashSet;
import java.util.Set;

/**
 * Folders that are still to be indexed, each for one person. Jobs do not outlive a restart of the device without a
 * permission of their own; these notes do, and the jobs are planned anew from them.
 */
final class Folders {
    private static final String KEY = "folders";
    private static final Object LOCK = new Object();
    private final SharedPreferences notes;

    /** One folder of one person. */
    static final class Folder {
        final String profile;
        final String tree;

        Folder(String profile, String tree) {
            this.profile = profile;
            this.tree = tree;
        }

        String note() {
            return profile + "\n" + tree; // no profile's name has a line feed
        }

        /** A number of its own: with one for all, a second folder would take the first one's place. */
        int job() {
            return note().hashCode();
        }
    }

    Folders(Context context) {
        notes = RefocusApp.of(context).settings();
    }

    Set<Folder> all() {
        Set<Folder> found = new HashSet<Folder>();
        for (String note : notes.getStringSet(KEY, new HashSet<String>())) {
            int end = note.indexOf('\n');
            found.add(new Folder(note.substring(0, end), note.substring(end + 1)));
        }
        return found;
    }

    void add(Folder folder) {
        change(folder, null);
    }

    void remove(Folder folder) {
        change(null, folder);
    }

    private void change(Folder added, Folder removed) {
        synchronized (LOCK) { // the screen adds, the work thread removes
            Set<String> changed = new HashSet<String>(notes.getStringSet(KEY, new HashSet<String>()));
            if (added != null) {
                changed.add(added.note());
            }
            if (removed != null) {
                changed.remove(removed.note());
            }
            notes.edit().putStringSet(KEY, changed).apply();
        }
    }
}
