package refocus.app;

import android.content.Intent;
import android.net.Uri;
import java.io.File;
import java.util.ArrayList;
import java.util.Map;
import org.junit.Test;
import org.junit.runner.RunWith;
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
    public void day() throws Exception {
        Screen<MainActivity> grid = Screen.open(MainActivity.class, sharing());
        grid.draw("picture-grid");
        String photo = null;
        for (Map.Entry<String, Answer> each : Screen.answers().entrySet()) {
            photo = photo == null || new BeforeAfter(each.getValue(), 8).changed() ? each.getKey() : photo;
        }
        Screen.open(PhotoActivity.class, new Intent().putExtra(PhotoActivity.PHOTO, photo)).draw("picture-photo");
        Screen.open(AboutActivity.class, new Intent()).draw("picture-about");
    }

    @Test
    @Config(qualifiers = "de-w360dp-h720dp-night-xhdpi")
    public void night() throws Exception {
        Screen.open(MainActivity.class, sharing()).draw("picture-night");
    }
}
