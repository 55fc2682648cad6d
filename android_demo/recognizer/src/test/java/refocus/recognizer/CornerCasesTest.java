package refocus.recognizer;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.ByteArrayInputStream;
import java.io.File;
import java.nio.file.Files;
import java.util.Arrays;
import org.junit.Assume;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Bundles, photos and moments that are wrong: nothing is lost, and nothing wrong is shown. */
public class CornerCasesTest {
    @Rule public final TemporaryFolder scratch = new TemporaryFolder();

    // ---- bundles

    private File copied(Golden golden) throws Exception {
        return Bundles.copied(golden, scratch.newFolder());
    }

    private static void refused(File folder, String... words) {
        try {
            Bundle.load(folder);
            fail("a wrong bundle was loaded");
        } catch (BundleException error) {
            for (String word : words) {
                assertTrue(error.getMessage(), error.getMessage().contains(word));
            }
        }
    }

    @Test
    public void aChangedByteOfAProgramIsRefused() throws Exception {
        Golden golden = Golden.all().get(0);
        File folder = copied(golden);
        File program = golden.bundle.artifact("head", Golden.TARGET, "").file.in(folder);
        program = program.isDirectory() ? new File(program, "program.onnx") : program;
        byte[] content = Files.readAllBytes(program.toPath());
        content[content.length / 2] ^= 4;
        Files.write(program.toPath(), content);
        refused(folder, "SHA-256 differs", "import the bundle again");
        Files.write(program.toPath(), Arrays.copyOf(content, content.length - 1));
        refused(folder, "was changed: it has");
        assertTrue(program.delete());
        refused(folder);
    }

    @Test
    public void aManifestThatThisAppCannotFullyReadIsRefused() throws Exception {
        Golden golden = Golden.all().get(0);
        String[][] changes = {
            {"\"schema_version\": 6", "\"schema_version\": 7", "update the app"},
            {"\"schema_version\": 6", "\"schema_version\": 4", "export the bundle again"},
            {"\"resize_filter\"", "\"resize_kernel\": 1, \"resize_filter\"", "unknown field 'resize_kernel'"},
            {"\"file\": \"", "\"file\": \"../", "must stay inside"},
            {"\"crop\": ", "\"crop\": 9", "is larger than resize_shorter"},
            {"{", "{{", "is not a Refocus manifest"},
        };
        for (String[] change : changes) {
            File folder = copied(golden);
            Bundles.change(new File(folder, Bundle.MANIFEST), change[0], change[1]);
            refused(folder, change[2]);
        }
    }

    @Test
    public void aSoundBundleThatDoesNotFitIsNotCalledDamaged() throws Exception {
        Golden golden = Golden.all().get(0);
        String[][] changes = {
            {"\"resize_filter\"", "\"resize_kernel\": 1, \"resize_filter\""},
            {"\"personalisation\"", "\"thresholds\": [0.5], \"personalisation\""},
            {"\"bank\": null", "\"bank\": {\"version\": 1}"},
            {"\"crop\": ", "\"crop\": 9"},
        };
        Reason[] wanted = {Reason.MODEL_NEWER, Reason.MODEL_UNFIT, Reason.MODEL_UNFIT, Reason.MODEL_DAMAGED};
        for (int i = 0; i < changes.length; i++) {
            File folder = copied(golden);
            Bundles.change(new File(folder, Bundle.MANIFEST), changes[i][0], changes[i][1]);
            try {
                Bundle.load(folder);
                fail("loaded");
            } catch (BundleException error) {
                assertEquals(error.getMessage(), wanted[i], error.reason);
            }
        }
    }

    @Test
    public void whatDesktopSystemsPutIntoAZipIsPassedOver() throws Exception {
        Golden golden = Golden.all().get(0);
        for (String more : new String[] {"__MACOSX/wrapped/._manifest.json", ".DS_Store", "wrapped/.DS_Store"}) {
            File target = new File(scratch.newFolder(), "installed");
            BundleImport.unpack(new ByteArrayInputStream(Bundles.zip(golden.bundle.folder, "wrapped/", more)), target);
            assertEquals(golden.bundle.sha256, Bundle.load(target).sha256);
        }
    }

    /** As bsdtar and some scripts write them. */
    @Test
    public void aZipWhosePathsBeginWithADotIsABundle() throws Exception {
        Golden golden = Golden.all().get(0);
        for (String prefix : new String[] {"./", "././", "./wrapped/"}) {
            File target = new File(scratch.newFolder(), "installed");
            BundleImport.unpack(new ByteArrayInputStream(Bundles.zip(golden.bundle.folder, prefix, "./.DS_Store")), target);
            assertEquals(golden.bundle.sha256, Bundle.load(target).sha256);
        }
    }

    @Test
    public void aZipWithANameThatIsNotUtf8OrThatIsAFileAndAFolderIsCalledNoBundle() throws Exception {
        File some = scratch.newFolder();
        Files.write(new File(some, "manXfest.json").toPath(), new byte[1]);
        String zip = new String(Bundles.zip(some, "", null), "ISO-8859-1");
        byte[] latin = zip.replace("manXfest", "man\u00effest").getBytes("ISO-8859-1");
        assertTrue(new File(some, "a").mkdir());
        Files.write(new File(some, "a/b").toPath(), new byte[1]);
        File plain = scratch.newFolder();
        Files.write(new File(plain, "a").toPath(), new byte[1]);
        byte[][] wrong = {latin, Bundles.zip(some, "", "a"), Bundles.zip(some, "a/b/", "a"), Bundles.zip(plain, "", "a/b")};
        String[] words = {"a name in it is not UTF-8", "its 'a/b' lies in a file", "its 'a/b/", "its 'a' is a file and a folder"};
        for (int i = 0; i < wrong.length; i++) {
            try {
                BundleImport.unpack(new ByteArrayInputStream(wrong[i]), new File(scratch.newFolder(), "installed"));
                fail(words[i]);
            } catch (BundleException error) {
                assertEquals(error.getMessage(), Reason.MODEL_DAMAGED, error.reason);
                assertTrue(error.getMessage(), error.getMessage().contains(words[i]));
            }
        }
    }

    /** Of a bundle with class shares; without the library the photo alone answers, and the reason is stated. */
    @Test
    public void likelyClassesAreKeptWithAPhotoComputedAgainWhereTheyAreMissingAndGoneWithIt() throws Exception {
        Golden golden = Golden.all().get(0);
        File folder = copied(golden);
        Bundles.change(new File(folder, Bundle.MANIFEST), "\"shares\": null", "\"shares\": {\"version\": 3, \"outputs\": \"logits\","
                + " \"temperature\": 1, \"with_head\": 0.5, \"top\": 4, \"capacity\": 64, \"no_shift\": 0.01, \"gated\": true}");
        File file = new File(scratch.getRoot(), "counted");
        try (Recognizer recognizer = new Recognizer(Bundle.load(folder), "", 1)) {
            assertEquals(ClassShares.missing().isEmpty(), recognizer.countsShares());
            assertTrue(recognizer.passedOver, recognizer.passedOver.endsWith(ClassShares.missing()));
            Assume.assumeTrue(ClassShares.missing(), recognizer.countsShares());
            FileHistory history = new FileHistory(file);
            recognizer.switchTo(history, null);
            for (int i = 0; i < 6; i++) {
                recognizer.recognize(golden.decoded(i), golden.photo(i), "", true);
            }
            Album.Features stored = Album.features(recognizer, history);
            float[] row = stored.row(golden.photo(3));
            assertEquals(9, row.length);
            float[] wanted = recognizer.recognize(golden.decoded(9), golden.photo(9), "", false).logits;
            history.putLikely(recognizer.space(), golden.photo(3), "another classifier", row);
            history.putLikely(recognizer.space(), golden.photo(4), recognizer.classifier(), Arrays.copyOf(row, 8)); // no credit
            float[] damaged = row.clone();
            damaged[8] = 3;
            history.putLikely(recognizer.space(), golden.photo(5), recognizer.classifier(), damaged);
            recognizer.switchTo(new FileHistory(new File(scratch.getRoot(), "nobody")), null);
            assertTrue(Golden.largest(wanted, recognizer.recognize(golden.decoded(9), golden.photo(9), "", false).logits) > 0.01f);
            history = new FileHistory(file);
            recognizer.switchTo(history, null);
            stored = Album.features(recognizer, history);
            assertNull("another derived them", stored.row(golden.photo(3)));
            assertArrayEquals(wanted, recognizer.recognize(golden.decoded(9), golden.photo(9), "", false).logits, 1e-6f);
            assertArrayEquals("computed again", row, stored.row(golden.photo(3)), 1e-6f);
            assertEquals("computed again", 9, stored.row(golden.photo(4)).length);
            assertEquals("computed again", 0f, stored.row(golden.photo(5))[8], 0f);
            history.erase(golden.photo(3));
            assertNull(stored.row(golden.photo(3)));
            float[] other = stored.row(golden.photo(2));
            float[] without = recognizer.recognize(golden.decoded(9), golden.photo(9), "", false).logits;
            assertTrue(Golden.largest(wanted, without) > 0.01f);
            recognizer.switchTo(null, null);
            history = new FileHistory(file);
            recognizer.switchTo(history, null);
            assertArrayEquals("in the file that the erasure wrote", other, Album.features(recognizer, history).row(golden.photo(2)), 0f);
            assertArrayEquals(without, recognizer.recognize(golden.decoded(9), golden.photo(9), "", false).logits, 1e-6f);
        }
    }

    @Test
    public void aBundleThatTakesWeightsOfEachPersonIsRefused() throws Exception {
        File folder = copied(Golden.all().get(0));
        Bundles.change(new File(folder, Bundle.MANIFEST), "\"personal\": null",
                "\"personal\": {\"file\": \"weights.bin\", \"tensors\": []}");
        try {
            new Recognizer(Bundle.load(folder), "", 1).close();
            fail("a person's weights would have been passed over");
        } catch (BundleException error) {
            assertTrue(error.getMessage(), error.getMessage().contains("weights of each person in its graph"));
        }
    }

    @Test
    public void aHeadThatRefusesThisEncodersFeaturesIsNeverLoaded() throws Exception {
        Golden golden = Golden.all().get(0);
        File folder = copied(golden);
        String space = golden.bundle.artifact("encoder", Golden.TARGET, "").featureSpace;
        Bundles.change(new File(folder, Bundle.MANIFEST), "\"feature_space\": \"" + space,
                "\"feature_space\": \"" + new StringBuilder(space).reverse());
        refused(folder, "accepts no feature space", "must not meet the head of another");
    }

    @Test
    public void anImportThatFailsLeavesTheBundleThatWasThere() throws Exception {
        Golden golden = Golden.all().get(0);
        File target = new File(scratch.getRoot(), "installed");
        Bundle installed = installed(golden, "wrapped/", target);
        byte[][] wrong = {
            "no zip".getBytes("UTF-8"),
            Bundles.zip(golden.bundle.folder, "", "../../escaped"),
            Arrays.copyOf(Bundles.zip(golden.bundle.folder, "", null), 40000),
            Bundles.zip(scratch.newFolder(), "", "a"),
        };
        for (byte[] each : wrong) {
            try {
                BundleImport.unpack(new ByteArrayInputStream(each), target);
                fail("a wrong file was imported");
            } catch (BundleException error) {
                assertEquals(installed.sha256, Bundle.load(target).sha256);
            }
        }
        assertFalse(new File(scratch.getRoot().getParentFile(), "escaped").exists());
        assertFalse(new File(target.getPath() + ".new").exists());
    }

    @Test
    public void aBundleThatIsWholeButCannotRunHereTakesNoPlace() throws Exception {
        Golden golden = Golden.all().get(0);
        File target = new File(scratch.getRoot(), "installed");
        Bundle installed = installed(golden, "", target);
        String needed = golden.bundle.artifact("encoder", Golden.TARGET, "").minRuntimeVersion;
        for (String newer : new String[] {"99.0", "123456789012.0"}) {
            File folder = copied(golden);
            Bundles.change(new File(folder, Bundle.MANIFEST), "\"min_runtime_version\": \"" + needed + "\"",
                    "\"min_runtime_version\": \"" + newer + "\"");
            try {
                BundleImport.unpack(new ByteArrayInputStream(Bundles.zip(folder, "", null)), target);
                fail("it needs another runtime");
            } catch (RuntimeUnavailableException error) {
                assertTrue(error.getMessage(), error.getMessage().contains("needs onnxruntime " + newer));
                assertEquals(installed.sha256, Bundle.load(target).sha256);
            }
            BundleImport.delete(folder);
        }
    }

    @Test
    public void aBundleThatAKillLeftAsideIsPutBack() throws Exception {
        Golden golden = Golden.all().get(0);
        File target = new File(scratch.getRoot(), "installed");
        assertFalse(BundleImport.restore(target));
        BundleImport.unpack(new ByteArrayInputStream(Bundles.zip(golden.bundle.folder, "", null)), target);
        assertTrue(target.renameTo(new File(target.getPath() + ".old"))); // killed before the new one took its place
        assertTrue(BundleImport.restore(target));
        Bundle.load(target);
        assertTrue(BundleImport.restore(target));
    }

    private static Bundle installed(Golden golden, String prefix, File target) throws Exception {
        BundleImport.unpack(new ByteArrayInputStream(Bundles.zip(golden.bundle.folder, prefix, null)), target);
        return Bundle.load(target);
    }

    @Test
    public void aRuntimeWithTelemetryIsRefused() throws Exception {
        OrtProgram.refuseTelemetry("1.28.0");
        for (String version : new String[] {"1.29.0", "1.31.1", "2.0.0"}) {
            try {
                OrtProgram.refuseTelemetry(version);
                fail(version);
            } catch (RuntimeUnavailableException error) {
                assertTrue(error.getMessage().contains("telemetry"));
            }
        }
    }

    @Test
    public void aPersonsFileOfAnotherTrainingIsRefused() throws Exception {
        Golden golden = Golden.all().get(0);
        byte[] file = Golden.bytes(new File(golden.folder, "golden.safetensors"));
        for (byte[] each : new byte[][] {file, {1, 2, 3}, Arrays.copyOf(file, file.length - 1)}) {
            try {
                PersonalInputs.read(each, "anna.safetensors", golden.bundle, "", Golden.TARGET);
                fail("taken");
            } catch (PersonalWeightsException error) {
                assertTrue(error.getMessage(), error.getMessage().contains("again") || error.getMessage().contains("fetch"));
            }
        }
    }

    // ---- photos

    /** A photo whose rows are computed: of any size, without the memory for it. */
    private static PhotoRows drawn(final int width, final int height, final int rows, final int orientation) {
        return new PhotoRows() {
            @Override
            public int width() {
                return width;
            }

            @Override
            public int height() {
                return height;
            }

            @Override
            public int orientation() {
                return orientation;
            }

            @Override
            public void readInto(Resizer resizer) {
                int[] row = new int[width];
                for (int y = 0; y < rows; y++) {
                    Arrays.fill(row, 0xFF000000 | (y * 255 / height) << 16 | 0x4020);
                    resizer.row(row, 0);
                }
            }
        };
    }

    @Test
    public void aPhotoOfAHundredMegapixelsIsRecognisedInAFewMegabytes() throws Exception {
        Golden golden = Golden.all().get(0);
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        Runtime memory = Runtime.getRuntime();
        assertTrue("this JVM could hold the whole photo; the test would show nothing", memory.maxMemory() < 600L << 20);
        for (int turn : new int[] {1, 6}) { // 400 MB decoded
            Answer answer = recognizer.recognize(drawn(11600, 8700, 8700, turn), "large" + turn, "", false);
            assertTrue(answer.probabilities[0] > 0);
        }
        recognizer.close();
    }

    @Test
    public void halfAPhotoTeachesNothing() throws Exception {
        Golden golden = Golden.all().get(0);
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        FileHistory history = new FileHistory(new File(scratch.getRoot(), "p.history"));
        recognizer.switchTo(history, null);
        PhotoRows[] wrong = {drawn(64, 48, 47, 1), drawn(20000, 20000, 0, 1), drawn(1, 30000000, 0, 1), drawn(0, 5, 0, 1)};
        for (PhotoRows each : wrong) {
            try {
                recognizer.recognize(each, "photo", "", true);
                fail("recognised");
            } catch (PhotoException error) {
                assertEquals(0, history.size(recognizer.space()));
            }
        }
        recognizer.close();
    }

    @Test
    public void aJpegThatWasCutShortIsNoWholePhoto() throws Exception {
        for (Golden golden : Golden.all()) {
            for (Fields photo : golden.photos) {
                byte[] content = Golden.bytes(new File(golden.folder, photo.string("file")));
                assertTrue(Exif.isWhole(content));
                if (photo.string("file").endsWith(".jpg")) {
                    for (int length : new int[] {5, content.length / 2, content.length - 2}) {
                        assertFalse(Exif.isWhole(Arrays.copyOf(content, length)));
                    }
                }
            }
        }
    }

    private static byte[] box(String name, byte[]... content) {
        java.io.ByteArrayOutputStream out = new java.io.ByteArrayOutputStream();
        int length = 8;
        for (byte[] each : content) {
            length += each.length;
        }
        out.write(new byte[] {0, 0, (byte) (length >> 8), (byte) length}, 0, 4);
        for (int i = 0; i < 4; i++) {
            out.write(name.charAt(i));
        }
        for (byte[] each : content) {
            out.write(each, 0, each.length);
        }
        return out.toByteArray();
    }

    /** A file whose second photo is the primary one, with some turns in a row; the first has a turn of its own. */
    private static byte[] heif(boolean large, byte[]... turns) {
        byte[] owners = new byte[8 + 2 * (large ? 5 : 3) + (1 + turns.length) * (large ? 2 : 1)];
        owners[0] = (byte) (large ? 1 : 0);
        owners[3] = owners[0];
        owners[7] = 2;
        int at = 8;
        for (int item = 1; item <= 2; item++) {
            at += large ? 4 : 2;
            owners[at - 1] = (byte) item;
            owners[at++] = (byte) (item == 1 ? 1 : turns.length);
            for (int i = 0; i < (item == 1 ? 1 : turns.length); i++) {
                at += large ? 2 : 1;
                owners[at - 1] = (byte) (item == 1 ? 2 : 3 + i);
                owners[large ? at - 2 : at - 1] |= (byte) 0x80; // essential
            }
        }
        byte[][] properties = new byte[2 + turns.length][];
        properties[0] = box("ispe", new byte[12]);
        properties[1] = box("irot", new byte[] {2});
        System.arraycopy(turns, 0, properties, 2, turns.length);
        byte[] pitm = box("pitm", large ? new byte[] {1, 0, 0, 0, 0, 0, 0, 2} : new byte[] {0, 0, 0, 0, 0, 2});
        byte[] file = box("ftyp", "heic0000mif1".getBytes(java.nio.charset.StandardCharsets.US_ASCII));
        byte[] meta = box("meta", new byte[4], box("hdlr", new byte[5]), pitm,
                box("iprp", box("ipco", properties), box("ipma", owners)));
        byte[] all = Arrays.copyOf(file, file.length + meta.length);
        System.arraycopy(meta, 0, all, file.length, meta.length);
        return all;
    }

    @Test
    public void aHeicIsTurnedAsItsContainerSays() throws Exception {
        File photo = new File(System.getProperty("refocus.vectors", "../../tests/formats/vectors"), "../../edge/photos/turned.heic");
        assertEquals("as Python decodes it", 6, Exif.orientation(Files.readAllBytes(photo.toPath())));
        byte[][] left = {box("irot", new byte[] {0}), box("irot", new byte[] {1}), box("irot", new byte[] {2}), box("irot", new byte[] {3})};
        byte[] upsideDown = box("imir", new byte[] {0});
        byte[] mirrored = box("imir", new byte[] {1});
        for (boolean large : new boolean[] {false, true}) {
            int[] turned = {1, 8, 3, 6};
            int[] turnedThenMirrored = {2, 7, 4, 5};
            for (int i = 0; i < 4; i++) {
                assertEquals(turned[i], Exif.orientation(heif(large, left[i])));
                assertEquals(turnedThenMirrored[i], Exif.orientation(heif(large, left[i], mirrored)));
                assertEquals(turnedThenMirrored[(2 + i) % 4], Exif.orientation(heif(large, upsideDown, left[(4 - i) % 4])));
            }
            assertEquals(4, Exif.orientation(heif(large, upsideDown)));
            assertEquals(1, Exif.orientation(heif(large)));
        }
    }

    @Test
    public void aHeicThatIsCutOrMakesNoSenseTurnsNothingAndEndsNothing() {
        byte[] whole = heif(true, box("irot", new byte[] {3}), box("imir", new byte[] {1}));
        for (int length = 12; length < whole.length; length++) {
            assertTrue(Exif.orientation(Arrays.copyOf(whole, length)) >= 1);
        }
        for (int seed = 0; seed < 20000; seed++) {
            java.util.Random random = new java.util.Random(seed);
            byte[] noise = whole.clone();
            for (int i = 0; i < 3; i++) {
                noise[12 + random.nextInt(noise.length - 12)] = (byte) random.nextInt();
            }
            int found = Exif.orientation(noise);
            assertTrue(found >= 1 && found <= 8);
        }
    }

    /** Pillow's answers to these, too. */
    @Test
    public void fillBytesBeforeAMarkerAndOrientationsOfFourBytesAreRead() {
        int[][] tiffs = { // EXIF up to the value
            {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 4, 0, 0, 0, 1, 0, 0, 0, 6},
            {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 4, 0, 1, 0, 0, 0, 6, 0, 0, 0},
            {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0},
            {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 1, 0, 1, 0, 0, 0, 6, 0, 0, 0},
        };
        int[] wanted = {6, 6, 6, 1}; // a byte is no orientation
        for (int i = 0; i < tiffs.length; i++) {
            for (int fill = 0; fill < 4; fill++) {
                java.io.ByteArrayOutputStream jpeg = new java.io.ByteArrayOutputStream();
                int[] start = {0xFF, 0xD8, 0xFF, 0xE0, 0, 4, 0, 0};
                for (int each : start) {
                    jpeg.write(each);
                }
                for (int j = 0; j < fill; j++) {
                    jpeg.write(0xFF);
                }
                int[] head = {0xFF, 0xE1, 0, 8 + tiffs[i].length, 'E', 'x', 'i', 'f', 0, 0};
                for (int each : head) {
                    jpeg.write(each);
                }
                for (int each : tiffs[i]) {
                    jpeg.write(each);
                }
                for (int j = 0; j < fill; j++) {
                    jpeg.write(0xFF);
                }
                int[] end = {0xFF, 0xDA, 0, 2, 1, 2, 3, 0xFF, 0xD9};
                for (int each : end) {
                    jpeg.write(each);
                }
                byte[] content = jpeg.toByteArray();
                assertEquals(wanted[i], Exif.orientation(content));
                assertTrue(Exif.isWhole(content));
                assertFalse(Exif.isWhole(Arrays.copyOf(content, content.length - 2)));
            }
        }
    }

    @Test
    public void anExifHeaderThatMakesNoSenseTurnsNothing() {
        byte[] jpeg = new byte[64];
        jpeg[0] = (byte) 0xFF;
        jpeg[1] = (byte) 0xD8;
        for (int seed = 0; seed < 2000; seed++) {
            java.util.Random random = new java.util.Random(seed);
            byte[] noise = jpeg.clone();
            for (int i = 2; i < noise.length; i++) {
                noise[i] = i < 12 && seed % 2 == 0 ? new byte[] {-1, -31, 0, 50, 'E', 'x', 'i', 'f', 0, 0}[i - 2]
                        : (byte) random.nextInt();
            }
            int found = Exif.orientation(Arrays.copyOf(noise, random.nextInt(noise.length + 1)));
            assertTrue(found >= 1 && found <= 8);
        }
    }

    @Test
    public void numbersThatAreNotFiniteAreNoFeatureAndNoAnswer() throws Exception {
        Golden golden = Golden.all().get(0);
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        final float[] spoilt = new float[recognizer.featureWidth()];
        Arrays.fill(spoilt, Float.NaN);
        FileHistory history = new FileHistory(new File(scratch.getRoot(), "p.history"));
        recognizer.switchTo(history, null);
        java.nio.FloatBuffer pixels = java.nio.FloatBuffer.allocate(golden.row("pixels", 0).length);
        for (int i = 0; i < pixels.capacity(); i++) {
            pixels.put(i, Float.NaN);
        }
        try {
            recognizer.recognizePixels(pixels, "photo", "", true);
            fail("encoded");
        } catch (PhotoException error) {
            assertTrue(error.getMessage(), error.getMessage().contains("no finite feature"));
        }
        try {
            recognizer.answerAfter(new Remembered(), spoilt, "photo", null);
            fail("answered");
        } catch (PhotoException error) {
            assertTrue(error.getMessage(), error.getMessage().contains("no finite answer"));
        }
        assertEquals(0, history.size(recognizer.space()));
        Album album = new Album(recognizer, new Album.Features() {
            @Override
            public float[] of(String photo) {
                return spoilt;
            }

            @Override
            public String name(String photo) {
                return photo;
            }
        });
        assertEquals("left out, and the page is drawn", 0, album.answers(Arrays.asList("photo")).size());
        recognizer.close();
    }

    // ---- people

    @Test
    public void featuresUnderAnotherPersonsHistoryAreNeverMet() throws Exception {
        Golden golden = Golden.withForm("window", "streaming");
        Recognizer recognizer = new Recognizer(golden.bundle, "", 1);
        recognizer.switchTo(new FileHistory(new File(scratch.getRoot(), "anna.history")), null);
        for (int i = 0; i < 5; i++) {
            recognizer.recognize(golden.decoded(i), golden.photo(i), "", true);
        }
        recognizer.switchTo(new FileHistory(new File(scratch.getRoot(), "bob.history")), null);
        Answer fresh = recognizer.recognize(golden.decoded(6), golden.photo(6), "", true);
        assertEquals(0, fresh.history.size());
        assertEquals(0f, fresh.trust, 0f);
        recognizer.switchTo(new FileHistory(new File(scratch.getRoot(), "anna.history")), null);
        assertEquals(5, recognizer.recognize(golden.decoded(6), golden.photo(6), "", false).history.size());
        recognizer.close();
    }
}
