package refocus.app;

import android.content.ContentProvider;
import android.content.ContentValues;
import android.database.Cursor;
import android.database.MatrixCursor;
import android.net.Uri;
import android.os.ParcelFileDescriptor;
import android.provider.DocumentsContract;
import android.provider.DocumentsContract.Document;
import java.io.File;
import java.io.FileNotFoundException;
import java.util.Arrays;
import java.util.function.Consumer;
import org.robolectric.Robolectric;

/**
 * Another app's documents, as the system's own picker hands them out: a folder of real files. No DocumentsProvider, whose
 * queries Robolectric's resolver asks in a form that Android has given up; it answers what one would.
 */
public final class Folder extends ContentProvider {
    private static final String AUTHORITY = "refocus.test.photos";
    private static File root;
    private static Consumer<String> reader;
    private static boolean refusing;

    static void serve(File folder) {
        root = folder;
        reader = name -> {};
        refusing = false;
        Robolectric.setupContentProvider(Folder.class, AUTHORITY);
    }

    static File root() {
        return root;
    }

    /** Tells of each file before it is read. */
    static void watch(Consumer<String> each) {
        reader = each;
    }

    /** From now on the app has no right to list the documents, or has it again. */
    static void refuse(boolean refuse) {
        refusing = refuse;
    }

    static Uri document(String name) {
        return DocumentsContract.buildDocumentUri(AUTHORITY, name);
    }

    static Uri tree() {
        return tree(".");
    }

    /** A folder in it, as one of its own. */
    static Uri tree(String below) {
        return DocumentsContract.buildTreeDocumentUri(AUTHORITY, below);
    }

    @Override
    public boolean onCreate() {
        return true;
    }

    static String[] names(String folder) {
        String[] names = new File(root, folder).list();
        Arrays.sort(names);
        return names;
    }

    /** The documents of a folder. */
    @Override
    public Cursor query(Uri children, String[] columns, String selection, String[] arguments, String order) {
        if (refusing) {
            throw new SecurityException("Permission Denial: reading " + children);
        }
        String parent = DocumentsContract.getDocumentId(children);
        MatrixCursor found = new MatrixCursor(columns);
        for (String name : names(parent)) {
            row(found, parent.equals(".") ? name : parent + "/" + name, columns);
        }
        return found;
    }

    private static void row(MatrixCursor to, String id, String[] columns) {
        MatrixCursor.RowBuilder row = to.newRow();
        File file = new File(root, id);
        for (String column : columns) {
            switch (column) {
                case Document.COLUMN_DOCUMENT_ID:
                    row.add(column, id);
                    break;
                case Document.COLUMN_LAST_MODIFIED:
                    row.add(column, file.lastModified());
                    break;
                case Document.COLUMN_SIZE:
                    row.add(column, file.length());
                    break;
                default:
                    row.add(column, file.isDirectory() ? Document.MIME_TYPE_DIR
                            : id.endsWith(".txt") ? "text/plain" : "image/jpeg");
            }
        }
    }

    @Override
    public ParcelFileDescriptor openFile(Uri document, String mode) throws FileNotFoundException {
        String id = DocumentsContract.getDocumentId(document);
        reader.accept(id);
        if (mode.equals("r") && !new File(root, id).exists()) { // as Android's own provider of files has it
            throw new IllegalArgumentException("Failed to determine if " + id + " is child of " + root);
        }
        return ParcelFileDescriptor.open(new File(root, id), ParcelFileDescriptor.parseMode(mode));
    }

    @Override
    public String getType(Uri document) {
        return "image/*";
    }

    @Override
    public Uri insert(Uri document, ContentValues values) {
        throw new UnsupportedOperationException("the app never asks");
    }

    @Override
    public int update(Uri document, ContentValues values, String selection, String[] arguments) {
        throw new UnsupportedOperationException("the app never asks");
    }

    @Override
    public int delete(Uri document, String selection, String[] arguments) {
        throw new UnsupportedOperationException("the app never asks");
    }
}
