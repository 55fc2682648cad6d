package refocus.recognizer;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.zip.CRC32;

/**
 * How a profile is written: a header, then one record after the other, each with a mark, its length and its CRC-32.
 *
 * <p>Appending a record is one write. A kill leaves at most half a record at the end, which is cut off; a damaged record
 * elsewhere is skipped, because the next one is found by its mark.
 */
final class HistoryLog {
    /** Of a new file. The last four bytes are the version: 2 is Refocus 0.2, 1 is Refocus 0.1; both have the same records. */
    static final byte[] HEADER = {'R', 'e', 'f', 'o', 'c', 'u', 's', 'H', 0, 0, 0, 2};
    private static final int OLDEST = 1;
    private static final int MARK = 0x7266C15D;
    private static final int OVERHEAD = 12;
    private static final int MAX_RECORD = 64 << 20;

    private HistoryLog() {}

    /** What a record is about. */
    enum Kind { FEATURE, LABEL, SETTING }

    /** One record: a feature of a photo, or what the owner said about a photo, or a setting. */
    static final class Entry {
        final Kind kind;
        /** Feature space; "" for others. */
        final String space;
        /** Identity of the photo, or the setting's name. */
        final String key;
        /** The photo's name, its label or the setting's value. */
        final String text;
        /** UTC, in milliseconds. */
        final long storedMs;
        final float[] feature;

        Entry(Kind kind, String space, String key, String text, long storedMs, float[] feature) {
            this.kind = kind;
            this.space = space;
            this.key = key;
            this.text = text;
            this.storedMs = storedMs;
            this.feature = feature;
        }

        long bytes() {
            return 4L * feature.length;
        }
    }

    /** What was read of a file: whole records in order, how many are damaged, and where the last whole one ends. */
    static final class Scan {
        final List<Entry> entries = new ArrayList<Entry>();
        int damaged;
        long wholeUntil;
    }

    /** Whether a file begins as one that can be read; a shorter one may have been killed in its header. */
    static boolean startsLike(byte[] content) {
        byte[] start = Arrays.copyOf(content, Math.min(content.length, HEADER.length));
        if (start.length == HEADER.length && start[HEADER.length - 1] == OLDEST) {
            start[HEADER.length - 1] = HEADER[HEADER.length - 1];
        }
        return Arrays.equals(start, Arrays.copyOf(HEADER, start.length));
    }

    static byte[] encode(Entry entry) {
        try {
            ByteArrayOutputStream payload = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(payload);
            out.writeByte(entry.kind.ordinal());
            out.writeLong(entry.storedMs);
            text(out, entry.space);
            text(out, entry.key);
            text(out, entry.text);
            ByteBuffer numbers = ByteBuffer.allocate(4 * entry.feature.length).order(ByteOrder.LITTLE_ENDIAN);
            numbers.asFloatBuffer().put(entry.feature);
            out.writeInt(entry.feature.length);
            out.write(numbers.array());
            byte[] content = payload.toByteArray();
            ByteBuffer record = ByteBuffer.allocate(OVERHEAD + content.length);
            record.putInt(MARK).putInt(content.length).putInt(crc(content)).put(content);
            return record.array();
        } catch (IOException error) {
            throw new IllegalStateException("memory can be written", error);
        }
    }

    /** Reads a whole file behind its header. */
    static Scan scan(byte[] file) {
        Scan found = new Scan();
        ByteBuffer all = ByteBuffer.wrap(file);
        int at = HEADER.length;
        found.wholeUntil = at;
        boolean inDamage = false;
        while (at < file.length) {
            int length = at + OVERHEAD <= file.length && all.getInt(at) == MARK ? all.getInt(at + 4) : -1;
            boolean fits = length >= 0 && length <= MAX_RECORD && at + OVERHEAD + length <= file.length;
            Entry entry = fits ? decode(Arrays.copyOfRange(file, at + OVERHEAD, at + OVERHEAD + length), all.getInt(at + 8))
                    : null;
            if (entry != null) {
                found.entries.add(entry);
                at += OVERHEAD + length;
                found.wholeUntil = at;
                found.damaged += inDamage ? 1 : 0;
                inDamage = false;
            } else {
                at = nextMark(all, at + 1);
                inDamage = true;
            }
        }
        return found;
    }

    private static int nextMark(ByteBuffer all, int from) {
        for (int at = from; at + 4 <= all.capacity(); at++) {
            if (all.getInt(at) == MARK) {
                return at;
            }
        }
        return all.capacity();
    }

    /** The entry, or null where the content is not what was sealed. */
    private static Entry decode(byte[] content, int seal) {
        if (crc(content) != seal) {
            return null;
        }
        try {
            DataInputStream in = new DataInputStream(new ByteArrayInputStream(content));
            Kind kind = Kind.values()[in.readByte()];
            long stored = in.readLong();
            String space = text(in);
            String key = text(in);
            String text = text(in);
            float[] feature = new float[in.readInt()];
            byte[] numbers = new byte[4 * feature.length];
            in.readFully(numbers);
            ByteBuffer.wrap(numbers).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(feature);
            return new Entry(kind, space, key, text, stored, feature);
        } catch (IOException | RuntimeException error) {
            return null; // sealed by a newer app that writes something else
        }
    }

    private static void text(DataOutputStream out, String value) throws IOException {
        byte[] bytes = value.getBytes("UTF-8");
        out.writeInt(bytes.length);
        out.write(bytes);
    }

    private static String text(DataInputStream in) throws IOException {
        int length = in.readInt();
        if (length < 0 || length > in.available()) {
            throw new IOException("a text of " + length + " bytes");
        }
        byte[] bytes = new byte[length];
        in.readFully(bytes);
        return new String(bytes, "UTF-8");
    }

    private static int crc(byte[] content) {
        CRC32 crc = new CRC32();
        crc.update(content);
        return (int) crc.getValue();
    }
}
