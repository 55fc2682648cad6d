package refocus.app;

import android.content.Context;
import android.content.SharedPreferences;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/**
 * Folders that are indexed, each for one person. They stay until they are removed: new photos are found in them. Jobs do
 * not outlive a restart of the device without a permission of their own; these notes do, and the jobs are planned anew.
 */
final class Folders {
    private static final String KEY = "folders";
    private static final Object LOCK = new Object();
    private final SharedPreferences notes;

    /** One folder of one person, or (with the tree "") the photos that a person gave one by one. */
    static final class Folder {
        final String profile;
        final String tree;
        /** Number of its job, of its own: with one for all, a second folder would take the first one's place. */
        final int job;
        /** Photos of it that no page shows, as the last whole run found: unusable ones and copies; -1 before there was one. */
        final int unusable;

        Folder(String profile, String tree, int job, int unusable) {
            this.profile = profile;
            this.tree = tree;
            this.job = job;
            this.unusable = unusable;
        }

        boolean isChosen() {
            return tree.isEmpty();
        }

        /** Whether it was looked through to the end, at least once. */
        boolean finished() {
            return unusable >= 0;
        }

        boolean is(String person, String place) {
            return profile.equals(person) && tree.equals(place);
        }

        String key() {
            return profile + "\n" + tree; // no profile's name has a line feed
        }

        private String note() {
            return key() + "\n" + job + "\n" + unusable;
        }

        private static Folder of(String note) {
            String[] parts = note.split("\n", -1);
            int job = parts.length > 2 ? Integer.parseInt(parts[2]) : note.hashCode(); // as Refocus 0.1 numbered them
            return new Folder(parts[0], parts[1], job, parts.length > 3 ? Integer.parseInt(parts[3]) : -1);
        }
    }

    Folders(Context context) {
        notes = RefocusApp.of(context).settings();
    }

    /** In a lasting order. */
    List<Folder> all() {
        synchronized (LOCK) {
            List<Folder> found = new ArrayList<Folder>();
            for (String note : new TreeSet<String>(notes.getStringSet(KEY, new HashSet<String>()))) {
                found.add(Folder.of(note));
            }
            return found;
        }
    }

    /** The trees of a person's folders. */
    List<String> trees(String profile) {
        List<String> found = new ArrayList<String>();
        for (Folder folder : all()) {
            if (!folder.isChosen() && folder.profile.equals(profile)) {
                found.add(folder.tree);
            }
        }
        return found;
    }

    /** The folder of a person, or null. */
    Folder find(String profile, String tree) {
        for (Folder folder : all()) {
            if (folder.is(profile, tree)) {
                return folder;
            }
        }
        return null;
    }

    /** Notes a folder, with a job that no other folder has; one that is noted stays as it is. */
    Folder add(String profile, String tree) {
        synchronized (LOCK) {
            Folder known = find(profile, tree);
            if (known != null) {
                return known;
            }
            Set<Integer> taken = new HashSet<Integer>();
            for (Folder folder : all()) {
                taken.add(folder.job);
            }
            int job = 1;
            while (taken.contains(job)) {
                job++;
            }
            Folder added = new Folder(profile, tree, job, -1);
            replace(null, added);
            return added;
        }
    }

    /** Notes that a folder was looked through; one that was removed meanwhile stays removed. */
    void finished(Folder folder, int unusable) {
        synchronized (LOCK) {
            Folder known = find(folder.profile, folder.tree);
            if (known != null) {
                replace(known, new Folder(known.profile, known.tree, known.job, unusable));
            }
        }
    }

    /** Notes that a person's folders are to be looked through again, as after a change of the model. */
    void beginAgain(String profile) {
        synchronized (LOCK) {
            for (Folder folder : all()) {
                if (folder.profile.equals(profile)) {
                    replace(folder, new Folder(profile, folder.tree, folder.job, -1));
                }
            }
        }
    }

    void remove(Folder folder) {
        synchronized (LOCK) {
            Folder known = find(folder.profile, folder.tree);
            if (known != null) {
                replace(known, null);
            }
        }
    }

    private void replace(Folder before, Folder after) {
        Set<String> changed = new HashSet<String>();
        for (String note : notes.getStringSet(KEY, new HashSet<String>())) {
            if (before == null || !Folder.of(note).is(before.profile, before.tree)) {
                changed.add(note);
            }
        }
        if (after != null) {
            changed.add(after.note());
        }
        notes.edit().putStringSet(KEY, changed).apply();
    }
}
