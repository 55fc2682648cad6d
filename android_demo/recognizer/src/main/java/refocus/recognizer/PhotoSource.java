package refocus.recognizer;

/** Photos that somebody keeps: a folder, a picker's choice. */
public interface PhotoSource {
    int size();

    /** What all keys begin with, if they are of one folder, whose unusable photos are remembered; "" for a mere choice. */
    String root();

    /** What identifies a photo and its state, without reading it: its place, size and time of change. */
    String key(int index);

    /**
     * The whole file.
     *
     * @throws PhotoException missing, unreadable or too large
     */
    byte[] content(int index) throws PhotoException;

    /**
     * Decodes a file.
     *
     * @throws PhotoException not a photo that this device can decode
     */
    PhotoRows decode(byte[] content, String where) throws PhotoException;
}
