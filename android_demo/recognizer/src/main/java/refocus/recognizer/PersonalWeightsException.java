package refocus.recognizer;

/** A person's inputs cannot be used: fetch them again. Earlier ones were left as they were. */
public final class PersonalWeightsException extends RefocusException {
    private static final long serialVersionUID = 1L;

    public PersonalWeightsException(String message) {
        super(Reason.OTHER, message, null);
    }

    public PersonalWeightsException(String message, Throwable cause) {
        super(Reason.OTHER, message, cause);
    }
}
