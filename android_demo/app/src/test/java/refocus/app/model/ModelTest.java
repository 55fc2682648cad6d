package refocus.app.model;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.File;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
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

    @Test
    public void theLargestGroupComesFirstAndPhotosKeepTheirOrder() {
        Map<String, String> labels = new LinkedHashMap<String, String>();
        String[][] photos = {{"1", "otter"}, {"2", "fox"}, {"3", "badger"}, {"4", "fox"}};
        for (String[] photo : photos) {
            labels.put(photo[0], photo[1]);
        }
        List<Groups.Group> found = Groups.of(labels);
        assertEquals("fox", found.get(0).label);
        assertEquals(Arrays.asList("2", "4"), found.get(0).photos);
        assertEquals("of equals by name", "badger", found.get(1).label);
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
            FileHistory history = profiles.history(name, 45);
            history.append("space", "photo", "a name", new float[] {1, 2});
            history.close();
        }
        FileHistory open = profiles.history("anna", 45);
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
