package refocus.app;

import android.content.Intent;
import android.graphics.Bitmap;
import android.net.Uri;
import android.os.Looper;
import java.io.File;
import java.io.FileOutputStream;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import refocus.app.model.BeforeAfter;
import refocus.recognizer.Answer;

/** Draws screens for the pages about the app, from photos of somebody; {@code tools/screens.py --photos} runs it. */
@RunWith(AppRunner.class)
@Config(sdk = 33, shadows = Strips.class, qualifiers = "w360dp-h720dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class Pictures {
    private static Intent sharing() throws Exception {
        File folder = new File(System.getProperty("refocus.photos"));
        Folder.serve(folder);
        ArrayList<Uri> photos = new ArrayList<>();
        for (String name : Folder.names(".")) {
            photos.add(Folder.document(name));
        }
        return new Intent(Intent.ACTION_SEND_MULTIPLE).putParcelableArrayListExtra(Intent.EXTRA_STREAM, photos);
    }

    @Test
    public void first() throws Exception {
        Folder.serve(new File(System.getProperty("refocus.photos")));
        Screen.open(MainActivity.class, new Intent()).draw("picture-first");
        Screen<SampleActivity> walk = Screen.open(SampleActivity.class, new Intent());
        int samples = Screen.app().recognizer().bundle.manifest.selfTestPhotos.size();
        for (int i = 1; i < samples; i++) {
            walk.press(walk.activity.getString(R.string.sample_next));
            if (walk.texts().contains(walk.activity.getString(R.string.sample_changed))) {
                break; // the first whose answer the photos before it changed
            }
        }
        walk.draw("picture-sample");
    }

    @Test
    public void day() throws Exception {
        Screen<MainActivity> grid = Screen.open(MainActivity.class, sharing());
        grid.draw("picture-grid");
        String photo = Screen.answers().keySet().iterator().next();
        for (Map.Entry<String, Answer> each : Screen.answers().entrySet()) {
            if (each.getValue().isKnown() && new BeforeAfter(each.getValue(), 8).changed()) {
                photo = each.getKey();
                break;
            }
        }
        Screen.open(PhotoActivity.class, new Intent().putExtra(PhotoActivity.PHOTO, photo)).draw("picture-photo");
        Screen.open(AboutActivity.class, new Intent()).draw("picture-about");
    }

    /** A folder half way through: the third photo waits until it was drawn. */
    @Test
    public void progress() throws Exception {
        Folder.serve(new File(System.getProperty("refocus.photos")));
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        Folders.Folder folder = IndexJob.schedule(Screen.app(), "me", Folder.tree().toString());
        CountDownLatch half = new CountDownLatch(Folder.names(".").length / 2);
        CountDownLatch drawn = new CountDownLatch(1);
        Folder.watch(name -> {
            half.countDown();
            try {
                if (half.getCount() == 0) {
                    drawn.await();
                }
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        Screen.app().begin(new IndexRun(Screen.app(), folder, () -> false, (finished, error) -> { }));
        while (!half.await(20, TimeUnit.MILLISECONDS)) {
            Shadows.shadowOf(Looper.getMainLooper()).idle(); // the page draws what was recognised until then
        }
        Shadows.shadowOf(Looper.getMainLooper()).idle();
        grid.draw("picture-progress");
        drawn.countDown();
        Screen.settle();
    }

    /** Noise, of which no model knows anything, and files of which no photo can be made. */
    @Test
    public void whatIsNotKnownAndErrors() throws Exception {
        File folder = Files.createTempDirectory("unknown").toFile();
        Folder.serve(folder);
        ArrayList<Uri> photos = new ArrayList<>();
        Random random = new Random(0);
        for (int i = 0; i < 12; i++) {
            Bitmap picture = Bitmap.createBitmap(64, 64, Bitmap.Config.ARGB_8888);
            for (int at = 0; at < 64 * 64; at++) {
                picture.setPixel(at % 64, at / 64, 0xff000000 | random.nextInt(1 << 24));
            }
            try (FileOutputStream to = new FileOutputStream(new File(folder, "noise" + i + ".png"))) {
                picture.compress(Bitmap.CompressFormat.PNG, 100, to);
            }
            photos.add(Folder.document("noise" + i + ".png"));
        }
        Intent noise = new Intent(Intent.ACTION_SEND_MULTIPLE).putParcelableArrayListExtra(Intent.EXTRA_STREAM, photos);
        Screen.open(MainActivity.class, noise).draw("picture-unknown");
        ArrayList<Uri> bad = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            bad.add(Given.heic(folder, "bad" + i + ".heic"));
        }
        bad.add(Folder.document("gone.jpg"));
        Intent broken = new Intent(Intent.ACTION_SEND_MULTIPLE).putParcelableArrayListExtra(Intent.EXTRA_STREAM, bad);
        Screen.open(MainActivity.class, broken).drawWithDialog("picture-errors");
    }

    @Test
    @Config(qualifiers = "de-w360dp-h720dp-night-xhdpi")
    public void night() throws Exception {
        Screen.open(MainActivity.class, sharing()).draw("picture-night");
    }
}
