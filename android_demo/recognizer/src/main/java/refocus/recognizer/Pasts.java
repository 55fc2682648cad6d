package refocus.recognizer;

/** The past of a head in the form that its card names. */
final class Pasts {
    private Pasts() {}

    static Past of(Program head, HeadCard card) {
        if (card.form.equals("window")) {
            return new WindowPast(head, card);
        }
        return card.form.equals("streaming") ? new StreamPast(head, card) : new NoPast(head);
    }

    /** Of a head that reads the photo's own feature alone. */
    private static final class NoPast implements Past {
        private final Program program;

        NoPast(Program program) {
            this.program = program;
        }

        @Override
        public void restart(Remembered remembered) {
            // nothing to forget
        }

        @Override
        public float[] answer(float[] feature, String photo) throws RefocusException {
            program.floats("feature").put(feature);
            program.run();
            return program.copy("attention");
        }

        @Override
        public void takeIn(float[] feature, String photo) {
            // nothing to keep
        }
    }
}
