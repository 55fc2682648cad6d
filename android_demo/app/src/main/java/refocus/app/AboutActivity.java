package refocus.app;

import android.app.Activity;
import android.os.Bundle;
import android.view.ViewGroup;
import refocus.recognizer.Program;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/** What stays on the device, which model answers, and which runtime runs it. */
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
                try {
                    Recognizer recognizer = app.recognizer();
                    final String line = getString(R.string.about_model, recognizer.bundle.manifest.name,
                            recognizer.bundle.sha256, "ONNX Runtime " + Program.version());
                    app.ui.post(new Runnable() {
                        @Override
                        public void run() {
                            Pages.text(AboutActivity.this, page, line);
                        }
                    });
                } catch (RefocusException error) {
                    Pages.tell(AboutActivity.this, error);
                }
            }
        });
    }
}
