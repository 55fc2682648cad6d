package refocus.app;

import static org.junit.Assert.assertTrue;

import android.app.Activity;
import android.app.AlertDialog;
import android.content.Intent;
import android.graphics.Bitmap;
import android.graphics.Canvas;
import android.os.Build;
import android.os.Looper;
import android.view.View;
import android.view.ViewGroup;
import android.widget.EditText;
import android.widget.ImageView;
import android.widget.TextView;
import java.io.File;
import java.io.FileOutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.robolectric.Robolectric;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.Shadows;
import org.robolectric.shadows.ShadowAlertDialog;
import org.robolectric.shadows.ShadowLooper;
import refocus.app.model.AnswerCache;
import refocus.recognizer.Album;
import refocus.recognizer.Answer;
import refocus.recognizer.FileHistory;

/** What a person does with a screen, and sees on it. */
final class Screen<A extends Activity> {
    final A activity;

    private Screen(A activity) {
        this.activity = activity;
    }

    /** Opens a screen, and waits until it has said all it has to say. */
    static <A extends Activity> Screen<A> open(Class<A> kind, Intent intent) throws Exception {
        Screen<A> screen = new Screen<A>(Robolectric.buildActivity(kind, intent).setup().get());
        settle();
        return screen;
    }

    /** Opens a screen while work is going on, and waits for none of it. */
    static <A extends Activity> Screen<A> openBusy(Class<A> kind) {
        Screen<A> screen = new Screen<A>(Robolectric.buildActivity(kind).setup().get());
        Shadows.shadowOf(Looper.getMainLooper()).idle();
        return screen;
    }

    static RefocusApp app() {
        return (RefocusApp) RuntimeEnvironment.getApplication();
    }

    /** Until neither work nor pictures nor the screen have anything left to do. */
    static void settle() throws Exception {
        ShadowLooper screen = Shadows.shadowOf(Looper.getMainLooper());
        boolean idle = false;
        while (!idle) {
            app().work.submit(() -> {}).get(300, TimeUnit.SECONDS);
            app().pictures.submit(() -> {}).get(300, TimeUnit.SECONDS);
            idle = screen.isIdle() && app().runs(null).isEmpty();
            screen.idle();
        }
    }

    /** All words on the screen, from top to bottom. */
    List<String> texts() {
        List<String> found = new ArrayList<>();
        for (TextView view : below(activity.getWindow().getDecorView(), TextView.class)) {
            found.add(view.getText().toString());
        }
        return found;
    }

    /** The view of that title; null where there is none. */
    TextView titled(String title) {
        for (TextView view : below(activity.getWindow().getDecorView(), TextView.class)) {
            if (view.getText().toString().equals(title)) {
                return view;
            }
        }
        return null;
    }

    List<ImageView> photos() {
        return below(activity.findViewById(android.R.id.content), ImageView.class);
    }

    private static <V extends View> List<V> below(View view, Class<V> kind) {
        List<V> found = new ArrayList<>();
        if (kind.isInstance(view)) {
            found.add(kind.cast(view));
        }
        for (int i = 0; view instanceof ViewGroup && i < ((ViewGroup) view).getChildCount(); i++) {
            found.addAll(below(((ViewGroup) view).getChildAt(i), kind));
        }
        return found;
    }

    void choose(int menuEntry) throws Exception {
        Shadows.shadowOf(activity).clickMenuItem(menuEntry);
        settle();
    }

    void press(String title) throws Exception {
        for (TextView view : below(activity.getWindow().getDecorView(), TextView.class)) {
            if (view.getText().toString().equals(title)) {
                view.performClick();
                settle();
                return;
            }
        }
        throw new AssertionError("no '" + title + "' among " + texts());
    }

    /** What another app answers to the screen's latest question. */
    void answered(Intent answer) throws Exception {
        Intent question = Shadows.shadowOf(activity).getNextStartedActivityForResult().intent;
        Shadows.shadowOf(activity).receiveResult(question, Activity.RESULT_OK, answer);
        settle();
    }

    /** The words of the dialog in front, which is then agreed to; "" where there is none. */
    static String agreed() throws Exception {
        AlertDialog dialog = ShadowAlertDialog.getLatestAlertDialog();
        if (dialog == null || !dialog.isShowing()) {
            return "";
        }
        String said = String.valueOf(Shadows.shadowOf(dialog).getMessage());
        dialog.getButton(AlertDialog.BUTTON_POSITIVE).performClick();
        settle();
        return said;
    }

    /** Writes into the one field of the dialog in front. */
    static void write(String text) {
        View dialog = ShadowAlertDialog.getLatestAlertDialog().getWindow().getDecorView();
        below(dialog, EditText.class).get(0).setText(text);
    }

    /** What the shown profile's album says of each photo. */
    static Map<String, Answer> answers() throws Exception {
        return app().work.submit(() -> {
            FileHistory index = app().index(app().profile());
            List<String> all = new ArrayList<>(index.names(app().recognizer().space()).keySet());
            return new Album(app().recognizer(), index).answers(all);
        }).get(300, TimeUnit.SECONDS);
    }

    /** What the shown profile's page shows. */
    static AnswerCache shown() throws Exception {
        return app().work.submit(() -> app().answers(app().profile())).get(300, TimeUnit.SECONDS);
    }

    /** Draws the screen as Android would; the picture stays in the folder of the run. */
    void draw(String name) throws Exception {
        draw(name, null);
    }

    /** As {@link #draw}, with the dialog in front of it, in the middle, and what is behind it darker. */
    void drawWithDialog(String name) throws Exception {
        draw(name, ShadowAlertDialog.getLatestAlertDialog().getWindow().getDecorView());
    }

    private void draw(String name, View dialog) throws Exception {
        View view = activity.getWindow().getDecorView();
        assertTrue("laid out", view.getWidth() > 0 && view.getHeight() > 0);
        Bitmap picture = Bitmap.createBitmap(view.getWidth(), view.getHeight(), Bitmap.Config.ARGB_8888);
        Canvas canvas = new Canvas(picture);
        view.draw(canvas);
        if (dialog != null) {
            canvas.drawColor(0x99000000);
            canvas.translate((view.getWidth() - dialog.getWidth()) / 2f, (view.getHeight() - dialog.getHeight()) / 2f);
            dialog.draw(canvas);
        }
        try (FileOutputStream to = new FileOutputStream(new File(Given.out(), name + "-" + Build.VERSION.SDK_INT + ".png"))) {
            picture.compress(Bitmap.CompressFormat.PNG, 100, to);
        }
    }
}
