package androidx.test.runner.lifecycle;

/** Moments of an application's life. */
public enum ApplicationStage {
    PRE_ON_CREATE, CREATED
}
