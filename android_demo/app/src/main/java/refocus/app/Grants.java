package refocus.app;

import android.content.ContentResolver;
import android.content.Intent;
import android.content.UriPermission;
import android.net.Uri;
import android.os.Build;
import android.provider.DocumentsContract;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Set;

/**
 * Permissions to read what the user picked, which Android keeps over a restart.
 *
 * <p>It keeps 512 of one app (128 before API 30), and takes back the oldest when there are more: a whole folder's, perhaps.
 * So photos give way here before that.
 */
final class Grants {
    private static final int READ = Intent.FLAG_GRANT_READ_URI_PERMISSION;
    private static final int MOST_PHOTOS = Build.VERSION.SDK_INT >= 30 ? 450 : 100;

    private Grants() {}

    /** Keeps the right to read a picked photo or folder, where its provider allows that; that of a shared photo ends. */
    static void keep(ContentResolver resolver, Uri uri) {
        if (!DocumentsContract.isTreeUri(uri)) {
            List<UriPermission> photos = photos(resolver);
            for (UriPermission oldest : photos.subList(0, Math.max(0, photos.size() + 1 - MOST_PHOTOS))) {
                resolver.releasePersistableUriPermission(oldest.getUri(), READ);
            }
        }
        try {
            resolver.takePersistableUriPermission(uri, READ);
        } catch (SecurityException notOffered) {
            return;
        }
    }

    /** Gives back what nobody's photos need any more. */
    static void releaseUnused(ContentResolver resolver, Set<String> places) {
        for (UriPermission grant : new ArrayList<UriPermission>(resolver.getPersistedUriPermissions())) {
            boolean used = false;
            for (String place : places) {
                used |= place.equals(grant.getUri().toString()) || place.startsWith(grant.getUri() + "/");
            }
            if (!used) {
                resolver.releasePersistableUriPermission(grant.getUri(), READ);
            }
        }
    }

    private static List<UriPermission> photos(ContentResolver resolver) {
        List<UriPermission> found = new ArrayList<UriPermission>();
        for (UriPermission grant : resolver.getPersistedUriPermissions()) {
            if (!DocumentsContract.isTreeUri(grant.getUri())) {
                found.add(grant);
            }
        }
        Collections.sort(found, new Comparator<UriPermission>() {
            @Override
            public int compare(UriPermission one, UriPermission other) {
                return Long.compare(one.getPersistedTime(), other.getPersistedTime());
            }
        });
        return found;
    }
}
