package refocus.recognizer;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** A whole folder, photo by photo: stopped, killed, and with photos that cannot be used. */
public class IndexingTest {
    private static final Indexer.Stop NEVER = new Indexer.Stop() {
        @Override
        public boolean now() {
            return false;
        }
    };
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();

    /** The golden photos as a folder; one is a HEIC that this device cannot decode. */
    private static class Folder implements PhotoSource {
        final Golden golden;
        final Map<Integer, String> changed = new HashMap<Integer, String>(); // states of photos that were changed
        int read;

        Folder(Golden golden) {
            this.golden = golden;
        }

        @Override
        public int size() {
            return 12;
        }

        @Override
        public String root() {
            return "photo ";
        }

        @Override
        public boolean isWhole() {
            return true;
        }

        @Override
        public String key(int index) {
            return "photo " + index;
        }

        @Override
        public String state(int index) {
            return changed.containsKey(index) ? changed.get(index) : "1 9";
        }

        @Override
        public byte[] content(int index) throws PhotoException {
            read++;
            try {
                return index == 3 ? "....ftypheic".getBytes("UTF-8")
                        : Golden.bytes(new File(golden.folder, golden.photos.get(index).string("file")));
            } catch (java.io.IOException error) {
                throw new PhotoException("gone", error);
            }
        }

        @Override
        public PhotoRows decode(byte[] content, String where) throws PhotoException {
            try {
                return Golden.image(content, Exif.orientation(content));
            } catch (Exception error) {
                throw new PhotoException(where + " is in a format that this device cannot decode; convert it to JPEG", error);
            }
        }
    }

    @Test
    public void indexingThatWasStoppedGoesOnWhereItWas() throws Exception {
        Golden golden = Golden.all().get(0);
        File file = new File(scratch.getRoot(), "index");
        Folder folder = new Folder(golden);
        int runs = 0;
        Indexer.Report report;
        do {
            final int until = folder.read + 5;
            final Folder watched = folder;
            Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
            FileHistory index = new FileHistory(file, 4096, 1 << 28);
            report = new Indexer(recognizer, index).run(folder, new Indexer.Stop() {
                @Override
                public boolean now() {
                    return watched.read >= until;
                }
            });
            index.close(); // no more than what was written counts: nothing is kept in memory between runs
            recognizer.close();
            runs++;
        } while (!report.finished);
        assertEquals(3, runs);
        assertEquals("each photo is read once, over all runs", 12, folder.read);
        assertEquals(11, report.indexed);
        assertEquals(1, report.failed.size());
        assertTrue(report.failed.get("photo 3").contains("cannot decode"));
        answers(golden, file);
    }

    @Test
    public void whatCouldNotBeReadIsTriedAgainAndWhatCouldNotBeDecodedIsNot() throws Exception {
        Golden golden = Golden.all().get(0);
        final boolean[] offline = {true};
        Folder folder = new Folder(golden) {
            @Override
            public byte[] content(int index) throws PhotoException {
                if (index == 5 && offline[0]) {
                    throw new PhotoException("photo 5 cannot be read (offline)");
                }
                return super.content(index);
            }
        };
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(new File(scratch.getRoot(), "index"), 4096, 1 << 28);
        Indexer.Report report = new Indexer(recognizer, index).run(folder, NEVER);
        assertEquals(10, report.indexed);
        assertEquals(new java.util.HashSet<String>(java.util.Arrays.asList("photo 3", "photo 5")), report.failed.keySet());
        offline[0] = false;
        int before = folder.read;
        report = new Indexer(recognizer, index).run(folder, NEVER);
        assertEquals("photo 5 alone is read", before + 1, folder.read);
        assertEquals(11, report.indexed);
        assertEquals(java.util.Collections.singleton("photo 3"), report.failed.keySet());
        index.close();
        recognizer.close();
    }

    @Test
    public void failuresOfPhotosThatAreGoneAndOfOtherModelsAreForgotten() throws Exception {
        Golden golden = Golden.all().get(0);
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(new File(scratch.getRoot(), "index"), 4096, 1 << 28);
        index.setSetting("failed " + recognizer.space() + "photo 99", "PHOTO_FORMAT: gone since");
        index.setSetting("place " + recognizer.space() + "photo 99", "1 9 feedbeef");
        index.setSetting("place 0000" + recognizer.space().substring(4) + "photo 3", "1 9 feedbeef");
        index.setSetting("failed " + recognizer.space() + "another folder", "PHOTO_FORMAT: there");
        index.setSetting("failed 0000" + recognizer.space().substring(4) + "photo 3", "by another model");
        Indexer.Report report = new Indexer(recognizer, index).run(new Folder(golden), NEVER);
        assertEquals(Reason.PHOTO_DAMAGED, report.reasons.get("photo 3"));
        java.util.Set<String> left = new java.util.HashSet<String>(Arrays.asList("failed " + recognizer.space() + "photo 3",
                "failed " + recognizer.space() + "another folder"));
        for (int i = 0; i < 12; i++) {
            if (i != 3) {
                left.add("place " + recognizer.space() + "photo " + i);
            }
        }
        assertEquals(left, index.settings().keySet());
        index.close();
        recognizer.close();
    }

    @Test
    public void aPhotoThatWasChangedInItsPlaceIsReadAgainAndWhatItWasGoes() throws Exception {
        Golden golden = Golden.all().get(0);
        final int[] edited = {5};
        Folder folder = new Folder(golden) {
            @Override
            public byte[] content(int index) throws PhotoException {
                return super.content(index == 5 ? edited[0] : index);
            }
        };
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(new File(scratch.getRoot(), "index"), 4096, 1 << 28);
        new Indexer(recognizer, index).run(folder, NEVER);
        edited[0] = 12;
        folder.changed.put(5, "2 9");
        int before = folder.read;
        Indexer.Report report = new Indexer(recognizer, index).run(folder, NEVER);
        assertEquals(1, folder.read - before);
        assertEquals(1, report.encoded);
        assertEquals("photo 5", index.name(recognizer.space(), golden.photo(12)));
        assertNull("what it was", index.name(recognizer.space(), golden.photo(5)));
        assertEquals(11, index.size(recognizer.space()));
        folder.changed.put(6, "2 9"); // touched, and the same
        report = new Indexer(recognizer, index).run(folder, NEVER);
        assertEquals(before + 2, folder.read);
        assertEquals(0, report.encoded);
        new Indexer(recognizer, index).run(folder, NEVER);
        assertEquals(before + 2, folder.read);
        index.close();
        recognizer.close();
    }

    @Test
    public void aPhotoThatWasHalfCopiedIsReadAgainWhenItIsWhole() throws Exception {
        Golden golden = Golden.all().get(0);
        final boolean[] half = {true};
        Folder folder = new Folder(golden) {
            @Override
            public PhotoRows decode(byte[] content, String where) throws PhotoException {
                if (where.equals("photo 5") && half[0]) {
                    throw new PhotoException("photo 5 is damaged or truncated");
                }
                return super.decode(content, where);
            }
        };
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(new File(scratch.getRoot(), "index"), 4096, 1 << 28);
        new Indexer(recognizer, index).run(folder, NEVER);
        half[0] = false;
        assertEquals(10, new Indexer(recognizer, index).run(folder, NEVER).indexed);
        folder.changed.put(5, "2 18");
        assertEquals(11, new Indexer(recognizer, index).run(folder, NEVER).indexed);
        assertFalse(index.settings().containsKey("failed " + recognizer.space() + "photo 5"));
        index.close();
        recognizer.close();
    }

    @Test
    public void aPhotoForWhichThereWasTooLittleMemoryIsTriedAgain() throws Exception {
        Golden golden = Golden.all().get(0);
        final boolean[] little = {true};
        Folder folder = new Folder(golden) {
            @Override
            public PhotoRows decode(byte[] content, String where) throws PhotoException {
                if (where.equals("photo 5") && little[0]) {
                    throw new OutOfMemoryError("in a test");
                }
                return super.decode(content, where);
            }
        };
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(new File(scratch.getRoot(), "index"), 4096, 1 << 28);
        Indexer.Report report = new Indexer(recognizer, index).run(folder, NEVER);
        assertEquals(Reason.PHOTO_MEMORY, report.reasons.get("photo 5"));
        index.setSetting("failed " + recognizer.space() + "photo 5", "PHOTO_MEMORY: as Refocus 0.2 kept it\n1 9");
        little[0] = false;
        assertEquals(11, new Indexer(recognizer, index).run(folder, NEVER).indexed);
        index.close();
        recognizer.close();
    }

    @Test
    public void copiesOfAPhotoAreReadOnceAndTheIndexDoesNotGrow() throws Exception {
        Golden golden = Golden.all().get(0);
        Folder folder = new Folder(golden) {
            @Override
            public byte[] content(int index) throws PhotoException {
                return super.content(index == 7 || index == 8 ? 2 : index);
            }
        };
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        File file = new File(scratch.getRoot(), "index");
        FileHistory index = new FileHistory(file, 4096, 1 << 28);
        Indexer.Report report = new Indexer(recognizer, index).run(folder, NEVER);
        assertEquals(11, report.indexed);
        assertEquals(9, report.encoded);
        assertEquals("photo 2", index.name(recognizer.space(), golden.photo(2)));
        int read = folder.read;
        long bytes = file.length();
        assertEquals(11, new Indexer(recognizer, index).run(folder, NEVER).indexed);
        assertEquals("no copy is read every night", read, folder.read);
        assertEquals(bytes, file.length());
        Folder shared = new Folder(golden) {
            @Override
            public String root() {
                return "";
            }

            @Override
            public String key(int index) {
                return "shared " + index;
            }
        };
        new Indexer(recognizer, index).run(shared, NEVER);
        assertEquals("a copy that is shared", "photo 2", index.name(recognizer.space(), golden.photo(2)));
        index.close();
        recognizer.close();
    }

    @Test
    public void aFolderThatCannotBeListedNowForgetsNothing() throws Exception {
        Golden golden = Golden.all().get(0);
        final boolean[] out = {false};
        Folder folder = new Folder(golden) {
            @Override
            public int size() {
                return out[0] ? 0 : super.size();
            }

            @Override
            public boolean isWhole() {
                return !out[0];
            }
        };
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(new File(scratch.getRoot(), "index"), 4096, 1 << 28);
        new Indexer(recognizer, index).run(folder, NEVER);
        Map<String, String> noted = index.settings();
        out[0] = true;
        new Indexer(recognizer, index).run(folder, NEVER);
        assertEquals(noted, index.settings());
        index.close();
        recognizer.close();
    }

    private static void answers(Golden golden, File file) throws Exception {
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(file, 4096, 1 << 28);
        List<String> photos = new ArrayList<String>(index.names(recognizer.space()).keySet());
        photos.add(photos.get(0)); // a copy
        photos.add("never indexed");
        Map<String, Answer> found = new Album(recognizer, index).answers(photos);
        assertEquals(11, found.size());
        for (Map.Entry<String, Answer> entry : found.entrySet()) {
            Answer answer = entry.getValue();
            assertFalse("a photo never attends to itself", answer.history.photos().contains(entry.getKey()));
            assertEquals(answer.history.size() + 1, answer.attention.length);
            Answer alone = new Album(recognizer, index).answer(photos, entry.getKey());
            assertArrayEquals("alone as among all", answer.logits, alone.logits, 0f);
        }
        assertNull(new Album(recognizer, index).answer(photos, "never indexed"));
        index.close();
        recognizer.close();
    }

    @Test
    public void theNearestPhotosAreOnBothSidesAndTheEarlierIsNearer() {
        List<String> photos = Arrays.asList("a", "b", "c", "b", "d", "e");
        assertEquals(Arrays.asList(1, 3), Album.nearest(Arrays.asList("a", "b", "x", "c", "d"), 2, 2));
        assertEquals(Arrays.asList(0, 1, 2), Album.nearest(Arrays.asList("a", "b", "c", "d"), 3, 3));
        assertEquals("no copy of itself", Arrays.asList(0, 2), Album.nearest(photos, 1, 2));
    }

    @Test
    public void aHeicThatThisDeviceCannotDecodeIsToldOnceAndTheOthersAreIndexed() throws Exception {
        Golden golden = Golden.all().get(0);
        Folder folder = new Folder(golden);
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(new File(scratch.getRoot(), "index"), 4096, 1 << 28);
        Indexer.Report report = new Indexer(recognizer, index).run(folder, NEVER);
        assertTrue(report.finished);
        assertEquals("{photo 3=photo 3 is in a format that this device cannot decode; convert it to JPEG}",
                report.failed.toString());
        assertEquals(11, index.size(recognizer.space()));
        assertFalse(index.names(recognizer.space()).containsValue("photo 3"));
        int read = folder.read;
        assertEquals("told again, from what is stored", report.failed,
                new Indexer(recognizer, index).run(folder, NEVER).failed);
        assertEquals(read, folder.read);
        index.close();
        recognizer.close();
    }

    /** A process is killed while it indexes: before its sixth photo is stored, and wherever it is then. */
    @Test
    public void processDeathInTheMiddleOfIndexingLosesNoPhotoAndReadsNoneTwice() throws Exception {
        Golden golden = Golden.all().get(0);
        File file = new File(scratch.getRoot(), "index");
        Process indexer = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp",
                System.getProperty("java.class.path"), "-Djava.io.tmpdir=" + System.getProperty("java.io.tmpdir"),
                "-Drefocus.golden=" + System.getProperty("refocus.golden", ""), Dying.class.getName(), file.getPath()).redirectErrorStream(true).start();
        BufferedReader out = new BufferedReader(new InputStreamReader(indexer.getInputStream(), "UTF-8"));
        String said = out.readLine();
        while (said != null && !said.equals("reading 6")) {
            said = out.readLine();
        }
        assertTrue("it ended by itself", indexer.isAlive());
        indexer.destroyForcibly().waitFor();
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory index = new FileHistory(file, 4096, 1 << 28);
        assertEquals(0, index.damaged());
        int stored = index.size(recognizer.space());
        assertTrue("acknowledged before the kill: " + stored, stored >= 4); // of 0 to 5, one is a HEIC
        Folder folder = new Folder(golden);
        Indexer.Report report = new Indexer(recognizer, index).run(folder, NEVER);
        assertTrue(report.finished);
        assertEquals(11, index.size(recognizer.space()));
        assertEquals("what was stored is not read again", 11 - stored, folder.read);
        index.close();
        recognizer.close();
        answers(golden, file);
    }

    /** Indexes, and says which photo it reads. */
    public static final class Dying {
        public static void main(String[] arguments) throws Exception {
            final Golden golden = Golden.all().get(0);
            new Indexer(new Recognizer(golden.bundle, "", 1), new FileHistory(new File(arguments[0]), 4096, 1 << 28))
                    .run(new Folder(golden) {
                        @Override
                        public byte[] content(int index) throws PhotoException {
                            System.out.println("reading " + index);
                            return super.content(index);
                        }
                    }, NEVER);
        }
    }
}
