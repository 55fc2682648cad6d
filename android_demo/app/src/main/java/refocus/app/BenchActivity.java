package refocus.app;

import android.app.Activity;
import android.app.ActivityManager;
import android.content.Intent;
import android.net.Uri;
import android.os.Build;
import android.os.Bundle;
import android.os.Debug;
import android.os.PowerManager;
import android.view.View;
import android.view.ViewGroup;
import android.widget.Button;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import refocus.recognizer.Bench;
import refocus.recognizer.FileHistory;
import refocus.recognizer.Hashes;
import refocus.recognizer.Json;
import refocus.recognizer.PhotoException;
import refocus.recognizer.PhotoRows;
import refocus.recognizer.Program;
import refocus.recognizer.Recognizer;
import refocus.recognizer.RefocusException;

/** Measures what users run on the photos of the profile, and saves the document that {@code refocus bench} reads. */
public final class BenchActivity extends Activity {
    private static final int SAVE = 1;
    private static final int WARM_UP = 16;
    private static final int RUNS = 128;
    private static final int PHOTOS = 8;
    private static final String[] STAGES = {"prepare", "encoder", "head", "whole"};
    private RefocusApp app;
    private ViewGroup page;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        app = RefocusApp.of(this);
        page = Pages.page(this);
        button(R.string.bench_run, new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                measure();
            }
        });
        button(R.string.bench_export, new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                if (app.benchmark() != null) {
                    startActivityForResult(new Intent(Intent.ACTION_CREATE_DOCUMENT).addCategory(Intent.CATEGORY_OPENABLE)
                            .setType("application/json").putExtra(Intent.EXTRA_TITLE, "refocus-bench.json"), SAVE);
                }
            }
        });
        draw(app.benchmark());
    }

    private void button(int title, View.OnClickListener then) {
        Button button = new Button(this);
        button.setText(title);
        button.setOnClickListener(then);
        page.addView(button);
    }

    private void measure() {
        app.work.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    int before = thermal();
                    Recognizer recognizer = app.recognizer();
                    List<PhotoRows> photos = photos(recognizer);
                    if (photos.isEmpty()) {
                        throw new RefocusException(getString(R.string.bench_need));
                    }
                    app.serveNobody();
                    Map<String, Object> measured = new Bench(recognizer, WARM_UP, RUNS)
                            .measure(photos, device(before), 2);
                    String facts = getString(R.string.bench_device, Build.MODEL, Build.VERSION.RELEASE, before,
                            thermal(), memoryMb(), Program.version(), recognizer.bundle.sha256.substring(0, 12));
                    app.keepBenchmark(measured, facts);
                    app.ui.post(new Runnable() {
                        @Override
                        public void run() {
                            draw(app.benchmark());
                        }
                    });
                } catch (RefocusException error) {
                    Pages.tell(BenchActivity.this, error);
                }
            }
        });
    }

    private void draw(Map<?, ?> benchmark) {
        if (benchmark == null) {
            return;
        }
        Pages.text(this, page, String.valueOf(benchmark.get("facts")));
        for (String stage : STAGES) {
            double[] found = Bench.figures((Map<?, ?>) benchmark.get("document"), stage);
            Pages.text(this, page, getString(R.string.bench_stage, stage, format(found[0]), format(found[1])));
        }
    }

    private List<PhotoRows> photos(Recognizer recognizer) throws RefocusException {
        FileHistory index = app.profiles().index(app.profile());
        List<PhotoRows> found = new ArrayList<PhotoRows>();
        try {
            for (String name : index.names(recognizer.space()).values()) {
                if (found.size() >= PHOTOS) {
                    break;
                }
                try {
                    found.add(Photos.decode(Photos.read(getContentResolver(), Uri.parse(name)), name));
                } catch (PhotoException gone) {
                    continue; // others may still be there
                }
            }
        } finally {
            index.close();
        }
        return found;
    }

    private Bench.Device device(int thermal) {
        ActivityManager.MemoryInfo memory = new ActivityManager.MemoryInfo();
        getSystemService(ActivityManager.class).getMemoryInfo(memory);
        Bench.Device device = new Bench.Device();
        device.kind = "android";
        device.id = Hashes.sha256(Build.MANUFACTURER + Build.MODEL + Build.HARDWARE);
        device.system = "Android " + Build.VERSION.RELEASE + " (API " + Build.VERSION.SDK_INT + ")";
        device.cpu = Build.HARDWARE;
        device.cores = Runtime.getRuntime().availableProcessors();
        device.memoryBytes = memory.totalMem;
        device.extra.put("model", Build.MANUFACTURER + " " + Build.MODEL);
        device.extra.put("thermal_status_before", "" + thermal);
        device.extra.put("self_test", "" + app.verdict());
        return device;
    }

    private int thermal() {
        return Build.VERSION.SDK_INT >= 29 ? getSystemService(PowerManager.class).getCurrentThermalStatus() : 0;
    }

    private static int memoryMb() {
        Debug.MemoryInfo memory = new Debug.MemoryInfo();
        Debug.getMemoryInfo(memory);
        return memory.getTotalPss() / 1024;
    }

    private static String format(double ms) {
        return String.format(Locale.getDefault(), "%.2f", ms);
    }

    @Override
    protected void onActivityResult(int request, int result, final Intent data) {
        super.onActivityResult(request, result, data);
        Map<?, ?> benchmark = app.benchmark();
        if (request != SAVE || result != RESULT_OK || data == null || benchmark == null) {
            return;
        }
        final byte[] content = (Json.write(benchmark.get("document")) + "\n").getBytes(java.nio.charset.StandardCharsets.UTF_8);
        app.work.execute(new Runnable() {
            @Override
            public void run() {
                try {
                    OutputStream out = getContentResolver().openOutputStream(data.getData());
                    try {
                        out.write(content);
                    } finally {
                        out.close(); // a full disk may be told as late as here
                    }
                } catch (java.io.IOException | RuntimeException error) {
                    Pages.tell(BenchActivity.this, error);
                }
            }
        });
    }
}
