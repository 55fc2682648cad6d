package refocus.recognizer;

import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/**
 * Sees to it that the index has the feature of every photo, and can be stopped, or killed, after any of them.
 *
 * <p>The index is a {@link FileHistory}: what is in it is not encoded again, and whatever was in work when the process
 * died is the only photo that is. Photos of a folder that cannot be decoded are remembered with the reason, and not tried
 * again as long as they are there; those that cannot be read now are.
 */
public final class Indexer {
    private static final String FAILED = "failed ";
    private static final String BETWEEN = ": "; // a kept reason and its message
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
        /** Photos of the source that were looked at. */
        public int looked;
        /** Why photos have no feature, by key. */
        public final Map<String, String> failed = new LinkedHashMap<String, String>();
        /** The same in kinds, by key. */
        public final Map<String, Reason> reasons = new LinkedHashMap<String, Reason>();
        /** Whether every photo was looked at. */
        public boolean finished;

        private void failed(String key, Reason reason, String message) {
            failed.put(key, message);
            reasons.put(key, reason);
        }
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
        Run run = start(source);
        while (run.more()) {
            if (stop.now()) {
                return run.report;
            }
            run.next();
        }
        return run.report;
    }

    /** As {@link #run}, one photo at a time, so that other work finds its turn in between. */
    public Run start(PhotoSource source) {
        return new Run(source, new Report());
    }

    /** Goes on with a run over an index that was closed meanwhile: what was looked at is not looked at again. */
    public Run goOn(Run before) {
        return new Run(before.source, before.report);
    }

    /** A run that was begun. */
    public final class Run {
        public final Report report;
        /** Identity of the photo that {@link #next} looked at; null where it could not be used. */
        public String photo;
        /** Its file. */
        public byte[] content;
        /** Why it could not be used; null where it could. */
        public Reason failure;
        private final PhotoSource source;
        private final Set<String> there = new HashSet<String>();
        private final Map<String, String> settings = index.settings();

        private Run(PhotoSource source, Report report) {
            this.source = source;
            this.report = report;
            if (!source.root().isEmpty()) { // what a person gives once more is read once more: it may have changed
                there.addAll(index.names(recognizer.space()).values());
            }
        }

        /**
         * Passes over photos that are known; returns whether there is one to look at.
         *
         * @throws HistoryException the index cannot be written; what it has stays
         */
        public boolean more() throws RefocusException {
            for (; report.looked < source.size(); report.looked++) {
                String key = source.key(report.looked);
                String failure = settings.get(setting(key));
                if (there.contains(key)) {
                    report.indexed++;
                } else if (failure != null) {
                    tellAgain(key, failure);
                } else {
                    return true;
                }
            }
            if (!report.finished) {
                forgetOldFailures();
            }
            report.finished = true;
            return false;
        }

        /** Looks at the photo that {@link #more} found. */
        public void next() throws RefocusException {
            String key = source.key(report.looked);
            photo = null;
            content = null;
            failure = null;
            try {
                content = source.content(report.looked);
            } catch (PhotoException unreadable) { // a card that is out, a grant that may come back: tried again next time
                report.failed(key, unreadable.reason, unreadable.getMessage());
            } catch (OutOfMemoryError error) {
                report.failed(key, Reason.PHOTO_MEMORY, tooLarge(key));
            }
            if (content != null) {
                encode(key);
            }
            failure = report.reasons.get(key);
            report.looked++;
        }

        private void encode(String key) throws RefocusException {
            try {
                String identity = Hashes.sha256(content);
                if (!index.has(recognizer.space(), identity)) {
                    index.append(recognizer.space(), identity, key, recognizer.encode(source.decode(content, key)));
                    report.encoded++;
                } else {
                    index.moved(recognizer.space(), identity, key); // a folder's grant outlives that of a shared photo
                }
                photo = identity;
                report.indexed++;
            } catch (PhotoException error) {
                keep(key, error.reason, error.getMessage());
            } catch (OutOfMemoryError error) {
                keep(key, Reason.PHOTO_MEMORY, tooLarge(key));
            }
        }

        private void keep(String key, Reason reason, String message) throws HistoryException {
            report.failed(key, reason, message);
            if (!source.root().isEmpty()) {
                index.setSetting(setting(key), reason + BETWEEN + message);
            }
        }

        /** A failure that was kept; those of Refocus 0.1 and 0.2 have no kind. */
        private void tellAgain(String key, String failure) {
            for (Reason reason : Reason.values()) {
                if (failure.startsWith(reason + BETWEEN)) {
                    report.failed(key, reason, failure.substring((reason + BETWEEN).length()));
                    return;
                }
            }
            report.failed(key, Reason.PHOTO_FORMAT, failure);
        }

        /** Failures of photos that are gone from the source, and of other models, are of no use any more. */
        private void forgetOldFailures() throws HistoryException {
            if (source.root().isEmpty()) {
                return;
            }
            Set<String> kept = new HashSet<String>();
            for (int i = 0; i < source.size(); i++) {
                kept.add(setting(source.key(i)));
            }
            for (String name : settings.keySet()) {
                boolean ofModel = name.startsWith(FAILED + recognizer.space());
                boolean ofSource = name.startsWith(setting(source.root()));
                if (name.startsWith(FAILED) && (!ofModel || ofSource) && !kept.contains(name)) {
                    index.setSetting(name, null);
                }
            }
        }
    }

    private String setting(String key) {
        return FAILED + recognizer.space() + key;
    }

    private static String tooLarge(String key) {
        return key + " needs more memory than this device gives; make it smaller";
    }
}
