package refocus.app;

import android.content.pm.ProviderInfo;
import android.database.Cursor;
import android.database.MatrixCursor;
import android.net.Uri;
import android.os.CancellationSignal;
import android.os.ParcelFileDescriptor;
import android.provider.DocumentsContract;
import android.provider.DocumentsContract.Document;
import android.provider.DocumentsProvider;
import java.io.File;
import java.io.FileNotFoundException;
import java.util.Arrays;
import java.util.function.Consumer;
import org.robolectric.Robolectric;

/** Another app's documents, as the system's own picker hands them out: a folder of real files. */
public final class Folder extends DocumentsProvider {
    private static final String AUTHORITY = "refocus.test.photos";
    private static File root;
    private static Consumer<String> reader;

    static void serve(File folder) {
        root = folder;
        reader = name -> {};
        ProviderInfo info = new ProviderInfo();
        info.authority = AUTHORITY;
        info.exported = true;
        info.grantUriPermissions = true;
        info.readPermission = android.Manifest.permission.MANAGE_DOCUMENTS;
        info.writePermission = android.Manifest.permission.MANAGE_DOCUMENTS;
        Robolectric.buildContentProvider(Folder.class).create(info);
    }

    static File root() {
        return root;
    }

    /** Tells of each file before it is read. */
    static void watch(Consumer<String> each) {
        reader = each;
    }

    static Uri document(String name) {
        return DocumentsContract.buildDocumentUri(AUTHORITY, name);
    }

    static Uri tree() {
        return DocumentsContract.buildTreeDocumentUri(AUTHORITY, ".");
    }

    @Override
    public boolean onCreate() {
        return true;
    }

    @Override
    public Cursor queryRoots(String[] columns) {
        throw new UnsupportedOperationException("the app never asks");
    }

    @Override
    public Cursor queryDocument(String id, String[] columns) {
        MatrixCursor found = new MatrixCursor(columns);
        row(found, id, columns);
        return found;
    }

    @Override
    public Cursor queryChildDocuments(String parent, String[] columns, String order) {
        MatrixCursor found = new MatrixCursor(columns);
        String[] names = new File(root, parent).list();
        Arrays.sort(names);
        for (String name : names) {
            row(found, parent.equals(".") ? name : parent + "/" + name, columns);
        }
        return found;
    }

    private static void row(MatrixCursor to, String id, String[] columns) {
        MatrixCursor.RowBuilder row = to.newRow();
        for (String column : columns) {
            boolean folder = new File(root, id).isDirectory();
            row.add(column, column.equals(Document.COLUMN_DOCUMENT_ID) ? id
                    : folder ? Document.MIME_TYPE_DIR : id.endsWith(".txt") ? "text/plain" : "image/jpeg");
        }
    }

    @Override
    public boolean isChildDocument(String parent, String id) {
        return true;
    }

    @Override
    public ParcelFileDescriptor openDocument(String id, String mode, CancellationSignal signal) throws FileNotFoundException {
        reader.accept(id);
        return ParcelFileDescriptor.open(new File(root, id), ParcelFileDescriptor.parseMode(mode));
    }
}
