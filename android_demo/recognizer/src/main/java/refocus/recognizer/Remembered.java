package refocus.recognizer;

import java.util.ArrayList;
import java.util.List;

/** Photos of the past, oldest first. */
public final class Remembered {
    private final List<String> photos = new ArrayList<String>();
    private final List<String> names = new ArrayList<String>();
    private final List<float[]> features = new ArrayList<float[]>();

    /** Adds the next photo; its feature is not copied. */
    void add(String photo, String name, float[] feature) {
        photos.add(photo);
        names.add(name);
        features.add(feature);
    }

    public int size() {
        return photos.size();
    }

    /** Identity of a photo (SHA-256 of its bytes). */
    public String photo(int index) {
        return photos.get(index);
    }

    /** What a photo was called when it was stored; "" where nobody said. */
    public String name(int index) {
        return names.get(index);
    }

    /** (D) of a photo; not to be changed. */
    public float[] feature(int index) {
        return features.get(index);
    }

    public List<String> photos() {
        return new ArrayList<String>(photos);
    }

    public List<String> names() {
        return new ArrayList<String>(names);
    }
}
