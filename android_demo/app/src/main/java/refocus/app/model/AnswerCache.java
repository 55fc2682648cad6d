package refocus.app.model;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;

/**
 * The answers that a person's page shows, kept in a file: a start shows them without a model, and answers nothing again.
 *
 * <p>An answer that another model gave stays until the photo was read again. A file that is missing or damaged has no
 * answers; they are made anew.
 */
public final class AnswerCache {
    private static final int MAGIC = 0x52664132;
    private static final int MOST_BYTES = 64 << 20;

    /** One photo's answer. */
    public static final class Entry {
        public final String photo;
        public final String place;
        /** The best label, in the bundle's own words. */
        public final String label;
        /** Whether the model knows what it sees. */
        public final boolean recognised;
        /** Which model answered. */
        public final String model;
        /** Digest of the photos that the answer was made with. */
        public final String past;

        public Entry(String photo, String place, String label, boolean recognised, String model, String past) {
            this.photo = photo;
            this.place = place;
            this.label = label;
            this.recognised = recognised;
            this.model = model;
            this.past = past;
        }
    }

    /** State of the index that was answered; "" of a cache that is not whole. */
    public final String stamp;
    /** Which model answers now. */
    public final String model;
    /** In the album's order. */
    public final List<Entry> entries;
    /** Of each label that a language has a name for: the name by language. */
    public final Map<String, Map<String, String>> names;

    public AnswerCache(String stamp, String model, List<Entry> entries, Map<String, Map<String, String>> names) {
        this.stamp = stamp;
        this.model = model;
        this.entries = entries;
        this.names = names;
    }

    public static AnswerCache empty() {
        return new AnswerCache("", "", new ArrayList<Entry>(), new LinkedHashMap<String, Map<String, String>>());
    }

    /** Answers that another model gave. */
    public int old() {
        int found = 0;
        for (Entry entry : entries) {
            found += entry.model.equals(model) ? 0 : 1;
        }
        return found;
    }

    /** A label in a language; itself where there is no name for it. */
    public String name(String label, String language) {
        Map<String, String> found = names.get(label);
        return found == null || found.get(language) == null ? label : found.get(language);
    }

    /** What the file holds; an empty cache where it holds none. */
    public static AnswerCache read(File file) {
        if (!file.isFile() || file.length() < 12 || file.length() > MOST_BYTES) {
            return empty();
        }
        byte[] content = new byte[(int) file.length()];
        try (DataInputStream in = new DataInputStream(new FileInputStream(file))) {
            in.readFully(content);
            int end = content.length - 4;
            if (ByteBuffer.wrap(content).getInt(end) != crc(content, end)) {
                return empty();
            }
            return decode(new DataInputStream(new ByteArrayInputStream(content, 0, end)));
        } catch (IOException | RuntimeException damaged) {
            return empty();
        }
    }

    private static AnswerCache decode(DataInputStream in) throws IOException {
        if (in.readInt() != MAGIC) {
            return empty();
        }
        String stamp = in.readUTF();
        String model = in.readUTF();
        String[] labels = strings(in);
        String[] models = strings(in);
        Map<String, Map<String, String>> names = new LinkedHashMap<String, Map<String, String>>();
        for (int left = in.readInt(); left > 0; left--) {
            String label = in.readUTF();
            Map<String, String> byLanguage = new LinkedHashMap<String, String>();
            for (int languages = in.readInt(); languages > 0; languages--) {
                String language = in.readUTF();
                byLanguage.put(language, in.readUTF());
            }
            names.put(label, byLanguage);
        }
        List<Entry> entries = new ArrayList<Entry>();
        for (int left = in.readInt(); left > 0; left--) {
            String photo = in.readUTF();
            String place = in.readUTF();
            String past = in.readUTF();
            entries.add(new Entry(photo, place, labels[in.readInt()], in.readBoolean(), models[in.readInt()], past));
        }
        return new AnswerCache(stamp, model, entries, names);
    }

    private static String[] strings(DataInputStream in) throws IOException {
        String[] found = new String[Math.min(in.readInt(), 1 << 20)];
        for (int i = 0; i < found.length; i++) {
            found[i] = in.readUTF();
        }
        return found;
    }

    /** Puts the file in place, whole or not at all; where there is no room, the next start answers again. */
    public void write(File file) throws IOException {
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(content);
        Map<String, Integer> labels = new LinkedHashMap<String, Integer>();
        Map<String, Integer> models = new LinkedHashMap<String, Integer>();
        for (Entry entry : entries) {
            number(labels, entry.label);
            number(models, entry.model);
        }
        out.writeInt(MAGIC);
        out.writeUTF(stamp);
        out.writeUTF(model);
        for (Map<String, Integer> table : Arrays.asList(labels, models)) {
            out.writeInt(table.size());
            for (String each : table.keySet()) {
                out.writeUTF(each);
            }
        }
        out.writeInt(names.size());
        for (Map.Entry<String, Map<String, String>> each : names.entrySet()) {
            out.writeUTF(each.getKey());
            out.writeInt(each.getValue().size());
            for (Map.Entry<String, String> name : each.getValue().entrySet()) {
                out.writeUTF(name.getKey());
                out.writeUTF(name.getValue());
            }
        }
        out.writeInt(entries.size());
        for (Entry entry : entries) {
            out.writeUTF(entry.photo);
            out.writeUTF(entry.place);
            out.writeUTF(entry.past);
            out.writeInt(number(labels, entry.label));
            out.writeBoolean(entry.recognised);
            out.writeInt(number(models, entry.model));
        }
        out.writeInt(crc(content.toByteArray(), content.size()));
        File made = new File(file.getPath() + ".new");
        try (FileOutputStream to = new FileOutputStream(made)) {
            content.writeTo(to);
        }
        if (!made.renameTo(file)) {
            throw new IOException(made + " cannot take the place of " + file.getName());
        }
    }

    private static int number(Map<String, Integer> table, String value) {
        Integer found = table.get(value);
        if (found == null) {
            found = table.size();
            table.put(value, found);
        }
        return found;
    }

    private static int crc(byte[] content, int length) {
        CRC32 sum = new CRC32();
        sum.update(content, 0, length);
        return (int) sum.getValue();
    }
}
