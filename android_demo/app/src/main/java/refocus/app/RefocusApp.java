package refocus.app;

import android.app.Activity;
import android.app.Application;
import android.content.Context;
import android.content.SharedPreferences;
import android.content.pm.PackageManager;
import android.graphics.Bitmap;
import android.os.Build;
import android.os.Handler;
import android.os.Looper;
import java.io.DataInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import refocus.app.model.AnswerCache;
import refocus.app.model.AnswerUpdate;
import refocus.app.model.Failures;
import refocus.app.model.ModelSummary;
import refocus.app.model.Profiles;
import refocus.recognizer.Bundle;
import refocus.recognizer.BundleException;
import refocus.recognizer.BundleImport;
import refocus.recognizer.FileHistory;
import refocus.recognizer.Json;
import refocus.recognizer.KeptVerdict;
import refocus.recognizer.Reason;
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
    /** Photos that could not be used, until a page has said so. */
    final Failures failures = new Failures();
    static final int PICTURE_SIDE = 192; // pixels
    private static final int ANSWERING_MS = 500; // at a time, so that a photo that is tapped is answered in between
    private final Map<String, IndexRun> runs = new ConcurrentHashMap<String, IndexRun>();
    private final List<IndexRun> queue = new ArrayList<IndexRun>(); // runs that wait for those of another person; its own lock
    private Recognizer recognizer;
    private FileHistory index;
    private String indexed; // whose index is open
    private int capacity = Profiles.INDEX_CAPACITY; // smaller in tests
    private String answered; // whose answers are in memory
    private AnswerCache answers;
    private volatile Watcher watcher;
    private volatile Throwable trouble;

    /** Something that runs on the work thread. */
    interface Task {
        void run() throws RefocusException, IOException;
    }

    /** A page that shows what is going on; on the main thread. */
    interface Watcher {
        void changed();
    }

    @Override
    public void onCreate() {
        super.onCreate();
        IndexJob.resume(this);
    }

    /** Does something on the work thread. Whatever goes wrong is told on the page, and ends nothing else. */
    void work(final Activity page, final Task task) {
        work.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    task.run();
                } catch (RefocusException | IOException | RuntimeException | OutOfMemoryError error) {
                    Pages.tell(page, error);
                }
            }
        });
    }

    // ---- the index and the answers of the person who is shown; on the work thread

    /** The person's index. It stays open, and is nobody else's to open. */
    FileHistory index(String person) throws RefocusException {
        if (index == null || !person.equals(indexed)) {
            closeIndex();
            index = profiles().index(person);
            indexed = person;
        }
        return index;
    }

    /** Closes what is open, so that files of a profile can be erased. */
    void closeIndex() {
        if (index != null) {
            index.close();
            index = null;
        }
    }

    /** The person's answers as they were shown last: from a file, without a model; none of who was erased. */
    AnswerCache answers(String person) throws RefocusException {
        if (!profiles().names().contains(person)) {
            return AnswerCache.empty();
        }
        if (answers == null || !person.equals(answered)) {
            answers = AnswerCache.read(profiles().answers(person));
            answered = person;
        }
        return answers;
    }

    /** Brings the person's answers up to date; where nothing changed, no model is loaded and nothing is answered. */
    AnswerCache refresh(final String person) throws RefocusException {
        AnswerCache before = answers(person);
        if (!profiles().names().contains(person)) {
            return before;
        }
        ModelSummary known = model();
        if (known != null && known.model.equals(before.model) && profiles().stamp(person).equals(before.stamp)) {
            return before;
        }
        Recognizer serving = recognizer();
        FileHistory open = index(person);
        boolean another = !before.model.isEmpty() && !before.model.equals(AnswerUpdate.model(serving));
        if (another && !open.placesMissingIn(serving.space()).isEmpty()) {
            new Folders(this).beginAgain(person);
            IndexJob.schedule(this, person, "");
        }
        AnswerUpdate update = new AnswerUpdate(serving, open, profiles(), person);
        answers = update.update(before, ANSWERING_MS);
        answered = person;
        if (update.whole) {
            keepAnswers(person);
        } else {
            work.execute(new Runnable() {
                @Override
                public void run() {
                    try {
                        if (profiles().names().contains(person)) { // and not erased meanwhile
                            refresh(person);
                        }
                    } catch (RefocusException | RuntimeException | OutOfMemoryError error) {
                        trouble = error;
                    }
                    changed();
                }
            });
        }
        return answers;
    }

    private void keepAnswers(String person) throws RefocusException {
        try {
            answers.write(profiles().answers(person));
            Set<String> shown = new HashSet<String>();
            for (AnswerCache.Entry entry : answers.entries) {
                shown.add(entry.photo);
            }
            profiles().keepPictures(person, shown);
        } catch (IOException full) {
            android.util.Log.w("refocus", "the answers are not kept, and will be made again", full);
        }
    }

    /** Keeps a small picture of a photo, to be shown when the photo itself cannot be read any more. */
    void keepPicture(String person, String photo, byte[] content) throws RefocusException {
        File file = profiles().picture(person, photo);
        Bitmap small = file.exists() ? null : Photos.small(content, PICTURE_SIDE);
        if (small != null) {
            Photos.keep(small, file);
        }
    }

    /** Erases a person, or with null everybody. */
    void forget(String person) throws RefocusException {
        closeIndex();
        answers = null;
        if (person == null) {
            profiles().eraseAll();
        } else {
            profiles().erase(person);
        }
    }

    // ---- indexing

    /**
     * Begins a run, unless there is one for that folder; says whether it began. While another person's runs are at work it
     * waits: only one index is open, and runs that took turns would open theirs anew for every photo.
     */
    boolean begin(IndexRun run) {
        synchronized (queue) {
            if (runs.containsKey(run.folder.key())) {
                return false;
            }
            boolean wait = false;
            for (IndexRun other : runs.values()) {
                wait |= !other.folder.profile.equals(run.folder.profile);
            }
            runs.put(run.folder.key(), run);
            if (wait) {
                queue.add(run);
            } else {
                work.execute(run);
            }
        }
        changed();
        return true;
    }

    /** Runs that were stopped while they wait come to their end now. */
    void endStopped() {
        synchronized (queue) {
            for (IndexRun run : new ArrayList<IndexRun>(queue)) {
                if (run.stopped()) {
                    queue.remove(run);
                    work.execute(run);
                }
            }
        }
    }

    void ended(IndexRun run, Throwable error) {
        synchronized (queue) {
            runs.remove(run.folder.key(), run);
            if (runs.size() == queue.size() && !queue.isEmpty()) { // nobody is at work
                String next = queue.get(0).folder.profile;
                for (IndexRun waiting : new ArrayList<IndexRun>(queue)) {
                    if (waiting.folder.profile.equals(next)) {
                        queue.remove(waiting);
                        work.execute(waiting);
                    }
                }
            }
        }
        if (error != null) {
            trouble = error;
        }
        changed();
    }

    /** Runs that are at work for a person; null: everybody's. */
    List<IndexRun> runs(String person) {
        List<IndexRun> found = new ArrayList<IndexRun>();
        for (IndexRun run : runs.values()) {
            if (person == null || person.equals(run.folder.profile)) {
                found.add(run);
            }
        }
        return found;
    }

    /** The page that hears of changes from now on; null: none. */
    void watch(Watcher page) {
        watcher = page;
        if (page != null) {
            changed();
        }
    }

    /** No page watches that went away meanwhile, whoever watches now. */
    void unwatch(Watcher page) {
        if (watcher == page) {
            watcher = null;
        }
    }

    /** Tells the page that is shown; from any thread. */
    void changed() {
        ui.post(new Runnable() {
            @Override
            public void run() {
                if (watcher != null) {
                    watcher.changed();
                }
            }
        });
    }

    /** What went wrong while no page was there to say it; null where nothing did. It is told once. */
    Throwable takeTrouble() {
        Throwable found = trouble;
        trouble = null;
        return found;
    }

    // ---- the model

    private File modelFile() {
        return new File(home(), "model.json");
    }

    private String modelStamp() {
        File manifest = new File(bundleFolder(), Bundle.MANIFEST);
        return manifest.length() + " " + manifest.lastModified() + " " + updatedMs() + " " + Build.FINGERPRINT;
    }

    /** What the installed model knows, without loading it; null where it was not loaded yet. */
    ModelSummary model() {
        ModelSummary found = ModelSummary.read(modelFile());
        return found != null && found.stamp.equals(modelStamp()) ? found : null;
    }

    static RefocusApp of(Context context) {
        return (RefocusApp) context.getApplicationContext();
    }

    /** Not in backups, and not on a card that somebody else reads. */
    private File home() {
        return getNoBackupFilesDir();
    }

    public Profiles profiles() {
        return new Profiles(new File(home(), "profiles"), capacity);
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
            recognizer = loaded();
            try {
                ModelSummary.of(recognizer, modelStamp()).write(modelFile());
            } catch (IOException full) {
                android.util.Log.w("refocus", "the next start loads the model to say what it knows", full);
            }
        }
        return recognizer;
    }

    /** The recogniser of the bundle that is in place; the app's own is unpacked once more where its files are damaged. */
    private Recognizer loaded() throws RefocusException {
        try {
            return tested(new Recognizer(Bundle.load(bundleFolder()), "", THREADS));
        } catch (BundleException error) {
            if (error.reason != Reason.MODEL_DAMAGED || !settings().contains(ASSET_OF)) {
                throw error;
            }
            android.util.Log.w("refocus", "the app's own model is damaged, and unpacked once more", error);
            unpackAsset(false);
            return tested(new Recognizer(Bundle.load(bundleFolder()), "", THREADS));
        }
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
                throw new BundleException(Reason.MODEL_MISSING, getString(R.string.no_model), error);
            }
        } catch (RefocusException error) {
            if (!there) {
                throw error;
            }
            android.util.Log.w("refocus", "the model of this version of the app cannot be used", error);
            if (error.reason == Reason.STORAGE) { // the next start may find room
                return;
            }
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
            throw new RefocusException(Reason.STORAGE, benchmarkFile() + " cannot be written (" + error.getMessage()
                    + "); free some space", error);
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
