package androidx.test.runner.intent;

/** Where Robolectric registers its monitor; no test of ours asks for it. */
public final class IntentMonitorRegistry {
    private IntentMonitorRegistry() {}

    public static void registerInstance(IntentMonitor monitor) {}
}
