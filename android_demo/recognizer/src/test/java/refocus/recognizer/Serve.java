package refocus.recognizer;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.List;

/**
 * Answers photos when it is told to, for {@code tools/compare_cost.py}, which takes turns with the Python runtime.
 *
 * <p>Arguments: a folder with {@code bundle/} and {@code golden/}, the head, its target. Each line of the input is the number of a
 * golden photo; each line of the output is what preparing and answering it took, in nanoseconds, and the label. A line
 * "bench N" writes a document of N samples instead.
 */
public final class Serve {
    private Serve() {}

    public static void main(String[] arguments) throws Exception {
        System.setProperty("refocus.golden", arguments[0]);
        Golden golden = Golden.all().get(0);
        Recognizer recognizer = new Recognizer(golden.bundle, arguments[1], golden.target, arguments[2], 1);
        File scratch = File.createTempFile("refocus", ".history");
        scratch.delete();
        recognizer.switchTo(new FileHistory(scratch), null);
        PhotoRows[] photos = new PhotoRows[golden.photos.size()];
        for (int i = 0; i < photos.length; i++) {
            photos[i] = golden.decoded(i);
        }
        System.out.println("ready " + photos.length);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        int shown = 0;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            if (line.startsWith("bench ")) {
                List<PhotoRows> all = Arrays.asList(photos);
                Bench.Device device = new Bench.Device();
                device.id = "jvm";
                System.out.println(Json.write(new Bench(recognizer, 4, Integer.parseInt(line.substring(6)))
                        .measure(all, device, 1)));
                continue;
            }
            PhotoRows photo = photos[Integer.parseInt(line)];
            long start = System.nanoTime();
            Answer answer = recognizer.recognize(photo, Hashes.sha256("shown " + shown++), "", true);
            System.out.println((System.nanoTime() - start) + " " + answer.labels.get(0));
        }
        recognizer.close();
        scratch.delete();
        new File(scratch.getPath() + ".lock").delete();
    }
}
