package refocus.recognizer;

import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/**
 * Sees to it that the index has the feature of every photo, and can be stopped, or killed, after any of them.
 *
 * <p>The index is a {@link FileHistory}: what is in it is not encoded again, and whatever was in work when the process
 * died is the only photo that is. Photos that cannot be decoded are remembered with the reason, and not tried again; those that cannot be read now are.
 */
public final class Indexer {
    private static final String FAILED = "failed ";
    private final Recognizer recognizer;
    private final FileHistory index;

    /** Says whether to stop: the battery is low, the device is hot, the system wants it. */
    public interface Stop {
        boolean now();
    }

    /** What one run did. */
    public static final class Report {
        /** Photos encoded by this run. */
        public int encoded;
        /** Photos of the source that the index has now. */
        public int indexed;
        /** Why photos have no feature, by key. */
        public final Map<String, String> failed = new LinkedHashMap<String, String>();
        /** Whether every photo was looked at. */
        public boolean finished;
    }

    /** @param index open for this alone; its capacity bounds how many photos are indexed */
    public Indexer(Recognizer recognizer, FileHistory index) {
        this.recognizer = recognizer;
        this.index = index;
    }

    /**
     * Goes on where the last run stopped.
     *
     * @throws HistoryException the index cannot be written; what it has stays
     */
    public Report run(PhotoSource source, Stop stop) throws RefocusException {
        Report report = new Report();
        Set<String> there = new HashSet<String>(index.names(recognizer.space()).values());
        Map<String, String> settings = index.settings();
        for (int i = 0; i < source.size(); i++) {
            String key = source.key(i);
            String failure = settings.get(FAILED + recognizer.space() + key);
            if (there.contains(key)) {
                report.indexed++;
            } else if (failure != null) {
                report.failed.put(key, failure);
            } else if (stop.now()) {
                return report;
            } else {
                one(source, i, key, report);
            }
        }
        report.finished = true;
        return report;
    }

    private void one(PhotoSource source, int i, String key, Report report) throws RefocusException {
        byte[] content;
        try {
            content = source.content(i);
        } catch (PhotoException unreadable) { // a card that is out, a grant that may come back: tried again next time
            report.failed.put(key, unreadable.getMessage());
            return;
        }
        try {
            String photo = Hashes.sha256(content);
            if (!index.has(recognizer.space(), photo)) {
                index.append(recognizer.space(), photo, key, recognizer.encode(source.decode(content, key)));
                report.encoded++;
            } else {
                index.moved(recognizer.space(), photo, key); // a folder's grant outlives that of a photo that was shared
            }
            report.indexed++;
        } catch (PhotoException error) {
            report.failed.put(key, error.getMessage());
            index.setSetting(FAILED + recognizer.space() + key, error.getMessage());
        } catch (OutOfMemoryError error) {
            String why = key + " needs more memory than this device gives; make it smaller";
            report.failed.put(key, why);
            index.setSetting(FAILED + recognizer.space() + key, why);
        }
    }
}
