package refocus.recognizer;

/** What kind of thing went wrong, for a page that says it in the reader's language; messages are for engineers. */
public enum Reason {
    PHOTO_GONE,
    PHOTO_FORMAT,
    PHOTO_DAMAGED,
    PHOTO_SIZE,
    PHOTO_MEMORY,
    MODEL_MISSING,
    MODEL_DAMAGED,
    MODEL_NEWER,
    MODEL_UNFIT,
    MODEL_SELF_TEST,
    RUNTIME,
    PROFILE_BUSY,
    PROFILE_NAME,
    PROFILE_TAKEN,
    PROFILE_UNREADABLE,
    STORAGE,
    OTHER
}
