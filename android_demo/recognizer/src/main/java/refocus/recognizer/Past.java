package refocus.recognizer;

/**
 * The photos before, as one head sees them: the features themselves, or what the head left behind at each of them.
 *
 * <p>Neither is more than a cache of what the profile's file holds.
 */
interface Past {
    /** Forgets all, then takes in what is remembered, oldest first. */
    void restart(Remembered remembered) throws RefocusException;

    /**
     * Runs the head for a photo; its outputs are in the program's buffers until the next call.
     *
     * @param feature (D) of the photo
     * @param photo what identifies it
     * @return (n + 1) attention to the photos before, oldest first, and last to the photo itself
     */
    float[] answer(float[] feature, String photo) throws RefocusException;

    /** Adds the photo that was answered last. */
    void takeIn(float[] feature, String photo);
}
