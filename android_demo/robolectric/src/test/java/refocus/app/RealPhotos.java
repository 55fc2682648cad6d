package refocus.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import android.content.Intent;
import android.net.Uri;
import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import refocus.app.model.BeforeAfter;
import refocus.recognizer.Album;
import refocus.recognizer.Answer;

/** Real photos of one person, behind a network without history; run where -Drefocus.photos names them. */
@RunWith(AppRunner.class)
@Config(sdk = 33, shadows = Strips.class, qualifiers = "w360dp-h640dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class RealPhotos {
    @Test
    public void aPhotosLabelChangesBecauseOfTheOwnersPhotos() throws Exception {
        Given.library();
        File folder = new File(System.getProperty("refocus.photos"));
        File[] files = folder.listFiles();
        Arrays.sort(files);
        Folder.serve(folder);
        ArrayList<Uri> photos = new ArrayList<>();
        for (File file : files) {
            photos.add(Folder.document(file.getName()));
        }
        Screen.open(MainActivity.class, new Intent(Intent.ACTION_SEND_MULTIPLE).setType("image/*")
                .putParcelableArrayListExtra(Intent.EXTRA_STREAM, photos));
        Map<String, Answer> answers = Screen.answers();
        assertEquals(photos.size(), answers.size());
        int changed = 0;
        for (String photo : answers.keySet()) {
            BeforeAfter shown = new BeforeAfter(answers.get(photo), 8);
            Answer alone = Screen.app().work.submit(() -> new Album(Screen.app().recognizer(), Screen.app().index("me"))
                    .answer(Collections.singletonList(photo), photo)).get();
            assertEquals("without the owner's other photos", shown.before, alone.labels.get(0));
            if (shown.changed()) {
                changed++;
                List<String> page = Screen.open(PhotoActivity.class, new Intent().putExtra(PhotoActivity.PHOTO, photo)).texts();
                String unknown = Screen.app().getString(R.string.unknown);
                String before = shown.beforeRecognised ? shown.before : unknown;
                String after = shown.afterRecognised ? shown.after : unknown;
                assertTrue(page.toString(), page.contains(Screen.app().getString(R.string.before, before, shown.beforePercent)));
                assertTrue(page.toString(), page.contains(Screen.app().getString(R.string.after, after, shown.afterPercent)));
                assertTrue(page.toString(), page.contains(Screen.app().getString(R.string.shares, shown.sharePercent)));
                System.out.println("changed: " + shown.before + " -> " + shown.after);
            }
        }
        assertTrue("a label changed", changed > 0);
    }
}
