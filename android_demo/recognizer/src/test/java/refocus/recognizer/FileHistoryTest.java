package refocus.recognizer;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.File;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Scanner;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class FileHistoryTest {
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();

    private File path() {
        return new File(scratch.getRoot(), "anna.history");
    }

    private static float[] feature(int seed) {
        return new float[] {seed, seed + 0.5f, -seed};
    }

    private static FileHistory filled(File path, int count) throws Exception {
        FileHistory history = new FileHistory(path, 4, 1 << 20);
        for (int i = 0; i < count; i++) {
            history.append("space", "photo" + i, "name" + i, feature(i));
        }
        return history;
    }

    @Test
    public void whatWasAppendedIsThereAfterARestartOldestFirst() throws Exception {
        filled(path(), 3).close();
        FileHistory again = new FileHistory(path(), 4, 1 << 20);
        Remembered past = again.recall("space", 2, 3, null);
        assertEquals(Arrays.asList("photo1", "photo2"), past.photos());
        assertEquals("name2", past.name(1));
        assertArrayEquals(feature(1), past.feature(0), 0f);
        again.close();
    }

    @Test
    public void aProfileWhoseFileIsDamagedOrOfANewerAppCanBeErasedAndOneInUseCannot() throws Exception {
        filled(path(), 2).close();
        RandomAccessFile header = new RandomAccessFile(path(), "rw");
        header.write(new byte[] {9, 9, 9});
        header.close();
        try {
            new FileHistory(path());
            fail("no history");
        } catch (HistoryException error) {
            assertTrue(error.getMessage(), error.getMessage().contains("is no history of this app"));
        }
        Files.write(new File(path().getPath() + ".damaged-1").toPath(), new byte[9]);
        Files.write(new File(scratch.getRoot(), "anna.other").toPath(), new byte[9]);
        FileHistory.destroy(path());
        assertEquals("what is somebody else's stays", "[anna.other]", Arrays.toString(scratch.getRoot().list()));
        FileHistory open = filled(path(), 2);
        try {
            FileHistory.destroy(path());
            fail("in use");
        } catch (HistoryException error) {
            assertTrue(error.getMessage(), error.getMessage().contains("in use"));
        }
        assertEquals(2, open.size("space"));
        open.close();
    }

    @Test
    public void aStoredPhotoMeetsOnlyThePhotosBeforeIt() throws Exception {
        FileHistory history = filled(path(), 3);
        assertEquals(Arrays.asList("photo0"), history.recall("space", 9, 3, "photo1").photos());
        history.close();
    }

    @Test
    public void aPhotoThatMovedKeepsItsFeatureAndItsTurnAlsoInAFullHistory() throws Exception {
        FileHistory history = new FileHistory(path(), 2, 1 << 20);
        history.append("s", "one", "here", new float[] {1, 2});
        history.append("s", "two", "here too", new float[] {3, 4});
        history.moved("s", "one", "there");
        history.moved("s", "nobody", "there");
        for (int opened = 0; opened < 2; opened++) {
            assertEquals(Arrays.asList("one", "two"), new ArrayList<String>(history.names("s").keySet()));
            assertEquals("there", history.names("s").get("one"));
            assertEquals(2, history.size("s"));
            history.close();
            history = new FileHistory(path(), 2, 1 << 20);
        }
        history.append("s", "three", "", new float[] {5, 6});
        assertEquals("the oldest goes", Arrays.asList("two", "three"), new ArrayList<String>(history.names("s").keySet()));
        history.close();
    }

    @Test
    public void theOldestGoAndAreGoneAfterARestartToo() throws Exception {
        FileHistory history = filled(path(), 7);
        assertEquals(Arrays.asList("photo3", "photo4", "photo5", "photo6"), history.recall("space", 9, 3, null).photos());
        history.close();
        history = new FileHistory(path(), 4, 1 << 20);
        assertEquals(Arrays.asList("photo3", "photo4", "photo5", "photo6"), history.recall("space", 9, 3, null).photos());
        history.close();
    }

    @Test
    public void theSpaceThatHoldsMostBytesGivesWay() throws Exception {
        FileHistory history = new FileHistory(path(), 100, 48); // four features of twelve bytes
        for (int i = 0; i < 3; i++) {
            history.append("old", "photo" + i, "", feature(i));
        }
        history.append("new", "a", "", feature(7));
        history.append("new", "b", "", feature(8));
        assertEquals(2, history.size("old"));
        assertEquals(2, history.size("new"));
        history.close();
    }

    @Test
    public void featuresOfAnotherEncoderAreNeverReturned() throws Exception {
        FileHistory history = filled(path(), 2);
        assertEquals(0, history.recall("another space", 9, 3, null).size());
        assertEquals(0, history.recall("space", 9, 7, null).size());
        history.close();
    }

    @Test
    public void aFileIsNeverWrittenByTwo() throws Exception {
        FileHistory history = filled(path(), 1);
        try {
            new FileHistory(path());
            fail("opened twice");
        } catch (HistoryException error) {
            assertTrue(error.getMessage().contains("in use"));
        }
        history.close();
        new FileHistory(path()).close();
    }

    @Test
    public void halfARecordAtTheEndCostsNothingElse() throws Exception {
        filled(path(), 3).close();
        long whole = path().length();
        for (long length = whole - 1; length > whole - 40; length -= 13) {
            RandomAccessFile file = new RandomAccessFile(path(), "rw");
            file.setLength(length);
            file.close();
            FileHistory history = new FileHistory(path(), 4, 1 << 20);
            assertEquals(Arrays.asList("photo0", "photo1"), history.recall("space", 9, 3, null).photos());
            assertEquals(0, history.damaged());
            history.append("space", "photo2", "name2", feature(2));
            history.close();
        }
    }

    @Test
    public void aFlippedByteCostsOnePhotoAndTheDamagedFileIsSetAside() throws Exception {
        filled(path(), 3).close();
        byte[] content = Files.readAllBytes(path().toPath());
        content[HistoryLog.HEADER.length + 30] ^= 1;
        Files.write(path().toPath(), content);
        FileHistory history = new FileHistory(path(), 4, 1 << 20);
        assertEquals(Arrays.asList("photo1", "photo2"), history.recall("space", 9, 3, null).photos());
        assertEquals(1, history.damaged());
        assertTrue(history.setAside().exists());
        history.eraseAll();
        assertFalse("erasing leaves no copy behind", history.setAside().exists());
        history.close();
    }

    /** What a power cut left where the new file's name did not reach the disk, and the old one's zeros did. */
    @Test
    public void aFileOfZerosIsSetAsideAndTheProfileGoesOn() throws Exception {
        for (int length : new int[] {5, 12, 5000}) {
            File path = new File(scratch.getRoot(), "zeros" + length);
            Files.write(path.toPath(), new byte[length]);
            FileHistory history = new FileHistory(path, 4, 1 << 20);
            assertEquals(1, history.damaged());
            assertEquals(length, history.setAside().length());
            history.append("space", "photo", "name", feature(1));
            history.close();
            history = new FileHistory(path, 4, 1 << 20);
            assertEquals(1, history.size("space"));
            assertEquals(0, history.damaged());
            history.close();
        }
    }

    /** Where the damaged file and a copy of it do not fit, its whole records may. */
    @Test
    public void aDamagedFileIsSetAsideOnceAndWithoutRoomForACopyOfIt() throws Exception {
        FileHistory history = new FileHistory(path());
        history.append("space", "damaged", "", new float[100000]);
        history.append("space", "photo0", "", new float[50000]);
        history.close();
        byte[] content = Files.readAllBytes(path().toPath());
        content[HistoryLog.HEADER.length + 30] ^= 1;
        Files.write(path().toPath(), content);
        for (int attempt = 0; attempt < 3; attempt++) {
            assertEquals("refused", onADiskOf(100, Open.class)); // less than the whole records take
            assertEquals("no part of a copy stays", Arrays.asList("anna.history", "anna.history.lock"), files());
        }
        assertArrayEquals(content, Files.readAllBytes(path().toPath()));
        assertEquals("1 damaged", onADiskOf(500, Open.class));
        assertEquals("0 damaged", onADiskOf(500, Open.class));
        assertEquals(3, files().size());
        assertTrue(files().get(1), files().get(1).startsWith("anna.history.damaged-"));
        assertArrayEquals(content, Files.readAllBytes(new File(scratch.getRoot(), files().get(1)).toPath()));
        history = new FileHistory(path());
        assertTrue(history.has("space", "photo0"));
        history.close();
    }

    /** Opens a file, and closes it. */
    public static final class Open {
        public static void main(String[] arguments) throws Exception {
            try (FileHistory history = new FileHistory(new File(arguments[0]))) {
                System.out.println(history.damaged() + " damaged");
            } catch (HistoryException error) {
                System.out.println("refused");
            }
        }
    }

    private List<String> files() {
        String[] found = scratch.getRoot().list();
        Arrays.sort(found);
        return Arrays.asList(found);
    }

    /** A kill between the two renames leaves no file of the profile's name. */
    @Test
    public void aProfileWhoseDamagedFileIsAsideWhenTheProcessIsKilledIsWhole() throws Exception {
        filled(path(), 3).close();
        assertTrue(path().renameTo(new File(path().getPath() + ".new")));
        Files.write(new File(path().getPath() + ".damaged-1").toPath(), new byte[9]);
        FileHistory history = new FileHistory(path(), 4, 1 << 20);
        assertEquals(3, history.size("space"));
        history.close();
        assertEquals(Arrays.asList("anna.history", "anna.history.damaged-1", "anna.history.lock"), files());
    }

    @Test
    public void aFileWhoseBeginningWasOverwrittenKeepsTheRest() throws Exception {
        filled(path(), 3).close();
        RandomAccessFile file = new RandomAccessFile(path(), "rw");
        file.write(new byte[HistoryLog.HEADER.length + 20]);
        file.close();
        FileHistory history = new FileHistory(path(), 4, 1 << 20);
        assertEquals(Arrays.asList("photo1", "photo2"), history.recall("space", 9, 3, null).photos());
        assertTrue(history.setAside().exists());
        history.close();
    }

    @Test
    public void aFileOfTwoSpacesOpensInLittleMoreMemoryThanItsFeaturesNeed() throws Exception {
        FileHistory history = new FileHistory(path(), 1000, 1 << 28);
        for (int i = 0; i < 1000; i++) {
            history.append("one", "photo" + i, "name", new float[1280]);
            history.append("other", "photo" + i, "name", new float[1280]);
        }
        history.close();
        Process opening = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-Xmx20m", "-XX:+UseSerialGC", "-cp",
                System.getProperty("java.class.path"), Opener.class.getName(), path().getPath()).redirectErrorStream(true)
                .start();
        Scanner said = new Scanner(opening.getInputStream(), "UTF-8").useDelimiter("\\A");
        assertEquals("2000 of 10 MB", said.hasNext() ? said.next().trim() : "nothing");
    }

    /** Opens a file in a process of its own. */
    public static final class Opener {
        public static void main(String[] arguments) throws Exception {
            FileHistory history = new FileHistory(new File(arguments[0]), 1000, 1 << 28);
            System.out.println(history.size("one") + history.size("other") + " of "
                    + (new File(arguments[0]).length() / 1000000) + " MB");
        }
    }

    @Test
    public void aFeatureThatIsNotFiniteIsRefused() throws Exception {
        FileHistory history = filled(path(), 1);
        for (float wrong : new float[] {Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY}) {
            try {
                history.append("space", "spoilt", "name", new float[] {1, wrong, 2});
                fail("stored");
            } catch (HistoryException error) {
                assertEquals(1, history.size("space"));
            }
        }
        history.close();
        RandomAccessFile file = new RandomAccessFile(path(), "rw"); // as an app before this one stored them
        file.seek(file.length());
        file.write(HistoryLog.encode(new HistoryLog.Entry(HistoryLog.Kind.FEATURE, "space", "spoilt", "name", 1,
                new float[] {Float.NaN, 1, 2})));
        file.close();
        history = new FileHistory(path(), 4, 1 << 20);
        assertFalse("its photo is read again", history.has("space", "spoilt"));
        assertEquals(0, history.damaged());
        history.close();
    }

    @Test
    public void anotherProgramsFileIsLeftAsItIs() throws Exception {
        byte[] other = "SQLite format 3 and more".getBytes("UTF-8");
        Files.write(path().toPath(), other);
        try {
            new FileHistory(path());
            fail("opened");
        } catch (HistoryException error) {
            assertTrue(error.getMessage().contains("no history of this app"));
        }
        assertArrayEquals(other, Files.readAllBytes(path().toPath()));
    }

    @Test
    public void anErasedPhotoLeavesNoByteInTheFile() throws Exception {
        FileHistory history = filled(path(), 3);
        history.setLabel("photo1", "a secret");
        assertEquals(1, history.erase("photo1"));
        String content = new String(Files.readAllBytes(path().toPath()), "ISO-8859-1");
        assertFalse(content.contains("photo1"));
        assertFalse(content.contains("secret"));
        assertEquals(Arrays.asList("photo0", "photo2"), history.recall("space", 9, 3, null).photos());
        history.close();
    }

    /** The disk takes no byte beyond a limit, so that the new file fits and the old one cannot be overwritten. */
    @Test
    public void whatIsStoredAfterAnOldFileCouldNotBeOverwrittenIsNotLost() throws Exception {
        FileHistory history = new FileHistory(path());
        history.append("space", "large", "", new float[100000]);
        history.append("space", "photo0", "name0", feature(0));
        history.close();
        assertEquals("refused, then stored", onADiskOf(200, EraseAndStore.class));
        history = new FileHistory(path());
        assertEquals(0, history.damaged());
        assertEquals(Arrays.asList("photo0", "photo1"), history.recall("space", 9, 3, null).photos());
        assertEquals("fox", history.labels().get("photo1"));
        history.close();
    }

    /** Erases a photo, which fails, and goes on. */
    public static final class EraseAndStore {
        public static void main(String[] arguments) throws Exception {
            FileHistory history = new FileHistory(new File(arguments[0]));
            try {
                history.erase("large");
            } catch (HistoryException error) {
                System.out.print("refused, ");
            }
            history.append("space", "photo1", "name1", feature(1));
            history.setLabel("photo1", "fox");
            history.close();
            System.out.println("then stored");
        }
    }

    /** Says what a program of its own said, whose files may not grow beyond a number of blocks of 512 or 1024 bytes. */
    private String onADiskOf(int blocks, Class<?> program) throws Exception {
        Process running = new ProcessBuilder("sh", "-c", "ulimit -f " + blocks + " && exec \"$@\"", "sh",
                System.getProperty("java.home") + "/bin/java", "-XX:-UsePerfData", "-cp", System.getProperty("java.class.path"),
                program.getName(), path().getPath()).redirectErrorStream(true).start();
        Scanner said = new Scanner(running.getInputStream(), "UTF-8").useDelimiter("\\A");
        return said.hasNext() ? said.next().trim() : "nothing";
    }

    @Test
    public void labelsAndSettingsOutliveARestartAndEvictedFeaturesLeaveTheFileInTime() throws Exception {
        FileHistory history = new FileHistory(path(), 4, 1 << 20);
        history.setLabel("photo0", "Füchsin");
        history.setSetting("head", "window");
        history.setSetting("head", null);
        for (int i = 0; i < 300; i++) {
            history.append("space", "photo" + i, "name" + i, feature(i));
        }
        assertTrue("the file does not grow without end", path().length() < 16384);
        history.close();
        history = new FileHistory(path(), 4, 1 << 20);
        assertEquals("Füchsin", history.labels().get("photo0"));
        assertTrue(history.settings().isEmpty());
        assertEquals(4, history.size("space"));
        history.close();
    }

    @Test
    public void aPhotoThatWasAcknowledgedSurvivesAKill() throws Exception {
        int least = 0;
        for (int round = 0; round < 3; round++) {
            File said = new File(scratch.getRoot(), "said" + round);
            Process writer = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-cp",
                    System.getProperty("java.class.path"), Writer.class.getName(), path().getPath(), "" + least)
                    .redirectOutput(said).start();
            while (said.length() < 800 * (round + 1)) {
                assertTrue("the writer ended by itself", writer.isAlive());
                Thread.sleep(1);
            }
            writer.destroyForcibly().waitFor();
            String[] lines = new String(Files.readAllBytes(said.toPath()), "UTF-8").split("\n");
            int last = lines.length - (lines[lines.length - 1].endsWith(".") ? 1 : 2);
            int acknowledged = Integer.parseInt(lines[last].replace(".", ""));
            FileHistory history = new FileHistory(path(), 100000, 1 << 28);
            assertEquals(0, history.damaged());
            for (int i = 0; i <= acknowledged; i++) {
                assertArrayEquals(feature(i), history.feature("space", "photo" + i), 0f);
            }
            least = history.size("space");
            history.close();
        }
    }

    /** Appends until it is killed, and says each photo once it is stored. */
    public static final class Writer {
        public static void main(String[] arguments) throws Exception {
            FileHistory history = new FileHistory(new File(arguments[0]), 100000, 1 << 28);
            for (int i = Integer.parseInt(arguments[1]); ; i++) {
                history.append("space", "photo" + i, "", feature(i));
                System.out.println(i + ".");
            }
        }
    }

    /** Names of photos may be long, and in an index that is small there may be many failures of them. */
    @Test
    public void longSettingsAreNotWrittenAnewWithEachOther() throws Exception {
        File path = new File(scratch.getRoot(), "long.history");
        char[] name = new char[1000];
        java.util.Arrays.fill(name, '\u72d0'); // three bytes
        FileHistory history = new FileHistory(path, 3, 1 << 20);
        for (int i = 0; i < 200; i++) {
            history.setSetting("failed " + i + new String(name), new String(name));
        }
        long whole = path.length();
        java.nio.file.attribute.BasicFileAttributes before = java.nio.file.Files.readAttributes(path.toPath(),
                java.nio.file.attribute.BasicFileAttributes.class);
        history.setSetting("failed 200" + new String(name), new String(name));
        java.nio.file.attribute.BasicFileAttributes after = java.nio.file.Files.readAttributes(path.toPath(),
                java.nio.file.attribute.BasicFileAttributes.class);
        assertEquals("appended to, and not replaced", before.fileKey(), after.fileKey());
        assertTrue(path.length() > whole);
        history.close();
    }
}
