package refocus.app;

import android.app.Activity;
import android.graphics.Bitmap;
import android.os.Bundle;
import android.view.View;
import android.view.ViewGroup;
import android.widget.LinearLayout;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import refocus.app.model.BeforeAfter;
import refocus.recognizer.Album;
import refocus.recognizer.Hashes;
import refocus.recognizer.ListedFile;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/**
 * A walk through the bundle's own photos: each is answered alone, and with those before it. Nothing of it is kept.
 */
public final class SampleActivity extends Activity {
    private static final String STEP = "step";
    private final List<String> photos = new ArrayList<String>(); // identities, of those shown so far
    private final Map<String, float[]> features = new LinkedHashMap<String, float[]>();
    private final Map<String, byte[]> contents = new ConcurrentHashMap<String, byte[]>();
    private int step;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        step = state == null ? 0 : state.getInt(STEP);
        show();
    }

    @Override
    protected void onSaveInstanceState(Bundle state) {
        super.onSaveInstanceState(state);
        state.putInt(STEP, step);
    }

    private void show() {
        final int wanted = step;
        final RefocusApp app = RefocusApp.of(this);
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException, IOException {
                answer(app, wanted);
            }
        });
    }

    private void answer(final RefocusApp app, final int wanted) throws RefocusException {
        final Recognizer recognizer = app.recognizer();
        final List<ListedFile> samples = recognizer.bundle.manifest.selfTestPhotos;
        for (int i = photos.size(); i < Math.min(wanted + 1, samples.size()); i++) {
            byte[] content = recognizer.bundle.read(samples.get(i));
            String photo = Hashes.sha256(content);
            features.put(photo, recognizer.encode(Photos.decode(content, samples.get(i).path)));
            contents.put(photo, content);
            photos.add(photo);
        }
        final List<String> shown = new ArrayList<String>(photos.subList(0, Math.min(wanted + 1, photos.size())));
        final BeforeAfter answer = shown.isEmpty() ? null : new BeforeAfter(new Album(recognizer, new Album.Features() {
            @Override
            public float[] of(String photo) {
                return features.get(photo);
            }

            @Override
            public String name(String photo) {
                return photo;
            }
        }).answer(shown, shown.get(shown.size() - 1)), shown.size());
        app.ui.post(new Runnable() {
            @Override
            public void run() {
                if (!Pages.gone(SampleActivity.this)) {
                    draw(recognizer, shown, answer, samples.size());
                }
            }
        });
    }

    private void draw(Recognizer recognizer, final List<String> shown, BeforeAfter answer, int all) {
        ViewGroup page = Pages.page(this);
        if (answer == null) {
            Pages.text(this, page, getString(R.string.sample_none));
            return;
        }
        String language = Pages.language(this);
        String before = recognizer.card.name(answer.before, language);
        String after = recognizer.card.name(answer.after, language);
        Pages.heading(this, page, getString(R.string.sample_step, shown.size(), all));
        paint(page, shown.get(shown.size() - 1), 200, getString(R.string.photo_described, after));
        Pages.text(this, page, getString(R.string.sample_before, before, answer.beforePercent));
        if (shown.size() == 1) {
            Pages.text(this, page, getString(R.string.sample_first));
        } else {
            Pages.text(this, page, getString(R.string.sample_after, after, answer.afterPercent));
            Pages.text(this, page, getString(answer.changed() ? R.string.sample_changed : R.string.sample_same));
            if (!answer.attended.isEmpty()) {
                Pages.text(this, page, getString(R.string.sample_attended));
            }
            LinearLayout row = new LinearLayout(this);
            page.addView(row);
            for (BeforeAfter.Attended each : answer.attended) {
                paint(row, each.photo, 40, getString(R.string.attended_described, each.percent));
            }
        }
        final boolean last = shown.size() >= all;
        if (last) {
            Pages.text(this, page, getString(R.string.sample_end));
        }
        Pages.button(this, page, last ? R.string.sample_done : R.string.sample_next, new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                if (last) {
                    finish();
                } else {
                    step = shown.size();
                    show();
                }
            }
        });
    }

    private void paint(ViewGroup to, final String photo, int dp, String described) {
        Pages.picture(this, to, dp, described, new Pages.Painter() {
            @Override
            public Bitmap paint(int side) {
                return Photos.small(contents.get(photo), side);
            }
        });
    }
}
