package refocus.app;

import android.app.Activity;
import android.net.Uri;
import android.os.Bundle;
import android.view.ViewGroup;
import android.widget.LinearLayout;
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
        app.work.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    answer(app, photo, page);
                } catch (RefocusException error) {
                    Pages.tell(PhotoActivity.this, error);
                }
            }
        });
    }

    private void answer(RefocusApp app, String photo, final ViewGroup page) throws RefocusException {
        Recognizer recognizer = app.recognizer();
        FileHistory index = app.profiles().index(app.profile());
        try {
            Map<String, String> names = index.names(recognizer.space());
            List<String> photos = new ArrayList<String>(names.keySet());
            Answer answer = new Album(recognizer, index).answer(photos, photo);
            if (answer == null) {
                finish();
                return;
            }
            final BeforeAfter shown = new BeforeAfter(answer, SHOWN);
            final Uri uri = Uri.parse(names.get(photo));
            app.ui.post(new Runnable() {
                @Override
                public void run() {
                    if (!isDestroyed()) {
                        draw(page, shown, uri);
                    }
                }
            });
        } finally {
            index.close();
        }
    }

    private void draw(ViewGroup page, BeforeAfter shown, Uri uri) {
        Pages.photo(this, page, uri, 240, getString(R.string.photo_described, shown.after));
        Pages.text(this, page, getString(R.string.before, shown.before, shown.beforePercent));
        Pages.heading(this, page, getString(R.string.after, shown.after, shown.afterPercent));
        Pages.text(this, page, getString(R.string.trust, shown.trustPercent));
        for (BeforeAfter.Attended each : shown.attended) {
            LinearLayout row = new LinearLayout(this);
            page.addView(row);
            Pages.photo(this, row, Uri.parse(each.name), 96, getString(R.string.attended_described, each.percent));
            Pages.text(this, row, getString(R.string.percent, each.percent));
        }
    }
}
