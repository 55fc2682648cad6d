package refocus.app.model;

import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Places of photos that a person gave and that still wait, in a file of one line each: they outlive the process. Behind the
 * place stands how often it could not be read, if it could not; after {@link #TRIES} times it waits no more.
 */
public final class ChosenPhotos {
    public static final int TRIES = 7; // nights
    private static final String BETWEEN = "\t"; // which no place has
    private static final Object LOCK = new Object();
    private final File file;

    public ChosenPhotos(File file) {
        this.file = file;
    }

    /** In the order given; none where the file cannot be read. */
    public List<String> all() {
        return new ArrayList<String>(tries().keySet());
    }

    private Map<String, Integer> tries() {
        synchronized (LOCK) {
            Map<String, Integer> found = new LinkedHashMap<String, Integer>();
            if (!file.isFile()) {
                return found;
            }
            try (BufferedReader in = new BufferedReader(new InputStreamReader(new FileInputStream(file), "UTF-8"))) {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    String[] parts = line.split(BETWEEN);
                    found.put(parts[0], parts.length > 1 ? Integer.parseInt(parts[1]) : 0);
                }
            } catch (IOException | NumberFormatException unreadable) {
                return found;
            }
            return found;
        }
    }

    /** Photos that are given once more are tried as often as new ones. */
    public void add(Collection<String> places) throws IOException {
        synchronized (LOCK) {
            Map<String, Integer> changed = tries();
            for (String place : places) {
                changed.put(place, 0);
            }
            write(changed);
        }
    }

    public void remove(Collection<String> places) throws IOException {
        synchronized (LOCK) {
            Map<String, Integer> changed = tries();
            changed.keySet().removeAll(places);
            write(changed);
        }
    }

    /** Photos that cannot be read now, as those of a card that is out: they go on waiting, but not for ever. */
    public void missed(Collection<String> places) throws IOException {
        synchronized (LOCK) {
            Map<String, Integer> changed = tries();
            for (String place : places) {
                Integer before = changed.get(place);
                if (before != null && before + 1 < TRIES) {
                    changed.put(place, before + 1);
                } else {
                    changed.remove(place);
                }
            }
            write(changed);
        }
    }

    private void write(Map<String, Integer> places) throws IOException {
        StringBuilder lines = new StringBuilder();
        for (Map.Entry<String, Integer> place : places.entrySet()) {
            lines.append(place.getKey());
            if (place.getValue() > 0) {
                lines.append(BETWEEN).append(place.getValue());
            }
            lines.append('\n');
        }
        File made = new File(file.getPath() + ".new");
        try (FileOutputStream out = new FileOutputStream(made)) {
            out.write(lines.toString().getBytes("UTF-8"));
        }
        if (!made.renameTo(file)) {
            throw new IOException(made + " cannot take the place of " + file.getName());
        }
    }
}
