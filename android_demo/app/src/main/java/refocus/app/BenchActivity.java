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
import android.widget.LinearLayout;
import java.io.OutputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import refocus.recognizer.Bench;
import refocus.recognizer.FileHistory;
import refocus.recognizer.Hashes;
import refocus.recognizer.Json;
import refocus.recognizer.OrtProgram;
import refocus.recognizer.PhotoException;
import refocus.recognizer.PhotoRows;
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
    private Button run;
    private ViewGroup results;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        app = RefocusApp.of(this);
        ViewGroup page = Pages.page(this);
        Pages.text(this, page, getString(R.string.bench_advice));
        run = Pages.button(this, page, R.string.bench_run, new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                measure();
            }
        });
        Pages.button(this, page, R.string.bench_export, new View.OnClickListener() {
            @Override
            public void onClick(View view) {
                if (app.benchmark() != null) {
                    Pages.ask(BenchActivity.this, new Intent(Intent.ACTION_CREATE_DOCUMENT)
                            .addCategory(Intent.CATEGORY_OPENABLE).setType("application/json")
                            .putExtra(Intent.EXTRA_TITLE, "refocus-bench.json"), SAVE);
                }
            }
        });
        results = new LinearLayout(this);
        ((LinearLayout) results).setOrientation(LinearLayout.VERTICAL);
        page.addView(results);
        draw(app.benchmark());
    }

    private void measure() {
        run.setEnabled(false);
        results.removeAllViews();
        Pages.text(this, results, getString(R.string.bench_running));
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws RefocusException, java.io.IOException {
                try {
                    measured();
                } finally {
                    app.ui.post(new Runnable() {
                        @Override
                        public void run() {
                            run.setEnabled(true);
                            draw(app.benchmark());
                        }
                    });
                }
            }
        });
    }

    private void measured() throws RefocusException {
        int before = thermal();
        Recognizer recognizer = app.recognizer();
        List<PhotoRows> photos = photos(recognizer);
        if (photos.isEmpty()) {
            say(getString(R.string.bench_need));
            return;
        }
        Map<String, Object> measured = new Bench(recognizer, WARM_UP, RUNS).measure(photos, device(before), 2);
        String facts = getString(R.string.bench_device, Build.MODEL, Build.VERSION.RELEASE, before, thermal(), memoryMb(),
                OrtProgram.version(), recognizer.bundle.sha256.substring(0, 12));
        app.keepBenchmark(measured, facts);
    }

    private void say(final String words) {
        app.ui.post(new Runnable() {
            @Override
            public void run() {
                if (!Pages.gone(BenchActivity.this)) {
                    new android.app.AlertDialog.Builder(BenchActivity.this).setMessage(words)
                            .setPositiveButton(R.string.ok, null).show();
                }
            }
        });
    }

    private void draw(Map<?, ?> benchmark) {
        results.removeAllViews();
        if (benchmark == null) {
            return;
        }
        Pages.text(this, results, String.valueOf(benchmark.get("facts")));
        for (String stage : STAGES) {
            double[] found = Bench.figures((Map<?, ?>) benchmark.get("document"), stage);
            Pages.text(this, results, getString(R.string.bench_stage, stage, format(found[0]), format(found[1])));
        }
    }

    private List<PhotoRows> photos(Recognizer recognizer) throws RefocusException {
        FileHistory index = app.index(app.profile());
        List<PhotoRows> found = new ArrayList<PhotoRows>();
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
        app.work(this, new RefocusApp.Task() {
            @Override
            public void run() throws java.io.IOException {
                OutputStream out = getContentResolver().openOutputStream(data.getData());
                if (out == null) {
                    throw new java.io.FileNotFoundException("" + data.getData());
                }
                try {
                    out.write(content);
                } finally {
                    out.close(); // a full disk may be told as late as here
                }
            }
        });
    }
}
