package refocus.recognizer;

import java.util.Arrays;

/**
 * Turns a photo as EXIF says, resizes its shorter side and keeps the centre, from rows that come one at a time.
 *
 * <p>The result equals {@code resize_and_crop} of {@code edge/photos/preprocess.py} bit for bit, on any platform: nothing of
 * Android's own scaling is used. Only what the crop needs is computed, and a photo of any size needs memory for what is
 * in between the two passes alone: one of 100 megapixels is resized in some ten megabytes.
 *
 * <p>The two passes round to 8 bits in between, so their order shows: as in Pillow 13, columns come first where the height
 * shrinks by more than twice what the width does; of photos decoded at a reduced size, rows always do.
 *
 * <p>Not for several threads at once; one object per photo.
 */
public final class Resizer {
    /** More is refused before it is decoded. */
    public static final long MAX_PIXELS = 170_000_000L;
    private static final int HALF = 1 << (Filter.BITS - 1);
    private final Preprocessing contract;
    /** Of the file. */
    private final int fullWidth;
    private final int fullHeight;
    /** Of what is decoded of it: the same, or a fraction of that. */
    private int width;
    private int height;
    private final int crop;
    private final boolean transposed;
    private final boolean flipColumns;
    private final boolean flipRows;
    /** Along a row of the file, and from row to row: across and down the photo, or the other way round if transposed. */
    private Filter along;
    private Filter over;
    /** Whether the pass along the row comes first; otherwise rows are summed up first. */
    private boolean alongFirst;
    /** What counts of the axis whose pass comes second: from here, and how many. */
    private int from;
    private int count;
    private byte[] between;
    private int[] sums;
    private int row;

    /**
     * @param contract of the bundle
     * @param width pixels of a row, as the file stores it
     * @param height rows, as the file stores them
     * @param orientation EXIF's number, 1 to 8; anything else is 1
     * @throws PhotoException more pixels than are decoded, or too narrow a photo
     */
    public Resizer(Preprocessing contract, int width, int height, int orientation) throws PhotoException {
        if (width < 1 || height < 1 || (long) width * height > MAX_PIXELS) {
            throw new PhotoException(Reason.PHOTO_SIZE, "a photo of " + width + "x" + height + " pixels; up to " + MAX_PIXELS
                    + " are decoded, give a smaller one");
        }
        this.contract = contract;
        fullWidth = width;
        fullHeight = height;
        crop = contract.crop;
        int turn = contract.applyExifOrientation && orientation >= 1 && orientation <= 8 ? orientation : 1;
        transposed = turn >= 5;
        // In the file's own axes: whether a row is read from right to left, and rows from the last to the first.
        flipColumns = turn == 2 || turn == 3 || turn == 7 || turn == 8;
        flipRows = turn == 3 || turn == 4 || turn == 6 || turn == 7;
        long w = upright(width, height);
        long h = upright(height, width);
        if (resized(w, h) * resized(h, w) > MAX_PIXELS) {
            throw new PhotoException(Reason.PHOTO_SIZE, "a photo of " + w + "x" + h + " is too narrow: resized, it would have "
                    + resized(w, h) + "x" + resized(h, w) + " pixels; crop it first");
        }
        arrange(1);
    }

    /** The value of the upright photo's axis of two of the file's. */
    private int upright(int one, int other) {
        return transposed ? other : one;
    }

    /** The length of a side once the shorter one is what the contract says. */
    private long resized(long side, long other) {
        return side <= other ? contract.resizeShorter : contract.resizeShorter * side / other;
    }

    /** Of what a JPEG should be decoded at 1 / that size: 8, 4, 2 or 1. */
    public int scale() {
        return contract.scale(fullWidth, fullHeight);
    }

    /**
     * Says that the rows are those of a JPEG that was decoded at a reduced size, rounded up.
     *
     * @param by of {@link #scale}
     */
    public void scaled(int by) {
        if (row > 0 || by != scale()) {
            throw new IllegalStateException("a scale of " + by + ", expected " + scale() + " before the first row");
        }
        arrange(by);
    }

    /** Prepares both passes for rows of 1 / {@code by} of the file's size. */
    private void arrange(int by) {
        width = (fullWidth + by - 1) / by;
        height = (fullHeight + by - 1) / by;
        long w = upright(width, height);
        long h = upright(height, width);
        long outW = resized(upright(fullWidth, fullHeight), upright(fullHeight, fullWidth));
        long outH = resized(upright(fullHeight, fullWidth), upright(fullWidth, fullHeight));
        Filter first = filter(width, by, fullWidth, flipColumns, transposed ? outH : outW);
        Filter next = filter(height, by, fullHeight, flipRows, transposed ? outW : outH);
        Filter across = transposed ? next : first;
        Filter down = transposed ? first : next;
        boolean acrossFirst = by > 1 || !(h - outH > 0 && h - outH > (w - outW) * 2);
        along = transposed ? down : across;
        over = transposed ? across : down;
        alongFirst = acrossFirst != transposed;
        Filter second = alongFirst ? over : along;
        from = second.first[0];
        count = second.first[crop - 1] + second.weights[crop - 1].length - from;
        between = new byte[count * crop * 3];
        sums = alongFirst ? null : new int[between.length];
        if (sums != null) {
            Arrays.fill(sums, HALF);
        }
    }

    /**
     * One axis. Of {@code in} pixels decoded at a reduced size {@code full / by} are filled, the last of them in part; turned,
     * that is the first. There Python has Pillow resize the part of them that becomes the crop, named in float.
     */
    private Filter filter(int in, int by, int full, boolean flipped, long out) {
        int start = (int) Math.rint((out - crop) / 2.0); // halves go to even, as in Python
        if (by == 1) {
            return new Filter(contract.filter, in, 0, in, (int) out, start, crop);
        }
        double filled = (double) full / by;
        double begin = flipped ? in - filled : 0;
        double step = filled / out;
        float left = (float) (begin + start * step);
        return new Filter(contract.filter, in, left, (float) (begin + (start + crop) * step), crop, 0, crop);
    }

    /** How many rows are still missing. */
    public int missing() {
        return height - row;
    }

    /**
     * Takes in the next row.
     *
     * @param argb at least {@code width} pixels from {@code offset} on, 8 bits each of alpha (ignored), red, green, blue
     */
    public void row(int[] argb, int offset) {
        if (row >= height) {
            throw new IllegalStateException("all " + height + " rows are there already");
        }
        int at = flipRows ? height - 1 - row : row;
        row++;
        int start = flipColumns ? offset + width - 1 : offset;
        int step = flipColumns ? -1 : 1;
        if (!alongFirst) {
            sumUp(argb, start, step, at);
        } else if (at >= from && at < from + count) {
            narrow(argb, start, step, (at - from) * crop * 3);
        }
    }

    /** The first pass, along the row: it becomes {@code crop} pixels. */
    private void narrow(int[] argb, int start, int step, int to) {
        for (int i = 0; i < crop; i++) {
            int red = HALF;
            int green = HALF;
            int blue = HALF;
            int at = start + step * along.first[i];
            for (int weight : along.weights[i]) {
                int pixel = argb[at];
                red += weight * ((pixel >> 16) & 255);
                green += weight * ((pixel >> 8) & 255);
                blue += weight * (pixel & 255);
                at += step;
            }
            between[to++] = (byte) Filter.clip(red);
            between[to++] = (byte) Filter.clip(green);
            between[to++] = (byte) Filter.clip(blue);
        }
    }

    /** The first pass, over the rows: the part of row {@code at} in the sums of all rows that it counts for. */
    private void sumUp(int[] argb, int start, int step, int at) {
        for (int i = 0; i < crop; i++) {
            int nth = at - over.first[i];
            if (nth < 0 || nth >= over.weights[i].length) {
                continue;
            }
            int weight = over.weights[i][nth];
            int to = i * count * 3;
            for (int x = from; x < from + count; x++) {
                int pixel = argb[start + step * x];
                sums[to++] += weight * ((pixel >> 16) & 255);
                sums[to++] += weight * ((pixel >> 8) & 255);
                sums[to++] += weight * (pixel & 255);
            }
        }
    }

    /** The finished square: red, green and blue of each pixel, row by row (crop x crop x 3). */
    public byte[] finish() {
        if (row != height) {
            throw new IllegalStateException(missing() + " rows are missing");
        }
        for (int i = 0; sums != null && i < sums.length; i++) {
            between[i] = (byte) Filter.clip(sums[i]);
        }
        byte[] square = new byte[crop * crop * 3];
        // What lies between has (second axis, first axis) if the pass along came first, else the axes of the file.
        int nextInput = alongFirst ? crop * 3 : 3;
        int nextOther = alongFirst ? 3 : count * 3;
        Filter second = alongFirst ? over : along;
        for (int i = 0; i < crop; i++) { // along the axis of the second pass
            int[] weights = second.weights[i];
            int first = (second.first[i] - from) * nextInput;
            for (int j = 0; j < crop; j++) {
                int red = HALF;
                int green = HALF;
                int blue = HALF;
                int at = first + j * nextOther;
                for (int weight : weights) {
                    red += weight * (between[at] & 255);
                    green += weight * (between[at + 1] & 255);
                    blue += weight * (between[at + 2] & 255);
                    at += nextInput;
                }
                boolean downwards = alongFirst != transposed; // whether i counts rows of the photo
                int to = (downwards ? i * crop + j : j * crop + i) * 3;
                square[to] = (byte) Filter.clip(red);
                square[to + 1] = (byte) Filter.clip(green);
                square[to + 2] = (byte) Filter.clip(blue);
            }
        }
        return square;
    }
}
