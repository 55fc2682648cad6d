package androidx.test.runner.lifecycle;

/** Moments of an activity's life. */
public enum Stage {
    PRE_ON_CREATE, CREATED, STARTED, RESUMED, PAUSED, STOPPED, RESTARTED, DESTROYED
}
