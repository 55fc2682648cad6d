package refocus.recognizer;

/** The history cannot be read or written: the storage or its rights need attention. */
public final class HistoryException extends RefocusException {
    private static final long serialVersionUID = 1L;

    public HistoryException(String message) {
        this(Reason.STORAGE, message);
    }

    public HistoryException(String message, Throwable cause) {
        this(Reason.STORAGE, message, cause);
    }

    public HistoryException(Reason reason, String message) {
        this(reason, message, null);
    }

    public HistoryException(Reason reason, String message, Throwable cause) {
        super(reason, message, cause);
    }
}
