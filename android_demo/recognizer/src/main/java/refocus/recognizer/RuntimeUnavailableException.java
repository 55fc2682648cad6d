package refocus.recognizer;

/** The inference runtime is missing or refused: install a build that has it. */
public final class RuntimeUnavailableException extends RefocusException {
    private static final long serialVersionUID = 1L;

    public RuntimeUnavailableException(String message) {
        super(Reason.RUNTIME, message, null);
    }

    public RuntimeUnavailableException(String message, Throwable cause) {
        super(Reason.RUNTIME, message, cause);
    }
}
