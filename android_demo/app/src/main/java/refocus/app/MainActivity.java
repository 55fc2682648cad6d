package refocus.app;

import android.app.Activity;
import android.app.AlertDialog;
import android.content.ClipData;
import android.content.DialogInterface;
import android.content.Intent;
import android.net.Uri;
import android.os.Bundle;
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
import android.widget.Spinner;
import android.widget.TextView;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import refocus.app.model.Groups;
import refocus.recognizer.Album;
import refocus.recognizer.Answer;
import refocus.recognizer.FileHistory;
import refocus.recognizer.Hashes;
import refocus.recognizer.PhotoException;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/** The grid: photos by what was recognised in them, for one profile; and the way in for new photos. */
public final class MainActivity extends Activity {
    private static final int PICK = 1;
    private static final int TREE = 2;
    private static final int BUNDLE = 3;
    private static final int MOST = 50;
    private static final int SHOWN_PER_GROUP = 24;
    private static final int SHOWN = 240; // pictures on one page: each takes about a megabyte
    private RefocusApp app;
    private TextView status;
    private ViewGroup groups;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        app = RefocusApp.of(this);
        setContentView(R.layout.main);
        status = findViewById(R.id.status);
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
                startActivityForResult(new Intent(Intent.ACTION_OPEN_DOCUMENT_TREE), TREE);
            }
        });
        showProfiles();
        if (state == null) {
            recognize(shared(getIntent()));
        }
    }

    @Override
    protected void onNewIntent(Intent intent) {
        super.onNewIntent(intent);
        recognize(shared(intent));
    }

    @SuppressWarnings("deprecation") // the typed form came with API 33
    private static List<Uri> shared(Intent intent) {
        List<Uri> found = new ArrayList<Uri>();
        if (Intent.ACTION_SEND.equals(intent.getAction())) {
            Uri one = intent.getParcelableExtra(Intent.EXTRA_STREAM);
            if (one != null) {
                found.add(one);
            }
        } else if (Intent.ACTION_SEND_MULTIPLE.equals(intent.getAction())) {
            List<Uri> many = intent.getParcelableArrayListExtra(Intent.EXTRA_STREAM);
            found.addAll(many == null ? new ArrayList<Uri>() : many);
        }
        return found;
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
        startActivityForResult(intent.setType("image/*"), PICK);
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        super.onActivityResult(request, result, data);
        if (result != RESULT_OK || data == null) {
            return;
        }
        if (request == TREE && data.getData() != null) {
            index(data.getData());
        } else if (request == BUNDLE && data.getData() != null) {
            importBundle(data.getData());
        } else if (request == PICK) {
            recognize(picked(data));
        }
    }

    private static List<Uri> picked(Intent data) {
        List<Uri> found = new ArrayList<Uri>();
        ClipData several = data.getClipData();
        for (int i = 0; several != null && i < several.getItemCount(); i++) {
            found.add(several.getItemAt(i).getUri());
        }
        if (several == null && data.getData() != null) {
            found.add(data.getData());
        }
        return found;
    }

    private void index(Uri tree) {
        String person = shown();
        if (person != null) {
            Grants.keep(getContentResolver(), tree);
            IndexJob.schedule(this, new Folders.Folder(person, tree.toString()));
            status.setText(R.string.indexing_scheduled);
        }
    }

    private void importBundle(final Uri uri) {
        app.work.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    InputStream stream = getContentResolver().openInputStream(uri);
                    try {
                        app.importBundle(stream);
                    } finally {
                        RefocusApp.close(stream);
                    }
                    show();
                } catch (RefocusException | java.io.IOException | RuntimeException error) {
                    Pages.tell(MainActivity.this, error);
                }
            }
        });
    }

    /** Recognises photos in order, each behind those before it; one that cannot be used is told, and skipped. */
    private void recognize(final List<Uri> photos) {
        final String person = shown(); // now, whoever is shown when their turn comes
        if (person == null) {
            return;
        }
        app.work.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    if (!photos.isEmpty()) {
                        all(person, photos);
                    }
                    show();
                } catch (RefocusException error) {
                    Pages.tell(MainActivity.this, error);
                    say("");
                }
            }
        });
    }

    private void all(String person, List<Uri> photos) throws RefocusException {
        Recognizer recognizer = app.recognizer();
        FileHistory index = app.profiles().index(person);
        try {
            recognizer.switchTo(app.profiles().history(person, recognizer.card.window), null);
            for (int i = 0; i < photos.size(); i++) {
                say(getString(R.string.working, i + 1, photos.size()));
                one(recognizer, index, photos.get(i));
            }
        } finally {
            index.close();
            app.serveNobody();
        }
    }

    private void one(Recognizer recognizer, FileHistory index, Uri uri) throws RefocusException {
        try {
            Grants.keep(getContentResolver(), uri);
            byte[] content = Photos.read(getContentResolver(), uri);
            String photo = Hashes.sha256(content);
            Answer answer = recognizer.recognize(Photos.decode(content, uri.toString()), photo, uri.toString(), true);
            index.append(recognizer.space(), photo, uri.toString(), answer.feature);
            index.moved(recognizer.space(), photo, uri.toString()); // it can be read here, now
        } catch (PhotoException error) {
            Pages.tell(this, error);
        } catch (OutOfMemoryError error) {
            Pages.tell(this, new PhotoException(uri + " needs more memory than this device gives; make it smaller"));
        }
    }

    // ---- what is shown; on the work thread

    private void show() throws RefocusException {
        Recognizer recognizer = app.recognizer();
        FileHistory index = app.profiles().index(app.profile());
        final Map<String, String> names;
        final List<Groups.Group> found;
        try {
            names = index.names(recognizer.space());
            found = Groups.of(new Album(recognizer, index).labels(new ArrayList<String>(names.keySet())));
        } finally {
            index.close();
        }
        app.ui.post(new Runnable() {
            @Override
            public void run() {
                if (!isDestroyed()) {
                    draw(found, names);
                }
            }
        });
    }

    private void draw(List<Groups.Group> found, Map<String, String> names) {
        groups.removeAllViews();
        status.setText(names.isEmpty() ? getString(R.string.empty)
                : getResources().getQuantityString(R.plurals.photos, names.size(), names.size()));
        int left = SHOWN;
        for (Groups.Group group : found) {
            Pages.heading(this, groups, getString(R.string.group, group.label, group.photos.size()));
            HorizontalScrollView scroll = new HorizontalScrollView(this);
            LinearLayout row = new LinearLayout(this);
            scroll.addView(row);
            groups.addView(scroll);
            int shown = Math.min(left, Math.min(SHOWN_PER_GROUP, group.photos.size()));
            left -= shown;
            for (final String photo : group.photos.subList(0, shown)) {
                View view = Pages.photo(this, row, Uri.parse(names.get(photo)), 96,
                        getString(R.string.photo_described, group.label));
                view.setFocusable(true);
                view.setOnClickListener(new View.OnClickListener() {
                    @Override
                    public void onClick(View clicked) {
                        startActivity(new Intent(MainActivity.this, PhotoActivity.class)
                                .putExtra(PhotoActivity.PHOTO, photo));
                    }
                });
            }
        }
    }

    private void say(final String line) {
        app.ui.post(new Runnable() {
            @Override
            public void run() {
                status.setText(line);
            }
        });
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
                    recognize(new ArrayList<Uri>());
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
            R.string.bench, R.string.about};
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
            startActivityForResult(new Intent(Intent.ACTION_OPEN_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE)
                    .setType("application/zip"), BUNDLE);
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
        app.work.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    app.serveNobody();
                    try {
                        if (everybody) {
                            app.profiles().eraseAll();
                        } else {
                            app.profiles().erase(person);
                        }
                    } finally {
                        Grants.releaseUnused(getContentResolver(), places());
                    }
                    app.ui.post(new Runnable() {
                        @Override
                        public void run() {
                            showProfiles();
                        }
                    });
                } catch (RefocusException error) {
                    Pages.tell(MainActivity.this, error);
                }
            }
        });
    }

    /** What anybody's photos, and folders that are still to be indexed, need to be readable. */
    Set<String> places() {
        Set<String> found = app.profiles().photoPlaces();
        for (Folders.Folder folder : new Folders(this).all()) {
            found.add(folder.tree);
        }
        return found;
    }
}
