package refocus.app;

import android.app.job.JobInfo;
import android.app.job.JobParameters;
import android.app.job.JobScheduler;
import android.app.job.JobService;
import android.content.ComponentName;
import android.content.Context;
import android.net.Uri;
import android.os.BatteryManager;
import android.os.Build;
import android.os.PersistableBundle;
import android.os.PowerManager;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import refocus.app.model.Conditions;
import refocus.app.model.Profiles;
import refocus.recognizer.FileHistory;
import refocus.recognizer.HistoryException;
import refocus.recognizer.Indexer;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/** Indexes a folder while the device is idle and charging; a run that was stopped, or killed, goes on where it was. */
public final class IndexJob extends JobService {
    private static final String TREE = "tree";
    private static final String PROFILE = "profile";
    private final Map<Integer, Conditions> running = new ConcurrentHashMap<Integer, Conditions>();

    /** Plans a folder, now and after every restart of the device until it is done. */
    static void schedule(Context context, Folders.Folder folder) {
        new Folders(context).add(folder);
        plan(context, folder);
    }

    /** Plans again what a restart of the device forgot. */
    static void resume(Context context) {
        Set<Integer> planned = new HashSet<Integer>();
        for (JobInfo job : context.getSystemService(JobScheduler.class).getAllPendingJobs()) {
            planned.add(job.getId());
        }
        for (Folders.Folder folder : new Folders(context).all()) {
            if (!planned.contains(folder.job())) {
                plan(context, folder);
            }
        }
    }

    private static void plan(Context context, Folders.Folder folder) {
        PersistableBundle what = new PersistableBundle();
        what.putString(TREE, folder.tree);
        what.putString(PROFILE, folder.profile);
        JobInfo job = new JobInfo.Builder(folder.job(), new ComponentName(context, IndexJob.class)).setExtras(what)
                .setRequiresCharging(true).setRequiresDeviceIdle(true).setRequiresBatteryNotLow(true).build();
        context.getSystemService(JobScheduler.class).schedule(job);
    }

    /** @param profile whose folders are not indexed any more; null for everybody's */
    static void cancel(Context context, String profile) {
        Folders folders = new Folders(context);
        for (Folders.Folder folder : folders.all()) {
            if (profile == null || profile.equals(folder.profile)) {
                context.getSystemService(JobScheduler.class).cancel(folder.job());
                folders.remove(folder);
            }
        }
    }

    @Override
    public boolean onStartJob(final JobParameters job) {
        final RefocusApp app = RefocusApp.of(this);
        final Conditions conditions = new Conditions(new AndroidSensors(this));
        running.put(job.getJobId(), conditions);
        app.work.execute(new Runnable() {
            @Override
            public void run() {
                boolean again = true;
                Folders.Folder folder =
                        new Folders.Folder(job.getExtras().getString(PROFILE), job.getExtras().getString(TREE));
                try {
                    Recognizer recognizer = app.recognizer();
                    FileHistory index = app.profiles().index(folder.profile);
                    try {
                        Tree photos = new Tree(getContentResolver(), Uri.parse(folder.tree), Profiles.INDEX_CAPACITY);
                        again = !new Indexer(recognizer, index).run(photos, conditions).finished;
                    } finally {
                        index.close();
                    }
                    if (!again) {
                        new Folders(IndexJob.this).remove(folder);
                    }
                } catch (HistoryException busyOrFull) {
                    again = true; // what is indexed stays; later there may be room
                } catch (RefocusException noModel) {
                    again = false; // the app says so when it is opened
                } catch (RuntimeException provider) {
                    again = true; // of another app, which may answer later
                }
                running.remove(job.getJobId());
                jobFinished(job, again);
            }
        });
        return true;
    }

    @Override
    public boolean onStopJob(JobParameters job) {
        Conditions conditions = running.get(job.getJobId());
        if (conditions != null) {
            conditions.stop();
        }
        return true;
    }

    /** What Android says of heat and battery. */
    private static final class AndroidSensors implements Conditions.Sensors {
        private final Context context;

        AndroidSensors(Context context) {
            this.context = context;
        }

        @Override
        public int thermalStatus() {
            return Build.VERSION.SDK_INT >= 29 ? context.getSystemService(PowerManager.class).getCurrentThermalStatus() : 0;
        }

        @Override
        public int batteryPercent() {
            return context.getSystemService(BatteryManager.class).getIntProperty(BatteryManager.BATTERY_PROPERTY_CAPACITY);
        }

        @Override
        public boolean charging() {
            return context.getSystemService(BatteryManager.class).isCharging();
        }
    }
}
