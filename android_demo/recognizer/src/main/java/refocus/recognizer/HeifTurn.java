package refocus.recognizer;

/**
 * How the container of a HEIC, HEIF or AVIF says that its photo is turned and mirrored, as an EXIF orientation. Android's
 * decoders do not turn it, and its EXIF orientation, if it has one, is of the camera and does not count.
 */
final class HeifTurn {
    private static final int[] PLAIN = {1, 6, 3, 8}; // by quarters to the right
    private static final int[] MIRRORED = {2, 7, 4, 5}; // left and right exchanged before
    private final byte[] file;
    private int quarters;
    private boolean mirrored;

    private HeifTurn(byte[] file) {
        this.file = file;
    }

    static boolean isHeif(byte[] file) {
        return file.length >= 12 && file[4] == 'f' && file[5] == 't' && file[6] == 'y' && file[7] == 'p';
    }

    /** 1 to 8; 1 where the file says nothing, or nothing that makes sense. */
    static int orientation(byte[] file) {
        HeifTurn turn = new HeifTurn(file);
        try {
            turn.read();
        } catch (IndexOutOfBoundsException cutOff) {
            return 1;
        }
        return (turn.mirrored ? MIRRORED : PLAIN)[turn.quarters];
    }

    private void read() {
        int[] meta = box(0, file.length, "meta");
        if (meta == null) {
            return;
        }
        int[] item = box(meta[0] + 4, meta[1], "pitm");
        int[] properties = box(meta[0] + 4, meta[1], "iprp");
        int[] all = properties == null ? null : box(properties[0], properties[1], "ipco");
        int[] owners = properties == null ? null : box(properties[0], properties[1], "ipma");
        if (item == null || all == null || owners == null) {
            return;
        }
        long primary = number(item[0] + 4, file[item[0]] == 0 ? 2 : 4);
        int idBytes = file[owners[0]] == 0 ? 2 : 4;
        int indexBytes = (file[owners[0] + 3] & 1) == 0 ? 1 : 2;
        int at = owners[0] + 8;
        for (long left = number(owners[0] + 4, 4); left > 0 && at < owners[1]; left--) {
            boolean found = number(at, idBytes) == primary;
            int count = file[at + idBytes] & 255;
            at += idBytes + 1;
            for (int i = 0; found && i < count; i++) { // in the order in which they apply
                apply(all, (int) number(at + i * indexBytes, indexBytes) & (indexBytes == 1 ? 0x7F : 0x7FFF));
            }
            at += count * indexBytes;
        }
    }

    /** @param number of the property, from 1 */
    private void apply(int[] properties, int number) {
        int at = properties[0];
        for (int i = 1; i < number && at < properties[1]; i++) {
            at = end(at, properties[1]);
        }
        if (number < 1 || at + 9 > properties[1]) {
            return;
        }
        int value = file[at + 8];
        if (is(at, "irot")) { // quarters to the left
            quarters = (quarters + 4 - (value & 3)) % 4;
        } else if (is(at, "imir")) { // 0: above and below are exchanged, 1: left and right
            quarters = (((value & 1) == 0 ? 6 : 4) - quarters) % 4;
            mirrored = !mirrored;
        }
    }

    /** Start and end of the content of the first box of that name; null where there is none. */
    private int[] box(int from, int to, String name) {
        for (int at = from; at + 8 <= to; at = end(at, to)) {
            if (is(at, name)) {
                return new int[] {at + (number(at, 4) == 1 ? 16 : 8), end(at, to)};
            }
        }
        return null;
    }

    /** Where a box ends; never before its name does. */
    private int end(int at, int to) {
        long length = number(at, 4);
        length = length == 1 ? number(at + 8, 8) : length == 0 ? to - at : length;
        return length < 8 || length > to - at ? to : (int) (at + length);
    }

    private boolean is(int at, String name) {
        for (int i = 0; i < 4; i++) {
            if (file[at + 4 + i] != name.charAt(i)) {
                return false;
            }
        }
        return true;
    }

    private long number(int at, int count) {
        long value = 0;
        for (int i = 0; i < count; i++) {
            value = value << 8 | file[at + i] & 255;
        }
        return value;
    }
}
