package refocus.app;

import android.content.ContentResolver;
import android.database.Cursor;
import android.net.Uri;
import android.provider.DocumentsContract;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import refocus.app.model.Room;
import refocus.recognizer.PhotoException;
import refocus.recognizer.PhotoRows;
import refocus.recognizer.PhotoSource;

/** Photos of a folder that the user picked, and of the folders in it, from the oldest to the newest. */
final class Tree implements PhotoSource {
    private static final String[] COLUMNS = {DocumentsContract.Document.COLUMN_DOCUMENT_ID,
        DocumentsContract.Document.COLUMN_MIME_TYPE, DocumentsContract.Document.COLUMN_LAST_MODIFIED,
        DocumentsContract.Document.COLUMN_SIZE};
    private final ContentResolver resolver;
    private final String root;
    private final List<Photo> photos = new ArrayList<Photo>();
    private boolean whole = true;

    private static final class Photo {
        final Uri uri;
        final long changedMs;
        final long bytes;

        Photo(Uri uri, long changedMs, long bytes) {
            this.uri = uri;
            this.changedMs = changedMs;
            this.bytes = bytes;
        }
    }

    /**
     * All folders of a person, each with those of its photos that are among the newest of all.
     *
     * @param trees the folders
     * @param places where the person's indexed photos are
     * @param coming photos that were given one by one, and wait
     * @param capacity photos that the index keeps
     */
    static List<Tree> of(ContentResolver resolver, Collection<String> trees, Collection<String> places, int coming,
            int capacity) {
        List<Tree> found = new ArrayList<Tree>();
        Map<String, Long> changedMs = new HashMap<String, Long>();
        for (String tree : trees) {
            Tree listed = new Tree(resolver, Uri.parse(tree));
            found.add(listed);
            for (Photo photo : listed.photos) {
                changedMs.put(photo.uri.toString(), photo.changedMs);
            }
        }
        int staying = coming;
        for (String place : places) {
            staying += changedMs.containsKey(place) || givesWay(place, found) ? 0 : 1;
        }
        Set<String> newest = Room.newest(changedMs, capacity - staying);
        for (Tree tree : found) {
            tree.keep(newest);
        }
        return found;
    }

    /** Those of the places that photos of these folders, or photos that are given, may take. */
    static Set<String> givingWay(Collection<String> places, List<Tree> trees) {
        Set<String> found = new HashSet<String>();
        for (String place : places) {
            if (givesWay(place, trees)) {
                found.add(place);
            }
        }
        for (Tree tree : trees) {
            for (Photo photo : tree.photos) {
                found.remove(photo.uri.toString());
            }
        }
        return found;
    }

    /** Whether it is of some folder, and not of one that cannot be listed now. */
    private static boolean givesWay(String place, List<Tree> trees) {
        boolean found = DocumentsContract.isTreeUri(Uri.parse(place));
        for (Tree tree : trees) {
            found &= tree.whole || !place.startsWith(tree.root);
        }
        return found;
    }

    private Tree(ContentResolver resolver, Uri tree) {
        this.resolver = resolver;
        root = tree + "/";
        try {
            collect(tree, DocumentsContract.getTreeDocumentId(tree));
        } catch (RuntimeException grantTakenBackOrFolderGone) { // Android's own providers throw several kinds
            whole = false;
        }
        Collections.sort(photos, new Comparator<Photo>() {
            @Override
            public int compare(Photo one, Photo other) {
                int byTime = Long.compare(one.changedMs, other.changedMs);
                return byTime != 0 ? byTime : one.uri.compareTo(other.uri);
            }
        });
    }

    private void collect(Uri tree, String folder) {
        Uri children = DocumentsContract.buildChildDocumentsUriUsingTree(tree, folder);
        List<String> folders = new ArrayList<String>();
        Cursor rows = resolver.query(children, COLUMNS, null, null, null);
        if (rows == null) {
            whole = false; // the app that holds the folder is gone
            return;
        }
        try {
            while (rows.moveToNext()) {
                String type = String.valueOf(rows.getString(1));
                if (type.equals(DocumentsContract.Document.MIME_TYPE_DIR)) {
                    folders.add(rows.getString(0));
                } else if (type.startsWith("image/")) {
                    Uri uri = DocumentsContract.buildDocumentUriUsingTree(tree, rows.getString(0));
                    photos.add(new Photo(uri, rows.isNull(2) ? 0 : rows.getLong(2), rows.isNull(3) ? -1 : rows.getLong(3)));
                }
            }
        } finally {
            rows.close();
        }
        for (String each : folders) {
            collect(tree, each);
        }
    }

    private void keep(Set<String> places) {
        List<Photo> kept = new ArrayList<Photo>();
        for (Photo photo : photos) {
            if (places.contains(photo.uri.toString())) {
                kept.add(photo);
            }
        }
        photos.clear();
        photos.addAll(kept);
    }

    /** Photos whose places are not among some. */
    int missingIn(Collection<String> places) {
        int found = 0;
        for (Photo photo : photos) {
            found += places.contains(photo.uri.toString()) ? 0 : 1;
        }
        return found;
    }

    @Override
    public int size() {
        return photos.size();
    }

    @Override
    public String root() {
        return root;
    }

    @Override
    public boolean isWhole() {
        return whole;
    }

    @Override
    public String key(int index) {
        return photos.get(index).uri.toString();
    }

    @Override
    public String state(int index) {
        return photos.get(index).changedMs + " " + photos.get(index).bytes;
    }

    @Override
    public byte[] content(int index) throws PhotoException {
        return Photos.read(resolver, photos.get(index).uri);
    }

    @Override
    public PhotoRows decode(byte[] content, String where) throws PhotoException {
        return Photos.decode(content, where);
    }
}
