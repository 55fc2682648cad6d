package refocus.recognizer;

/** The photo cannot be used: skip it or give another one. Nothing was stored. */
public final class PhotoException extends RefocusException {
    private static final long serialVersionUID = 1L;

    public PhotoException(String message) {
        this(Reason.PHOTO_DAMAGED, message);
    }

    public PhotoException(String message, Throwable cause) {
        this(Reason.PHOTO_DAMAGED, message, cause);
    }

    public PhotoException(Reason reason, String message) {
        this(reason, message, null);
    }

    public PhotoException(Reason reason, String message, Throwable cause) {
        super(reason, message, cause);
    }
}
