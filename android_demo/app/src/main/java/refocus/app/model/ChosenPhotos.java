package refocus.app.model;

import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/** Places of photos that a person gave and that still wait, in a file of one line each: they outlive the process. */
public final class ChosenPhotos {
    private static final Object LOCK = new Object();
    private final File file;

    public ChosenPhotos(File file) {
        this.file = file;
    }

    /** In the order given; none where the file cannot be read. */
    public List<String> all() {
        synchronized (LOCK) {
            List<String> found = new ArrayList<String>();
            if (!file.isFile()) {
                return found;
            }
            try (BufferedReader in = new BufferedReader(new InputStreamReader(new FileInputStream(file), "UTF-8"))) {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    found.add(line);
                }
            } catch (IOException unreadable) {
                return found;
            }
            return found;
        }
    }

    public void add(Collection<String> places) throws IOException {
        synchronized (LOCK) {
            Set<String> changed = new LinkedHashSet<String>(all());
            changed.addAll(places);
            write(changed);
        }
    }

    public void remove(Collection<String> places) throws IOException {
        synchronized (LOCK) {
            Set<String> changed = new LinkedHashSet<String>(all());
            changed.removeAll(places);
            write(changed);
        }
    }

    private void write(Set<String> places) throws IOException {
        StringBuilder lines = new StringBuilder();
        for (String place : places) {
            lines.append(place).append('\n');
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
