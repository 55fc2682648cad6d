package refocus.recognizer;

/**
 * Which pixels of a line make one pixel of the resized line, and with what weights.
 *
 * <p>The arithmetic is that of Pillow's {@code Image.resize} for 8 bits per channel, so that results are the same to the
 * bit: the kernel is stretched by the scale when a line shrinks (anti-aliasing), weights are normalised in double and
 * rounded to fixed point with {@link #BITS} bits.
 */
final class Filter {
    static final int BITS = 32 - 8 - 2;
    /** First pixel that counts for each wanted output pixel. */
    final int[] first;
    /** Fixed-point weights of the pixels from there on, one row for each wanted output pixel. */
    final int[][] weights;

    /**
     * @param name "bilinear", "bicubic" or "lanczos"
     * @param in pixels of the line
     * @param begin where the part of the line that is resized begins, in pixels; 0 unless it was decoded at a reduced size.
     *     A float, as Pillow's box
     * @param end where it ends; {@code in} unless it was
     * @param out pixels of the resized line
     * @param from first output pixel that is wanted
     * @param count output pixels that are wanted
     */
    Filter(String name, int in, float begin, float end, int out, int from, int count) {
        first = new int[count];
        weights = new int[count][];
        if (in == out && begin == 0 && end == in) { // Pillow leaves such a line as it is
            for (int i = 0; i < count; i++) {
                first[i] = from + i;
                weights[i] = new int[] {1 << BITS};
            }
            return;
        }
        double scale = (double) (end - begin) / out;
        double stretch = Math.max(scale, 1.0);
        double support = support(name) * stretch;
        double shrink = 1.0 / stretch;
        for (int i = 0; i < count; i++) {
            double centre = begin + (from + i + 0.5) * scale;
            int low = Math.max(0, (int) (centre - support + 0.5));
            int high = Math.min(in, (int) (centre + support + 0.5));
            double[] exact = new double[high - low];
            double sum = 0;
            for (int x = 0; x < exact.length; x++) {
                exact[x] = kernel(name, (x + low - centre + 0.5) * shrink);
                sum += exact[x];
            }
            first[i] = low;
            weights[i] = new int[exact.length];
            for (int x = 0; x < exact.length; x++) {
                double weight = sum == 0 ? exact[x] : exact[x] / sum;
                weights[i][x] = (int) (weight * (1 << BITS) + (weight < 0 ? -0.5 : 0.5));
            }
        }
    }

    /** Fixed-point sum to an 8-bit value. */
    static int clip(int sum) {
        int value = sum >> BITS;
        return value < 0 ? 0 : value > 255 ? 255 : value;
    }

    private static double support(String name) {
        return name.equals("bilinear") ? 1.0 : name.equals("bicubic") ? 2.0 : 3.0;
    }

    private static double kernel(String name, double at) {
        double x = name.equals("lanczos") ? at : Math.abs(at);
        if (name.equals("bilinear")) {
            return x < 1.0 ? 1.0 - x : 0.0;
        }
        if (name.equals("bicubic")) {
            double a = -0.5;
            if (x < 1.0) {
                return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
            }
            return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
        }
        return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
    }

    private static double sinc(double x) {
        return x == 0.0 ? 1.0 : Math.sin(x * Math.PI) / (x * Math.PI);
    }
}
