package androidx.test.runner.intent;

/** There is no stubber: an intent goes to Robolectric's own record. */
public final class IntentStubberRegistry {
    private IntentStubberRegistry() {}

    public static boolean isLoaded() {
        return false;
    }

    public static IntentStubber getInstance() {
        throw new IllegalStateException("no stubber is registered");
    }
}
