package refocus.recognizer;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
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
    enum Kind { FEATURE, LABEL, SETTING, LIKELY }

    /** One record: a feature of a photo or its likely classes, or what the owner said about a photo, or a setting. */
    static final class Entry {
        final Kind kind;
        /** Feature space of a feature and of likely classes; "" of others that are there. */
        final String space;
        /** Identity of the photo, or the setting's name. */
        final String key;
        /** The photo's name, its label, the setting's value, or what derived the likely classes. */
        final String text;
        /** UTC, in milliseconds. */
        final long storedMs;
        /** Numbers of a feature; of likely classes, k classes, their probabilities and the photo's credit. */
        final float[] feature;
        /** Of a feature that is kept: its likely classes; null where nothing derived them. */
        Entry likely;

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

    /** Hears of every record that is whole, in order: a file may hold far more than what is kept of it. */
    interface Taker {
        void take(Entry entry);
    }

    /** What was met in a file: how many records are damaged, and where the last whole one ends. */
    static final class Scan {
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

    /** Reads a file behind its header, one record at a time. */
    static Scan scan(RandomAccessFile file, Taker taker) throws IOException {
        Scan found = new Scan();
        Window all = new Window(file);
        Map<String, String> spaces = new HashMap<String, String>(); // each once in memory
        long at = HEADER.length;
        found.wholeUntil = at;
        boolean inDamage = false;
        while (at < all.length) {
            int length = at + OVERHEAD <= all.length && all.number(at) == MARK ? all.number(at + 4) : -1;
            boolean fits = length >= 0 && length <= MAX_RECORD && at + OVERHEAD + length <= all.length;
            Entry entry = fits && all.crc(at + OVERHEAD, length) == all.number(at + 8)
                    ? decode(all.bytes(at + OVERHEAD, length), spaces) : null;
            if (entry != null) {
                taker.take(entry);
                at += OVERHEAD + length;
                found.wholeUntil = at;
                found.damaged += inDamage ? 1 : 0;
                inDamage = false;
            } else {
                at = all.nextMark(at + 1);
                inDamage = true;
            }
        }
        return found;
    }

    /** A part of a file in memory, which moves along. */
    private static final class Window {
        final long length;
        private final RandomAccessFile file;
        private final byte[] part = new byte[1 << 16];
        private long start;
        private int count;

        Window(RandomAccessFile file) throws IOException {
            this.file = file;
            length = file.length();
        }

        /** Where a place is in the part, which then has as many bytes more as asked for. */
        private int find(long at, int bytes) throws IOException {
            if (at < start || at + bytes > start + count) {
                start = at;
                count = (int) Math.min(part.length, length - at);
                file.seek(at);
                file.readFully(part, 0, count);
            }
            return (int) (at - start);
        }

        int number(long at) throws IOException {
            return ByteBuffer.wrap(part).getInt(find(at, 4));
        }

        int crc(long at, int bytes) throws IOException {
            CRC32 crc = new CRC32();
            for (int done = 0; done < bytes;) {
                int more = Math.min(bytes - done, part.length);
                crc.update(part, find(at + done, more), more);
                done += more;
            }
            return (int) crc.getValue();
        }

        byte[] bytes(long at, int bytes) throws IOException {
            byte[] found = new byte[bytes];
            for (int done = 0; done < bytes;) {
                int more = Math.min(bytes - done, part.length);
                System.arraycopy(part, find(at + done, more), found, done, more);
                done += more;
            }
            return found;
        }

        long nextMark(long from) throws IOException {
            for (long at = from; at + 4 <= length; at++) {
                if (number(at) == MARK) {
                    return at;
                }
            }
            return length;
        }
    }

    /** The entry, or null where the content is none. */
    private static Entry decode(byte[] content, Map<String, String> spaces) {
        try {
            DataInputStream in = new DataInputStream(new ByteArrayInputStream(content));
            Kind kind = Kind.values()[in.readByte()];
            long stored = in.readLong();
            String named = text(in);
            String space = spaces.containsKey(named) ? spaces.get(named) : named;
            spaces.put(space, space);
            String key = text(in);
            String text = text(in);
            int count = in.readInt();
            if (count < 0 || count > in.available() / 4) {
                throw new IOException("a record of " + count + " numbers");
            }
            float[] feature = new float[count];
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
