package refocus.app;

import android.content.ContentResolver;
import android.database.Cursor;
import android.net.Uri;
import android.provider.DocumentsContract;
import java.util.ArrayList;
import java.util.List;
import refocus.recognizer.PhotoException;
import refocus.recognizer.PhotoRows;
import refocus.recognizer.PhotoSource;

/** The photos of a folder that the user picked, and of the folders in it. */
final class Tree implements PhotoSource {
    private static final String[] COLUMNS = {DocumentsContract.Document.COLUMN_DOCUMENT_ID,
        DocumentsContract.Document.COLUMN_MIME_TYPE};
    private final ContentResolver resolver;
    private final List<Uri> photos = new ArrayList<Uri>();

    Tree(ContentResolver resolver, Uri tree) {
        this.resolver = resolver;
        collect(tree, DocumentsContract.getTreeDocumentId(tree));
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
                    photos.add(DocumentsContract.buildDocumentUriUsingTree(tree, rows.getString(0)));
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

    /** The photo's place alone: that is what is shown later, and a changed photo at the same place is rare. */
    @Override
    public String key(int index) {
        return photos.get(index).toString();
    }

    @Override
    public byte[] content(int index) throws PhotoException {
        return Photos.read(resolver, photos.get(index));
    }

    @Override
    public PhotoRows decode(byte[] content, String where) throws PhotoException {
        return Photos.decode(content, where);
    }
}
