package refocus.app;

import android.app.job.JobInfo;
import android.app.job.JobParameters;
import android.app.job.JobScheduler;
import android.app.job.JobService;
import android.content.ComponentName;
import android.content.Context;
import android.os.BatteryManager;
import android.os.Build;
import android.os.PersistableBundle;
import android.os.PowerManager;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import refocus.app.model.Conditions;
import refocus.recognizer.HistoryException;
import refocus.recognizer.RefocusException;

/**
 * Looks through a folder once a day, while the device is idle and charging, so that new photos are found; a run that was
 * stopped, or killed, goes on where it was.
 */
public final class IndexJob extends JobService {
    private static final String TREE = "tree";
    private static final String PROFILE = "profile";
    private final Map<Integer, Conditions> running = new ConcurrentHashMap<Integer, Conditions>();

    /** Plans a person's folder, now and after every restart of the device until it is removed. */
    static Folders.Folder schedule(Context context, String profile, String tree) {
        Folders.Folder folder = new Folders(context).add(profile, tree);
        plan(context, folder);
        return folder;
    }

    /** Plans again what a restart of the device forgot. */
    static void resume(Context context) {
        Set<Integer> planned = new HashSet<Integer>();
        for (JobInfo job : context.getSystemService(JobScheduler.class).getAllPendingJobs()) {
            planned.add(job.getId());
        }
        for (Folders.Folder folder : new Folders(context).all()) {
            if (!planned.contains(folder.job)) {
                plan(context, folder);
            }
        }
    }

    private static void plan(Context context, Folders.Folder folder) {
        PersistableBundle what = new PersistableBundle();
        what.putString(TREE, folder.tree);
        what.putString(PROFILE, folder.profile);
        JobInfo job = new JobInfo.Builder(folder.job, new ComponentName(context, IndexJob.class)).setExtras(what)
                .setPeriodic(TimeUnit.DAYS.toMillis(1))
                .setRequiresCharging(true).setRequiresDeviceIdle(true).setRequiresBatteryNotLow(true).build();
        context.getSystemService(JobScheduler.class).schedule(job);
    }

    /** @param profile whose folders are not indexed any more; null for everybody's */
    static void cancel(Context context, String profile) {
        for (Folders.Folder folder : new Folders(context).all()) {
            if (profile == null || profile.equals(folder.profile)) {
                remove(context, folder);
            }
        }
    }

    /** Indexes a folder no more; what is indexed stays. */
    static void remove(Context context, Folders.Folder folder) {
        context.getSystemService(JobScheduler.class).cancel(folder.job);
        new Folders(context).remove(folder);
    }

    @Override
    public boolean onStartJob(final JobParameters job) {
        RefocusApp app = RefocusApp.of(this);
        String profile = String.valueOf(job.getExtras().getString(PROFILE));
        Folders.Folder folder = new Folders(this).find(profile, String.valueOf(job.getExtras().getString(TREE)));
        if (folder == null || !app.profiles().names().contains(profile)) { // removed, or of another device
            if (folder != null) {
                remove(this, folder);
            }
            return false;
        }
        final Conditions conditions = new Conditions(new AndroidSensors(this));
        boolean begun = app.begin(new IndexRun(app, folder, conditions, new IndexRun.Done() {
            @Override
            public void ended(boolean finished, Throwable error) {
                running.remove(job.getJobId(), conditions);
                boolean noModel = error instanceof RefocusException && !(error instanceof HistoryException);
                jobFinished(job, !finished && !noModel); // without a model: the app says so when it is opened
            }
        }));
        if (begun) {
            running.put(job.getJobId(), conditions);
        } else { // the person has it indexed just now, or a run that was stopped is at its last photo
            jobFinished(job, true);
        }
        return begun;
    }

    @Override
    public boolean onStopJob(JobParameters job) {
        Conditions conditions = running.get(job.getJobId());
        if (conditions != null) {
            conditions.stop();
            RefocusApp.of(this).endStopped();
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
