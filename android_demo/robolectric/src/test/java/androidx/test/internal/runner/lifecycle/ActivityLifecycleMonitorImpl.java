package androidx.test.internal.runner.lifecycle;

import android.app.Activity;
import androidx.test.runner.lifecycle.ActivityLifecycleMonitor;
import androidx.test.runner.lifecycle.Stage;

/** Robolectric tells it every moment of an activity; nobody listens. */
public final class ActivityLifecycleMonitorImpl implements ActivityLifecycleMonitor {
    public void signalLifecycleChange(Stage stage, Activity activity) {}
}
