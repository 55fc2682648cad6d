package refocus.recognizer;

import java.util.List;

/** How a photo becomes the encoder's input; see {@link Resizer} and {@link Normaliser}. */
public final class Preprocessing {
    private static final int MAX_SIDE = 1 << 13;
    /** The shorter side after resizing, in pixels. */
    public final int resizeShorter;
    /** Side of the central square that is kept, in pixels. */
    public final int crop;
    /** "bilinear", "bicubic" or "lanczos", always with anti-aliasing. */
    public final String filter;
    public final boolean applyExifOrientation;
    /** Whether a large JPEG is decoded at a reduced size; see {@link #scale}. */
    public final boolean scaled;
    /** Of a bundle that recognises clips, which is refused; 0: it recognises photos. */
    final int frames;
    private final double[] mean;
    private final double[] std;

    Preprocessing(Fields fields) {
        resizeShorter = (int) fields.whole("resize_shorter", 1, MAX_SIDE);
        crop = (int) fields.whole("crop", 1, MAX_SIDE);
        mean = three(fields, "mean");
        std = three(fields, "std");
        filter = fields.choice("resize_filter", "bicubic", "bilinear", "bicubic", "lanczos");
        scaled = fields.choice("decoder", "pillow-full-size", "pillow-full-size", "pillow-scaled").equals("pillow-scaled");
        applyExifOrientation = fields.flag("apply_exif_orientation", true);
        fields.choice("colour_order", "RGB", "RGB");
        fields.choice("layout", "NCHW", "NCHW");
        frames = fields.size("frames", 2, 0);
        fields.end();
        if (crop > resizeShorter) {
            throw new IllegalArgumentException("crop " + crop + " is larger than resize_shorter " + resizeShorter);
        }
        for (double value : std) {
            if (!(value > 0)) {
                throw new IllegalArgumentException("std must be positive");
            }
        }
    }

    private static double[] three(Fields fields, String name) {
        List<?> values = fields.list(name);
        double[] found = new double[3];
        for (int i = 0; i < 3; i++) {
            if (values.size() != 3 || !(values.get(i) instanceof Number)) {
                throw new IllegalArgumentException(name + ": expected three numbers");
            }
            found[i] = ((Number) values.get(i)).doubleValue();
        }
        return found;
    }

    /** Of a colour channel (0 red, 1 green, 2 blue), on values scaled to [0, 1]. */
    public double mean(int channel) {
        return mean[channel];
    }

    /** As {@link #mean}: the deviation. */
    public double std(int channel) {
        return std[channel];
    }

    /**
     * Of what a JPEG is decoded at 1 / that size: the largest of 8, 4, 2 and 1 that leaves its shorter side twice the
     * pixels that are needed.
     */
    public int scale(int width, int height) {
        int most = scaled ? Math.min(width, height) / (2 * resizeShorter) : 1;
        return most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
    }

    /** The largest difference between two prepared photos (3, crop, crop), in levels of 255. */
    public double levels(float[] one, float[] other) {
        double found = 0;
        int square = crop * crop;
        for (int i = 0; i < 3 * square; i++) {
            double off = Math.abs(one[i] - other[i]) * 255 * std[i / square];
            found = off <= found ? found : off; // what is not a number counts as largest
        }
        return found;
    }
}
