package refocus.app.model;

import java.io.File;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import refocus.recognizer.BundleImport;
import refocus.recognizer.FileHistory;
import refocus.recognizer.HistoryException;
import refocus.recognizer.Reason;
import refocus.recognizer.RefocusException;

/** The people of a device: a folder of profiles, each with a history and an index. */
public final class Profiles {
    private static final String NAME = "[\\p{L}\\p{N}][\\p{L}\\p{N} ._-]{0,39}";
    private static final String HISTORY = "history";
    private static final String INDEX = "index";
    private static final String ANSWERS = "answers";
    private static final String CHOSEN = "chosen";
    private static final String PICTURES = "pictures";
    /** Photos that are kept in the index of one person. */
    public static final int INDEX_CAPACITY = 4096;
    private static final long INDEX_BYTES = 64L << 20;
    /** Photos that are kept in an index. */
    public final int capacity;
    private final File folder;

    public Profiles(File folder) {
        this(folder, INDEX_CAPACITY);
    }

    /** @param capacity photos that are kept in the index of one person */
    public Profiles(File folder, int capacity) {
        this.folder = folder;
        this.capacity = capacity;
    }

    /** Names, in order. */
    public List<String> names() {
        List<String> found = new ArrayList<String>();
        File[] files = folder.listFiles();
        for (File file : files == null ? new File[0] : files) {
            if (file.isDirectory()) {
                found.add(file.getName());
            }
        }
        Collections.sort(found);
        return found;
    }

    /**
     * Adds a person.
     *
     * @throws HistoryException a name that could leave the folder, one that is taken, or no room
     */
    public void add(String name) throws HistoryException {
        if (!name.matches(NAME)) {
            throw new HistoryException(Reason.PROFILE_NAME, "'" + name + "': use letters, digits, spaces, '.', '_' and '-', at most 40");
        }
        File person = new File(folder, name);
        if (person.exists() || !person.mkdirs()) {
            throw new HistoryException(Reason.PROFILE_TAKEN, "there is a profile '" + name + "' already, or no room for it");
        }
    }

    /** The index of the person's photos, open. The history that Refocus 0.1 kept beside it had no use, and goes. */
    public FileHistory index(String name) throws HistoryException {
        File history = existing(name, HISTORY);
        if (history.exists()) {
            FileHistory.destroy(history);
        }
        return new FileHistory(existing(name, INDEX), capacity, INDEX_BYTES);
    }

    /** Tells states of the index apart without opening it. */
    public String stamp(String name) throws HistoryException {
        File index = existing(name, INDEX);
        return index.length() + " " + index.lastModified();
    }

    /** The file of the person's answers. */
    public File answers(String name) throws HistoryException {
        return existing(name, ANSWERS);
    }

    /** Photos that the person gave, and that wait. */
    public ChosenPhotos chosen(String name) throws HistoryException {
        return new ChosenPhotos(existing(name, CHOSEN));
    }

    /** The small picture of a photo, to show: it is there when the photo itself cannot be read any more. */
    public File picture(String name, String photo) throws HistoryException {
        return new File(existing(name, PICTURES), photo + ".jpg");
    }

    /** Deletes small pictures of photos that are shown no more. */
    public void keepPictures(String name, Set<String> photos) throws HistoryException {
        File[] files = existing(name, PICTURES).listFiles();
        for (File file : files == null ? new File[0] : files) {
            if (!photos.contains(file.getName().replace(".jpg", ""))) {
                file.delete();
            }
        }
    }

    private File existing(String name, String file) throws HistoryException {
        if (!names().contains(name)) {
            throw new HistoryException("there is no profile '" + name + "'; add it first");
        }
        return new File(new File(folder, name), file);
    }

    /**
     * Forgets a person: what is stored is overwritten before the files go, whether it can be read or not. Nobody may have
     * the person's files open.
     *
     * @throws RefocusException a file is in use or cannot be written; erase again
     */
    public void erase(String name) throws RefocusException {
        for (String file : new String[] {HISTORY, INDEX}) {
            FileHistory.destroy(existing(name, file));
        }
        File person = new File(folder, name);
        BundleImport.delete(person);
        if (person.exists()) {
            throw new HistoryException(person + " cannot be deleted; erase again");
        }
    }

    /**
     * Forgets everybody.
     *
     * @throws RefocusException somebody could not be erased; the others were
     */
    public void eraseAll() throws RefocusException {
        RefocusException first = null;
        for (String name : names()) {
            try {
                erase(name);
            } catch (RefocusException error) {
                first = first == null ? error : first;
            }
        }
        if (first != null) {
            throw first;
        }
    }

    /** Places of all photos that anybody's index knows; an index that cannot be read has none. */
    public Set<String> photoPlaces() {
        Set<String> found = new HashSet<String>();
        for (String name : names()) {
            try {
                FileHistory index = index(name);
                found.addAll(index.allNames());
                index.close();
            } catch (HistoryException unreadable) {
                continue;
            }
        }
        return found;
    }
}
