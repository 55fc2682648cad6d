package androidx.test.runner.intent;

import android.app.Instrumentation.ActivityResult;
import android.content.Intent;

/** Would answer for another app; ours never does. */
public interface IntentStubber {
    ActivityResult getActivityResultForIntent(Intent intent);
}
