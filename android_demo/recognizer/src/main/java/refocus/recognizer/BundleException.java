package refocus.recognizer;

/** The bundle cannot be trusted or understood: import it again, or update the app. Nothing was loaded. */
public final class BundleException extends RefocusException {
    private static final long serialVersionUID = 1L;

    public BundleException(String message) {
        this(Reason.MODEL_DAMAGED, message);
    }

    public BundleException(String message, Throwable cause) {
        this(Reason.MODEL_DAMAGED, message, cause);
    }

    public BundleException(Reason reason, String message) {
        this(reason, message, null);
    }

    public BundleException(Reason reason, String message, Throwable cause) {
        super(reason, message, cause);
    }
}
