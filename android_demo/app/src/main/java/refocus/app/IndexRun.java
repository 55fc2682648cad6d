package refocus.app;

import android.content.ContentResolver;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import refocus.app.model.ChosenPhotos;
import refocus.app.model.Room;
import refocus.recognizer.FileHistory;
import refocus.recognizer.Indexer;
import refocus.recognizer.PhotoSource;
import refocus.recognizer.Reason;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/**
 * Indexes one folder, or the photos that a person gave, one photo a turn on the work thread: a photo that is tapped
 * meanwhile is answered in between. Begun by the person now, or by the system at night.
 */
final class IndexRun implements Runnable {
    private static final int SHOW_EVERY = 16; // photos, after which the page shows what was recognised
    final Folders.Folder folder;
    private final RefocusApp app;
    private final Indexer.Stop stop;
    private final Done done;
    private Recognizer recognizer;
    private FileHistory index;
    private PhotoSource source;
    private Indexer.Run run;
    private final List<String> given = new ArrayList<String>();
    private volatile boolean cancelled;
    private volatile int looked;
    private volatile int size;

    /** Hears of the end of a run; on the work thread. */
    interface Done {
        /**
         * @param finished whether every photo was looked at
         * @param error why not, if something went wrong; else null
         */
        void ended(boolean finished, Throwable error);
    }

    /** @param stop says when to stop, beside {@link #cancel} */
    IndexRun(RefocusApp app, Folders.Folder folder, Indexer.Stop stop, Done done) {
        this.app = app;
        this.folder = folder;
        this.stop = stop;
        this.done = done;
    }

    /** Stops before the next photo; what is indexed stays. */
    void cancel() {
        cancelled = true;
        app.endStopped();
    }

    /** Whether somebody or something asks it to end. */
    boolean stopped() {
        return cancelled || stop.now();
    }

    /** Photos looked at so far, of {@link #size}. */
    int looked() {
        return looked;
    }

    int size() {
        return size;
    }

    /** One turn. */
    @Override
    public void run() {
        boolean more = false;
        Throwable error = null;
        try {
            more = turn();
        } catch (RefocusException | RuntimeException | OutOfMemoryError wrong) {
            error = wrong;
        }
        if (more) {
            app.work.execute(this);
            return;
        }
        boolean finished = error == null && run != null && run.report.finished;
        try {
            end(finished);
        } catch (RefocusException | RuntimeException | OutOfMemoryError wrong) {
            error = error == null ? wrong : error;
        }
        app.ended(this, error);
        done.ended(finished, error);
    }

    private boolean turn() throws RefocusException {
        if (stopped() || isErased()) {
            return false;
        }
        if (recognizer != app.recognizer()) { // begun, or another model since
            recognizer = app.recognizer();
            index = app.index(folder.profile);
            source = source();
            run = new Indexer(recognizer, index).start(source);
        } else if (index != app.index(folder.profile)) { // somebody else's was opened in between
            index = app.index(folder.profile);
            run = new Indexer(recognizer, index).goOn(run);
        }
        boolean more = run.more();
        looked = run.report.looked;
        size = Math.max(size, looked);
        if (more) {
            run.next();
            looked = run.report.looked;
            if (run.failure != null) {
                app.failures.add(Collections.singleton(run.failure));
            } else {
                app.keepPicture(folder.profile, run.photo, run.content);
            }
            run.content = null;
            if (run.report.encoded % SHOW_EVERY == SHOW_EVERY - 1) {
                app.refresh(folder.profile);
            }
        }
        app.changed();
        return more;
    }

    private PhotoSource source() throws RefocusException {
        ContentResolver resolver = app.getContentResolver();
        List<String> folders = new Folders(app).trees(folder.profile);
        Map<String, String> indexed = index.names(recognizer.space());
        int capacity = app.profiles().capacity;
        given.clear();
        if (folder.isChosen()) {
            for (String place : index.placesMissingIn(recognizer.space())) {
                if (!inFolder(place, folders)) {
                    given.add(place);
                }
            }
        } else if (!folders.contains(folder.tree)) { // removed since
            folders.add(folder.tree);
        }
        given.addAll(chosen().all());
        boolean folderOrFull = !folder.isChosen() || indexed.size() + given.size() > capacity;
        List<Tree> trees = Tree.of(resolver, folderOrFull ? folders : Collections.<String>emptyList(), indexed.values(),
                given.size(), capacity);
        PhotoSource found = folder.isChosen() ? new Picked(resolver, given) : trees.get(folders.indexOf(folder.tree));
        int added = folder.isChosen() ? given.size() : trees.get(folders.indexOf(folder.tree)).missingIn(
                new HashSet<String>(indexed.values()));
        index.drop(Room.leaving(indexed, Tree.givingWay(indexed.values(), trees), added, capacity));
        size = found.size();
        return found;
    }

    /** Whether a place is in a folder, whose own run reads it. */
    private static boolean inFolder(String place, List<String> folders) {
        for (String tree : folders) {
            if (place.startsWith(tree + "/")) {
                return true;
            }
        }
        return false;
    }

    private ChosenPhotos chosen() throws RefocusException {
        return app.profiles().chosen(folder.profile);
    }

    private boolean isErased() {
        return !app.profiles().names().contains(folder.profile);
    }

    private void end(boolean finished) throws RefocusException {
        if (run == null || isErased()) {
            return;
        }
        if (folder.isChosen()) {
            forgetGiven();
            if (finished && chosen().all().isEmpty()) { // more may have been given meanwhile
                IndexJob.remove(app, folder);
            }
        } else if (finished && source.isWhole()) { // else the next run looks, and nothing is said to be done
            Set<String> shown = new HashSet<String>(index.names(recognizer.space()).values());
            new Folders(app).finished(folder, ((Tree) source).missingIn(shown));
        }
        app.refresh(folder.profile);
    }

    /** What was looked at waits no more, but for what may be readable another time. */
    private void forgetGiven() throws RefocusException {
        List<String> missed = new ArrayList<String>();
        List<String> done = new ArrayList<String>();
        for (String place : given.subList(0, run.report.looked)) {
            Reason why = run.report.reasons.get(place);
            (why == Reason.PHOTO_GONE || why == Reason.PHOTO_MEMORY ? missed : done).add(place);
        }
        chosen().remove(done);
        chosen().missed(missed);
    }
}
