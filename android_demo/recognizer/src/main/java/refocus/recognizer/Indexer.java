package refocus.recognizer;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Sees to it that the index has the feature of every photo, and can be stopped, or killed, after any of them.
 *
 * <p>The index is a {@link FileHistory}: what is in it is not encoded again, and whatever was in work when the process
 * died is the only photo that is. Of the photos of a folder, settings of the index hold what was in their place and its
 * state: a changed file is read again, and of copies each place is known. Photos that cannot be decoded are remembered with
 * the reason, and not tried again as long as they stay as they are; those that cannot be read now, or for which there is too
 * little memory now, are.
 */
public final class Indexer {
    private static final String FAILED = "failed ";
    private static final String BETWEEN = ": "; // a kept reason and its message
    private static final String STATE = "\n"; // behind a kept message
    private static final String PLACE = "place "; // of a setting: state and identity of the photo in a place
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
        private final Map<String, String> there = new HashMap<String, String>(); // identities by place
        private final Map<String, String> settings = index.settings();
        private final Set<String> keys = new HashSet<String>();

        private Run(PhotoSource source, Report report) {
            this.source = source;
            this.report = report;
            if (isFolder()) { // what a person gives once more is read once more: it may have changed
                for (Map.Entry<String, String> photo : index.names(recognizer.space()).entrySet()) {
                    there.put(photo.getValue(), photo.getKey());
                }
                for (int i = 0; i < source.size(); i++) {
                    keys.add(source.key(i));
                }
            }
        }

        private boolean isFolder() {
            return !source.root().isEmpty();
        }

        /**
         * Passes over photos that are known; returns whether there is one to look at.
         *
         * @throws HistoryException the index cannot be written; what it has stays
         */
        public boolean more() throws RefocusException {
            for (; report.looked < source.size(); report.looked++) {
                String key = source.key(report.looked);
                String state = source.state(report.looked);
                String failure = settings.get(setting(key));
                if (isFolder() && isKnown(key, state)) {
                    report.indexed++;
                } else if (failure != null && isFinal(failure, state)) {
                    tellAgain(key, failure);
                } else {
                    return true;
                }
            }
            if (!report.finished && isFolder() && source.isWhole()) {
                forgetWhatIsGone();
                dropWhatWasReplaced();
            }
            report.finished = true;
            return false;
        }

        /** Whether the index has what is in a place. Indexes of Refocus 0.2 and before say nothing of its state. */
        private boolean isKnown(String key, String state) throws HistoryException {
            String noted = settings.get(place(key));
            if (noted == null) {
                String identity = there.get(key);
                if (identity != null) {
                    index.note(place(key), state + ' ' + identity);
                }
                return identity != null;
            }
            return noted.equals(state + ' ' + identity(noted)) && index.has(recognizer.space(), identity(noted));
        }

        /** Whether there is no use in trying again: the file is as it was, and memory was no matter. */
        private boolean isFinal(String failure, String state) {
            int end = failure.lastIndexOf(STATE);
            return state.equals(end < 0 ? "" : failure.substring(end + 1)) && !failure.startsWith(Reason.PHOTO_MEMORY + BETWEEN);
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
                    float[] feature = recognizer.encode(source.decode(content, key));
                    if (there.containsKey(key) && index.isFull(recognizer.space())) {
                        index.drop(Collections.singleton(there.get(key))); // was changed: nobody else has to make room
                    }
                    index.append(recognizer.space(), identity, key, feature);
                    report.encoded++;
                } else if (!isInAFolder(index.name(recognizer.space(), identity))) {
                    index.moved(recognizer.space(), identity, key); // a folder's grant outlives that of a shared photo
                }
                photo = identity;
                report.indexed++;
                if (isFolder()) {
                    index.note(place(key), source.state(report.looked) + ' ' + identity);
                }
                if (settings.containsKey(setting(key))) {
                    index.setSetting(setting(key), null);
                }
            } catch (PhotoException error) {
                keep(key, error.reason, error.getMessage());
            } catch (OutOfMemoryError error) {
                keep(key, Reason.PHOTO_MEMORY, tooLarge(key));
            }
        }

        /** Whether a place is one of this folder's, or for photos that are given, of any folder's: this one is a copy. */
        private boolean isInAFolder(String place) {
            return keys.contains(place) || (!isFolder() && settings.containsKey(place(place)));
        }

        private void keep(String key, Reason reason, String message) throws HistoryException {
            report.failed(key, reason, message);
            if (isFolder() && reason != Reason.PHOTO_MEMORY) {
                index.setSetting(setting(key), reason + BETWEEN + message + STATE + source.state(report.looked));
            }
        }

        /** A failure that was kept; those of Refocus 0.1 and 0.2 have no kind. */
        private void tellAgain(String key, String failure) {
            String said = failure.indexOf(STATE) < 0 ? failure : failure.substring(0, failure.lastIndexOf(STATE));
            for (Reason reason : Reason.values()) {
                if (said.startsWith(reason + BETWEEN)) {
                    report.failed(key, reason, said.substring((reason + BETWEEN).length()));
                    return;
                }
            }
            report.failed(key, Reason.PHOTO_FORMAT, said);
        }

        /** What is noted of photos that are gone from the source, and for other models, is of no use any more. */
        private void forgetWhatIsGone() throws HistoryException {
            for (String start : new String[] {FAILED, PLACE}) {
                String ofModel = start + recognizer.space();
                for (String name : settings.keySet()) {
                    boolean ofSource = name.startsWith(ofModel + source.root());
                    boolean there = ofSource && keys.contains(name.substring(ofModel.length()));
                    if (name.startsWith(start) && (!name.startsWith(ofModel) || ofSource) && !there) {
                        index.note(name, null);
                    }
                }
            }
        }

        /** What was in a place before its file was changed leaves the index, unless it is in another place too. */
        private void dropWhatWasReplaced() throws HistoryException {
            Map<String, String> noted = new HashMap<String, String>(); // identities by place
            Map<String, String> places = new HashMap<String, String>(); // and places by identity
            String start = PLACE + recognizer.space();
            for (Map.Entry<String, String> setting : index.settings().entrySet()) {
                if (setting.getKey().startsWith(start)) {
                    String key = setting.getKey().substring(start.length());
                    noted.put(key, identity(setting.getValue()));
                    places.put(identity(setting.getValue()), key);
                }
            }
            List<String> replaced = new ArrayList<String>();
            for (Map.Entry<String, String> photo : index.names(recognizer.space()).entrySet()) {
                String now = keys.contains(photo.getValue()) ? noted.get(photo.getValue()) : null;
                if (now != null && !now.equals(photo.getKey())) {
                    if (places.containsKey(photo.getKey())) {
                        index.moved(recognizer.space(), photo.getKey(), places.get(photo.getKey()));
                    } else {
                        replaced.add(photo.getKey());
                    }
                }
            }
            index.drop(replaced);
        }
    }

    private String setting(String key) {
        return FAILED + recognizer.space() + key;
    }

    private String place(String key) {
        return PLACE + recognizer.space() + key;
    }

    /** The last word of what is noted of a place. */
    private static String identity(String noted) {
        return noted.substring(noted.lastIndexOf(' ') + 1);
    }

    private static String tooLarge(String key) {
        return key + " needs more memory than this device gives; make it smaller";
    }
}
