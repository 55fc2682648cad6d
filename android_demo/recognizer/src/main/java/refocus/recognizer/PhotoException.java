package refocus.recognizer;

/** The photo cannot be used: skip it or give another one. Nothing was stored. */
public final class PhotoException extends RefocusException {
    private static final long serialVersionUID = 1L;

    public PhotoException(String message) {
        super(message);
    }

    public PhotoException(String message, Throwable cause) {
        super(message, cause);
    }
}
