package refocus.app.model;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.File;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import refocus.recognizer.FileHistory;
import refocus.recognizer.HistoryException;
import refocus.recognizer.RefocusException;

public class ModelTest {
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();

    private static AnswerCache answers(String stamp, String... rows) {
        List<AnswerCache.Entry> entries = new ArrayList<AnswerCache.Entry>();
        for (String row : rows) {
            String[] parts = row.split(" ");
            entries.add(new AnswerCache.Entry(parts[0], "content://" + parts[0], parts[1], !parts[1].endsWith("?"), parts[2],
                    "past " + parts[0]));
        }
        Map<String, Map<String, String>> names = new HashMap<String, Map<String, String>>();
        names.put("fox", Collections.singletonMap("de", "Füchsin"));
        return new AnswerCache(stamp, "new", entries, names);
    }

    @Test
    public void theLargestGroupComesFirstAndWhatIsNotKnownLast() {
        AnswerCache cache = answers("", "1 otter new", "2 fox new", "3 badger new", "4 fox new", "5 a? new", "6 b? new", "7 c? new");
        List<Groups.Group> found = Groups.of(cache, "de");
        assertEquals("localised", "Füchsin", found.get(0).label);
        assertEquals("2", found.get(0).photos.get(0).photo);
        assertEquals("4", found.get(0).photos.get(1).photo);
        assertEquals("of equals by name", "badger", found.get(1).label);
        assertEquals("a label of which there is no name", "otter", Groups.of(cache, "fr").get(2).label);
        assertEquals("the largest, and yet last", null, found.get(3).label);
        assertEquals(3, found.get(3).photos.size());
    }

    @Test
    public void answersAreReadBackAndADamagedFileHasNone() throws Exception {
        File file = new File(scratch.getRoot(), "answers");
        assertEquals(0, AnswerCache.read(file).entries.size());
        answers("12 34", "1 otter new", "2 fox old").write(file);
        AnswerCache read = AnswerCache.read(file);
        assertEquals("12 34", read.stamp);
        assertEquals(2, read.entries.size());
        assertEquals("content://2", read.entries.get(1).place);
        assertEquals("past 2", read.entries.get(1).past);
        assertEquals("one is by another model", 1, read.old());
        assertEquals("Füchsin", read.name("fox", "de"));
        byte[] whole = java.nio.file.Files.readAllBytes(file.toPath());
        for (int at = 0; at < whole.length; at += 7) {
            byte[] damaged = whole.clone();
            damaged[at] ^= 0x40;
            java.nio.file.Files.write(file.toPath(), damaged);
            assertEquals("byte " + at, 0, AnswerCache.read(file).entries.size());
            java.nio.file.Files.write(file.toPath(), java.util.Arrays.copyOf(whole, at));
            assertEquals("cut at " + at, 0, AnswerCache.read(file).entries.size());
        }
    }

    @Test
    public void photosThatWaitOutliveTheProcessInOrder() throws Exception {
        File file = new File(scratch.getRoot(), "chosen");
        new ChosenPhotos(file).add(Arrays.asList("content://b", "content://ä", "content://c"));
        new ChosenPhotos(file).add(Arrays.asList("content://c", "content://d"));
        assertEquals(Arrays.asList("content://b", "content://ä", "content://c", "content://d"), new ChosenPhotos(file).all());
        new ChosenPhotos(file).remove(Arrays.asList("content://ä", "content://d"));
        assertEquals(Arrays.asList("content://b", "content://c"), new ChosenPhotos(file).all());
    }

    @Test
    public void aPhotoThatCannotBeReadWaitsForAFewNightsAndAgainWhereItIsGivenAgain() throws Exception {
        File file = new File(scratch.getRoot(), "chosen");
        new ChosenPhotos(file).add(Arrays.asList("content://a", "content://b"));
        for (int night = 1; night < ChosenPhotos.TRIES; night++) {
            new ChosenPhotos(file).missed(Arrays.asList("content://a", "content://never given"));
            assertEquals("night " + night, Arrays.asList("content://a", "content://b"), new ChosenPhotos(file).all());
        }
        new ChosenPhotos(file).add(Arrays.asList("content://a"));
        for (int night = 1; night < ChosenPhotos.TRIES; night++) {
            new ChosenPhotos(file).missed(Arrays.asList("content://a"));
        }
        assertEquals(Arrays.asList("content://a", "content://b"), new ChosenPhotos(file).all());
        new ChosenPhotos(file).missed(Arrays.asList("content://a"));
        assertEquals(Arrays.asList("content://b"), new ChosenPhotos(file).all());
    }

    /** Another app may give any place; an earlier app wrote a tab of it as it was, which ended the list there. */
    @Test
    public void aPlaceWithATabOrALineBreakCostsNoOtherPhotoThatWaits() throws Exception {
        File file = new File(scratch.getRoot(), "chosen");
        List<String> places = new ArrayList<String>(Arrays.asList("content://1", "content://holiday\tpicture", "content://a\tb\t2",
                "content://two\r\nlines", "\u001b\u0000\t9\u001b", "content://back\\slash", "", "content://2"));
        new ChosenPhotos(file).add(places);
        assertEquals(places, new ChosenPhotos(file).all());
        new ChosenPhotos(file).missed(places);
        assertEquals(places, new ChosenPhotos(file).all());
        new ChosenPhotos(file).remove(places.subList(1, 3));
        places.subList(1, 3).clear();
        assertEquals(places, new ChosenPhotos(file).all());
        java.nio.file.Files.write(file.toPath(), ("content://1\t3\ncontent://holiday\tof\t2024\n\u0000\u0000\ncontent://back\\slash\n")
                .getBytes("UTF-8"));
        new ChosenPhotos(file).add(Arrays.asList("content://2"));
        assertEquals(Arrays.asList("content://1", "content://holiday\tof\t2024", "content://back\\slash", "content://2"),
                new ChosenPhotos(file).all());
    }

    @Test
    public void aFileOfPhotosThatWaitIsNotReplacedWhereItCannotBeRead() throws Exception {
        File unreadable = scratch.newFolder();
        File file = new File(scratch.getRoot(), "chosen");
        java.nio.file.Files.createSymbolicLink(file.toPath(), unreadable.toPath());
        ChosenPhotos chosen = new ChosenPhotos(file);
        List<String> one = Arrays.asList("content://1");
        for (int call = 0; call < 4; call++) {
            try {
                if (call == 0) {
                    chosen.all();
                } else if (call == 1) {
                    chosen.add(one);
                } else if (call == 2) {
                    chosen.remove(one);
                } else {
                    chosen.missed(one);
                }
                fail("call " + call + " took it for an empty one");
            } catch (HistoryException error) {
                assertTrue(error.getMessage(), error.getMessage().contains("cannot be read"));
                assertEquals(unreadable.getCanonicalFile(), file.getCanonicalFile());
            }
        }
    }

    @Test
    public void theOldestOfWhatGivesWayLeavesAFullIndexAndNoMoreThanNeedBe() {
        Map<String, String> indexed = new java.util.LinkedHashMap<String, String>();
        for (String photo : new String[] {"chosen", "old", "older", "new"}) {
            indexed.put(photo, "at " + photo);
        }
        List<String> givingWay = Arrays.asList("at older", "at old");
        assertEquals(Arrays.asList("old"), Room.leaving(indexed, givingWay, 2, 5));
        assertEquals(Arrays.asList("old", "older"), Room.leaving(indexed, givingWay, 9, 5));
        assertEquals(Collections.<String>emptyList(), Room.leaving(indexed, givingWay, 1, 5));
        Map<String, Long> changed = new HashMap<String, Long>();
        changed.put("a", 3L);
        changed.put("b", 1L);
        changed.put("c", 2L);
        assertEquals(new HashSet<String>(Arrays.asList("a", "c")), Room.newest(changed, 2));
        assertEquals(0, Room.newest(changed, -1).size());
    }

    @Test
    public void theHistoryThatAnEarlierAppKeptBesideTheIndexGoes() throws Exception {
        Profiles profiles = new Profiles(scratch.getRoot());
        profiles.add("anna");
        File history = new File(scratch.getRoot(), "anna/history");
        FileHistory old = new FileHistory(history);
        old.append("space", "photo", "a name", new float[] {1, 2});
        old.close();
        profiles.index("anna").close();
        assertFalse(history.exists());
    }

    @Test
    public void aNameThatCouldLeaveTheFolderIsRefused() throws Exception {
        Profiles profiles = new Profiles(scratch.getRoot());
        for (String name : new String[] {"", "..", "a/b", ".hidden", "a\u0000b"}) {
            try {
                profiles.add(name);
                fail(name);
            } catch (HistoryException error) {
                assertTrue(profiles.names().isEmpty());
            }
        }
        profiles.add("Søren Ünal");
        assertEquals(Arrays.asList("Søren Ünal"), profiles.names());
    }

    @Test
    public void anErasedPersonIsGoneAndTheOthersStay() throws Exception {
        Profiles profiles = new Profiles(scratch.getRoot());
        for (String name : new String[] {"anna", "bob"}) {
            profiles.add(name);
            FileHistory history = profiles.index(name);
            history.append("space", "photo", "a name", new float[] {1, 2});
            history.close();
        }
        FileHistory open = profiles.index("anna");
        try {
            profiles.erase("anna");
            fail("erased while in use");
        } catch (RefocusException error) {
            assertTrue(error.getMessage().contains("in use"));
        }
        open.close();
        profiles.erase("anna");
        assertEquals(Arrays.asList("bob"), profiles.names());
        assertFalse(new File(scratch.getRoot(), "anna").exists());
        profiles.eraseAll();
        assertEquals(0, scratch.getRoot().list().length);
    }

    @Test
    public void aProfileThatCannotBeReadIsErasedWithTheOthersAndHasNoPlaces() throws Exception {
        Profiles profiles = new Profiles(scratch.getRoot());
        for (String name : new String[] {"anna", "bob", "carl"}) {
            profiles.add(name);
            FileHistory index = profiles.index(name);
            index.append("space", "photo", "place of " + name, new float[] {1});
            index.append("older space", "photo", "old place of " + name, new float[] {1, 2});
            index.close();
        }
        java.nio.file.Files.write(new File(scratch.getRoot(), "bob/index").toPath(), "a newer app's".getBytes("UTF-8"));
        assertEquals(new HashSet<String>(Arrays.asList("place of anna", "old place of anna", "place of carl",
                "old place of carl")), profiles.photoPlaces());
        profiles.erase("bob");
        assertEquals(Arrays.asList("anna", "carl"), profiles.names());
        FileHistory open = profiles.index("anna");
        try {
            profiles.eraseAll();
            fail("erased while in use");
        } catch (RefocusException error) {
            assertEquals("the others are", Arrays.asList("anna"), profiles.names());
        }
        open.close();
    }

    @Test
    public void indexingGivesWayToHeatAndToAnEmptyBatteryUnlessCharging() {
        int[][] cases = {{0, 100, 0, 0}, {3, 100, 1, 1}, {2, 100, 1, 0}, {0, 19, 0, 1}, {0, 19, 1, 0}};
        for (final int[] each : cases) {
            Conditions conditions = new Conditions(new Conditions.Sensors() {
                @Override
                public int thermalStatus() {
                    return each[0];
                }

                @Override
                public int batteryPercent() {
                    return each[1];
                }

                @Override
                public boolean charging() {
                    return each[2] == 1;
                }
            });
            assertEquals(Arrays.toString(each), each[3] == 1, conditions.now());
            conditions.stop();
            assertTrue("the system's word counts", conditions.now());
        }
    }
}
