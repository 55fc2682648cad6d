package refocus.recognizer;

/** Base of all errors that a person can act on; its message says what was given, what was expected, and what to do. */
public class RefocusException extends Exception {
    private static final long serialVersionUID = 1L;

    public RefocusException(String message) {
        super(message);
    }

    public RefocusException(String message, Throwable cause) {
        super(message, cause);
    }
}
