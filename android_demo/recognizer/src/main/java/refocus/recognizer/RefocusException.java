package refocus.recognizer;

/** Base of all errors that a person can act on; its message says what was given, what was expected, and what to do. */
public class RefocusException extends Exception {
    private static final long serialVersionUID = 1L;
    public final Reason reason;

    public RefocusException(String message) {
        this(Reason.OTHER, message, null);
    }

    public RefocusException(Reason reason, String message, Throwable cause) {
        super(message, cause);
        this.reason = reason;
    }
}
