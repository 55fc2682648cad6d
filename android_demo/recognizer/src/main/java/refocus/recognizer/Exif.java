package refocus.recognizer;

import java.util.ArrayList;
import java.util.List;

/**
 * The orientation of a photo, read from its bytes without decoding it: of a JPEG, PNG or WebP that of EXIF, or else of XMP, as
 * Pillow has it; of a HEIC, HEIF or AVIF that of its container.
 *
 * <p>Android's own reader exists, but no desktop JVM has one; this one is the same everywhere, and tested.
 */
public final class Exif {
    private static final int ORIENTATION = 0x0112;
    private static final int SHORT = 3; // types of EXIF's numbers
    private static final int LONG = 4;
    private static final int SIGNED_SHORT = 8;
    private static final int SIGNED_LONG = 9;
    private static final int EXIF = 0;
    private static final int XMP = 1;

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
            // A thumbnail in a segment has an end of its own.
            at += (jpeg[at + 1] & 255) == 0xFF ? 1 : 2 + big(jpeg, at + 2, 2);
        }
        for (; at + 1 < jpeg.length; at++) {
            if ((jpeg[at] & 255) == 0xFF && (jpeg[at + 1] & 255) == 0xD9) {
                return true;
            }
        }
        return false;
    }

    /** 1 to 8; 1 where the file says nothing, or nothing that makes sense. */
    public static int orientation(byte[] photo) {
        if (HeifTurn.isHeif(photo)) {
            return HeifTurn.orientation(photo);
        }
        int found = 0;
        int xmp = 0;
        for (int[] part : parts(photo)) { // an EXIF directory, or XMP
            int value = part[2] == EXIF ? inTiff(photo, part[0], part[1]) : inXmp(photo, part[0], part[1]);
            if (part[2] == EXIF && found == 0) {
                found = value;
            } else if (part[2] == XMP && xmp == 0) {
                xmp = value;
            }
        }
        int value = found != 0 ? found : xmp;
        return value >= 1 && value <= 8 ? value : 1;
    }

    /** Start, end and kind of what may hold an orientation. */
    private static List<int[]> parts(byte[] photo) {
        List<int[]> found = new ArrayList<int[]>();
        if (photo.length >= 4 && (photo[0] & 255) == 0xFF && (photo[1] & 255) == 0xD8) {
            ofJpeg(photo, found);
        } else if (has(photo, 1, "PNG\r\n")) {
            ofPng(photo, found);
        } else if (has(photo, 0, "RIFF") && has(photo, 8, "WEBP")) {
            ofWebp(photo, found);
        }
        return found;
    }

    private static void ofJpeg(byte[] jpeg, List<int[]> found) {
        int at = 2;
        while (at + 4 <= jpeg.length && (jpeg[at] & 255) == 0xFF) {
            int marker = jpeg[at + 1] & 255;
            if (marker == 0xFF) { // any number of them may stand before a marker
                at++;
                continue;
            }
            int length = big(jpeg, at + 2, 2);
            if (marker == 0xDA || length < 2) {
                return;
            }
            int end = Math.min(jpeg.length, at + 2 + length);
            if (marker == 0xE1 && has(jpeg, at + 4, "Exif")) {
                found.add(new int[] {at + 10, end, EXIF});
            } else if (marker == 0xE1 && has(jpeg, at + 4, "http://ns.adobe.com/xap/1.0/")) {
                found.add(new int[] {at + 33, end, XMP});
            }
            at += 2 + length;
        }
    }

    /** Chunks of length, name, content and checksum; EXIF data may lie behind the pixels. Compressed text is not read. */
    private static void ofPng(byte[] png, List<int[]> found) {
        for (long at = 8; at + 12 <= png.length;) {
            long length = number(png, (int) at, 4, false);
            int start = (int) at + 8;
            int end = (int) Math.min(png.length, start + length);
            if (has(png, (int) at + 4, "eXIf")) {
                found.add(new int[] {start, end, EXIF});
            } else if (has(png, (int) at + 4, "iTXt") && has(png, start, "XML:com.adobe.xmp")) {
                found.add(new int[] {start, end, XMP});
            }
            at += 12 + length;
        }
    }

    /** Chunks of name, length in little endian and content, padded to an even length. */
    private static void ofWebp(byte[] webp, List<int[]> found) {
        for (long at = 12; at + 8 <= webp.length;) {
            long length = number(webp, (int) at + 4, 4, true);
            int start = (int) at + 8;
            int end = (int) Math.min(webp.length, start + length);
            if (has(webp, (int) at, "EXIF")) { // some writers put JPEG's mark before it
                found.add(new int[] {has(webp, start, "Exif") ? start + 6 : start, end, EXIF});
            } else if (has(webp, (int) at, "XMP ")) {
                found.add(new int[] {start, end, XMP});
            }
            at += 8 + length + (length & 1);
        }
    }

    private static boolean has(byte[] bytes, int at, String words) {
        if (at < 0 || at + words.length() > bytes.length) {
            return false;
        }
        for (int i = 0; i < words.length(); i++) {
            if (bytes[at + i] != words.charAt(i)) {
                return false;
            }
        }
        return true;
    }

    /** The digit after {@code tiff:Orientation="} or {@code tiff:Orientation>}; 0 where there is none. */
    private static int inXmp(byte[] bytes, int start, int end) {
        String word = "tiff:Orientation";
        for (int at = start; at + word.length() + 3 <= end; at++) {
            if (bytes[at] == 't' && has(bytes, at, word)) {
                int digit = at + word.length();
                digit += has(bytes, digit, "=\"") ? 2 : has(bytes, digit, ">") ? 1 : bytes.length;
                if (digit < end && bytes[digit] >= '0' && bytes[digit] <= '9') {
                    return bytes[digit] - '0';
                }
            }
        }
        return 0;
    }

    private static int inTiff(byte[] bytes, int start, int end) {
        if (start + 8 > end) {
            return 0;
        }
        boolean little = bytes[start] == 'I';
        long directory = start + number(bytes, start + 4, 4, little);
        if (directory < start || directory + 2 > end) {
            return 0;
        }
        int at = (int) directory;
        int entries = (int) number(bytes, at, 2, little);
        for (int i = 0; i < entries && at + 2 + 12 * (i + 1) <= end; i++) {
            int entry = at + 2 + 12 * i;
            if (number(bytes, entry, 2, little) == ORIENTATION) {
                int type = (int) number(bytes, entry + 2, 2, little);
                boolean wide = type == LONG || type == SIGNED_LONG;
                return wide || type == SHORT || type == SIGNED_SHORT ? (int) number(bytes, entry + 8, wide ? 4 : 2, little) : 0;
            }
        }
        return 0;
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
