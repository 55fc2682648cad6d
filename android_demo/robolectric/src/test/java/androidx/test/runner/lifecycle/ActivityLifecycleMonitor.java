package androidx.test.runner.lifecycle;

/** What Robolectric registers when it starts; no test of ours asks it. */
public interface ActivityLifecycleMonitor {}
