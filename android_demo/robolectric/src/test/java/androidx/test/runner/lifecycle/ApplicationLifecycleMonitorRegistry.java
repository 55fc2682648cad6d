package androidx.test.runner.lifecycle;

/** Where Robolectric registers its monitor; no test of ours asks for it. */
public final class ApplicationLifecycleMonitorRegistry {
    private ApplicationLifecycleMonitorRegistry() {}

    public static void registerInstance(ApplicationLifecycleMonitor monitor) {}
}
