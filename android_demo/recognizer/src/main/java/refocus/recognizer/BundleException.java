package refocus.recognizer;

/** The bundle cannot be trusted or understood: import it again, or update the app. Nothing was loaded. */
public final class BundleException extends RefocusException {
    private static final long serialVersionUID = 1L;

    public BundleException(String message) {
        super(message);
    }

    public BundleException(String message, Throwable cause) {
        super(message, cause);
    }
}
