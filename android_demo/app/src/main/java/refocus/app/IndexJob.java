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
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import refocus.app.model.Conditions;
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

    static void schedule(Context context, Uri tree) {
        try {
            PersistableBundle what = new PersistableBundle();
            what.putString(TREE, tree.toString());
            what.putString(PROFILE, RefocusApp.of(context).profile());
            // A job of its own for each folder of each person: one id would let a second folder take the first's place.
            int id = (what.getString(PROFILE) + "\n" + tree).hashCode();
            JobInfo job = new JobInfo.Builder(id, new ComponentName(context, IndexJob.class)).setExtras(what)
                    .setRequiresCharging(true).setRequiresDeviceIdle(true).setRequiresBatteryNotLow(true).build();
            context.getSystemService(JobScheduler.class).schedule(job);
        } catch (RefocusException error) {
            throw new IllegalStateException("a profile that is shown exists", error);
        }
    }

    /** @param profile whose folders are not indexed any more; null for everybody's */
    static void cancel(Context context, String profile) {
        JobScheduler scheduler = context.getSystemService(JobScheduler.class);
        for (JobInfo job : scheduler.getAllPendingJobs()) {
            if (profile == null || profile.equals(job.getExtras().getString(PROFILE))) {
                scheduler.cancel(job.getId());
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
                try {
                    Recognizer recognizer = app.recognizer();
                    FileHistory index = app.profiles().index(job.getExtras().getString(PROFILE));
                    try {
                        Tree photos = new Tree(getContentResolver(), Uri.parse(job.getExtras().getString(TREE)));
                        again = !new Indexer(recognizer, index).run(photos, conditions).finished;
                    } finally {
                        index.close();
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
