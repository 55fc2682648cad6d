package refocus.recognizer;

/** Photos that somebody keeps: a folder, a picker's choice. */
public interface PhotoSource {
    int size();

    /** What all keys begin with, if they are of one folder, whose unusable photos are remembered; "" for a mere choice. */
    String root();

    /** Whether all photos are listed: false while a card is out, or a right was taken back. */
    boolean isWhole();

    /** What identifies a photo without reading it: its place. */
    String key(int index);

    /** What changes when somebody changes the file at that place, without reading it: its time of change and size. */
    String state(int index);

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
