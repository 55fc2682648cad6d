package refocus.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import android.content.Intent;
import android.graphics.Bitmap;
import java.io.File;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import org.robolectric.util.ReflectionHelpers;
import refocus.app.model.AnswerCache;
import refocus.app.model.Profiles;
import refocus.recognizer.Album;
import refocus.recognizer.FileHistory;
import refocus.recognizer.Hashes;
import refocus.recognizer.Json;

/**
 * What a start costs that shows 4096 indexed photos, in processor time of the main thread and the work thread together;
 * {@code tools/screens.py --start} runs it. Beside it, in turns, what Refocus 0.1 did at each start on top of the drawing:
 * it opened the index and answered every photo, twice. Loading the model, which 0.1 needed besides, counts for neither.
 * Small pictures are read from files on a thread of their own, whose time is told apart.
 */
@RunWith(AppRunner.class)
@Config(sdk = 33, shadows = Strips.class, qualifiers = "w360dp-h720dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class StartCost {
    private static final int ROUNDS = Integer.getInteger("refocus.rounds", 5);
    private final ThreadMXBean clock = ManagementFactory.getThreadMXBean();

    @Test
    public void measure() throws Exception {
        Folder.serve(new File(System.getProperty("java.io.tmpdir")));
        album();
        List<Double> now = new ArrayList<>();
        List<Double> before = new ArrayList<>();
        List<Double> pictures = new ArrayList<>();
        for (int round = 0; round < ROUNDS; round++) {
            ended();
            double from = spent();
            double painted = of(Screen.app().pictures);
            Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
            now.add(spent() - from);
            pictures.add(of(Screen.app().pictures) - painted);
            assertTrue(grid.texts().contains(grid.activity.getResources().getQuantityString(R.plurals.photos,
                    Profiles.INDEX_CAPACITY, Profiles.INDEX_CAPACITY)));
            assertTrue("a model was loaded", ReflectionHelpers.getField(Screen.app(), "recognizer") == null);
            grid.activity.finish();
            double drawn = now.get(round);
            Screen.app().work.submit(() -> Screen.app().recognizer()).get();
            from = spent();
            for (int pass = 0; pass < 2; pass++) {
                assertEquals(Profiles.INDEX_CAPACITY, (int) Screen.app().work.submit(StartCost::everyPhoto).get());
            }
            before.add(drawn + spent() - from);
        }
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("photos", (long) Profiles.INDEX_CAPACITY);
        found.put("bundle", Screen.app().recognizer().bundle.manifest.name);
        found.put("bundle_sha256", Screen.app().recognizer().bundle.sha256);
        found.put("java", System.getProperty("java.version"));
        found.put("cached_ms", new ArrayList<Object>(now));
        found.put("answering_twice_ms", new ArrayList<Object>(before));
        found.put("pictures_ms", new ArrayList<Object>(pictures));
        Files.write(new File(Given.out(), "start.json").toPath(), (Json.write(found) + "\n").getBytes("UTF-8"));
    }

    /** An index of as many photos as one holds, their answers, and small pictures. */
    private static void album() throws Exception {
        Screen.open(MainActivity.class, new Intent());
        Random random = new Random(0);
        int width = Screen.app().recognizer().featureWidth();
        Screen.app().work.submit(() -> {
            FileHistory index = Screen.app().index("me");
            for (int i = 0; i < Profiles.INDEX_CAPACITY; i++) {
                float[] feature = new float[width];
                for (int at = 0; at < width; at++) {
                    feature[at] = (float) random.nextGaussian();
                }
                index.append(Screen.app().recognizer().space(), Hashes.sha256("photo " + i),
                        Folder.document("DCIM/Camera/IMG_" + i + ".jpg").toString(), feature);
            }
            AnswerCache made = Screen.app().refresh("me");
            while (made.stamp.isEmpty()) {
                made = Screen.app().refresh("me");
            }
            Bitmap picture = Bitmap.createBitmap(RefocusApp.PICTURE_SIDE, RefocusApp.PICTURE_SIDE, Bitmap.Config.ARGB_8888);
            for (AnswerCache.Entry entry : made.entries.subList(0, 500)) { // more than one page shows
                Photos.keep(picture, Screen.app().profiles().picture("me", entry.photo));
            }
            return null;
        }).get();
        Screen.settle();
    }

    /** As if the process had ended. */
    private static void ended() throws Exception {
        Screen.app().work.submit(() -> {
            Screen.app().closeIndex();
            return null;
        }).get();
        if (ReflectionHelpers.getField(Screen.app(), "recognizer") != null) {
            Screen.app().recognizer().close();
        }
        for (String kept : Arrays.asList("recognizer", "index", "answers", "answered")) {
            ReflectionHelpers.setField(Screen.app(), kept, null);
        }
    }

    private static int everyPhoto() throws Exception {
        int[] answered = {0};
        Screen.app().closeIndex();
        FileHistory index = Screen.app().index("me");
        List<String> photos = new ArrayList<>(index.names(Screen.app().recognizer().space()).keySet());
        new Album(Screen.app().recognizer(), index).changed(photos, (photo, past) -> false, (photo, past, answer) -> {
            answered[0]++;
            return true;
        });
        Screen.app().closeIndex();
        return answered[0];
    }

    /** Milliseconds of processor time of this thread, the main one, and of the work thread. */
    private double spent() throws Exception {
        return clock.getThreadCpuTime(Thread.currentThread().getId()) / 1e6 + of(Screen.app().work);
    }

    /** Milliseconds of processor time of the one thread of an executor. */
    private double of(ExecutorService executor) throws Exception {
        return clock.getThreadCpuTime(executor.submit(() -> Thread.currentThread().getId()).get()) / 1e6;
    }
}
