package androidx.test.platform.app;

import android.app.Instrumentation;
import android.os.Bundle;

/** Robolectric says here which instrumentation runs; no test of ours asks. */
public final class InstrumentationRegistry {
    private InstrumentationRegistry() {}

    public static void registerInstance(Instrumentation instrumentation, Bundle arguments) {}
}
