package refocus.app;

import android.app.job.JobInfo;
import android.app.job.JobParameters;
import android.app.job.JobScheduler;
import android.content.Context;
import android.content.Intent;
import android.os.BatteryManager;
import java.util.Collections;
import org.robolectric.Robolectric;
import org.robolectric.Shadows;
import org.robolectric.shadow.api.Shadow;
import org.robolectric.shadows.ShadowJobService;
import org.robolectric.util.ReflectionHelpers;
import refocus.recognizer.FileHistory;

/** The job that indexes a folder, run as the system runs it: with what was scheduled. */
final class Indexing {
    final IndexJob service = Robolectric.buildService(IndexJob.class).create().get();
    final JobParameters job = Shadow.newInstanceOf(JobParameters.class);

    /** The person picks the folder that {@link Folder} serves. */
    static JobInfo scheduled() throws Exception {
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        grid.press(grid.activity.getString(R.string.index_folder));
        grid.answered(new Intent().setData(Folder.tree()));
        return Screen.app().getSystemService(JobScheduler.class).getAllPendingJobs().get(0);
    }

    Indexing(JobInfo scheduled) {
        ReflectionHelpers.setField(job, "extras", scheduled.getExtras());
    }

    /** @return whether the system is asked to start the job again */
    boolean run() throws Exception {
        service.onStartJob(job);
        Screen.settle();
        ShadowJobService after = Shadow.extract(service);
        if (!after.getIsJobFinished()) {
            throw new AssertionError("the job ended without a word");
        }
        return after.getIsRescheduleNeeded();
    }

    static void charging(boolean charging) {
        Shadows.shadowOf((BatteryManager) Screen.app().getSystemService(Context.BATTERY_SERVICE)).setIsCharging(charging);
    }

    static int indexed() throws Exception {
        return Screen.app().work.submit(() -> {
            FileHistory index = Screen.app().index("me");
            if (index.damaged() > 0) {
                throw new AssertionError("damaged records: " + index.damaged());
            }
            return index.names(Screen.app().recognizer().space()).size();
        }).get();
    }
}
