package refocus.app;

import android.content.ContentResolver;
import android.net.Uri;
import java.util.List;
import refocus.recognizer.PhotoException;
import refocus.recognizer.PhotoRows;
import refocus.recognizer.PhotoSource;

/** Photos that a person gave one by one, in the order given. */
final class Picked implements PhotoSource {
    private final ContentResolver resolver;
    private final List<String> places;

    Picked(ContentResolver resolver, List<String> places) {
        this.resolver = resolver;
        this.places = places;
    }

    @Override
    public int size() {
        return places.size();
    }

    @Override
    public String root() {
        return ""; // what cannot be used now may be given again later
    }

    @Override
    public boolean isWhole() {
        return true;
    }

    @Override
    public String key(int index) {
        return places.get(index);
    }

    @Override
    public String state(int index) {
        return ""; // nothing is remembered of it, and pickers say nothing of it
    }

    @Override
    public byte[] content(int index) throws PhotoException {
        return Photos.read(resolver, Uri.parse(places.get(index)));
    }

    @Override
    public PhotoRows decode(byte[] content, String where) throws PhotoException {
        return Photos.decode(content, where);
    }
}
