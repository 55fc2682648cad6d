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
import refocus.recognizer.Durable;
import refocus.recognizer.HistoryException;

/**
 * Places of photos that a person gave and that still wait, in a file of one line each: they outlive the process. Behind the
 * place stands how often it could not be read, if it could not; after {@link #TRIES} times it waits no more. Control
 * characters of a place, which other apps may give, are written as terminals show them: ^I, with escape in the place of ^.
 */
public final class ChosenPhotos {
    public static final int TRIES = 7; // nights
    private static final char BETWEEN = '\t';
    private static final char ESCAPE = '\u001b';
    private static final char FIRST = '@'; // what stands behind the escape for character 0
    private static final Object LOCK = new Object();
    private final File file;

    public ChosenPhotos(File file) {
        this.file = file;
    }

    /**
     * In the order given.
     *
     * @throws HistoryException the file cannot be read; it stays as it is
     */
    public List<String> all() throws HistoryException {
        return new ArrayList<String>(tries().keySet());
    }

    private Map<String, Integer> tries() throws HistoryException {
        synchronized (LOCK) {
            Map<String, Integer> found = new LinkedHashMap<String, Integer>();
            if (!file.exists()) {
                return found;
            }
            try (BufferedReader in = new BufferedReader(new InputStreamReader(new FileInputStream(file), "UTF-8"))) {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    if (line.indexOf('\0') < 0) { // else zeros that a power cut left
                        take(line, found);
                    }
                }
            } catch (IOException error) {
                throw new HistoryException(file + " cannot be read (" + error.getMessage() + "); it stays as it is, check the"
                        + " folder and try again", error);
            }
            return found;
        }
    }

    private static void take(String line, Map<String, Integer> to) {
        int at = line.lastIndexOf(BETWEEN);
        int count = at < 0 ? 0 : count(line.substring(at + 1));
        to.put(unescaped(count == 0 ? line : line.substring(0, at)), count);
    }

    /** What stands behind the last tab; 0 where it is part of a place, which an earlier app wrote with its tabs. */
    private static int count(String written) {
        try {
            int found = Integer.parseInt(written);
            return found > 0 && found < TRIES ? found : 0;
        } catch (NumberFormatException partOfAPlace) {
            return 0;
        }
    }

    private static String escaped(String place) {
        StringBuilder found = new StringBuilder();
        for (char each : place.toCharArray()) {
            found.append(each < ' ' ? "" + ESCAPE + (char) (each + FIRST) : "" + each);
        }
        return found.toString();
    }

    private static String unescaped(String written) {
        StringBuilder found = new StringBuilder();
        for (int i = 0; i < written.length(); i++) {
            int next = written.charAt(i) == ESCAPE && i + 1 < written.length() ? written.charAt(i + 1) - FIRST : -1;
            boolean escaped = next >= 0 && next < ' ';
            found.append(escaped ? (char) next : written.charAt(i));
            i += escaped ? 1 : 0;
        }
        return found.toString();
    }

    /** Photos that are given once more are tried as often as new ones. */
    public void add(Collection<String> places) throws HistoryException {
        synchronized (LOCK) {
            Map<String, Integer> changed = tries();
            for (String place : places) {
                changed.put(place, 0);
            }
            write(changed);
        }
    }

    public void remove(Collection<String> places) throws HistoryException {
        synchronized (LOCK) {
            Map<String, Integer> changed = tries();
            changed.keySet().removeAll(places);
            write(changed);
        }
    }

    /** Photos that cannot be read now, as those of a card that is out: they go on waiting, but not for ever. */
    public void missed(Collection<String> places) throws HistoryException {
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

    private void write(Map<String, Integer> places) throws HistoryException {
        StringBuilder lines = new StringBuilder();
        for (Map.Entry<String, Integer> place : places.entrySet()) {
            lines.append(escaped(place.getKey()));
            if (place.getValue() > 0) {
                lines.append(BETWEEN).append(place.getValue());
            }
            lines.append('\n');
        }
        File made = new File(file.getPath() + ".new");
        try {
            try (FileOutputStream out = new FileOutputStream(made)) {
                out.write(lines.toString().getBytes("UTF-8"));
                out.getFD().sync();
            }
            if (!made.renameTo(file)) {
                throw new IOException(made + " cannot take its place");
            }
        } catch (IOException error) {
            throw new HistoryException(file + " cannot be written (" + error.getMessage() + "); what waited before is intact,"
                    + " free some space or check the folder", error);
        }
        Durable.folder(file.getAbsoluteFile().getParentFile());
    }
}
