package refocus.app;

import android.app.Activity;
import android.os.Bundle;
import android.view.ViewGroup;
import java.util.ArrayList;
import java.util.List;
import refocus.app.model.ModelSummary;
import refocus.recognizer.OrtProgram;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;
import refocus.recognizer.SelfTest;

/** What stays on the device, which model answers and what it knows, which runtime runs it, and what its self-test said. */
public final class AboutActivity extends Activity {
    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        final RefocusApp app = RefocusApp.of(this);
        final ViewGroup page = Pages.page(this);
        Pages.text(this, page, getString(R.string.about_text));
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException {
                try {
                    model(page, app.recognizer());
                } catch (RefocusException error) {
                    say(page, Problems.words(AboutActivity.this, error));
                }
                say(page, verdict(app));
            }
        });
    }

    private void model(ViewGroup page, Recognizer recognizer) throws RefocusException {
        String language = Pages.language(this);
        List<String> names = new ArrayList<String>();
        for (String label : ModelSummary.known(recognizer)) {
            names.add(recognizer.card.name(label, language));
        }
        say(page, getString(R.string.about_model, recognizer.bundle.manifest.name, recognizer.bundle.sha256,
                "ONNX Runtime " + OrtProgram.version() + ", " + recognizer.programs()));
        if (!recognizer.passedOver.isEmpty()) {
            say(page, recognizer.passedOver);
        }
        boolean reads = !recognizer.card.form.equals("none");
        if (reads) {
            say(page, getString(R.string.about_history));
        }
        if (recognizer.countsShares()) {
            say(page, getString(R.string.about_shares));
        } else if (!reads) {
            say(page, getString(R.string.about_alone));
        }
        say(page, getString(Double.isNaN(recognizer.rejection) ? R.string.about_no_rejection : R.string.about_rejection));
        say(page, getResources().getQuantityString(R.plurals.about_knows, names.size(), names.size()) + "\n"
                + names.toString().replaceAll("^\\[|\\]$", ""));
    }

    private String verdict(RefocusApp app) {
        SelfTest.Verdict verdict = app.verdict();
        if (verdict == null || verdict.photos == 0) {
            return getString(R.string.self_test_none);
        }
        return verdict.passed ? getString(R.string.self_test_passed, verdict.same, verdict.photos)
                : getString(R.string.self_test_failed, verdict.failure);
    }

    private void say(final ViewGroup page, final String line) {
        RefocusApp.of(this).ui.post(new Runnable() {
            @Override
            public void run() {
                Pages.text(AboutActivity.this, page, line);
            }
        });
    }
}
