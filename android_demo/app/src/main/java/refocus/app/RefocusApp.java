package refocus.app;

import android.app.Application;
import android.content.Context;
import android.content.SharedPreferences;
import android.content.pm.PackageManager;
import android.os.Build;
import android.os.Handler;
import android.os.Looper;
import java.io.DataInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import refocus.app.model.Profiles;
import refocus.recognizer.Bundle;
import refocus.recognizer.BundleException;
import refocus.recognizer.BundleImport;
import refocus.recognizer.Json;
import refocus.recognizer.KeptVerdict;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;
import refocus.recognizer.SelfTest;

/** The one recogniser of the process, the thread that it works on, and where everything is kept. */
public final class RefocusApp extends Application {
    private static final String ASSET = "bundle.zip";
    private static final String PROFILE = "profile";
    /** When the app was updated whose asset the bundle is; none of an imported bundle. */
    private static final String ASSET_OF = "asset";
    private static final int THREADS = 2;
    /** All work on photos and files happens here, one thing after the other. */
    public final ExecutorService work = Executors.newSingleThreadExecutor();
    /** Pictures to show, which wait for no work. */
    public final ExecutorService pictures = Executors.newSingleThreadExecutor();
    public final Handler ui = new Handler(Looper.getMainLooper());
    private Recognizer recognizer;

    @Override
    public void onCreate() {
        super.onCreate();
        IndexJob.resume(this);
    }

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
     * @throws RefocusException there is no bundle, it cannot be used here, or it fails its self-test on this device
     */
    public Recognizer recognizer() throws RefocusException {
        if (recognizer == null) {
            boolean there = BundleImport.restore(bundleFolder());
            if (!there || settings().getLong(ASSET_OF, updatedMs()) != updatedMs()) {
                unpackAsset(there);
            }
            recognizer = tested(new Recognizer(Bundle.load(bundleFolder()), "", THREADS));
        }
        return recognizer;
    }

    /** The recogniser, if this device computes with it what was computed when its bundle was exported. */
    private Recognizer tested(Recognizer made) throws RefocusException {
        boolean passed = false;
        try {
            verdicts().require(made, updatedMs() + " " + Build.FINGERPRINT, Photos.DECODER);
            passed = true;
        } finally {
            if (!passed) {
                made.close();
            }
        }
        return made;
    }

    private KeptVerdict verdicts() {
        return new KeptVerdict(new File(home(), "self-test.json"));
    }

    /** What the self-test of the bundle said on this device; null before the first one. */
    SelfTest.Verdict verdict() {
        return verdicts().last();
    }

    /** @param there whether there is a bundle of an older version of the app, which serves on where this fails */
    private void unpackAsset(boolean there) throws RefocusException {
        try {
            InputStream asset = getAssets().open(ASSET);
            try {
                BundleImport.unpack(asset, bundleFolder(), Photos.DECODER);
            } finally {
                close(asset);
            }
        } catch (IOException error) {
            if (!there) {
                throw new BundleException(getString(R.string.no_model), error);
            }
        } catch (RefocusException error) {
            if (!there) {
                throw error;
            }
            android.util.Log.w("refocus", "the model of this version of the app cannot be used", error);
        }
        settings().edit().putLong(ASSET_OF, updatedMs()).apply();
    }

    /** When the app, and so its assets, was installed or updated. */
    private long updatedMs() {
        try {
            return getPackageManager().getPackageInfo(getPackageName(), 0).lastUpdateTime;
        } catch (PackageManager.NameNotFoundException error) {
            throw new IllegalStateException("an app that runs is installed", error);
        }
    }

    /** Takes another bundle from a zip file, whole or not at all; updates of the app leave it. On the work thread. */
    public void importBundle(InputStream zip) throws RefocusException {
        BundleImport.unpack(zip, bundleFolder(), Photos.DECODER);
        settings().edit().remove(ASSET_OF).apply();
        if (recognizer != null) {
            recognizer.close();
            recognizer = null;
        }
    }

    // ---- the last benchmark, which outlives a screen that is turned and a process that ends

    private File benchmarkFile() {
        return new File(home(), "benchmark.json");
    }

    /**
     * Keeps a benchmark in place of the last one.
     *
     * @param facts what is said beside it
     */
    void keepBenchmark(Map<String, Object> document, String facts) throws RefocusException {
        Map<String, Object> kept = new LinkedHashMap<String, Object>();
        kept.put("facts", facts);
        kept.put("document", document);
        try {
            FileOutputStream out = new FileOutputStream(benchmarkFile());
            try {
                out.write(Json.write(kept).getBytes("UTF-8"));
            } finally {
                out.close();
            }
        } catch (IOException error) {
            throw new RefocusException(benchmarkFile() + " cannot be written (" + error.getMessage() + "); free some space");
        }
    }

    /** "facts" and "document" of the last benchmark; null where there is none. */
    Map<?, ?> benchmark() {
        try {
            FileInputStream in = new FileInputStream(benchmarkFile());
            try {
                byte[] content = new byte[(int) benchmarkFile().length()];
                new DataInputStream(in).readFully(content);
                return (Map<?, ?>) Json.parse(content);
            } finally {
                close(in);
            }
        } catch (IOException | RuntimeException noneOrHalf) {
            return null;
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
        String name = settings().getString(PROFILE, "");
        if (!profiles.names().contains(name)) {
            if (profiles.names().isEmpty()) {
                profiles.add("me");
            }
            name = profiles.names().get(0);
        }
        return name;
    }

    public void choose(String profile) {
        settings().edit().putString(PROFILE, profile).apply();
    }

    SharedPreferences settings() {
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
