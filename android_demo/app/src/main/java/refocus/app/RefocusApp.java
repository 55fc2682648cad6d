package refocus.app;

import android.app.Application;
import android.content.Context;
import android.content.SharedPreferences;
import android.os.Handler;
import android.os.Looper;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import refocus.app.model.Profiles;
import refocus.recognizer.Bundle;
import refocus.recognizer.BundleException;
import refocus.recognizer.BundleImport;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/** The one recogniser of the process, the thread that it works on, and where everything is kept. */
public final class RefocusApp extends Application {
    private static final String ASSET = "bundle.zip";
    private static final String PROFILE = "profile";
    private static final int THREADS = 2;
    /** All work on photos and files happens here, one thing after the other. */
    public final ExecutorService work = Executors.newSingleThreadExecutor();
    public final Handler ui = new Handler(Looper.getMainLooper());
    /** The last benchmark and what is said beside it; null before the first. Outlives a screen that is turned. */
    Map<String, Object> benchmark;
    String benchmarkFacts;
    private Recognizer recognizer;

    static RefocusApp of(Context context) {
        return (RefocusApp) context.getApplicationContext();
    }

    /** Not in backups, and not on a card that somebody else reads. */
    private File home() {
        return getNoBackupFilesDir();
    }

    public Profiles profiles() {
        return new Profiles(new File(home(), "profiles"));
    }

    private File bundleFolder() {
        return new File(home(), "bundle");
    }

    /**
     * The recogniser; loaded at first use, with the bundle of the app's assets if none was imported. On the work thread.
     *
     * @throws RefocusException there is no bundle, or it cannot be used here
     */
    public Recognizer recognizer() throws RefocusException {
        if (recognizer == null) {
            if (!BundleImport.restore(bundleFolder())) {
                unpackAsset();
            }
            recognizer = new Recognizer(Bundle.load(bundleFolder()), "", THREADS);
        }
        return recognizer;
    }

    private void unpackAsset() throws RefocusException {
        InputStream asset;
        try {
            asset = getAssets().open(ASSET);
        } catch (IOException error) {
            throw new BundleException(getString(R.string.no_model), error);
        }
        try {
            BundleImport.unpack(asset, bundleFolder());
        } finally {
            close(asset);
        }
    }

    /** Takes another bundle from a zip file, whole or not at all. On the work thread. */
    public void importBundle(InputStream zip) throws RefocusException {
        BundleImport.unpack(zip, bundleFolder());
        if (recognizer != null) {
            recognizer.close();
            recognizer = null;
        }
    }

    /** Serves nobody, so that files of a profile can be erased or opened by others. On the work thread. */
    public void serveNobody() throws RefocusException {
        if (recognizer != null) {
            recognizer.switchTo(null, null);
        }
    }

    /** The profile that is shown; made if there is none. */
    public String profile() throws RefocusException {
        Profiles profiles = profiles();
        String name = preferences().getString(PROFILE, "");
        if (!profiles.names().contains(name)) {
            if (profiles.names().isEmpty()) {
                profiles.add("me");
            }
            name = profiles.names().get(0);
        }
        return name;
    }

    public void choose(String profile) {
        preferences().edit().putString(PROFILE, profile).apply();
    }

    private SharedPreferences preferences() {
        return getSharedPreferences("settings", MODE_PRIVATE);
    }

    /** Closes what was read from; nothing is lost where that fails. */
    static void close(InputStream stream) {
        try {
            stream.close();
        } catch (IOException error) {
            android.util.Log.w("refocus", "a stream could not be closed", error);
        }
    }
}
