package refocus.app;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertTrue;

import android.content.ClipData;
import android.content.ContentResolver;
import android.content.Intent;
import android.content.UriPermission;
import android.graphics.Bitmap;
import android.graphics.BitmapFactory;
import android.graphics.Color;
import android.graphics.ColorSpace;
import android.graphics.drawable.BitmapDrawable;
import android.net.Uri;
import android.os.Build;
import android.provider.MediaStore;
import android.view.ViewGroup;
import android.widget.ImageView;
import android.widget.Spinner;
import java.io.File;
import java.io.FileOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import org.junit.runner.RunWith;
import org.robolectric.Shadows;
import org.robolectric.annotation.Config;
import org.robolectric.annotation.GraphicsMode;
import org.robolectric.util.ReflectionHelpers;
import refocus.app.model.BeforeAfter;
import refocus.app.model.Groups;
import refocus.recognizer.Answer;
import refocus.recognizer.Bundle;
import refocus.recognizer.Exif;
import refocus.recognizer.Json;

/** The app's screens, as a person uses them: real files, the real runtime, Android's own decoder and drawing. */
@RunWith(AppRunner.class)
@Config(sdk = 33, shadows = Strips.class, qualifiers = "w360dp-h640dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
public class ScreensTest {
    private static final int PHOTOS = 7; // the last one is a JPEG, turned by EXIF; the others are PNG
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();
    private File folder;
    private List<Uri> photos;

    @Before
    public void aDeviceWithPhotos() throws Exception {
        folder = scratch.newFolder();
        photos = Given.photos(folder, PHOTOS);
    }

    private static Intent sharing(List<Uri> photos) {
        return new Intent(Intent.ACTION_SEND_MULTIPLE).setType("image/*")
                .putParcelableArrayListExtra(Intent.EXTRA_STREAM, new ArrayList<>(photos));
    }

    private static Screen<MainActivity> grid(List<Uri> shared) throws Exception {
        return Screen.open(MainActivity.class, sharing(shared));
    }

    private static String said(int string, Object... values) {
        return Screen.app().getString(string, values);
    }

    private static String counted(int number) {
        return plural(R.plurals.photos, number);
    }

    private static String plural(int plural, int number, Object... more) {
        Object[] values = new Object[1 + more.length];
        values[0] = number;
        System.arraycopy(more, 0, values, 1, more.length);
        return Screen.app().getResources().getQuantityString(plural, number, values);
    }

    @Test
    @Config(sdk = {26, 33, 35})
    public void sharedPhotosAreGroupedByWhatWasRecognisedAndEachOpensItsPage() throws Exception {
        Screen<MainActivity> grid = grid(photos);
        assertTrue(grid.texts().contains(counted(PHOTOS)));
        List<String> described = new ArrayList<>();
        for (Groups.Group group : Groups.of(Screen.shown(), "en")) {
            String label = group.label == null ? said(R.string.unknown) : group.label;
            assertTrue(label, grid.texts().contains(said(R.string.group, label, group.photos.size())));
            described.addAll(Collections.nCopies(group.photos.size(), said(R.string.photo_described, label)));
        }
        List<ImageView> shown = grid.photos();
        assertEquals(PHOTOS, shown.size());
        for (int i = 0; i < PHOTOS; i++) {
            assertEquals("for TalkBack", described.get(i), shown.get(i).getContentDescription());
            assertTrue("decoded", shown.get(i).getDrawable() instanceof BitmapDrawable);
        }
        answersAreOfThesePhotos();
        grid.draw("grid");
        shown.get(0).performClick();
        Intent page = Shadows.shadowOf(grid.activity).getNextStartedActivity();
        assertEquals(PhotoActivity.class.getName(), page.getComponent().getClassName());
        assertTrue(Screen.answers().containsKey(page.getStringExtra(PhotoActivity.PHOTO)));
    }

    /** Features are those of Python's pixels; how far Android's JPEG decoder is from Python's is only told. */
    private void answersAreOfThesePhotos() throws Exception {
        List<Answer> answers = new ArrayList<>(Screen.answers().values());
        for (int i = 0; i < PHOTOS; i++) {
            float[] wanted = Screen.app().recognizer().encode(Given.rows(Given.decoded(photos.get(i))));
            float off = largest(answers.get(i).feature, wanted);
            boolean jpeg = photos.get(i).toString().endsWith(".jpg");
            assertTrue(photos.get(i) + " off by " + off, jpeg || off < 1e-4f);
            if (jpeg) {
                System.out.println("jpeg API " + Build.VERSION.SDK_INT + ": feature off by " + off);
            }
        }
    }

    @Test
    @Config(sdk = {26, 33, 35})
    public void oneOfThePickedPhotosShowsBothAnswersAndWhatItAttendedTo() throws Exception {
        Screen<MainActivity> grid = grid(Collections.<Uri>emptyList());
        assertTrue(grid.texts().contains(said(R.string.empty)));
        grid.press(said(R.string.pick));
        String asked = Shadows.shadowOf(grid.activity).peekNextStartedActivityForResult().intent.getAction();
        assertEquals(Build.VERSION.SDK_INT >= 33 ? MediaStore.ACTION_PICK_IMAGES : Intent.ACTION_OPEN_DOCUMENT, asked);
        ClipData picked = ClipData.newRawUri("", photos.get(0));
        for (Uri photo : photos.subList(1, PHOTOS)) {
            picked.addItem(new ClipData.Item(photo));
        }
        Intent answer = new Intent();
        answer.setClipData(picked);
        grid.answered(answer);
        assertTrue(grid.texts().contains(counted(PHOTOS)));

        Map.Entry<String, Answer> last = new ArrayList<>(Screen.answers().entrySet()).get(PHOTOS - 1);
        Screen<PhotoActivity> page = Screen.open(PhotoActivity.class, new Intent().putExtra(PhotoActivity.PHOTO, last.getKey()));
        BeforeAfter expected = new BeforeAfter(last.getValue(), 8);
        assertFalse(expected.attended.isEmpty());
        List<String> texts = page.texts();
        String before = expected.beforeRecognised ? expected.before : said(R.string.unknown);
        String after = expected.afterRecognised ? expected.after : said(R.string.unknown);
        assertTrue(texts.contains(said(R.string.before, before, expected.beforePercent)));
        assertTrue(texts.contains(said(R.string.after, after, expected.afterPercent)));
        assertTrue(texts.contains(said(R.string.trust, expected.trustPercent)));
        assertEquals(1 + expected.attended.size(), page.photos().size());
        for (int i = 0; i < expected.attended.size(); i++) {
            ImageView view = page.photos().get(1 + i);
            assertEquals(said(R.string.attended_described, expected.attended.get(i).percent), view.getContentDescription());
            assertNotNull(view.getDrawable());
        }
        page.draw("photo");
    }

    @Test
    public void aHeicThatCannotBeDecodedIsToldAndTheOthersAreRecognised() throws Exception {
        Screen<MainActivity> grid = grid(Arrays.asList(photos.get(0), Given.heic(folder, "a.heic"), photos.get(1)));
        assertTrue(grid.texts().contains(counted(2)));
        String told = Screen.agreed();
        assertTrue(told, told.contains(plural(R.plurals.problem_format, 1)));
        assertEquals(2, Screen.answers().size());
    }

    @Test
    public void aFormatOfWhichNobodyKnowsHowItIsTurnedIsToldThoughItCouldBeDecoded() throws Exception {
        byte[] content = {0, 0, 8, 8, 1, 2, 3, 4, 5, 6, 7, 8};
        Files.write(new File(folder, "a.wbmp").toPath(), content);
        assertNotNull("this Android decodes it", BitmapFactory.decodeByteArray(content, 0, content.length));
        grid(Arrays.asList(photos.get(0), Folder.document("a.wbmp")));
        String told = Screen.agreed();
        assertTrue(told, told.contains(plural(R.plurals.problem_format, 1)));
        assertEquals(1, Screen.answers().size());
    }

    @Test
    public void aJpegThatIsTurnedByExifIsRecognisedAndShownUpright() throws Exception {
        Uri jpeg = photos.get(PHOTOS - 1);
        byte[] content = Files.readAllBytes(new File(folder, jpeg.getLastPathSegment()).toPath());
        assertEquals("a quarter to the right", 6, Exif.orientation(content));
        Screen<MainActivity> grid = grid(Arrays.asList(jpeg));
        Bitmap upright = Given.decoded(jpeg);
        Bitmap lying = BitmapFactory.decodeByteArray(content, 0, content.length);
        float[] feature = Screen.answers().values().iterator().next().feature;
        float[] wanted = Screen.app().recognizer().encode(Given.rows(upright));
        float[] turned = Screen.app().recognizer().encode(Given.rows(lying));
        System.out.println("jpeg of Android " + largest(feature, wanted) + " turned " + largest(feature, turned));
        assertTrue(largest(feature, wanted) < 0.1f * largest(feature, turned));
        Bitmap shown = Photos.small(grid.activity.getContentResolver(), jpeg, upright.getWidth());
        assertEquals(upright.getWidth(), shown.getWidth());
        int off = 0;
        for (int x = 0; x < upright.getWidth(); x += 3) {
            for (int y = 0; y < upright.getHeight(); y += 3) {
                off = Math.max(off, Math.abs(Color.green(upright.getPixel(x, y)) - Color.green(shown.getPixel(x, y))));
            }
        }
        System.out.println("jpeg shown off by " + off);
        assertTrue("shown off by " + off, off < 16);
    }

    private static float largest(float[] one, float[] other) {
        float found = 0;
        for (int i = 0; i < one.length; i++) {
            found = Math.max(found, Math.abs(one[i] - other[i]));
        }
        return found;
    }

    @Test
    public void aCorruptModelOrOneOfAnotherFeatureSpaceIsRefusedAndTheOneThereAnswersOn() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 2));
        int[] words = {R.string.problem_model_damaged, R.string.problem_model_unfit};
        Given.Change[] changes = {
            (name, content) -> {
                if (name.endsWith(".onnx")) {
                    content[content.length / 2] ^= 1;
                }
                return content;
            },
            (name, content) -> name.equals(Bundle.MANIFEST) ? new String(content, StandardCharsets.UTF_8)
                    .replaceFirst("\"feature_space\": \"\\w{4}", "\"feature_space\": \"0000").getBytes(StandardCharsets.UTF_8)
                    : content,
        };
        for (int i = 0; i < changes.length; i++) {
            grid.choose(R.string.import_model);
            grid.answered(new Intent().setData(Given.bundle(folder, "wrong" + i + ".zip", changes[i])));
            String told = Screen.agreed();
            assertEquals(said(words[i]), told);
            assertEquals(2, Screen.answers().size());
        }
        grid.choose(R.string.import_model);
        grid.answered(new Intent().setData(Given.bundle(folder, "same.zip", (name, content) -> content)));
        assertEquals("nothing to complain of", "", Screen.agreed());
        assertTrue(grid.texts().contains(counted(2)));
    }

    @Test
    @Config(sdk = {33, 35})
    public void aPhotoOfAWideGamutIsRecognisedInTheNumbersThatItsFileHas() throws Exception {
        Bitmap given = Given.decoded(photos.get(0));
        ByteBuffer numbers = ByteBuffer.allocate(given.getByteCount());
        given.copyPixelsToBuffer(numbers);
        numbers.flip();
        Bitmap wide = Bitmap.createBitmap(given.getWidth(), given.getHeight(), Bitmap.Config.ARGB_8888, true,
                ColorSpace.get(ColorSpace.Named.DISPLAY_P3));
        wide.copyPixelsFromBuffer(numbers);
        try (FileOutputStream to = new FileOutputStream(new File(folder, "wide.png"))) {
            assertTrue(wide.compress(Bitmap.CompressFormat.PNG, 100, to));
        }
        byte[] content = Files.readAllBytes(new File(folder, "wide.png").toPath());
        Bitmap read = BitmapFactory.decodeByteArray(content, 0, content.length);
        assertTrue("as a phone's camera says it", read.getColorSpace().isWideGamut());
        int converted = 0;
        for (int x = 0; x < read.getWidth(); x++) {
            converted = Math.max(converted, Math.abs(Color.red(read.getPixel(x, 0)) - Color.red(given.getPixel(x, 0))));
        }
        assertTrue("converted, the numbers are others: " + converted, converted > 1);
        grid(Collections.singletonList(Folder.document("wide.png")));
        float[] wanted = Screen.app().recognizer().encode(Given.rows(given));
        assertArrayEquals(wanted, Screen.answers().values().iterator().next().feature, 1e-4f);
    }

    @Test
    public void rightsToReadPhotosGiveWayBeforeAFoldersAndEndWithTheirPerson() throws Exception {
        ContentResolver resolver = Screen.app().getContentResolver();
        Uri other = Uri.parse("content://elsewhere/tree/album");
        Grants.keep(resolver, other);
        Grants.keep(resolver, Folder.tree());
        for (int i = 0; i < 460; i++) {
            Grants.keep(resolver, Uri.parse("content://elsewhere/document/" + i));
        }
        assertEquals("450 photos, and two folders", 452, resolver.getPersistedUriPermissions().size());
        Screen<MainActivity> grid = grid(photos.subList(0, 2));
        IndexJob.schedule(grid.activity, "Zoe", other.toString());
        Grants.releaseUnused(resolver, Screen.app().work.submit(() -> grid.activity.places()).get());
        List<String> left = new ArrayList<>();
        for (UriPermission grant : resolver.getPersistedUriPermissions()) {
            left.add(grant.getUri().toString());
        }
        Collections.sort(left);
        List<String> wanted = new ArrayList<>(Arrays.asList(other.toString(), photos.get(0).toString(), photos.get(1).toString()));
        Collections.sort(wanted);
        assertEquals(wanted, left);
        grid.choose(R.string.erase_all);
        Screen.agreed();
        assertEquals(Collections.emptyList(), resolver.getPersistedUriPermissions());
    }

    @Test
    public void anUpdateOfTheAppBringsItsModelUnlessAnotherWasImported() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 1));
        File mark = new File(Screen.app().getNoBackupFilesDir(), "bundle/mark");
        for (boolean imported : new boolean[] {false, true}) {
            if (imported) {
                grid.choose(R.string.import_model);
                grid.answered(new Intent().setData(Given.bundle(folder, "same.zip", (name, content) -> content)));
            }
            assertTrue(mark.createNewFile());
            Screen.app().recognizer().close();
            ReflectionHelpers.setField(Screen.app(), "recognizer", null);
            grid(Collections.<Uri>emptyList());
            assertTrue("nothing was updated", mark.exists());
            Screen.app().recognizer().close();
            ReflectionHelpers.setField(Screen.app(), "recognizer", null);
            Shadows.shadowOf(Screen.app().getPackageManager()).getInternalMutablePackageInfo("refocus.app").lastUpdateTime += 1000;
            assertTrue(grid(Collections.<Uri>emptyList()).texts().contains(counted(1)));
            assertEquals(imported, mark.exists());
        }
    }

    @Test
    public void aPhotoThatWasDeletedSinceLeavesItsPlaceAndItsGroup() throws Exception {
        grid(photos.subList(0, 3));
        assertTrue(new File(folder, photos.get(1).getLastPathSegment()).delete());
        Screen<MainActivity> grid = grid(Collections.singletonList(photos.get(1)));
        assertTrue(Screen.agreed().contains(plural(R.plurals.problem_gone, 1)));
        assertTrue(grid.texts().contains(counted(3)));
        for (ImageView view : grid.photos()) {
            assertTrue("the small picture stays", view.getDrawable() instanceof BitmapDrawable);
        }
        File pictures = new File(Screen.app().getNoBackupFilesDir(), "profiles/me/pictures");
        for (File picture : pictures.listFiles()) {
            assertTrue(picture.delete());
        }
        int missing = 0;
        for (ImageView view : grid(Collections.<Uri>emptyList()).photos()) {
            boolean bitmap = view.getDrawable() instanceof BitmapDrawable;
            missing += bitmap ? 0 : 1;
            assertEquals(bitmap, !view.getContentDescription().toString().contains("cannot be read any more"));
        }
        assertEquals("of the photo that is gone there is a sign", 1, missing);
    }

    @Test
    public void photosGoToThePersonTheyWereGivenForAndErasingTakesWhoWasAskedAbout() throws Exception {
        Screen<MainActivity> grid = grid(Collections.<Uri>emptyList());
        Screen.app().profiles().add("Zoe");
        CountDownLatch busy = new CountDownLatch(1);
        Screen.app().work.execute(() -> {
            try {
                busy.await();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        });
        grid.activity.onNewIntent(sharing(photos.subList(0, 2)));
        Screen.app().choose("Zoe");
        busy.countDown();
        Screen.settle();
        assertTrue(Screen.answers().isEmpty());
        Screen.app().choose("me");
        assertEquals(2, Screen.answers().size());

        grid.choose(R.string.erase_profile);
        Screen.app().choose("Zoe");
        assertEquals(said(R.string.erase_question), Screen.agreed());
        assertEquals(Arrays.asList("Zoe"), Screen.app().profiles().names());
    }

    @Test
    public void eachProfileHasItsOwnPhotosAndErasingForgetsThem() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 3));
        grid.choose(R.string.add_profile);
        Screen.write("Søren");
        Screen.agreed();
        assertEquals("Søren", Screen.app().profile());
        assertTrue(grid.texts().toString(), grid.texts().contains(said(R.string.empty)));

        Spinner profiles = grid.activity.findViewById(R.id.profile);
        profiles.setSelection(Screen.app().profiles().names().indexOf("me"));
        ((ViewGroup) profiles.getParent()).requestLayout();
        Screen.settle();
        assertEquals("me", Screen.app().profile());
        assertTrue(grid.texts().contains(counted(3)));

        grid.choose(R.string.erase_profile);
        assertEquals(said(R.string.erase_question), Screen.agreed());
        assertEquals(Arrays.asList("Søren"), Screen.app().profiles().names());
        grid = grid(photos.subList(0, 2));
        grid.choose(R.string.erase_all);
        assertEquals(said(R.string.erase_question), Screen.agreed());
        assertTrue(grid.texts().toString(), grid.texts().contains(said(R.string.empty)));
        assertTrue(Screen.answers().isEmpty());
        assertTrue("the photos themselves stay", new File(folder, photos.get(0).getLastPathSegment()).exists());
    }

    @Test
    @Config(sdk = {26, 33, 35})
    public void theBenchmarkMeasuresTheProfilesPhotosAndSavesItsDocument() throws Exception {
        Screen<BenchActivity> bench = Screen.open(BenchActivity.class, new Intent());
        bench.press(said(R.string.bench_run));
        assertEquals(said(R.string.bench_need), Screen.agreed());
        grid(photos);
        bench.press(said(R.string.bench_run));
        int stages = 0;
        for (String text : bench.texts()) {
            stages += text.contains("median") ? 1 : 0;
        }
        assertEquals(bench.texts().toString(), 4, stages);
        Screen<BenchActivity> turned = Screen.open(BenchActivity.class, new Intent());
        assertEquals("what was measured outlives the screen", bench.texts(), turned.texts());
        turned.press(said(R.string.bench_export));
        turned.answered(new Intent().setData(Folder.document("bench.json")));
        byte[] saved = Files.readAllBytes(new File(folder, "bench.json").toPath());
        Map<?, ?> document = (Map<?, ?>) Json.parse(saved);
        assertTrue(document.containsKey("schema_version"));
        String verdict = "" + ((Map<?, ?>) ((Map<?, ?>) document.get("machine")).get("extra")).get("self_test");
        assertTrue(verdict, verdict.startsWith("passed: 8 of 8 photos"));
        Files.write(new File(Given.out(), "bench-" + Build.VERSION.SDK_INT + ".json").toPath(), saved);
        bench.draw("bench");
    }

    @Test
    @Config(sdk = {26, 33, 35})
    public void thePageAboutTheAppNamesTheModelAndTheRuntime() throws Exception {
        Screen<AboutActivity> about = Screen.open(AboutActivity.class, new Intent());
        String texts = about.texts().toString();
        assertTrue(texts.contains(said(R.string.about_text)));
        assertTrue(texts.contains(Screen.app().recognizer().bundle.sha256));
        assertTrue(texts.contains("ONNX Runtime 1."));
        int photos = Screen.app().recognizer().bundle.manifest.selfTestPhotos.size();
        assertTrue(texts, texts.contains(said(R.string.self_test_passed, photos, photos)));
        about.draw("about");
    }

    @Test
    public void theAppsOwnModelIsUnpackedOnceMoreWhereItIsDamagedAndAnImportedOneIsNot() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 1));
        File bundle = new File(Screen.app().getNoBackupFilesDir(), "bundle");
        for (boolean imported : new boolean[] {false, true}) {
            if (imported) {
                grid.choose(R.string.import_model);
                grid.answered(new Intent().setData(Given.bundle(folder, "same.zip", (name, content) -> content)));
                assertEquals("", Screen.agreed());
            }
            restarted();
            for (File file : bundle.listFiles()) {
                if (file.getName().endsWith(".onnx")) { // a power cut left zeros
                    Files.write(file.toPath(), new byte[(int) file.length()]);
                }
            }
            grid = grid(photos.subList(1, 2));
            assertEquals(imported ? said(R.string.problem_model_damaged) : "", Screen.agreed());
        }
        assertEquals(2, Screen.shown().entries.size());
    }

    @Test
    public void aShareIsNotTakenAgainFromTheListOfRecentApps() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 1));
        assertEquals(Intent.ACTION_MAIN, grid.activity.getIntent().getAction());
        Screen.open(MainActivity.class, sharing(photos.subList(1, 3)).addFlags(Intent.FLAG_ACTIVITY_LAUNCHED_FROM_HISTORY));
        assertEquals(1, Screen.answers().size());
    }

    @Test
    public void aSmallPictureForWhichThereIsNoRoomIsNotPutInPlaceCut() throws Exception {
        File file = new File(folder, "small.jpg");
        Files.createSymbolicLink(new File(folder, "small.jpg.new").toPath(), new File("/dev/full").toPath());
        Photos.keep(Given.decoded(photos.get(0)), file);
        assertFalse(Files.exists(file.toPath(), java.nio.file.LinkOption.NOFOLLOW_LINKS));
        Photos.keep(Given.decoded(photos.get(0)), file);
        assertNotNull("there is room again", BitmapFactory.decodeFile(file.getPath()));
    }

    @Test
    public void tilesStayWhileMorePhotosAreRecognised() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 4));
        List<ImageView> before = grid.photos();
        grid.activity.onNewIntent(sharing(photos));
        Screen.settle();
        List<ImageView> after = grid.photos();
        assertEquals(PHOTOS, after.size());
        List<ImageView> both = new ArrayList<>(before);
        both.retainAll(after);
        System.out.println("tiles that stayed: " + both.size() + " of " + before.size());
        assertFalse(both.isEmpty());
    }

    /** What a processor would see on which the runtime computes something else. */
    @Test
    public void aModelThatAnswersOtherwiseThanItsSelfTestExpectsIsRefusedBeforeTheFirstAnswer() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 1));
        String was = Screen.app().recognizer().bundle.sha256;
        grid.choose(R.string.import_model);
        grid.answered(new Intent().setData(Given.bundle(folder, "wrong.zip", ScreensTest::expectingAnotherLabel)));
        String told = Screen.agreed();
        assertEquals(said(R.string.problem_self_test), told);
        assertEquals("the one there answers on", was, Screen.app().recognizer().bundle.sha256);
        restarted(); // and what passed is put to the test again after an update of the system
        File manifest = new File(Screen.app().getNoBackupFilesDir(), "bundle/" + Bundle.MANIFEST);
        Files.write(manifest.toPath(), expectingAnotherLabel(Bundle.MANIFEST, Files.readAllBytes(manifest.toPath())));
        grid(photos.subList(0, 1));
        assertEquals(said(R.string.problem_self_test), Screen.agreed());
        String page = Screen.open(AboutActivity.class, new Intent()).texts().toString();
        assertTrue(page, page.contains("self-test/00"));
        assertFalse(Screen.app().verdict().passed);
    }

    /** As if the process had ended: nothing is left in memory. */
    private static void restarted() throws Exception {
        Screen.app().recognizer().close();
        Screen.app().work.submit(() -> {
            Screen.app().closeIndex();
            return null;
        }).get();
        for (String kept : new String[] {"recognizer", "index", "answers", "answered"}) {
            ReflectionHelpers.setField(Screen.app(), kept, null);
        }
    }

    private static byte[] expectingAnotherLabel(String name, byte[] content) {
        if (!name.equals(Bundle.MANIFEST)) {
            return content;
        }
        String text = new String(content, StandardCharsets.UTF_8);
        int at = text.indexOf("onnxruntime:fp32\": [", text.indexOf("\"self_test\": {"));
        return (text.substring(0, at) + text.substring(at).replaceFirst("\"label\": \"", "\"label\": \"not "))
                .getBytes(StandardCharsets.UTF_8);
    }

    @Test
    @Config(qualifiers = "de-w360dp-h640dp-night-xhdpi")
    public void atNightAndInGermanTheSameScreenIsDarkAndGerman() throws Exception {
        Screen<MainActivity> grid = grid(photos);
        assertTrue(grid.texts().toString(), grid.texts().containsAll(Arrays.asList("Fotos wählen", PHOTOS + " Fotos")));
        grid.draw("night");
    }

    // ---- errors

    /** Robolectric finds no app for anything; asked to check, it says so as Android does. */
    @Test
    public void aDeviceWithoutAPickerSaysSoAndDoesNotCrash() throws Exception {
        Screen<MainActivity> grid = grid(Collections.<Uri>emptyList());
        Shadows.shadowOf(Screen.app()).checkActivities(true);
        grid.press(said(R.string.pick));
        assertEquals(said(R.string.problem_no_app), Screen.agreed());
        grid.press(said(R.string.index_folder));
        assertEquals(said(R.string.problem_no_app), Screen.agreed());
        grid.choose(R.string.import_model);
        assertEquals(said(R.string.problem_no_app), Screen.agreed());
        Shadows.shadowOf(Screen.app()).checkActivities(false);
        grid(photos.subList(0, 2));
        Screen<BenchActivity> bench = Screen.open(BenchActivity.class, new Intent());
        bench.press(said(R.string.bench_run));
        Shadows.shadowOf(Screen.app()).checkActivities(true);
        bench.press(said(R.string.bench_export));
        assertEquals(said(R.string.problem_no_app), Screen.agreed());
    }

    @Test
    public void aMalformedShareIsPassedOver() throws Exception {
        Intent one = new Intent(Intent.ACTION_SEND).setType("image/*").putExtra(Intent.EXTRA_STREAM, new Intent());
        ArrayList<Object> mixed = new ArrayList<>(Arrays.asList(new Intent(), photos.get(0), null));
        Intent many = new Intent(Intent.ACTION_SEND_MULTIPLE).setType("image/*");
        many.putParcelableArrayListExtra(Intent.EXTRA_STREAM, (ArrayList) mixed);
        Intent other = new Intent(Intent.ACTION_SEND).setType("image/*").putExtra(Intent.EXTRA_STREAM, "no place");
        for (Intent share : Arrays.asList(one, many, other, new Intent(Intent.ACTION_SEND_MULTIPLE))) {
            Screen.open(MainActivity.class, share);
            assertEquals("", Screen.agreed());
        }
        assertEquals("the photo among them is recognised", 1, Screen.answers().size());
    }

    @Test
    public void anyNumberOfBadPhotosIsOneSummaryWithoutPlaces() throws Exception {
        List<Uri> bad = new ArrayList<>(photos.subList(0, 2));
        for (int i = 0; i < 12; i++) {
            bad.add(Given.heic(folder, "bad" + i + ".heic"));
        }
        byte[] jpeg = Files.readAllBytes(new File(folder, photos.get(PHOTOS - 1).getLastPathSegment()).toPath());
        Files.write(new File(folder, "half.jpg").toPath(), Arrays.copyOf(jpeg, jpeg.length / 2));
        bad.add(Folder.document("half.jpg"));
        bad.add(Folder.document("gone.jpg"));
        Screen<MainActivity> grid = grid(bad);
        String told = Screen.agreed();
        assertTrue(told, told.startsWith(plural(R.plurals.problem_photos, 14)));
        assertTrue(told, told.contains(plural(R.plurals.problem_format, 12)));
        assertTrue(told, told.contains(plural(R.plurals.problem_damaged, 1)));
        assertTrue(told, told.contains(plural(R.plurals.problem_gone, 1)));
        assertFalse(told, told.contains("content:"));
        assertEquals("one dialog, and no more", "", Screen.agreed());
        assertTrue(grid.texts().toString(), grid.texts().contains(counted(2)));
    }

    @Test
    @Config(qualifiers = "de-w360dp-h640dp-xhdpi")
    public void errorsAreInTheReadersLanguageAndDetailsNameNoPlace() throws Exception {
        Screen<MainActivity> grid = grid(Collections.singletonList(Given.heic(folder, "a.heic")));
        String told = Screen.agreed();
        assertTrue(told, told.startsWith("1 Foto konnte nicht verwendet werden."));
        grid.choose(R.string.import_model);
        grid.answered(new Intent().setData(Folder.document("nowhere.zip")));
        assertEquals(said(R.string.problem_other), Screen.agreed());
        grid.choose(R.string.add_profile);
        Screen.write("../me");
        Screen.agreed();
        assertEquals(said(R.string.problem_profile_name), Screen.agreed());
        String details = Problems.details(new IllegalStateException("content://media/picker/0/17 cannot be read"));
        assertEquals("… cannot be read", details);
        assertEquals("no empty dialog", "java.lang.NullPointerException", Problems.details(new NullPointerException()));
    }

    @Test
    public void whateverHappensOnTheWorkThreadIsToldAndEndsNothing() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 1));
        int[] words = {R.string.problem_other, R.string.problem_memory, R.string.problem_file, R.string.problem_storage};
        Throwable[] errors = {new IllegalStateException("anything"), new OutOfMemoryError("in a test"),
            new java.io.IOException("disk"), new refocus.recognizer.HistoryException("full")};
        for (int i = 0; i < errors.length; i++) {
            Throwable error = errors[i];
            Screen.app().work(grid.activity, () -> Given.<RuntimeException>raise(error));
            Screen.settle();
            assertEquals(said(words[i]), Screen.agreed());
        }
        Pages.picture(grid.activity, grid.activity.findViewById(R.id.groups), 96, "a picture", side -> {
            throw new OutOfMemoryError("in a test");
        });
        Screen.settle();
        assertEquals(1, Screen.answers().size());
        grid.activity.finish();
        Pages.tell(grid.activity, errors[0]);
        Screen.settle();
        assertEquals("a page that is left has no dialogs", "", Screen.agreed());
    }

    @Test
    public void aPhotoThatIsSharedAgainReachesThePageThatIsThere() throws Exception {
        android.content.pm.ActivityInfo page = Screen.app().getPackageManager()
                .getActivityInfo(new android.content.ComponentName(Screen.app(), MainActivity.class), 0);
        assertEquals(android.content.pm.ActivityInfo.LAUNCH_SINGLE_TASK, page.launchMode);
    }

    @Test
    public void aZipThatAProviderCallsOtherwiseCanBeChosen() throws Exception {
        Screen<MainActivity> grid = grid(Collections.<Uri>emptyList());
        grid.choose(R.string.import_model);
        Intent asked = Shadows.shadowOf(grid.activity).peekNextStartedActivityForResult().intent;
        List<String> types = Arrays.asList(asked.getStringArrayExtra(Intent.EXTRA_MIME_TYPES));
        assertTrue(types.toString(), types.containsAll(Arrays.asList("application/zip", "application/x-zip-compressed",
                "application/octet-stream")));
    }

    @Test
    public void aPageOfAPhotoThatIsGoneSaysSoAndDoesNotCrash() throws Exception {
        grid(photos.subList(0, 2));
        String unknown = new String(new char[64]).replace('\0', '0');
        for (Intent asked : Arrays.asList(new Intent(), new Intent().putExtra(PhotoActivity.PHOTO, unknown))) {
            Screen<PhotoActivity> page = Screen.open(PhotoActivity.class, asked);
            assertTrue(page.texts().toString(), page.texts().contains(said(R.string.photo_waits)));
            assertEquals("", Screen.agreed());
        }
    }

    // ---- what is shown

    @Test
    public void aModelWithClassSharesCountsTheOwnersPhotosAndThePagesSaySo() throws Exception {
        Given.library();
        Screen<MainActivity> grid = grid(photos);
        List<String> about = Screen.open(AboutActivity.class, new Intent()).texts();
        assertTrue(about.toString(), about.contains(said(R.string.about_history)));
        assertFalse(about.toString(), about.contains(said(R.string.about_shares)));
        Uri counting = Given.bundle(folder, "shares.zip", (name, content) -> !name.equals(Bundle.MANIFEST) ? content
                : new String(content, StandardCharsets.UTF_8).replaceFirst("\"shares\": null", "\"shares\": {\"version\": 3,"
                        + "\"outputs\": \"logits\", \"temperature\": 1, \"with_head\": 0.5, \"top\": 8, \"capacity\": 4096}")
                        .getBytes(StandardCharsets.UTF_8));
        grid.choose(R.string.import_model);
        grid.answered(new Intent().setData(counting));
        assertEquals("", Screen.agreed());
        assertTrue(Screen.app().recognizer().passedOver, Screen.app().recognizer().countsShares());
        about = Screen.open(AboutActivity.class, new Intent()).texts();
        assertTrue(about.toString(), about.contains(said(R.string.about_shares)));
        assertTrue(grid.texts().contains(counted(PHOTOS)));
        Map.Entry<String, Answer> last = new ArrayList<>(Screen.answers().entrySet()).get(PHOTOS - 1);
        List<String> page = Screen.open(PhotoActivity.class, new Intent().putExtra(PhotoActivity.PHOTO, last.getKey())).texts();
        assertTrue(page.toString(), page.contains(said(R.string.shares, new BeforeAfter(last.getValue(), 8).sharePercent)));
        List<String> before = grid.texts();
        restarted();
        assertEquals(before, grid(Collections.<Uri>emptyList()).texts());
        assertTrue("no model was loaded", ReflectionHelpers.getField(Screen.app(), "recognizer") == null);
    }

    @Test
    public void thePageSaysWhatTheModelKnowsAndWhatItDoesNotKnowIsNotNamed() throws Exception {
        Screen<MainActivity> grid = grid(photos);
        List<String> labels = Screen.app().recognizer().card.labels;
        int count = labels.size();
        String line = plural(R.plurals.knows, count, labels.get(0) + ", " + labels.get(count / 3) + ", " + labels.get(2 * count / 3));
        assertTrue(grid.texts().toString(), grid.texts().contains(line));
        String about = Screen.open(AboutActivity.class, new Intent()).texts().toString();
        assertTrue(about.contains(plural(R.plurals.about_knows, count)) && about.contains(labels.get(count - 1)));
        assertTrue(about.contains(said(R.string.about_rejection)));

        Uri sure = Given.bundle(folder, "sure.zip", (name, content) -> !name.equals(Bundle.MANIFEST) ? content
                : new String(content, StandardCharsets.UTF_8).replaceFirst("\"rejection\": *[0-9.-]+", "\"rejection\": 99.5")
                        .getBytes(StandardCharsets.UTF_8));
        grid.choose(R.string.import_model);
        grid.answered(new Intent().setData(sure));
        assertTrue(grid.texts().toString(), grid.texts().contains(said(R.string.group, said(R.string.unknown), PHOTOS)));
        grid.draw("unknown");
        String photo = Screen.shown().entries.get(0).photo;
        List<String> page = Screen.open(PhotoActivity.class, new Intent().putExtra(PhotoActivity.PHOTO, photo)).texts();
        BeforeAfter answer = new BeforeAfter(Screen.answers().get(photo), 8);
        assertTrue(page.toString(), page.contains(said(R.string.unknown_nearest, answer.after)));
        assertTrue(page.toString(), page.contains(said(R.string.after, said(R.string.unknown), answer.afterPercent)));
    }

    @Test
    @Config(qualifiers = "de-w360dp-h640dp-xhdpi")
    public void labelsAreInTheReadersLanguageWhereTheBundleBringsNames() throws Exception {
        Screen<MainActivity> grid = grid(photos);
        int named = 0;
        for (Groups.Group group : Groups.of(Screen.shown(), "de")) {
            String label = group.label == null ? said(R.string.unknown) : group.label;
            named += label.startsWith("de ") ? 1 : 0; // as the names of this bundle begin
            assertTrue(label, grid.texts().contains(said(R.string.group, label, group.photos.size())));
        }
        assertTrue(named > 0);
    }

    @Test
    public void aStartAnswersNothingAgainAndLoadsNoModel() throws Exception {
        List<String> before = grid(photos).texts();
        restarted();
        Screen<MainActivity> grid = grid(Collections.<Uri>emptyList());
        assertEquals(before, grid.texts());
        assertTrue("no model was loaded", ReflectionHelpers.getField(Screen.app(), "recognizer") == null);
        assertTrue("no index was opened", ReflectionHelpers.getField(Screen.app(), "index") == null);
        Screen.app().work.submit(() -> Screen.app().index("me").size("")).get(); // opened, it is as it was
        restarted();
        assertEquals(before, grid(Collections.<Uri>emptyList()).texts());
        assertTrue("no model was loaded", ReflectionHelpers.getField(Screen.app(), "recognizer") == null);
        grid(photos.subList(0, 1)); // the same photo again
        assertTrue(grid.texts().contains(counted(PHOTOS)));
    }

    @Test
    public void answersOfTheModelBeforeStayUntilTheirPhotosWereReadAgain() throws Exception {
        Screen<MainActivity> grid = grid(photos.subList(0, 4));
        List<String> labels = new ArrayList<>();
        Screen.shown().entries.forEach(entry -> labels.add(entry.label));
        assertTrue("one can be read no more", new File(folder, photos.get(1).getLastPathSegment()).delete());
        grid.choose(R.string.import_model);
        grid.answered(new Intent().setData(Given.bundle(folder, "other.zip", ScreensTest::ofAnotherSpace)));
        assertEquals("", Screen.agreed());
        List<String> kept = new ArrayList<>();
        Screen.shown().entries.forEach(entry -> kept.add(entry.label));
        assertEquals(labels, kept);
        assertEquals(4, Screen.shown().old());
        String waits = plural(R.plurals.folder_waits, 4, said(R.string.chosen_photos));
        assertTrue(grid.texts().toString(), grid.texts().contains(waits));
        assertTrue(grid.texts().toString(), grid.texts().contains(counted(4) + " " + plural(R.plurals.old_answers, 4)));
        grid.press(said(R.string.index_now));
        assertTrue(Screen.agreed().contains(plural(R.plurals.problem_gone, 1)));
        assertEquals("of the photo that is gone the earlier answer stays", 1, Screen.shown().old());
        assertEquals(4, Screen.shown().entries.size());
        assertEquals(3, Screen.answers().size());
        assertFalse(grid.texts().contains(said(R.string.index_now)));
    }

    /** The same programs, whose features are said to be of another space. */
    static byte[] ofAnotherSpace(String name, byte[] content) {
        if (!name.equals(Bundle.MANIFEST)) {
            return content;
        }
        String text = new String(content, StandardCharsets.UTF_8);
        String space = text.replaceFirst("(?s).*\"feature_space\": *\"([0-9a-f]{64}).*", "$1");
        return text.replace(space, "0000" + space.substring(4)).getBytes(StandardCharsets.UTF_8);
    }

    @Test
    public void theSamplePhotosAreAnsweredOneByOneAndNothingIsKept() throws Exception {
        Screen<MainActivity> grid = grid(Collections.<Uri>emptyList());
        grid.press(said(R.string.samples));
        assertEquals(SampleActivity.class.getName(),
                Shadows.shadowOf(grid.activity).getNextStartedActivity().getComponent().getClassName());
        int all = Screen.app().recognizer().bundle.manifest.selfTestPhotos.size();
        Screen<SampleActivity> walk = Screen.open(SampleActivity.class, new Intent());
        assertTrue(walk.texts().toString(), walk.texts().contains(said(R.string.sample_first)));
        for (int step = 1; step <= all; step++) {
            assertTrue(walk.texts().toString(), walk.texts().contains(said(R.string.sample_step, step, all)));
            assertEquals("the photo, and those before it", step, walk.photos().size());
            if (step < all) {
                walk.press(said(R.string.sample_next));
            }
        }
        assertTrue(walk.texts().contains(said(R.string.sample_end)));
        walk.press(said(R.string.sample_done));
        assertTrue(walk.activity.isFinishing());
        assertTrue(Screen.answers().isEmpty());
    }
}
