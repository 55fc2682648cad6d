package refocus.app;

import android.content.Intent;
import android.net.Uri;
import android.os.Looper;
import android.widget.TextView;
import java.io.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.junit.*;
import org.junit.runner.RunWith;
import org.robolectric.*;
import org.robolectric.annotation.*;
import refocus.recognizer.*;
import static org.junit.Assert.*;

@RunWith(AppRunner.class)
@Config(sdk = {26, 33, 35})
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class SpikeTest {
    @Test
    public void grid() throws Exception {
        long start = System.currentTimeMillis();
        RefocusApp app = (RefocusApp) RuntimeEnvironment.getApplication();
        File home = new File(System.getProperty("refocus.golden"));
        Folder.serve(new File(home, "golden/photos"));
        ArrayList<Uri> uris = new ArrayList<>();
        String[] names = new File(home, "golden/photos").list();
        Arrays.sort(names);
        for (String name : names) uris.add(Folder.document(name));
        Intent intent = new Intent(Intent.ACTION_SEND_MULTIPLE).putParcelableArrayListExtra(Intent.EXTRA_STREAM, uris);
        MainActivity main = Robolectric.buildActivity(MainActivity.class, intent).setup().get();
        for (int i = 0; i < 100; i++) {
            app.work.submit(() -> {}).get(60, TimeUnit.SECONDS);
            boolean idle = Shadows.shadowOf(Looper.getMainLooper()).isIdle();
            Shadows.shadowOf(Looper.getMainLooper()).idle();
            if (idle) break;
        }
        System.out.println("SPIKE " + android.os.Build.VERSION.SDK_INT + " " + names.length + " " + ((TextView) main.findViewById(R.id.status)).getText() + " ms " + (System.currentTimeMillis() - start));
        android.view.View root = main.getWindow().getDecorView();
        android.graphics.Bitmap bitmap = android.graphics.Bitmap.createBitmap(root.getWidth(), root.getHeight(), android.graphics.Bitmap.Config.ARGB_8888);
        root.draw(new android.graphics.Canvas(bitmap));
        try (FileOutputStream to = new FileOutputStream("/tmp/robo/grid" + android.os.Build.VERSION.SDK_INT + ".png")) {
            bitmap.compress(android.graphics.Bitmap.CompressFormat.PNG, 100, to);
        }
        android.app.AlertDialog d = org.robolectric.shadows.ShadowAlertDialog.getLatestAlertDialog();
        if (d != null) System.out.println("DIALOG " + Shadows.shadowOf(d).getMessage());
    }
}
