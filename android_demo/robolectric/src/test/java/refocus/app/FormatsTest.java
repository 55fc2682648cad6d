package refocus.app;

import static org.junit.Assert.assertTrue;

import android.os.Build;
import java.io.File;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import refocus.recognizer.FormatVectors;
import refocus.recognizer.PhotoRows;

/** Android's own decoders, through the app's code, against what Python makes of files of every kind that users have. */
@RunWith(AppRunner.class)
@Config(sdk = {26, 35}, shadows = Strips.class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class FormatsTest {
    @Test
    public void everyFormatIsWithinItsBound() throws Exception {
        FormatVectors vectors = new FormatVectors(new File(System.getProperty("refocus.golden"), "golden"));
        StringBuilder said = new StringBuilder("decoder API " + Build.VERSION.SDK_INT + ":");
        List<String> beyond = new ArrayList<>();
        int reduced = 0;
        for (int i = 0; i < vectors.size(); i++) {
            // Before API 29 Android offers no way to the numbers of a file with another colour space.
            boolean converted = Build.VERSION.SDK_INT < 29 && vectors.kind(i).contains("icc");
            PhotoRows photo = Photos.decode(vectors.content(i), vectors.kind(i));
            boolean byTransforms = vectors.reduced(i, photo);
            reduced += byTransforms ? 1 : 0;
            // Android's transforms are Pillow's, to the bit; decoded at full size, these files are off by 1 or 2 levels.
            double levels = byTransforms ? 0 : vectors.levels(i);
            double off = vectors.off(i, photo);
            said.append(String.format(Locale.ROOT, " %s %.1f of %.1f%s,", vectors.kind(i), off, levels,
                    converted ? " (converted)" : ""));
            if (off > levels + 0.01 && !converted) {
                beyond.add(vectors.kind(i) + " " + off);
            }
        }
        System.out.println(said);
        assertTrue(beyond.toString(), beyond.isEmpty());
        assertTrue(vectors.size() >= 18);
        assertTrue("some are decoded at a reduced size, by inSampleSize", reduced >= 3);
    }
}
