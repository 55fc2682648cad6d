package refocus.app;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import android.app.job.JobInfo;
import android.app.job.JobScheduler;
import android.content.Context;
import android.content.Intent;
import android.net.Uri;
import android.os.Build;
import android.os.PowerManager;
import android.provider.DocumentsContract;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import org.junit.runner.JUnitCore;
import org.junit.runner.RunWith;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import org.robolectric.util.ReflectionHelpers;

/** Indexing in the background: it gives way, is stopped, and is killed; nothing is lost, and nothing done twice. */
@RunWith(AppRunner.class)
@Config(sdk = 33, shadows = Strips.class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class IndexJobTest {
    private static final int PHOTOS = 6;
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();

    private List<String> folderWithPhotos() throws Exception {
        File folder = scratch.newFolder();
        Given.photos(folder, PHOTOS);
        File below = new File(folder, "holiday");
        assertTrue(below.mkdir());
        Files.move(new File(folder, "000.png").toPath(), new File(below, "000.png").toPath());
        Given.heic(folder, "zz.heic");
        Files.write(new File(folder, "notes.txt").toPath(), new byte[9]);
        List<String> read = new ArrayList<>();
        Folder.watch(read::add);
        return read;
    }

    @Test
    @Config(sdk = {26, 33, 35})
    public void indexingWaitsForPowerGivesWayToHeatAndLeavesOutWhatCannotBeDecoded() throws Exception {
        List<String> read = folderWithPhotos();
        JobInfo scheduled = Indexing.scheduled();
        assertTrue(scheduled.isRequireCharging() && scheduled.isRequireDeviceIdle() && scheduled.isRequireBatteryNotLow());
        Indexing.charging(false);
        assertTrue("not with an empty battery", new Indexing(scheduled).run());
        Indexing.charging(true);
        if (Build.VERSION.SDK_INT >= 29) {
            PowerManager power = (PowerManager) Screen.app().getSystemService(Context.POWER_SERVICE);
            Shadows.shadowOf(power).setCurrentThermalStatus(PowerManager.THERMAL_STATUS_SEVERE);
            assertTrue("not in the heat", new Indexing(scheduled).run());
            Shadows.shadowOf(power).setCurrentThermalStatus(PowerManager.THERMAL_STATUS_NONE);
        }
        assertEquals(0, read.size());
        assertFalse(new Indexing(scheduled).run());
        assertEquals(PHOTOS, Indexing.indexed());
        assertEquals("the folder below too, no text", PHOTOS + 1, read.size());
        assertFalse(new Indexing(scheduled).run());
        assertEquals("not even what failed is read twice", PHOTOS + 1, read.size());
    }

    @Test
    public void aFolderIsPlannedAgainAfterARestartOfTheDeviceUntilItIsRemoved() throws Exception {
        folderWithPhotos();
        JobInfo scheduled = Indexing.scheduled();
        JobScheduler system = Screen.app().getSystemService(JobScheduler.class);
        system.cancelAll(); // what a restart does to jobs without a permission of their own
        Screen.app().onCreate();
        assertEquals(scheduled.getId(), system.getAllPendingJobs().get(0).getId());
        Indexing.charging(true);
        assertFalse(new Indexing(system.getAllPendingJobs().get(0)).run());
        assertEquals(PHOTOS, Indexing.indexed());
        system.cancelAll();
        Screen.app().onCreate();
        assertTrue("done for today", system.getAllPendingJobs().get(0).isPeriodic());
        IndexJob.cancel(Screen.app(), "me");
        Screen.app().onCreate();
        assertEquals("erased", 0, system.getAllPendingJobs().size());
    }

    @Test
    public void aFolderThatWaitsIsListedAndIsIndexedNowWithProgressAndAWayToStop() throws Exception {
        folderWithPhotos();
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        grid.press(grid.activity.getString(R.string.index_folder));
        grid.answered(new Intent().setData(Folder.tree()));
        assertTrue(grid.texts().toString(), grid.texts().contains(waits(grid, PHOTOS + 1)));
        grid = Screen.open(MainActivity.class, new Intent());
        assertTrue("reopened, it is still listed", grid.texts().contains(waits(grid, PHOTOS + 1)));
        Screen<MainActivity> seen = grid;
        List<String> during = new ArrayList<>();
        int[] read = {0};
        Folder.watch(name -> {
            if (++read[0] == 4) { // on the work thread: the page is drawn by the main one, as it is now
                Screen.app().runs("me").forEach(IndexRun::cancel);
                Screen.app().runs("me").forEach(run -> during.add(run.looked() + " of " + run.size()));
            }
        });
        grid.press(grid.activity.getString(R.string.index_now));
        assertEquals(Arrays.asList("3 of " + (PHOTOS + 1)), during);
        assertEquals("what was read before the stop stays", 4, Indexing.indexed());
        assertTrue(seen.texts().toString(), seen.texts().contains(waits(seen, PHOTOS + 1 - 4)));
        Folder.watch(name -> { });
        grid.press(grid.activity.getString(R.string.index_now));
        assertEquals(PHOTOS, Indexing.indexed());
        String told = Screen.agreed();
        assertTrue(told, told.contains(grid.activity.getResources().getQuantityString(R.plurals.problem_format, 1, 1)));
        String done = grid.activity.getString(R.string.folder_done, grid.activity.getString(R.string.folder));
        assertTrue("and not what cannot be used", grid.texts().contains(done));
        Files.copy(new File(Folder.root(), "001.png").toPath(), new File(Folder.root(), "new.png").toPath());
        Files.write(new File(Folder.root(), "new.png").toPath(), new byte[] {0}, java.nio.file.StandardOpenOption.APPEND);
        grid = Screen.open(MainActivity.class, new Intent());
        assertTrue("a new photo is found", grid.texts().contains(waits(grid, 1)));
        grid.press(grid.activity.getString(R.string.index_now));
        assertEquals(PHOTOS + 1, Indexing.indexed());
        assertEquals("nothing is told twice", "", Screen.agreed());
    }

    private static String waits(Screen<MainActivity> grid, int photos) {
        return grid.activity.getResources().getQuantityString(R.plurals.folder_waits, photos, photos,
                grid.activity.getString(R.string.folder));
    }

    @Test
    public void progressIsShownWhileAFolderIsIndexedAndPhotosAreAnsweredInBetween() throws Exception {
        folderWithPhotos();
        Indexing.scheduled();
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        Folders.Folder folder = new Folders(Screen.app()).all().get(0);
        java.util.concurrent.CountDownLatch third = new java.util.concurrent.CountDownLatch(3);
        java.util.concurrent.CountDownLatch seen = new java.util.concurrent.CountDownLatch(1);
        Folder.watch(name -> {
            third.countDown();
            try {
                if (third.getCount() == 0) {
                    seen.await();
                }
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        Screen.app().begin(new IndexRun(Screen.app(), folder, () -> false, (finished, error) -> { }));
        third.await();
        Shadows.shadowOf(android.os.Looper.getMainLooper()).idle();
        String line = grid.activity.getString(R.string.working, grid.activity.getString(R.string.folder), 3, PHOTOS + 1);
        assertTrue(grid.texts().toString(), grid.texts().contains(line));
        assertTrue(grid.texts().contains(grid.activity.getString(R.string.stop)));
        grid.draw("progress");
        assertTrue("on a page that was turned too", Screen.openBusy(MainActivity.class).texts().contains(line));
        seen.countDown();
        Screen.settle();
        assertFalse(grid.texts().contains(line));
    }

    /** A press lasts: the button must be the same one when the finger goes up, some photos later. */
    @Test
    public void theButtonToStopStaysWhileOnePhotoAfterTheOtherIsRead() throws Exception {
        folderWithPhotos();
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        Folders.Folder folder = IndexJob.schedule(Screen.app(), "me", Folder.tree().toString());
        java.util.concurrent.Semaphore at = new java.util.concurrent.Semaphore(0);
        java.util.concurrent.Semaphore on = new java.util.concurrent.Semaphore(0);
        int[] read = {0};
        Folder.watch(name -> {
            read[0]++;
            at.release();
            on.acquireUninterruptibly();
        });
        Screen.app().begin(new IndexRun(Screen.app(), folder, () -> false, (finished, error) -> { }));
        List<android.view.View> seen = new ArrayList<>();
        for (int photo = 1; photo <= 3; photo++) {
            at.acquire();
            Shadows.shadowOf(android.os.Looper.getMainLooper()).idle();
            String name = grid.activity.getString(R.string.folder);
            assertTrue(grid.texts().contains(grid.activity.getString(R.string.working, name, photo, PHOTOS + 1)));
            seen.add(grid.titled(grid.activity.getString(R.string.stop)));
            on.release();
        }
        assertTrue(seen.get(0) != null && seen.get(0) == seen.get(1) && seen.get(0) == seen.get(2));
        at.acquire();
        seen.get(0).performClick();
        on.release(PHOTOS);
        Screen.settle();
        assertEquals("stopped before the fifth", 4, read[0]);
    }

    @Test
    public void photosThatWereGivenAreReadAfterTheProcessEnded() throws Exception {
        List<Uri> photos = Given.photos(scratch.newFolder(), 3);
        List<String> places = new ArrayList<>();
        photos.forEach(photo -> places.add(photo.toString()));
        Screen.app().profile();
        Screen.app().profiles().chosen("me").add(places); // and then the process was killed
        IndexJob.schedule(Screen.app(), "me", "");
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        assertTrue(grid.texts().toString(), grid.texts().contains(grid.activity.getResources().getQuantityString(
                R.plurals.folder_waits, 3, 3, grid.activity.getString(R.string.chosen_photos))));
        grid.press(grid.activity.getString(R.string.index_now));
        assertEquals(3, Indexing.indexed());
        assertEquals(0, Screen.app().profiles().chosen("me").all().size());
        assertEquals("nothing is left to look for", 0, new Folders(Screen.app()).all().size());
    }

    private static IndexRun begun(String profile, IndexRun.Done done) {
        IndexRun run = new IndexRun(Screen.app(), IndexJob.schedule(Screen.app(), profile, ""), () -> false, done);
        assertTrue(Screen.app().begin(run));
        return run;
    }

    private static List<String> given(List<Uri> photos, String... profiles) throws Exception {
        List<String> places = new ArrayList<>();
        photos.forEach(photo -> places.add(photo.toString()));
        for (String profile : profiles) {
            Screen.app().profiles().add(profile);
            Screen.app().profiles().chosen(profile).add(places);
        }
        return places;
    }

    /** Names of photos as they are read; runs that never end are stopped after some. */
    private static List<String> readAtMost(int most, Runnable... then) {
        List<String> read = new ArrayList<>();
        Folder.watch(name -> {
            read.add(name);
            if (read.size() > most) {
                Screen.app().runs(null).forEach(IndexRun::cancel);
            }
            for (Runnable each : then) {
                each.run();
            }
        });
        return read;
    }

    @Test
    public void photosOfTwoPeopleThatWaitTogetherAreEachReadOnceAndBothRunsEnd() throws Exception {
        given(Given.photos(scratch.newFolder(), 3), "me", "Zoe");
        List<String> read = readAtMost(20);
        List<String> ended = new ArrayList<>();
        for (String profile : new String[] {"me", "Zoe"}) {
            begun(profile, (finished, error) -> ended.add(profile + " " + finished + " " + error));
        }
        Screen.settle();
        assertEquals(Arrays.asList("me true null", "Zoe true null"), ended);
        assertEquals(6, read.size());
        assertEquals(3, Indexing.indexed());
    }

    @Test
    public void aRunGoesOnWhereItWasAfterThePageOpenedAnotherPersonsIndex() throws Exception {
        given(Given.photos(scratch.newFolder(), 3), "me", "Zoe");
        List<String> read = readAtMost(20, () -> Screen.app().work.execute(() -> {
            try {
                Screen.app().index("Zoe");
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }));
        begun("me", (finished, error) -> { });
        Screen.settle();
        assertEquals(3, read.size());
        assertEquals(3, Indexing.indexed());
    }

    @Test
    public void aRunThatWaitsForAnotherPersonsIsStoppedAtOnce() throws Exception {
        given(Given.photos(scratch.newFolder(), 3), "me", "Zoe");
        List<String> ended = new ArrayList<>();
        IndexRun[] waiting = new IndexRun[1];
        Folder.watch(name -> {
            if (waiting[0] == null) {
                waiting[0] = begun("Zoe", (finished, error) -> ended.add("Zoe " + finished));
                waiting[0].cancel();
            }
        });
        begun("me", (finished, error) -> ended.add("me " + finished));
        Screen.settle();
        assertEquals(Arrays.asList("Zoe false", "me true"), ended);
    }

    @Test
    public void aPersonWhoIsErasedWhileTheirPhotosAreReadIsGoneWithoutAnError() throws Exception {
        given(Given.photos(scratch.newFolder(), 3), "Ann", "me");
        Screen.app().choose("Ann");
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        CountDownLatch first = new CountDownLatch(1);
        CountDownLatch erased = new CountDownLatch(1);
        Folder.watch(name -> {
            first.countDown();
            try {
                erased.await();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        List<Throwable> errors = new ArrayList<>();
        begun("Ann", (finished, error) -> errors.add(error));
        first.await();
        ReflectionHelpers.callInstanceMethod(grid.activity, "erase",
                ReflectionHelpers.ClassParameter.from(boolean.class, false),
                ReflectionHelpers.ClassParameter.from(String.class, "Ann"));
        erased.countDown();
        Screen.settle();
        assertEquals(Arrays.asList((Throwable) null), errors);
        assertEquals("", Screen.agreed());
        assertEquals(Arrays.asList("me"), Screen.app().profiles().names());
    }

    @Test
    public void everyFolderHasAJobOfItsOwnAndOneOfNobodyIsForgotten() throws Exception {
        folderWithPhotos();
        JobScheduler system = Screen.app().getSystemService(JobScheduler.class);
        // These two have one hash code; job numbers made of them would be the same.
        IndexJob.schedule(Screen.app(), "me", "content://photos/tree/Aa");
        IndexJob.schedule(Screen.app(), "me", "content://photos/tree/BB");
        assertEquals(2, system.getAllPendingJobs().size());
        IndexJob.schedule(Screen.app(), "of another device", Folder.tree().toString());
        JobInfo foreign = system.getAllPendingJobs().get(2);
        assertFalse("not again and again", new Indexing(foreign).service.onStartJob(new Indexing(foreign).job));
        assertEquals(2, new Folders(Screen.app()).all().size());
    }

    @Test
    public void theNewestPhotosOfALargeFolderAreIndexedAndNoRunStartsOver() throws Exception {
        folderWithPhotos();
        String[] names = {"001.png", "004.png", "holiday/000.png", "002.png", "003.png", "005.png", "zz.heic"};
        for (int i = 0; i < names.length; i++) {
            assertTrue(names[i], new File(Folder.root(), names[i]).setLastModified(1_700_000_000_000L + 60_000L * i));
        }
        Tree tree = Tree.of(Screen.app().getContentResolver(), Arrays.asList(Folder.tree().toString()), new ArrayList<>(), 0,
                4).get(0);
        List<String> found = new ArrayList<>();
        for (int i = 0; i < tree.size(); i++) {
            found.add(DocumentsContract.getDocumentId(Uri.parse(tree.key(i))));
        }
        assertEquals(Arrays.asList("002.png", "003.png", "005.png", "zz.heic"), found);
    }

    @Test
    public void aFolderThatTheAppMayNotReadAnyMoreLosesNothingThatWasIndexed() throws Exception {
        folderWithPhotos();
        Indexing.charging(true);
        JobInfo scheduled = Indexing.scheduled();
        assertFalse(new Indexing(scheduled).run());
        Folder.refuse(true);
        assertFalse(new Indexing(scheduled).run());
        assertEquals(PHOTOS, Indexing.indexed());
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        String name = grid.activity.getString(R.string.folder);
        assertFalse(grid.texts().contains(grid.activity.getString(R.string.folder_done, name)));
        assertTrue(grid.texts().toString(), grid.texts().contains(grid.activity.getString(R.string.folder_away, name)));
    }

    @Test
    public void aFolderThatWasAwayWhenItWasFirstLookedThroughIsNotDone() throws Exception {
        folderWithPhotos();
        Indexing.charging(true);
        JobInfo scheduled = Indexing.scheduled();
        Folder.refuse(true);
        assertFalse(new Indexing(scheduled).run());
        Folder.refuse(false);
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        assertTrue(grid.texts().toString(), grid.texts().contains(waits(grid, PHOTOS + 1)));
        assertFalse(new Folders(Screen.app()).all().get(0).finished());
    }

    /** Together they have more photos than the index has room for. */
    @Test
    public void twoFoldersShareTheRoomOfTheIndexAndPushNoChosenPhotoOut() throws Exception {
        File folder = scratch.newFolder();
        List<Uri> photos = Given.photos(folder, 7);
        for (int i = 0; i < 6; i++) {
            File below = new File(folder, i % 2 == 0 ? "a" : "b");
            assertTrue(below.isDirectory() || below.mkdir());
            File moved = new File(below, photos.get(i).getLastPathSegment());
            Files.move(new File(folder, moved.getName()).toPath(), moved.toPath());
            assertTrue(moved.setLastModified(1_700_000_000_000L + 60_000L * i));
        }
        ReflectionHelpers.setField(Screen.app(), "capacity", 4);
        given(photos.subList(6, 7), "me");
        begun("me", (finished, error) -> { });
        Screen.settle();
        List<String> read = new ArrayList<>();
        Folder.watch(read::add);
        for (String below : new String[] {"a", "b"}) {
            IndexJob.schedule(Screen.app(), "me", Folder.tree(below).toString());
        }
        for (int night = 0; night < 2; night++) {
            for (String below : new String[] {"a", "b"}) {
                Folders.Folder each = IndexJob.schedule(Screen.app(), "me", Folder.tree(below).toString());
                Screen.app().begin(new IndexRun(Screen.app(), each, () -> false, (finished, error) -> { }));
                Screen.settle();
            }
            assertEquals("night " + night + ": " + read, 3, read.size());
        }
        List<String> left = places();
        assertEquals(4, left.size());
        assertTrue(left.toString(), left.contains(photos.get(6).toString()));
        for (int i : new int[] {3, 4, 5}) {
            assertTrue(left.toString(), left.toString().contains(photos.get(i).getLastPathSegment()));
        }
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        assertFalse(grid.texts().toString(), grid.texts().contains(grid.activity.getString(R.string.index_now)));
        File more = new File(folder, "a/more.png"); // newer than all, and one of the folders' makes room
        Files.write(more.toPath(), plusOne(Files.readAllBytes(new File(folder, "a/004.png").toPath())));
        Folders.Folder a = new Folders(Screen.app()).find("me", Folder.tree("a").toString());
        Screen.app().begin(new IndexRun(Screen.app(), a, () -> false, (finished, error) -> { }));
        Screen.settle();
        left = places();
        assertEquals(4, left.size());
        assertTrue(left.toString(), left.contains(photos.get(6).toString()));
        assertFalse(left.toString(), left.toString().contains("003.png"));
        assertTrue(left.toString(), left.toString().contains("more.png"));
    }

    private static byte[] plusOne(byte[] content) {
        return Arrays.copyOf(content, content.length + 1);
    }

    private static List<String> places() throws Exception {
        return Screen.app().work.submit(() -> new ArrayList<>(Screen.app().index("me").names(
                Screen.app().recognizer().space()).values())).get();
    }

    @Test
    public void aGivenPhotoThatCannotBeReadNowGoesOnWaiting() throws Exception {
        File folder = scratch.newFolder();
        List<Uri> photos = Given.photos(folder, 3);
        File out = new File(folder, photos.get(1).getLastPathSegment());
        byte[] content = Files.readAllBytes(out.toPath());
        assertTrue(out.delete());
        given(photos, "me");
        Indexing.charging(true);
        begun("me", (finished, error) -> { });
        Screen.settle();
        assertEquals(2, Indexing.indexed());
        assertEquals(Arrays.asList(photos.get(1).toString()), Screen.app().profiles().chosen("me").all());
        Files.write(out.toPath(), content); // the card is in again
        assertFalse(new Indexing(Screen.app().getSystemService(JobScheduler.class).getAllPendingJobs().get(0)).run());
        assertEquals(3, Indexing.indexed());
        assertEquals(0, Screen.app().profiles().chosen("me").all().size());
        assertEquals(0, new Folders(Screen.app()).all().size());
    }

    @Test
    public void copiesInAFolderDoNotWaitForEver() throws Exception {
        folderWithPhotos();
        Files.copy(new File(Folder.root(), "001.png").toPath(), new File(Folder.root(), "copy.png").toPath());
        Indexing.charging(true);
        JobInfo scheduled = Indexing.scheduled();
        assertFalse(new Indexing(scheduled).run());
        assertEquals(PHOTOS, Indexing.indexed());
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        assertTrue(grid.texts().toString(), grid.texts().contains(grid.activity.getString(R.string.folder_done,
                grid.activity.getString(R.string.folder))));
    }

    @Test
    public void indexingThatTheSystemStopsIsAskedForAgainAndGoesOnWhereItWas() throws Exception {
        folderWithPhotos();
        JobInfo scheduled = Indexing.scheduled();
        Indexing.charging(true);
        Indexing first = new Indexing(scheduled);
        List<String> read = new ArrayList<>();
        Folder.watch(name -> {
            read.add(name);
            if (read.size() == 3) {
                assertTrue("start it again", first.service.onStopJob(first.job));
            }
        });
        assertTrue(first.run());
        assertEquals(3, Indexing.indexed());
        assertFalse(new Indexing(scheduled).run());
        assertEquals(PHOTOS, Indexing.indexed());
        assertEquals(PHOTOS + 1, read.size());
    }

    /** The system may start a job again before its stopped run came to an end. */
    @Test
    public void aJobThatStartsAgainWhileItsRunIsAtWorkCanStillBeStopped() throws Exception {
        folderWithPhotos();
        JobInfo scheduled = Indexing.scheduled();
        Indexing.charging(true);
        Indexing first = new Indexing(scheduled);
        Indexing again = new Indexing(scheduled);
        int[] read = {0};
        Folder.watch(name -> {
            read[0]++;
            if (read[0] == 2) {
                assertFalse("no second run of one folder", first.service.onStartJob(again.job));
            }
            if (read[0] == 3) {
                assertTrue("start it again", first.service.onStopJob(again.job));
            }
        });
        assertTrue(first.run());
        assertEquals("stopped before the fourth photo", 3, read[0]);
        assertEquals(3, Indexing.indexed());
    }

    @Test
    public void aFolderIsIndexedAgainAfterAChangeOfTheModelWhileTheOldAnswersStay() throws Exception {
        folderWithPhotos();
        Indexing.charging(true);
        assertFalse(new Indexing(Indexing.scheduled()).run());
        Screen<MainActivity> grid = Screen.open(MainActivity.class, new Intent());
        assertFalse(grid.texts().contains(waits(grid, PHOTOS + 1)));
        grid.choose(R.string.import_model);
        grid.answered(new Intent().setData(Given.bundle(Folder.root(), "other.zip", ScreensTest::ofAnotherSpace)));
        assertTrue(new File(Folder.root(), "other.zip").delete());
        assertEquals("the answers stay", PHOTOS, Screen.shown().entries.size());
        assertEquals(PHOTOS, Screen.shown().old());
        grid = Screen.open(MainActivity.class, new Intent());
        assertTrue(grid.texts().toString(), grid.texts().contains(waits(grid, PHOTOS + 1)));
        assertFalse("at night, as before", new Indexing(Screen.app().getSystemService(JobScheduler.class)
                .getAllPendingJobs().get(0)).run());
        assertEquals(PHOTOS, Indexing.indexed());
        assertEquals(0, Screen.shown().old());
    }

    /** A process of its own, with an Android of its own, is killed while it reads the fourth photo. */
    @Test
    public void processDeathInTheMiddleOfIndexingLosesNothingThatWasIndexed() throws Exception {
        List<String> command = new ArrayList<>(Arrays.asList(System.getProperty("java.home") + "/bin/java"));
        for (String option : ManagementFactory.getRuntimeMXBean().getInputArguments()) {
            if (option.startsWith("-X") || option.startsWith("--add-opens") || option.startsWith("-Djava.io.tmpdir")) {
                command.add(option);
            }
        }
        folderWithPhotos();
        command.addAll(Arrays.asList("-cp", System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")),
                "-Drefocus.dying=" + Folder.root(), JUnitCore.class.getName(), DyingIndexer.class.getName()));
        Process dying = new ProcessBuilder(command).redirectErrorStream(true).start();
        StringBuilder said = new StringBuilder();
        File left = null;
        try (BufferedReader out = new BufferedReader(new InputStreamReader(dying.getInputStream()))) {
            for (String line = out.readLine(); line != null && left == null; line = left == null ? out.readLine() : null) {
                said.append(line).append('\n');
                left = line.startsWith(DyingIndexer.MIDDLE) ? new File(line.substring(DyingIndexer.MIDDLE.length())) : null;
            }
            dying.destroyForcibly().waitFor();
        }
        assertTrue(said.toString(), left != null);
        copy(left, Screen.app().getNoBackupFilesDir());
        assertEquals("what was indexed before the kill", 3, Indexing.indexed());
        Indexing again = new Indexing(Indexing.scheduled());
        List<String> read = new ArrayList<>(); // from here on: the grid has read what it shows
        Folder.watch(read::add);
        Indexing.charging(true);
        assertFalse(again.run());
        assertEquals(PHOTOS, Indexing.indexed());
        assertEquals("the rest, and no photo twice", PHOTOS + 1 - 3, read.size());
    }

    private static void copy(File from, File to) throws Exception {
        for (File file : from.listFiles()) {
            File target = new File(to, file.getName());
            if (file.isDirectory()) {
                assertTrue(target.mkdir());
                copy(file, target);
            } else {
                Files.copy(file.toPath(), target.toPath());
            }
        }
    }
}
