package refocus.app;

import android.app.Activity;
import android.os.Bundle;
import android.view.ViewGroup;
import android.widget.LinearLayout;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import refocus.app.model.BeforeAfter;
import refocus.recognizer.Album;
import refocus.recognizer.Answer;
import refocus.recognizer.FileHistory;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/** One photo: the answer before and after personalisation, and the photos that the answer attended to. */
public final class PhotoActivity extends Activity {
    static final String PHOTO = "photo";
    private static final int SHOWN = 8;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        final RefocusApp app = RefocusApp.of(this);
        final String photo = getIntent().getStringExtra(PHOTO);
        final ViewGroup page = Pages.page(this);
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException, IOException {
                answer(app, photo, page);
            }
        });
    }

    private void answer(RefocusApp app, String photo, final ViewGroup page) throws RefocusException {
        final String person = app.profile();
        final Recognizer recognizer = app.recognizer();
        FileHistory index = app.index(person);
        final Map<String, String> names = index.names(recognizer.space());
        List<String> photos = new ArrayList<String>(names.keySet());
        Answer answer = photo == null ? null : new Album(recognizer, index).answer(photos, photo);
        final BeforeAfter shown = answer == null ? null : new BeforeAfter(answer, SHOWN);
        final String asked = photo;
        app.ui.post(new Runnable() {
            @Override
            public void run() {
                if (Pages.gone(PhotoActivity.this)) {
                    return;
                }
                if (shown == null) { // the model before knew it, this one has not read it yet
                    Pages.text(PhotoActivity.this, page, getString(R.string.photo_waits));
                    return;
                }
                draw(page, shown, recognizer, person, asked, names.get(asked));
            }
        });
    }

    private void draw(ViewGroup page, BeforeAfter shown, Recognizer recognizer, String person, String photo, String place) {
        String language = Pages.language(this);
        String before = Pages.label(this, recognizer.card.name(shown.before, language), shown.beforeRecognised);
        String after = Pages.label(this, recognizer.card.name(shown.after, language), shown.afterRecognised);
        Pages.photo(this, page, person, photo, place, 240, getString(R.string.photo_described, after));
        boolean reads = !recognizer.card.form.equals("none");
        String alone = getString(R.string.before, before, shown.beforePercent);
        if (reads || shown.sharePercent >= 0) {
            Pages.text(this, page, alone);
            Pages.heading(this, page, getString(R.string.after, after, shown.afterPercent));
        } else {
            Pages.heading(this, page, alone);
        }
        if (!shown.afterRecognised) {
            Pages.text(this, page, getString(R.string.unknown_nearest, recognizer.card.name(shown.after, language)));
        }
        if (reads) {
            Pages.text(this, page, getString(R.string.trust, shown.trustPercent));
        }
        if (shown.sharePercent >= 0) {
            Pages.text(this, page, getString(R.string.shares, shown.sharePercent));
        }
        for (BeforeAfter.Attended each : shown.attended) {
            LinearLayout row = new LinearLayout(this);
            page.addView(row);
            Pages.photo(this, row, person, each.photo, each.name, 96, getString(R.string.attended_described, each.percent));
            Pages.text(this, row, getString(R.string.percent, each.percent));
        }
    }
}
