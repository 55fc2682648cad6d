package refocus.recognizer;

/** A photo that somebody decodes: its size as the file stores it, how EXIF turns it, and its rows from the first on. */
public interface PhotoRows {
    int width();

    int height();

    /** EXIF's number, 1 to 8; 1 where the file says nothing. */
    int orientation();

    /**
     * Gives every row to the resizer: at full size, or those of a JPEG that was decoded at a reduced one, of which the
     * resizer is told first ({@link Resizer#scaled}).
     *
     * @throws PhotoException the photo cannot be decoded to its end; half a photo is never recognised
     */
    void readInto(Resizer resizer) throws PhotoException;
}
