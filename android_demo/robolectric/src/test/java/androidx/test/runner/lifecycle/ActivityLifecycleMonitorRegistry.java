package androidx.test.runner.lifecycle;

/** Where Robolectric registers its monitor; no test of ours asks for it. */
public final class ActivityLifecycleMonitorRegistry {
    private ActivityLifecycleMonitorRegistry() {}

    public static void registerInstance(ActivityLifecycleMonitor monitor) {}
}
