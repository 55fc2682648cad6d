package refocus.recognizer;

/** A photo that somebody decodes: its size as the file stores it, how EXIF turns it, and its rows from the first on. */
public interface PhotoRows {
    int width();

    int height();

    /** EXIF's number, 1 to 8; 1 where the file says nothing. */
    int orientation();

    /**
     * Gives every row, at full size, to the resizer.
     *
     * @throws PhotoException the photo cannot be decoded to its end; half a photo is never recognised
     */
    void readInto(Resizer resizer) throws PhotoException;
}
