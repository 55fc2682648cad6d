package refocus.recognizer;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The whole {@code manifest.json}: every fact that a device needs, checked while it is read.
 *
 * <p>A field that this app does not know is refused: a device that does not know what a field means cannot know whether
 * it may leave it out. Fields that only people read (parity, placement, accuracy, how it was made) are not looked into.
 * The format is docs/formats/bundle.md, which also says what this reader does with each field.
 */
public final class Manifest {
    /** The newest number that is read (Refocus 0.2), and the oldest (Refocus 0.1). */
    public static final int SCHEMA_VERSION = 6;
    public static final int OLDEST_SCHEMA = 5;
    static final int MAX_BYTES = 16 << 20;
    private static final int MAX_ARTIFACTS = 256;
    private static final int MAX_SELF_TEST_PHOTOS = 256;
    private static final long MAX_BUNDLE_BYTES = 64L << 30;
    private static final String EAGER = "eager";
    public final String name;
    public final Preprocessing preprocessing;
    public final List<Artifact> artifacts;
    public final List<HeadCard> heads;
    /** Photos that travel in the bundle. */
    public final List<ListedFile> selfTestPhotos;
    /** Classes that a condensed bundle knows; null where it was not condensed, and knows all. */
    public final List<String> taskClasses;

    private Manifest(Fields fields) {
        fields.ignore("schema_version");
        name = fields.string("name");
        preprocessing = new Preprocessing(fields.object("preprocessing"));
        List<Artifact> programs = new ArrayList<Artifact>();
        for (Fields each : fields.objects("artifacts")) {
            programs.add(new Artifact(each));
        }
        artifacts = Collections.unmodifiableList(programs);
        List<HeadCard> cards = new ArrayList<HeadCard>();
        for (Fields each : fields.objects("heads")) {
            cards.add(new HeadCard(each));
        }
        heads = Collections.unmodifiableList(cards);
        List<ListedFile> photos = new ArrayList<ListedFile>();
        for (Fields each : fields.objectsIfAny("self_test_photos")) {
            photos.add(new ListedFile(each, ListedFile.MAX_SMALL_BYTES));
            each.end();
        }
        selfTestPhotos = Collections.unmodifiableList(photos);
        taskClasses = fields.has("task") ? fields.object("task").strings("classes") : null;
        if (fields.has("bank")) {
            throw new Fields.Unread(Reason.MODEL_UNFIT, "it is a bank, which a phone cannot condense; import the bundle that"
                    + " refocus condense makes of it");
        }
        fields.ignore("bank", "task");
        fields.end();
        check();
    }

    private void check() {
        if (artifacts.size() > MAX_ARTIFACTS || selfTestPhotos.size() > MAX_SELF_TEST_PHOTOS) {
            throw new IllegalArgumentException("more than " + MAX_ARTIFACTS + " artifacts or " + MAX_SELF_TEST_PHOTOS
                    + " photos");
        }
        checkSize();
        Set<String> named = new HashSet<String>();
        for (HeadCard head : heads) {
            named.add(head.name);
            checkSelfTest(head);
        }
        Set<String> used = new HashSet<String>();
        Set<String> keys = new HashSet<String>();
        for (Artifact artifact : artifacts) {
            if (!artifact.head.isEmpty()) {
                used.add(artifact.head);
            }
            if (!keys.add(artifact.role + " " + artifact.head + " " + artifact.target)) {
                throw new IllegalArgumentException("artifacts hold two programs of one role, head and target");
            }
        }
        if (heads.isEmpty() || named.size() < heads.size() || !named.equals(used)) {
            throw new IllegalArgumentException("heads are " + named + ", artifacts hold those of " + used);
        }
    }

    private void checkSize() {
        long bytes = 0;
        for (Artifact artifact : artifacts) {
            bytes += artifact.file.sizeBytes + (artifact.defaults == null ? 0 : artifact.defaults.sizeBytes);
        }
        for (HeadCard head : heads) {
            for (ListedFile file : head.files) {
                bytes += file.sizeBytes;
            }
        }
        for (ListedFile photo : selfTestPhotos) {
            bytes += photo.sizeBytes;
        }
        if (bytes > MAX_BUNDLE_BYTES) {
            throw new IllegalArgumentException("the files have more than " + MAX_BUNDLE_BYTES + " bytes together");
        }
    }

    /** One answer to each of the bundle's photos, of every target that is listed. */
    private void checkSelfTest(HeadCard head) {
        if (head.selfTest == null) {
            return;
        }
        Fields test = Fields.of(head.selfTest, "self_test of " + head.name);
        Map<?, ?> answers = test.object("answers").members();
        Fields tolerance = test.object("tolerance");
        test.end();
        for (Object precision : tolerance.members().keySet()) {
            tolerance.number((String) precision);
        }
        if (!answers.containsKey(EAGER)) {
            throw new IllegalArgumentException("self_test of " + head.name + " lacks the answers of " + EAGER
                    + ", every target's fallback");
        }
        for (Object target : answers.keySet()) {
            int count = 0;
            for (Fields answer : test.object("answers").objects((String) target)) {
                answer.string("label");
                answer.number("logit");
                if (!(answer.number("margin") >= 0)) {
                    throw new IllegalArgumentException("self_test of " + head.name + " has a margin below 0");
                }
                answer.end();
                count++;
            }
            if (count != selfTestPhotos.size()) {
                throw new IllegalArgumentException("self_test of " + head.name + " has " + count + " answers of " + target
                        + ", there are " + selfTestPhotos.size() + " photos");
            }
        }
    }

    /** The head of that name; the first where none is named. */
    public HeadCard head(String wanted) throws BundleException {
        for (HeadCard head : heads) {
            if (wanted.isEmpty() || wanted.equals(head.name)) {
                return head;
            }
        }
        throw new BundleException("there is no head '" + wanted + "'; the bundle's first is " + heads.get(0).name);
    }

    /**
     * Reads and validates a manifest.
     *
     * @param where named in errors
     * @throws BundleException not a manifest, another schema, or a field that is missing, unknown or out of range
     */
    static Manifest decode(byte[] content, String where) throws BundleException {
        Fields fields;
        long version;
        try {
            fields = Fields.of(Json.parse(content), "manifest");
            version = fields.whole("schema_version", 1);
        } catch (IllegalArgumentException error) {
            throw new BundleException(where + " is not a Refocus manifest (" + error.getMessage() + "); export the bundle"
                    + " again", error);
        }
        if (version < OLDEST_SCHEMA || version > SCHEMA_VERSION) {
            throw new BundleException(version > SCHEMA_VERSION ? Reason.MODEL_NEWER : Reason.MODEL_UNFIT, where + " has schema version " + version + ", this app reads " + OLDEST_SCHEMA
                    + " to " + SCHEMA_VERSION + (version > SCHEMA_VERSION ? "; update the app" : "; export the bundle again"));
        }
        try {
            Manifest made = new Manifest(fields);
            if (made.preprocessing.frames > 0) {
                throw new BundleException(Reason.MODEL_UNFIT, where + " recognises clips of " + made.preprocessing.frames
                        + " frames, and this app recognises photos; import a bundle for photos");
            }
            return made;
        } catch (Fields.Unread error) {
            throw new BundleException(error.reason, where + " cannot be used here: " + error.getMessage(), error);
        } catch (IllegalArgumentException | ArithmeticException error) {
            throw new BundleException(where + " is not valid: " + error.getMessage() + "; export the bundle again", error);
        }
    }
}
