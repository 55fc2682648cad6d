package refocus.recognizer;

import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.channels.FileLock;
import java.nio.channels.OverlappingFileLockException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The features of one profile: bounded, durable, and never mixed between encoders.
 *
 * <p>A feature belongs to the feature space that made it, and to the photo it was made of: the same photo is stored once
 * per space. Semantics are those of {@code edge/history/feature_history.py} with the eviction "oldest"; the file is another one (see
 * {@link HistoryLog}), because a phone has one writer, and pure Java can be tested where no Android runs.
 *
 * <p>An append that returned survives a kill of the process at any moment. A power cut may take the newest photos, never
 * the file. One process at a time; safe for several threads.
 */
public final class FileHistory implements AutoCloseable {
    public static final int CAPACITY = 256;
    public static final long MAX_BYTES = 64L << 20;
    private static final int LONGEST_NAME = 4096;
    private final File path;
    private final int capacity;
    private final long maxBytes;
    private final Map<String, Map<String, HistoryLog.Entry>> spaces =
            new LinkedHashMap<String, Map<String, HistoryLog.Entry>>();
    private final Map<String, HistoryLog.Entry> labels = new LinkedHashMap<String, HistoryLog.Entry>();
    private final Map<String, HistoryLog.Entry> settings = new LinkedHashMap<String, HistoryLog.Entry>();
    private final Map<String, Long> tally = new LinkedHashMap<String, Long>(); // bytes of features, by space
    private RandomAccessFile lockFile;
    private FileLock lock;
    private RandomAccessFile file;
    private long version;
    private int damaged;
    private long textBytes; // of labels and settings, as the file has them
    private long likelyBytes; // of likely classes, likewise
    private File setAside;

    /**
     * Opens a profile's file, or makes it.
     *
     * @param capacity features kept per feature space; never fewer than the head's window
     * @param maxBytes of features kept in the whole profile; the space that holds most gives way
     * @throws HistoryException the file cannot be opened, is another program's, of a newer app, or in use
     */
    public FileHistory(File path, int capacity, long maxBytes) throws HistoryException {
        if (capacity < 1) {
            throw new HistoryException("capacity " + capacity + ": a history keeps at least one feature");
        }
        this.path = path;
        this.capacity = capacity;
        this.maxBytes = maxBytes;
        try {
            open();
        } catch (IOException error) {
            close();
            throw cannot("opened", error);
        } catch (HistoryException error) {
            close();
            throw error;
        }
    }

    public FileHistory(File path) throws HistoryException {
        this(path, CAPACITY, MAX_BYTES);
    }

    private void open() throws IOException, HistoryException {
        File folder = path.getAbsoluteFile().getParentFile();
        if (!folder.isDirectory() && !folder.mkdirs()) {
            throw new IOException(folder + " cannot be made");
        }
        lockFile = new RandomAccessFile(beside(".lock"), "rw");
        lock = lock(lockFile);
        if (lock == null) {
            throw inUse(path);
        }
        File made = beside(".new");
        if (path.exists()) {
            made.delete(); // of a rewrite that was killed: the file itself is there
        } else if (made.exists() && !made.renameTo(path)) { // killed when a damaged file was set aside: the new one is whole
            throw new IOException(made + " cannot take the place of " + path.getName());
        }
        byte[] start = start();
        boolean zeroed = start.length > 0 && Arrays.equals(start, new byte[start.length]); // a rewrite that lost its new name
        boolean fresh = start.length < HistoryLog.HEADER.length && HistoryLog.startsLike(start);
        if (!zeroed && !HistoryLog.startsLike(start)) {
            throw new HistoryException(Reason.PROFILE_UNREADABLE, path + " is no history of this app, or of a newer one; update the app or choose"
                    + " another profile");
        }
        HistoryLog.Scan found = fresh ? new HistoryLog.Scan() : takeInAll();
        damaged = Math.max(found.damaged, zeroed ? 1 : 0);
        if (damaged > 0) {
            File aside = beside(".damaged-" + System.currentTimeMillis());
            rewrite(aside);
            setAside = aside;
            return;
        }
        if (fresh) {
            rewrite();
            return;
        }
        file = new RandomAccessFile(path, "rw");
        if (file.length() > found.wholeUntil) { // else the file stays untouched, its time too
            file.setLength(found.wholeUntil); // half a record, which a kill left
        }
        file.seek(found.wholeUntil);
        if (file.length() > 4096 + 3 * liveBytes()) {
            rewrite();
        }
    }

    /** The file's header, or less where it is shorter. */
    private byte[] start() throws IOException {
        if (!path.exists()) {
            return new byte[0];
        }
        try (RandomAccessFile reader = new RandomAccessFile(path, "r")) {
            byte[] found = new byte[(int) Math.min(reader.length(), HistoryLog.HEADER.length)];
            reader.readFully(found);
            return found;
        }
    }

    private HistoryLog.Scan takeInAll() throws IOException {
        try (RandomAccessFile reader = new RandomAccessFile(path, "r")) {
            return HistoryLog.scan(reader, new HistoryLog.Taker() {
                @Override
                public void take(HistoryLog.Entry entry) {
                    if (Answer.isFinite(entry.feature)) { // Refocus 0.2 and before stored others too
                        takeIn(entry);
                    }
                }
            });
        }
    }

    // ---- storing

    /**
     * Stores one feature; it survives a kill once this returns. A photo already there is left as it is.
     *
     * @param space feature space of the encoder
     * @param photo identity of the photo (its SHA-256)
     * @param name where the photo is; never read otherwise
     * @param feature (D)
     * @throws HistoryException storage is full or gone, or one feature is not finite, or larger than all that may be kept
     */
    public synchronized void append(String space, String photo, String name, float[] feature) throws HistoryException {
        if (has(space, photo)) {
            return;
        }
        if (!Answer.isFinite(feature)) {
            throw new HistoryException(Reason.OTHER, "a feature that is not finite would spoil the answers to other photos");
        }
        if (4L * feature.length > maxBytes) {
            throw new HistoryException("a feature of " + 4L * feature.length + " bytes: larger than the " + maxBytes
                    + " of a history");
        }
        String called = name.substring(0, Math.min(name.length(), LONGEST_NAME));
        write(new HistoryLog.Entry(HistoryLog.Kind.FEATURE, space, photo, called, System.currentTimeMillis(),
                feature.clone()));
    }

    /**
     * Remembers that a stored photo is at another place now; its feature and its place in time stay.
     *
     * @throws HistoryException storage is full or gone
     */
    public synchronized void moved(String space, String photo, String name) throws HistoryException {
        String called = name.substring(0, Math.min(name.length(), LONGEST_NAME));
        HistoryLog.Entry known = has(space, photo) ? spaces.get(space).get(photo) : null;
        if (known != null && !known.text.equals(called)) {
            write(new HistoryLog.Entry(known.kind, space, photo, called, known.storedMs, known.feature));
        }
    }

    /**
     * Remembers the likely classes of a stored photo, as class shares keep them; a power cut may take them, and they are gone
     * with the photo.
     *
     * @param by what derived them
     * @param row k classes, their probabilities and the credit of the photo
     */
    public synchronized void putLikely(String space, String photo, String by, float[] row) throws HistoryException {
        write(new HistoryLog.Entry(HistoryLog.Kind.LIKELY, space, photo, by, System.currentTimeMillis(), row.clone()));
    }

    /** What {@link #putLikely} remembered of a photo, if the same derived it; or null. */
    public synchronized float[] likely(String space, String photo, String by) {
        HistoryLog.Entry found = has(space, photo) ? spaces.get(space).get(photo).likely : null;
        return found != null && found.text.equals(by) ? found.feature : null;
    }

    /** Remembers what the owner said about a photo, on the disk; null forgets it. */
    public synchronized void setLabel(String photo, String label) throws HistoryException {
        pair(HistoryLog.Kind.LABEL, photo, label);
    }

    /** Changes one setting, on the disk; null removes it. */
    public synchronized void setSetting(String name, String value) throws HistoryException {
        pair(HistoryLog.Kind.SETTING, name, value);
    }

    /** As {@link #setSetting}, for what can be found out again: a power cut may take it. */
    public synchronized void note(String name, String value) throws HistoryException {
        write(pair(name, value, HistoryLog.Kind.SETTING));
    }

    private static HistoryLog.Entry pair(String key, String value, HistoryLog.Kind kind) {
        return new HistoryLog.Entry(kind, value == null ? "-" : "", key, value == null ? "" : value,
                System.currentTimeMillis(), new float[0]);
    }

    private void pair(HistoryLog.Kind kind, String key, String value) throws HistoryException {
        write(pair(key, value, kind));
        try {
            file.getFD().sync();
        } catch (IOException error) {
            throw cannot("written", error);
        }
    }

    private void write(HistoryLog.Entry entry) throws HistoryException {
        if (file == null) {
            throw new HistoryException(path + " is closed; open the profile again");
        }
        try {
            long before = file.getFilePointer();
            try {
                file.write(HistoryLog.encode(entry)); // one write: whole, or cut off when the file is next opened
            } catch (IOException error) {
                file.setLength(before);
                file.seek(before);
                throw error;
            }
            takeIn(entry);
            version++;
            if (file.getFilePointer() > 4096 + 3 * liveBytes()) {
                rewrite();
            }
        } catch (IOException error) {
            throw cannot("written", error);
        }
    }

    /** Applies one record to what is in memory; replaying the file repeats every eviction. */
    private void takeIn(HistoryLog.Entry entry) {
        if (entry.kind == HistoryLog.Kind.LIKELY) {
            if (has(entry.space, entry.key) && entry.feature.length <= 2 * ClassShares.MOST + 1) {
                HistoryLog.Entry photo = spaces.get(entry.space).get(entry.key);
                likelyBytes += likelySize(entry) - likelySize(photo.likely);
                photo.likely = entry;
            }
            return;
        }
        if (entry.kind != HistoryLog.Kind.FEATURE) {
            Map<String, HistoryLog.Entry> pairs = entry.kind == HistoryLog.Kind.LABEL ? labels : settings;
            HistoryLog.Entry before = pairs.remove(entry.key);
            textBytes -= before == null ? 0 : pairBytes(before);
            if (entry.space.isEmpty()) {
                pairs.put(entry.key, entry);
                textBytes += pairBytes(entry);
            }
            return;
        }
        if (has(entry.space, entry.key)) {
            entry.likely = spaces.get(entry.space).put(entry.key, entry).likely; // where it was: no photo is evicted for it
            return;
        }
        while (size(entry.space) >= capacity) {
            evictOldest(entry.space);
        }
        while (bytes() + entry.bytes() > maxBytes) {
            evictOldest(largest(entry.space));
        }
        Map<String, HistoryLog.Entry> rows = spaces.get(entry.space);
        if (rows == null) {
            rows = new LinkedHashMap<String, HistoryLog.Entry>();
            spaces.put(entry.space, rows);
        }
        rows.put(entry.key, entry);
        tally.put(entry.space, bytes(entry.space) + entry.bytes());
    }

    private void evictOldest(String space) {
        remove(space, spaces.get(space).keySet().iterator().next());
    }

    private boolean remove(String space, String photo) {
        Map<String, HistoryLog.Entry> rows = spaces.get(space);
        HistoryLog.Entry gone = rows.remove(photo);
        if (gone != null) {
            tally.put(space, bytes(space) - gone.bytes());
            likelyBytes -= likelySize(gone.likely);
        }
        if (rows.isEmpty()) {
            spaces.remove(space);
            tally.remove(space);
        }
        return gone != null;
    }

    /** The space that holds most bytes; of equals, the one that needs room. */
    private String largest(String asking) {
        String found = asking;
        long most = bytes(asking);
        for (String space : spaces.keySet()) {
            if (bytes(space) > most) {
                found = space;
                most = bytes(space);
            }
        }
        return found;
    }

    // ---- reading

    /**
     * The newest photos of one space, oldest first.
     *
     * @param count at most this many
     * @param width D; a row of another width is left out
     * @param before identity of a photo; if it is stored, only photos older than it are returned. Null: all
     */
    public synchronized Remembered recall(String space, int count, int width, String before) {
        List<HistoryLog.Entry> older = new ArrayList<HistoryLog.Entry>();
        for (HistoryLog.Entry entry : rows(space)) {
            if (entry.key.equals(before)) {
                break;
            }
            if (entry.feature.length == width) {
                older.add(entry);
            }
        }
        Remembered found = new Remembered();
        for (HistoryLog.Entry entry : older.subList(Math.max(0, older.size() - count), older.size())) {
            found.add(entry.key, entry.text, entry.feature);
        }
        return found;
    }

    /** The feature (D) of one photo, or null. */
    public synchronized float[] feature(String space, String photo) {
        HistoryLog.Entry entry = spaces.containsKey(space) ? spaces.get(space).get(photo) : null;
        return entry == null ? null : entry.feature;
    }

    /** What a photo of one space was called when it was stored, or null. */
    public synchronized String name(String space, String photo) {
        return has(space, photo) ? spaces.get(space).get(photo).text : null;
    }

    /** What the photos of one space were called when they were stored, by identity, oldest first. */
    public synchronized Map<String, String> names(String space) {
        Map<String, String> found = new LinkedHashMap<String, String>();
        for (HistoryLog.Entry entry : rows(space)) {
            found.put(entry.key, entry.text);
        }
        return found;
    }

    /** What photos were called, of every space. */
    public synchronized Set<String> allNames() {
        Set<String> found = new HashSet<String>();
        for (String space : spaces.keySet()) {
            found.addAll(names(space).values());
        }
        return found;
    }

    /** Identities of all photos, of every space. */
    public synchronized Set<String> allPhotos() {
        Set<String> found = new HashSet<String>();
        for (Map<String, HistoryLog.Entry> rows : spaces.values()) {
            found.addAll(rows.keySet());
        }
        return found;
    }

    /** Places of the photos that other spaces have and this one has not, oldest first. */
    public synchronized List<String> placesMissingIn(String space) {
        Set<String> known = new HashSet<String>(names(space).keySet());
        Set<String> found = new LinkedHashSet<String>();
        for (Map.Entry<String, Map<String, HistoryLog.Entry>> other : spaces.entrySet()) {
            for (HistoryLog.Entry entry : other.getValue().values()) {
                if (!other.getKey().equals(space) && !known.contains(entry.key)) {
                    found.add(entry.text);
                }
            }
        }
        return new ArrayList<String>(found);
    }

    /** Whether a photo's feature of that space is stored. */
    public synchronized boolean has(String space, String photo) {
        return spaces.containsKey(space) && spaces.get(space).containsKey(photo);
    }

    /** Whether one more photo of a space pushes the oldest out. */
    public synchronized boolean isFull(String space) {
        return size(space) >= capacity;
    }

    /** Features stored of one space. */
    public synchronized int size(String space) {
        return spaces.containsKey(space) ? spaces.get(space).size() : 0;
    }

    /** What the owner said about photos, by identity. Labels belong to photos: they outlive a change of model. */
    public synchronized Map<String, String> labels() {
        return texts(labels);
    }

    /** The profile's settings. */
    public synchronized Map<String, String> settings() {
        return texts(settings);
    }

    /** A number that grows with every write. */
    public synchronized long version() {
        return version;
    }

    /** Damaged records that were met when the file was opened. */
    public int damaged() {
        return damaged;
    }

    /** Where the damaged file was set aside; null if it was whole. */
    public File setAside() {
        return setAside;
    }

    // ---- a person's rights

    /** Forgets one photo with its label, in the file too; returns how many features that erased. */
    public synchronized int erase(String photo) throws HistoryException {
        int erased = 0;
        for (String space : new ArrayList<String>(spaces.keySet())) {
            erased += remove(space, photo) ? 1 : 0;
        }
        HistoryLog.Entry label = labels.remove(photo);
        textBytes -= label == null ? 0 : pairBytes(label);
        forget();
        return erased;
    }

    /**
     * Makes room: photos leave all spaces; what the owner said about them stays. Writes the file once.
     *
     * @throws HistoryException storage is full or gone
     */
    public synchronized void drop(Collection<String> photos) throws HistoryException {
        boolean any = false;
        for (String space : new ArrayList<String>(spaces.keySet())) {
            for (String photo : photos) {
                any |= has(space, photo) && remove(space, photo);
            }
        }
        if (any) {
            try {
                rewrite();
                version++;
            } catch (IOException error) {
                throw cannot("written", error);
            }
        }
    }

    /** Forgets everything, also the damaged files that were set aside. */
    public synchronized void eraseAll() throws HistoryException {
        spaces.clear();
        tally.clear();
        labels.clear();
        settings.clear();
        textBytes = 0;
        likelyBytes = 0;
        forget();
    }

    private void forget() throws HistoryException {
        try {
            rewrite();
            version++;
            File[] others = path.getAbsoluteFile().getParentFile().listFiles();
            for (File other : others == null ? new File[0] : others) {
                if (other.getName().startsWith(path.getName() + ".damaged-") && !other.delete()) {
                    throw new IOException(other + " cannot be deleted");
                }
            }
        } catch (IOException error) {
            throw cannot("erased", error);
        }
    }

    /**
     * Forgets a profile whose file may be damaged, or of a newer app: overwrites and deletes it, and all that is beside it.
     *
     * @throws HistoryException the file is in use, or cannot be overwritten or deleted; erase again
     */
    public static void destroy(File path) throws HistoryException {
        File lockPath = new File(path.getPath() + ".lock");
        try {
            RandomAccessFile lockFile = new RandomAccessFile(lockPath, "rw");
            try {
                if (lock(lockFile) == null) {
                    throw inUse(path);
                }
                File made = new File(path.getPath() + ".new");
                if (made.exists()) {
                    overwriteAndDelete(made); // first: an opening takes it for the profile where the file itself is gone
                }
                File[] all = path.getAbsoluteFile().getParentFile().listFiles();
                for (File file : all == null ? new File[0] : all) {
                    boolean own = file.getName().equals(path.getName()) || file.getName().startsWith(path.getName() + ".");
                    if (own && !file.getName().equals(lockPath.getName())) {
                        overwriteAndDelete(file);
                    }
                }
                lockPath.delete();
            } finally {
                lockFile.close();
            }
        } catch (IOException error) {
            throw new HistoryException(path + " cannot be erased (" + error.getMessage() + "); erase again", error);
        }
    }

    private static void overwriteAndDelete(File path) throws IOException {
        RandomAccessFile content = new RandomAccessFile(path, "rw");
        try {
            overwrite(content);
        } finally {
            content.close();
        }
        if (!path.delete()) {
            throw new IOException(path + " cannot be deleted");
        }
    }

    private static FileLock lock(RandomAccessFile lockFile) throws IOException {
        try {
            return lockFile.getChannel().tryLock();
        } catch (OverlappingFileLockException error) {
            return null;
        }
    }

    private static HistoryException inUse(File path) {
        return new HistoryException(Reason.PROFILE_BUSY, path + " is in use; close the other profile or wait for the indexing to stop");
    }

    // ---- the file

    /** Writes what is kept into a new file, which takes the old one's place; what was in the old one is overwritten. */
    private void rewrite() throws IOException {
        rewrite(null);
    }

    /**
     * Writes what is kept into a new file, which takes the old one's place.
     *
     * @param aside name that the old file gets once the new one is whole, without room for a copy; null: it is overwritten
     */
    private void rewrite(File aside) throws IOException {
        File made = beside(".new");
        boolean overwritten = aside == null && path.exists();
        RandomAccessFile old = overwritten ? new RandomAccessFile(path, "rw") : null; // stays open over the rename
        RandomAccessFile writer = null;
        try {
            writer = new RandomAccessFile(made, "rw");
            writer.setLength(0);
            writer.write(HistoryLog.HEADER);
            for (Map<String, HistoryLog.Entry> rows : spaces.values()) {
                writeAll(writer, rows);
            }
            writeAll(writer, labels);
            writeAll(writer, settings);
            writer.getFD().sync();
            if (aside != null && !path.renameTo(aside)) {
                throw new IOException(path + " cannot be set aside as " + aside.getName());
            }
            if (!made.renameTo(path)) { // where the old one is aside, the next opening tries again
                throw new IOException(made + " cannot take the place of " + path.getName());
            }
            RandomAccessFile before = file;
            file = writer; // before anything else can fail: the old file has no name any more
            writer = null;
            if (before != null) {
                before.close();
            }
            Durable.folder(path.getAbsoluteFile().getParentFile()); // else a power cut may leave the name of the old one
            if (old != null) {
                overwrite(old);
            }
        } finally {
            if (writer != null) {
                writer.close();
                if (path.exists()) {
                    made.delete(); // the room that it takes may be all that is left
                }
            }
            if (old != null) {
                old.close();
            }
        }
    }

    private static void overwrite(RandomAccessFile old) throws IOException {
        byte[] zeros = new byte[1 << 16];
        for (long left = old.length(); left > 0; left -= zeros.length) {
            old.write(zeros, 0, (int) Math.min(left, zeros.length));
        }
        old.getFD().sync();
    }

    private static void writeAll(RandomAccessFile writer, Map<String, HistoryLog.Entry> rows) throws IOException {
        for (HistoryLog.Entry entry : rows.values()) {
            writer.write(HistoryLog.encode(entry));
            if (entry.likely != null) {
                writer.write(HistoryLog.encode(entry.likely));
            }
        }
    }

    private List<HistoryLog.Entry> rows(String space) {
        return spaces.containsKey(space) ? new ArrayList<HistoryLog.Entry>(spaces.get(space).values())
                : Collections.<HistoryLog.Entry>emptyList();
    }

    private static Map<String, String> texts(Map<String, HistoryLog.Entry> pairs) {
        Map<String, String> found = new LinkedHashMap<String, String>();
        for (HistoryLog.Entry entry : pairs.values()) {
            found.put(entry.key, entry.text);
        }
        return found;
    }

    private long bytes() {
        long sum = 0;
        for (long each : tally.values()) {
            sum += each;
        }
        return sum;
    }

    private long bytes(String space) {
        Long found = tally.get(space);
        return found == null ? 0 : found;
    }

    private long liveBytes() {
        return bytes() + textBytes + likelyBytes + 300L * count();
    }

    private static long likelySize(HistoryLog.Entry likely) {
        return likely == null ? 0 : likely.bytes() + 300;
    }

    /** What a label or setting takes in the file, which nobody should have to rewrite for it: names may be long. */
    private static long pairBytes(HistoryLog.Entry entry) {
        return HistoryLog.encode(entry).length;
    }

    private int count() {
        int sum = 0;
        for (Map<String, HistoryLog.Entry> rows : spaces.values()) {
            sum += rows.size();
        }
        return sum;
    }

    private File beside(String ending) {
        return new File(path.getPath() + ending);
    }

    private HistoryException cannot(String what, IOException error) {
        return new HistoryException(path + " cannot be " + what + " (" + error.getMessage() + "); what was stored before is"
                + " intact, free some space or check the folder", error);
    }

    @Override
    public synchronized void close() {
        try {
            if (file != null) {
                file.close();
            }
            if (lock != null) {
                lock.release();
            }
            if (lockFile != null) {
                lockFile.close();
            }
        } catch (IOException error) {
            throw new IllegalStateException(path + " could not be closed", error);
        } finally {
            file = null;
            lock = null;
            lockFile = null;
        }
    }
}
