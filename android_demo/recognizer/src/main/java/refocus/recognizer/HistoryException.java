package refocus.recognizer;

/** The history cannot be read or written: the storage or its rights need attention. */
public final class HistoryException extends RefocusException {
    private static final long serialVersionUID = 1L;

    public HistoryException(String message) {
        super(message);
    }

    public HistoryException(String message, Throwable cause) {
        super(message, cause);
    }
}
