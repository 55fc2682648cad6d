package androidx.test.runner.intent;

/** What Robolectric registers when it starts; no test of ours asks it. */
public interface IntentMonitor {}
