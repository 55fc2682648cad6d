package refocus.recognizer;

/**
 * EXIF's orientation of a JPEG, read from its bytes without decoding it.
 *
 * <p>Android's own reader exists, but no desktop JVM has one; this one is the same everywhere, and tested.
 */
public final class Exif {
    private static final int ORIENTATION = 0x0112;

    private Exif() {}

    /**
     * Whether a JPEG's picture has an end; anything else is taken to have one.
     *
     * <p>Android's decoders fill the missing half of a photo with grey and say nothing.
     */
    public static boolean isWhole(byte[] jpeg) {
        if (jpeg.length < 4 || (jpeg[0] & 255) != 0xFF || (jpeg[1] & 255) != 0xD8) {
            return true;
        }
        int at = 2;
        while (at + 4 <= jpeg.length && (jpeg[at] & 255) == 0xFF && (jpeg[at + 1] & 255) != 0xDA) {
            at += 2 + big(jpeg, at + 2, 2); // a thumbnail in a segment has an end of its own
        }
        for (; at + 1 < jpeg.length; at++) {
            if ((jpeg[at] & 255) == 0xFF && (jpeg[at + 1] & 255) == 0xD9) {
                return true;
            }
        }
        return false;
    }

    /** 1 to 8; 1 where the file says nothing, or nothing that makes sense. */
    public static int orientation(byte[] jpeg) {
        int at = 2;
        if (jpeg.length < 4 || (jpeg[0] & 255) != 0xFF || (jpeg[1] & 255) != 0xD8) {
            return 1;
        }
        while (at + 4 <= jpeg.length && (jpeg[at] & 255) == 0xFF) {
            int marker = jpeg[at + 1] & 255;
            int length = big(jpeg, at + 2, 2);
            if (marker == 0xDA || length < 2) {
                return 1;
            }
            if (marker == 0xE1 && at + 10 <= jpeg.length && jpeg[at + 4] == 'E' && jpeg[at + 5] == 'x'
                    && jpeg[at + 6] == 'i' && jpeg[at + 7] == 'f') {
                return inTiff(jpeg, at + 10, Math.min(jpeg.length, at + 2 + length));
            }
            at += 2 + length;
        }
        return 1;
    }

    private static int inTiff(byte[] bytes, int start, int end) {
        if (start + 8 > end) {
            return 1;
        }
        boolean little = bytes[start] == 'I';
        long directory = start + number(bytes, start + 4, 4, little);
        if (directory < start || directory + 2 > end) {
            return 1;
        }
        int at = (int) directory;
        int entries = (int) number(bytes, at, 2, little);
        for (int i = 0; i < entries && at + 2 + 12 * (i + 1) <= end; i++) {
            int entry = at + 2 + 12 * i;
            if (number(bytes, entry, 2, little) == ORIENTATION) {
                int value = (int) number(bytes, entry + 8, 2, little);
                return value >= 1 && value <= 8 ? value : 1;
            }
        }
        return 1;
    }

    private static int big(byte[] bytes, int at, int count) {
        return (int) number(bytes, at, count, false);
    }

    private static long number(byte[] bytes, int at, int count, boolean little) {
        long value = 0;
        for (int i = 0; i < count; i++) {
            value = value << 8 | bytes[little ? at + count - 1 - i : at + i] & 255;
        }
        return value;
    }
}
