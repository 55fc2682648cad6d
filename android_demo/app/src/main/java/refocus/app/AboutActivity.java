package refocus.app;

import android.app.Activity;
import android.os.Bundle;
import android.view.ViewGroup;
import refocus.recognizer.Program;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;
import refocus.recognizer.SelfTest;

/** What stays on the device, which model answers, which runtime runs it, and what its self-test said. */
public final class AboutActivity extends Activity {
    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        final RefocusApp app = RefocusApp.of(this);
        final ViewGroup page = Pages.page(this);
        Pages.text(this, page, getString(R.string.about_text));
        app.work.execute(new Runnable() {
            @Override
            public void run() {
                say(page, model(app));
                say(page, verdict(app));
            }
        });
    }

    private String model(RefocusApp app) {
        try {
            Recognizer recognizer = app.recognizer();
            return getString(R.string.about_model, recognizer.bundle.manifest.name, recognizer.bundle.sha256,
                    "ONNX Runtime " + Program.version());
        } catch (RefocusException error) {
            return error.getMessage();
        }
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
