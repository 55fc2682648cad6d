package refocus.app;

import android.content.ContentResolver;
import android.database.Cursor;
import android.net.Uri;
import android.provider.DocumentsContract;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import refocus.recognizer.PhotoException;
import refocus.recognizer.PhotoRows;
import refocus.recognizer.PhotoSource;

/** The newest photos of a folder that the user picked, and of the folders in it, from the oldest to the newest. */
final class Tree implements PhotoSource {
    private static final String[] COLUMNS = {DocumentsContract.Document.COLUMN_DOCUMENT_ID,
        DocumentsContract.Document.COLUMN_MIME_TYPE, DocumentsContract.Document.COLUMN_LAST_MODIFIED};
    private final ContentResolver resolver;
    private final String root;
    private final List<Photo> all = new ArrayList<Photo>();
    private final List<Photo> photos;

    private static final class Photo {
        final Uri uri;
        final long changedMs;

        Photo(Uri uri, long changedMs) {
            this.uri = uri;
            this.changedMs = changedMs;
        }
    }

    /** @param most photos; more than an index keeps would push each other out of it at every run */
    Tree(ContentResolver resolver, Uri tree, int most) {
        this.resolver = resolver;
        root = tree + "/";
        collect(tree, DocumentsContract.getTreeDocumentId(tree));
        Collections.sort(all, new Comparator<Photo>() {
            @Override
            public int compare(Photo one, Photo other) {
                int byTime = Long.compare(one.changedMs, other.changedMs);
                return byTime != 0 ? byTime : one.uri.compareTo(other.uri);
            }
        });
        photos = all.subList(Math.max(0, all.size() - most), all.size());
    }

    private void collect(Uri tree, String folder) {
        Uri children = DocumentsContract.buildChildDocumentsUriUsingTree(tree, folder);
        List<String> folders = new ArrayList<String>();
        Cursor rows;
        try {
            rows = resolver.query(children, COLUMNS, null, null, null);
        } catch (RuntimeException grantTakenBackOrFolderGone) { // Android's own providers throw several kinds
            return;
        }
        if (rows == null) {
            return; // the app that holds the folder is gone
        }
        try {
            while (rows.moveToNext()) {
                String type = String.valueOf(rows.getString(1));
                if (type.equals(DocumentsContract.Document.MIME_TYPE_DIR)) {
                    folders.add(rows.getString(0));
                } else if (type.startsWith("image/")) {
                    Uri uri = DocumentsContract.buildDocumentUriUsingTree(tree, rows.getString(0));
                    all.add(new Photo(uri, rows.isNull(2) ? 0 : rows.getLong(2)));
                }
            }
        } finally {
            rows.close();
        }
        for (String each : folders) {
            collect(tree, each);
        }
    }

    @Override
    public int size() {
        return photos.size();
    }

    @Override
    public String root() {
        return root;
    }

    /** The photo's place alone: that is what is shown later, and a changed photo at the same place is rare. */
    @Override
    public String key(int index) {
        return photos.get(index).uri.toString();
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
