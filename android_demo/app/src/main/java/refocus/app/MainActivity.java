package refocus.app;

import android.app.Activity;
import android.app.AlertDialog;
import android.content.ClipData;
import android.content.DialogInterface;
import android.content.Intent;
import android.net.Uri;
import android.os.Bundle;
import android.os.Parcelable;
import android.provider.DocumentsContract;
import android.provider.MediaStore;
import android.view.Menu;
import android.view.MenuItem;
import android.view.View;
import android.view.ViewGroup;
import android.widget.AdapterView;
import android.widget.ArrayAdapter;
import android.widget.EditText;
import android.widget.HorizontalScrollView;
import android.widget.LinearLayout;
import android.widget.ProgressBar;
import android.widget.Spinner;
import android.widget.TextView;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import refocus.app.model.AnswerCache;
import refocus.app.model.Groups;
import refocus.app.model.ModelSummary;
import refocus.recognizer.Indexer;
import refocus.recognizer.RefocusException;

/** The grid: photos by what was recognised in them, for one profile; and the way in for new photos. */
public final class MainActivity extends Activity implements RefocusApp.Watcher {
    private static final int PICK = 1;
    private static final int TREE = 2;
    private static final int BUNDLE = 3;
    private static final int MOST = 50;
    private static final int SHOWN_PER_GROUP = 24;
    private static final int SHOWN = 240; // pictures on one page
    private static final String[] ZIPS = {"application/zip", "application/x-zip-compressed", "application/x-zip",
        "application/octet-stream"}; // what providers call a zip file
    private static final Indexer.Stop NEVER = new Indexer.Stop() {
        @Override
        public boolean now() {
            return false;
        }
    };
    private RefocusApp app;
    private TextView status;
    private TextView knows;
    private ViewGroup working;
    private ViewGroup waiting;
    private ViewGroup groups;
    private AnswerCache drawn;
    private String drawnOf; // whose answers are drawn
    private List<IndexRun> drawnRuns;
    private List<Wait> drawnWaits;
    private final Map<String, WorkRow> workRows = new HashMap<String, WorkRow>(); // by key of the run
    private final Map<String, GroupRow> groupRows = new HashMap<String, GroupRow>(); // by label, "" of what is not known
    private int atWork;
    private List<Wait> waits = new ArrayList<Wait>();

    /** A folder, or given photos, of which some wait. */
    private static final class Wait {
        final Folders.Folder folder;
        final int photos;
        final boolean listed; // whether all its photos could be

        Wait(Folders.Folder folder, int photos, boolean listed) {
            this.folder = folder;
            this.photos = photos;
            this.listed = listed;
        }
    }

    /** What is shown of a run that is at work. */
    private static final class WorkRow {
        final TextView text;
        final ProgressBar bar;

        WorkRow(TextView text, ProgressBar bar) {
            this.text = text;
            this.bar = bar;
        }
    }

    /** What is shown of a group, whose tiles stay while others are added to them. */
    private static final class GroupRow {
        final TextView heading;
        final HorizontalScrollView scroll;
        final LinearLayout tiles;
        final List<String> photos = new ArrayList<String>();

        GroupRow(TextView heading, HorizontalScrollView scroll, LinearLayout tiles) {
            this.heading = heading;
            this.scroll = scroll;
            this.tiles = tiles;
        }
    }

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        app = RefocusApp.of(this);
        setContentView(R.layout.main);
        status = findViewById(R.id.status);
        knows = findViewById(R.id.knows);
        working = Pages.column(this, (ViewGroup) findViewById(R.id.waiting));
        waiting = Pages.column(this, (ViewGroup) findViewById(R.id.waiting));
        groups = findViewById(R.id.groups);
        findViewById(R.id.pick).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                pick();
            }
        });
        findViewById(R.id.index).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                Pages.ask(MainActivity.this, new Intent(Intent.ACTION_OPEN_DOCUMENT_TREE), TREE);
            }
        });
        findViewById(R.id.samples).setOnClickListener(new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                startActivity(new Intent(MainActivity.this, SampleActivity.class));
            }
        });
        showProfiles();
        if (state == null) {
            takeShared(getIntent());
        }
    }

    @Override
    protected void onStart() {
        super.onStart();
        app.watch(this);
    }

    @Override
    protected void onStop() {
        app.unwatch(this);
        super.onStop();
    }

    @Override
    protected void onNewIntent(Intent intent) {
        super.onNewIntent(intent);
        takeShared(intent);
    }

    /** What is shared is taken once: from the list of recent apps a page is opened with the intent that it first had. */
    private void takeShared(Intent intent) {
        boolean again = (intent.getFlags() & Intent.FLAG_ACTIVITY_LAUNCHED_FROM_HISTORY) != 0;
        take(again ? new ArrayList<String>() : shared(intent));
        setIntent(new Intent(Intent.ACTION_MAIN));
    }

    /** What another app shares; nothing where it shares something else than it says, or what cannot be read. */
    @SuppressWarnings("deprecation") // the typed form came with API 33
    private static List<String> shared(Intent intent) {
        List<String> found = new ArrayList<String>();
        try {
            if (Intent.ACTION_SEND.equals(intent.getAction())) {
                add(intent.<Parcelable>getParcelableExtra(Intent.EXTRA_STREAM), found);
            } else if (Intent.ACTION_SEND_MULTIPLE.equals(intent.getAction())) {
                List<?> many = intent.getParcelableArrayListExtra(Intent.EXTRA_STREAM);
                for (Object each : many == null ? new ArrayList<Object>() : many) {
                    add(each, found);
                }
            }
        } catch (RuntimeException malformed) { // a parcel of a class that nobody knows
            android.util.Log.w("refocus", "what was shared cannot be read", malformed);
        }
        return found;
    }

    private static void add(Object shared, List<String> to) {
        if (shared instanceof Uri) {
            to.add(shared.toString());
        }
    }

    // ---- the way in

    private void pick() {
        Intent intent;
        if (android.os.Build.VERSION.SDK_INT >= 33) {
            intent = new Intent(MediaStore.ACTION_PICK_IMAGES).putExtra(MediaStore.EXTRA_PICK_IMAGES_MAX, MOST);
        } else {
            intent = new Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE)
                    .putExtra(Intent.EXTRA_ALLOW_MULTIPLE, true);
        }
        Pages.ask(this, intent.setType("image/*"), PICK);
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        super.onActivityResult(request, result, data);
        if (result != RESULT_OK || data == null) {
            return;
        }
        if (request == TREE && data.getData() != null) {
            addFolder(data.getData());
        } else if (request == BUNDLE && data.getData() != null) {
            importBundle(data.getData());
        } else if (request == PICK) {
            take(picked(data));
        }
    }

    private static List<String> picked(Intent data) {
        List<String> found = new ArrayList<String>();
        ClipData several = data.getClipData();
        for (int i = 0; several != null && i < several.getItemCount(); i++) {
            add(several.getItemAt(i).getUri(), found);
        }
        if (several == null) {
            add(data.getData(), found);
        }
        return found;
    }

    private void addFolder(Uri tree) {
        String person = shown();
        if (person != null) {
            Grants.keep(getContentResolver(), tree);
            IndexJob.schedule(this, person, tree.toString());
            look(person);
        }
    }

    private void importBundle(final Uri uri) {
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException, IOException {
                InputStream stream = getContentResolver().openInputStream(uri);
                if (stream == null) {
                    throw new FileNotFoundException("" + uri);
                }
                try {
                    app.importBundle(stream);
                } finally {
                    RefocusApp.close(stream);
                }
                app.refresh(app.profile());
                app.changed();
                look(app.profile()); // photos of the model before wait now
            }
        });
    }

    /** Photos that were given are noted before they are read: they wait where the process ends. */
    private void take(final List<String> photos) {
        final String person = shown(); // now, whoever is shown when their turn comes
        if (person == null) {
            return;
        }
        for (String photo : photos) {
            Grants.keep(getContentResolver(), Uri.parse(photo));
        }
        show(person);
        if (photos.isEmpty()) {
            return;
        }
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException, IOException {
                if (!app.profiles().names().contains(person)) { // erased meanwhile
                    return;
                }
                app.profiles().chosen(person).add(photos);
                begin(IndexJob.schedule(app, person, ""));
            }
        });
    }

    /** Indexes a folder now, while the app is open; the nightly job takes up what is left. */
    private void begin(Folders.Folder folder) {
        final RefocusApp of = app;
        of.begin(new IndexRun(of, folder, NEVER, new IndexRun.Done() {
            @Override
            public void ended(boolean finished, Throwable error) {
                of.changed(); // whichever page is there looks what waits
            }
        }));
    }

    // ---- what is shown

    /** First what was shown last, which needs no model; then what changed since. */
    private void show(final String person) {
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException, IOException {
                draw(person, app.answers(person), app.model());
                app.refresh(person);
                if (app.model() == null) {
                    app.recognizer(); // nothing was recognised yet: to say what the model knows
                }
                draw(person, app.answers(person), app.model());
            }
        });
        look(person);
    }

    /** Looks what waits, behind everything that is to be shown. */
    private void look(final String person) {
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException, IOException {
                final List<Wait> found = waits(person, app.answers(person));
                app.ui.post(new Runnable() {
                    @Override
                    public void run() {
                        if (person.equals(shown())) {
                            waits = found;
                            changed();
                        }
                    }
                });
            }
        });
    }

    private List<Wait> waits(String person, AnswerCache answers) throws RefocusException {
        Set<String> known = new HashSet<String>();
        Set<String> places = new HashSet<String>();
        for (AnswerCache.Entry entry : answers.entries) {
            places.add(entry.place);
            if (entry.model.equals(answers.model)) {
                known.add(entry.place);
            }
        }
        List<Wait> found = new ArrayList<Wait>();
        if (!app.profiles().names().contains(person)) { // erased meanwhile
            return found;
        }
        int chosen = app.profiles().chosen(person).all().size();
        List<String> folders = new Folders(app).trees(person);
        List<Tree> trees = Tree.of(getContentResolver(), folders, places, chosen, app.profiles().capacity);
        for (Folders.Folder folder : new Folders(app).all()) {
            if (!folder.profile.equals(person)) {
                continue;
            }
            int at = folders.indexOf(folder.tree);
            if (folder.isChosen()) {
                found.add(new Wait(folder, chosen + answers.old(), true));
            } else if (at >= 0) { // and not added in between
                int left = trees.get(at).missingIn(known) - Math.max(0, folder.unusable);
                found.add(new Wait(folder, Math.max(0, left), trees.get(at).isWhole()));
            }
        }
        return found;
    }

    private void draw(final String person, final AnswerCache answers, final ModelSummary model) {
        app.ui.post(new Runnable() {
            @Override
            public void run() {
                if (!Pages.gone(MainActivity.this) && person.equals(shown())) {
                    drawModel(model);
                    drawAnswers(person, answers);
                }
            }
        });
    }

    private void drawModel(ModelSummary model) {
        if (model != null) {
            String examples = model.examples(Pages.language(this)).toString().replaceAll("^\\[|\\]$", "");
            knows.setText(getResources().getQuantityString(R.plurals.knows, model.labels, model.labels, examples));
        }
    }

    /** Something is at work, came to its end, or went wrong. */
    @Override
    public void changed() {
        if (Pages.gone(this)) {
            return;
        }
        final String person = shown();
        if (person == null) {
            return;
        }
        List<IndexRun> runs = app.runs(person);
        drawWaiting(person, runs);
        if (runs.size() != atWork) { // one began, or came to its end
            atWork = runs.size();
            look(person);
        }
        if (runs.isEmpty()) {
            Pages.tell(this, app.failures.take());
            Throwable trouble = app.takeTrouble();
            if (trouble != null) {
                Pages.tell(this, trouble);
            }
        }
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException {
                draw(person, app.answers(person), app.model());
            }
        });
    }

    /**
     * What is at work, with its progress and a way to stop it, and what waits. Views stay as long as what they are of: a
     * button that is made anew with every photo cannot be pressed.
     */
    private void drawWaiting(String person, List<IndexRun> runs) {
        if (!runs.equals(drawnRuns)) {
            working.removeAllViews();
            workRows.clear();
            for (IndexRun run : runs) {
                addRun(run);
            }
        }
        for (IndexRun run : runs) {
            WorkRow row = workRows.get(run.folder.key());
            row.text.setText(run.size() == 0 ? name(run.folder) // waits for another person's
                    : getString(R.string.working, name(run.folder), Math.min(run.looked() + 1, run.size()), run.size()));
            row.bar.setMax(Math.max(1, run.size()));
            row.bar.setProgress(run.looked());
        }
        if (waits != drawnWaits || !runs.equals(drawnRuns)) {
            drawWaits(person, runs);
        }
        drawnRuns = runs;
        drawnWaits = waits;
    }

    private void addRun(final IndexRun run) {
        TextView text = Pages.text(this, working, "");
        ProgressBar bar = new ProgressBar(this, null, android.R.attr.progressBarStyleHorizontal);
        working.addView(bar);
        Pages.button(this, working, R.string.stop, new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                run.cancel();
                view.setEnabled(false);
            }
        });
        workRows.put(run.folder.key(), new WorkRow(text, bar));
    }

    private void drawWaits(final String person, List<IndexRun> runs) {
        waiting.removeAllViews();
        boolean any = false;
        for (final Wait wait : waits) {
            boolean atWork = false;
            for (IndexRun run : runs) {
                atWork |= run.folder.key().equals(wait.folder.key());
            }
            if (atWork || (wait.photos == 0 && wait.folder.isChosen())) {
                continue;
            }
            any |= wait.photos > 0;
            int words = wait.listed ? R.string.folder_done : R.string.folder_away;
            TextView line = Pages.text(this, waiting, wait.photos == 0 ? getString(words, name(wait.folder)) : getResources()
                    .getQuantityString(R.plurals.folder_waits, wait.photos, wait.photos, name(wait.folder)));
            line.setTextIsSelectable(false);
            line.setMinHeight(Pages.pixels(this, 48));
            line.setOnClickListener(new View.OnClickListener() {
                @Override
                public void onClick(View view) {
                    askToRemove(person, wait.folder);
                }
            });
        }
        if (any) {
            Pages.button(this, waiting, R.string.index_now, new View.OnClickListener() {
                @Override
                public void onClick(View view) {
                    for (Wait wait : waits) {
                        if (wait.photos > 0) {
                            begin(wait.folder);
                        }
                    }
                }
            });
            Pages.text(this, waiting, getString(R.string.index_later));
        }
    }

    private void askToRemove(final String person, final Folders.Folder folder) {
        new AlertDialog.Builder(this).setMessage(getString(R.string.remove_question, name(folder)))
                .setNegativeButton(R.string.cancel, null)
                .setPositiveButton(R.string.ok, new DialogInterface.OnClickListener() {
                    @Override
                    public void onClick(DialogInterface dialog, int which) {
                        IndexJob.remove(app, folder);
                        app.work(MainActivity.this, new RefocusApp.Task() {
                            @Override
                            public void run() throws RefocusException, IOException {
                                if (folder.isChosen()) {
                                    app.profiles().chosen(person).remove(app.profiles().chosen(person).all());
                                }
                            }
                        });
                        look(person);
                    }
                }).show();
    }

    /** The last part of a folder's name, as people know it. */
    private String name(Folders.Folder folder) {
        if (folder.isChosen()) {
            return getString(R.string.chosen_photos);
        }
        try {
            String id = DocumentsContract.getTreeDocumentId(Uri.parse(folder.tree));
            String last = id.substring(Math.max(id.lastIndexOf('/'), id.lastIndexOf(':')) + 1);
            return last.isEmpty() || last.equals(".") ? getString(R.string.folder) : last;
        } catch (RuntimeException noTree) {
            return getString(R.string.folder);
        }
    }

    private void drawAnswers(String person, AnswerCache answers) {
        if (answers == drawn) {
            return;
        }
        drawn = answers;
        if (!person.equals(drawnOf)) {
            groups.removeAllViews();
            groupRows.clear();
            drawnOf = person;
        }
        int count = answers.entries.size();
        String counted = getResources().getQuantityString(R.plurals.photos, count, count);
        int old = answers.old();
        status.setText(count == 0 ? getString(R.string.empty) : old == 0 ? counted
                : counted + " " + getResources().getQuantityString(R.plurals.old_answers, old, old));
        int left = SHOWN;
        int place = 0;
        for (Groups.Group group : Groups.of(answers, Pages.language(this))) {
            String label = group.label == null ? getString(R.string.unknown) : group.label;
            String key = group.label == null ? "" : group.label;
            GroupRow row = groupRows.get(key);
            if (row == null) {
                row = newGroup();
                groupRows.put(key, row);
            }
            row.heading.setText(getString(R.string.group, label, group.photos.size()));
            int shown = Math.min(left, Math.min(SHOWN_PER_GROUP, group.photos.size()));
            left -= shown;
            drawTiles(person, row, label, group.photos.subList(0, shown));
            put(row.heading, place++);
            put(row.scroll, place++);
        }
        groups.removeViews(place, groups.getChildCount() - place);
    }

    private GroupRow newGroup() {
        TextView heading = Pages.heading(this, groups, "");
        HorizontalScrollView scroll = new HorizontalScrollView(this);
        LinearLayout tiles = new LinearLayout(this);
        scroll.addView(tiles);
        return new GroupRow(heading, scroll, tiles);
    }

    /** A view that is in its place stays untouched, and so does a finger on it. */
    private void put(View view, int place) {
        if (groups.getChildAt(place) != view) {
            if (view.getParent() != null) {
                groups.removeView(view);
            }
            groups.addView(view, place);
        }
    }

    private void drawTiles(String person, GroupRow row, String label, List<AnswerCache.Entry> entries) {
        List<String> photos = new ArrayList<String>();
        for (AnswerCache.Entry entry : entries) {
            photos.add(entry.photo);
        }
        int known = row.photos.size();
        if (known > photos.size() || !photos.subList(0, known).equals(row.photos)) {
            row.tiles.removeAllViews();
            known = 0;
        }
        for (final AnswerCache.Entry entry : entries.subList(known, entries.size())) {
            View view = Pages.photo(this, row.tiles, person, entry.photo, entry.place, 96,
                    getString(R.string.photo_described, label));
            view.setFocusable(true);
            view.setOnClickListener(new View.OnClickListener() {
                @Override
                public void onClick(View clicked) {
                    startActivity(new Intent(MainActivity.this, PhotoActivity.class)
                            .putExtra(PhotoActivity.PHOTO, entry.photo));
                }
            });
        }
        row.photos.clear();
        row.photos.addAll(photos);
    }

    // ---- profiles

    /** The profile that is shown; null, and the reason told, where none can be made. */
    private String shown() {
        try {
            return app.profile();
        } catch (RefocusException error) {
            Pages.tell(this, error);
            return null;
        }
    }

    private void showProfiles() {
        try {
            final String shown = app.profile();
            final List<String> names = app.profiles().names();
            Spinner spinner = findViewById(R.id.profile);
            spinner.setAdapter(new ArrayAdapter<String>(this, android.R.layout.simple_spinner_dropdown_item, names));
            spinner.setSelection(names.indexOf(shown));
            spinner.setOnItemSelectedListener(new AdapterView.OnItemSelectedListener() {
                @Override
                public void onItemSelected(AdapterView<?> parent, View view, int position, long id) {
                    parent.setContentDescription(getString(R.string.profile) + ": " + names.get(position));
                    app.choose(names.get(position));
                    waits = new ArrayList<Wait>();
                    show(names.get(position));
                }

                @Override
                public void onNothingSelected(AdapterView<?> parent) {
                    status.setText("");
                }
            });
        } catch (RefocusException error) {
            Pages.tell(this, error);
        }
    }

    @Override
    public boolean onCreateOptionsMenu(Menu menu) {
        int[] titles = {R.string.add_profile, R.string.erase_profile, R.string.erase_all, R.string.import_model,
            R.string.samples, R.string.bench, R.string.about};
        for (int title : titles) {
            menu.add(Menu.NONE, title, Menu.NONE, title);
        }
        return true;
    }

    @Override
    public boolean onOptionsItemSelected(MenuItem item) {
        int chosen = item.getItemId();
        if (chosen == R.string.add_profile) {
            askForProfile();
        } else if (chosen == R.string.erase_profile || chosen == R.string.erase_all) {
            askToErase(chosen == R.string.erase_all);
        } else if (chosen == R.string.import_model) {
            Pages.ask(this, new Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE).setType("*/*")
                    .putExtra(Intent.EXTRA_MIME_TYPES, ZIPS), BUNDLE);
        } else if (chosen == R.string.samples) {
            startActivity(new Intent(this, SampleActivity.class));
        } else if (chosen == R.string.bench) {
            startActivity(new Intent(this, BenchActivity.class));
        } else if (chosen == R.string.about) {
            startActivity(new Intent(this, AboutActivity.class));
        }
        return true;
    }

    private void askForProfile() {
        final EditText name = new EditText(this);
        name.setHint(R.string.profile_name);
        new AlertDialog.Builder(this).setTitle(R.string.add_profile).setView(name)
                .setNegativeButton(R.string.cancel, null)
                .setPositiveButton(R.string.ok, new DialogInterface.OnClickListener() {
                    @Override
                    public void onClick(DialogInterface dialog, int which) {
                        try {
                            app.profiles().add(name.getText().toString().trim());
                            app.choose(name.getText().toString().trim());
                            showProfiles();
                        } catch (RefocusException error) {
                            Pages.tell(MainActivity.this, error);
                        }
                    }
                }).show();
    }

    private void askToErase(final boolean everybody) {
        final String person = shown(); // the one who is asked about, whoever is chosen when it is done
        if (person == null) {
            return;
        }
        String one = getString(R.string.erase_profile) + ": " + person;
        new AlertDialog.Builder(this).setTitle(everybody ? getString(R.string.erase_all) : one)
                .setMessage(R.string.erase_question)
                .setNegativeButton(R.string.cancel, null)
                .setPositiveButton(R.string.ok, new DialogInterface.OnClickListener() {
                    @Override
                    public void onClick(DialogInterface dialog, int which) {
                        erase(everybody, person);
                    }
                }).show();
    }

    private void erase(final boolean everybody, final String person) {
        IndexJob.cancel(this, everybody ? null : person); // now: what is to be done waits behind it
        for (IndexRun run : app.runs(everybody ? null : person)) {
            run.cancel();
        }
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException, IOException {
                try {
                    app.forget(everybody ? null : person);
                } finally {
                    Grants.releaseUnused(getContentResolver(), places());
                    app.ui.post(new Runnable() {
                        @Override
                        public void run() {
                            showProfiles();
                        }
                    });
                }
            }
        });
    }

    /** What anybody's photos, and folders that are still to be indexed, need to be readable. */
    Set<String> places() throws RefocusException {
        app.closeIndex();
        Set<String> found = app.profiles().photoPlaces();
        for (Folders.Folder folder : new Folders(this).all()) {
            found.add(folder.tree);
            if (folder.isChosen()) {
                found.addAll(app.profiles().chosen(folder.profile).all());
            }
        }
        return found;
    }
}
