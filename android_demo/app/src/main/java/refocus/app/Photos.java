package refocus.app;

import android.content.ContentResolver;
import android.graphics.Bitmap;
import android.graphics.BitmapFactory;
import android.graphics.BitmapRegionDecoder;
import android.graphics.ColorSpace;
import android.graphics.Rect;
import android.net.Uri;
import android.os.Build;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import java.util.List;
import refocus.recognizer.Exif;
import refocus.recognizer.PhotoException;
import refocus.recognizer.PhotoRows;
import refocus.recognizer.Reason;
import refocus.recognizer.Resizer;
import refocus.recognizer.SelfTest;

/** Photos of Android's content providers: their bytes, their rows, and small pictures to show. */
final class Photos {
    private static final long MAX_BYTES = 256L << 20;
    /** 16 MB. Each strip decodes again what lies above it, so few large ones: three for a photo of 12 megapixels. */
    private static final int STRIP_PIXELS = 4 << 20;
    private static final long WHOLE_PIXELS = 24_000_000L;

    /** Formats of which {@link Exif} knows how a photo is turned; others would be recognised lying, and nobody told. */
    private static final List<String> UPRIGHT = Arrays.asList("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp",
            "image/x-ms-bmp", "image/heif", "image/heic", "image/avif");

    /** {@link #decode}, for the self-test of a bundle. */
    static final SelfTest.Decoder DECODER = new SelfTest.Decoder() {
        @Override
        public PhotoRows decode(byte[] content, String where) throws PhotoException {
            return Photos.decode(content, where);
        }
    };

    private Photos() {}

    /** The whole file, or {@link PhotoException}. */
    static byte[] read(ContentResolver resolver, Uri uri) throws PhotoException {
        InputStream stream = null;
        try {
            stream = resolver.openInputStream(uri);
            if (stream == null) {
                throw new PhotoException(Reason.PHOTO_GONE, uri + " is gone; choose it again");
            }
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            byte[] chunk = new byte[1 << 16];
            for (int count = stream.read(chunk); count >= 0; count = stream.read(chunk)) {
                all.write(chunk, 0, count);
                if (all.size() > MAX_BYTES) {
                    throw new PhotoException(Reason.PHOTO_SIZE, uri + " has more than " + MAX_BYTES + " bytes; make it smaller");
                }
            }
            return all.toByteArray();
        } catch (IOException | RuntimeException error) { // providers throw IllegalArgumentException for what is gone
            throw new PhotoException(Reason.PHOTO_GONE, uri + " cannot be read (" + error.getMessage() + "); choose it again",
                    error);
        } finally {
            if (stream != null) {
                RefocusApp.close(stream);
            }
        }
    }

    /**
     * Decodes in strips, so that a photo of any size needs little memory; what cannot be decoded in strips is decoded
     * whole, if it is small enough.
     */
    static PhotoRows decode(final byte[] content, final String where) throws PhotoException {
        final BitmapFactory.Options size = new BitmapFactory.Options();
        size.inJustDecodeBounds = true;
        BitmapFactory.decodeByteArray(content, 0, content.length, size);
        boolean known = size.outMimeType == null || UPRIGHT.contains(size.outMimeType);
        if (size.outWidth <= 0 || size.outHeight <= 0 || !known) {
            throw new PhotoException(Reason.PHOTO_FORMAT, where + " is in a format that this device cannot decode; convert it"
                    + " to JPEG");
        }
        if (!Exif.isWhole(content)) {
            throw damaged(where);
        }
        return new PhotoRows() {
            @Override
            public int width() {
                return size.outWidth;
            }

            @Override
            public int height() {
                return size.outHeight;
            }

            @Override
            public int orientation() {
                return Exif.orientation(content);
            }

            @Override
            public void readInto(Resizer resizer) throws PhotoException {
                boolean jpeg = "image/jpeg".equals(size.outMimeType);
                if (jpeg && resizer.scale() > 1) {
                    reduced(content, where, size.outWidth, size.outHeight, resizer);
                } else {
                    rows(content, where, size.outWidth, size.outHeight, resizer);
                }
            }
        };
    }

    /** A JPEG at 1/8, 1/4 or 1/2 of its size, by smaller transforms of its blocks: what is left is small enough for once. */
    private static void reduced(byte[] content, String where, int width, int height, Resizer resizer) throws PhotoException {
        int by = resizer.scale();
        int across = (width + by - 1) / by;
        int down = (height + by - 1) / by;
        if ((long) across * down > WHOLE_PIXELS) {
            throw tooLarge(where, width, height);
        }
        BitmapFactory.Options options = plain();
        options.inSampleSize = by;
        Bitmap photo = BitmapFactory.decodeByteArray(content, 0, content.length, options);
        if (photo == null || photo.getWidth() != across || photo.getHeight() != down) {
            throw damaged(where);
        }
        resizer.scaled(by);
        give(photo, new int[across], resizer);
        photo.recycle();
    }

    private static PhotoException tooLarge(String where, int width, int height) {
        return new PhotoException(Reason.PHOTO_SIZE, where + " has " + width + "x" + height + " pixels, in a format that is"
                + " decoded whole; convert it to JPEG, or make it smaller");
    }

    private static void rows(byte[] content, String where, int width, int height, Resizer resizer) throws PhotoException {
        BitmapRegionDecoder strips = strips(content);
        if (strips == null) {
            whole(content, where, width, height, resizer);
            return;
        }
        int most = Math.max(1, Math.min(height, STRIP_PIXELS / width));
        int[] row = new int[width];
        try {
            for (int top = 0; top < height; top += most) {
                int rows = Math.min(most, height - top);
                Bitmap strip = strips.decodeRegion(new Rect(0, top, width, top + rows), plain());
                if (strip == null || strip.getWidth() != width || strip.getHeight() != rows) {
                    throw damaged(where);
                }
                give(strip, row, resizer);
                strip.recycle();
            }
        } catch (IllegalArgumentException error) {
            throw damaged(where);
        } finally {
            strips.recycle();
        }
    }

    /**
     * The rows of a picture in the numbers that its file has. {@code getPixels} turns those of another colour space into
     * sRGB; the model was trained, and is served elsewhere, without that. So the numbers are called sRGB, which changes
     * none of them. Before API 29 nothing can be called so, and they are turned.
     */
    private static void give(Bitmap picture, int[] row, Resizer resizer) {
        if (Build.VERSION.SDK_INT >= 29 && picture.getColorSpace() != null && !picture.getColorSpace().isSrgb()) {
            picture.setColorSpace(ColorSpace.get(ColorSpace.Named.SRGB));
        }
        for (int y = 0; y < picture.getHeight(); y++) {
            picture.getPixels(row, 0, row.length, 0, y, row.length, 1);
            resizer.row(row, 0);
        }
    }

    @SuppressWarnings("deprecation") // the other form came with API 31
    private static BitmapRegionDecoder strips(byte[] content) {
        try {
            return BitmapRegionDecoder.newInstance(content, 0, content.length, false);
        } catch (IOException error) {
            return null; // a format without regions, as GIF
        }
    }

    private static void whole(byte[] content, String where, int width, int height, Resizer resizer) throws PhotoException {
        if ((long) width * height > WHOLE_PIXELS) {
            throw tooLarge(where, width, height);
        }
        Bitmap photo = BitmapFactory.decodeByteArray(content, 0, content.length, plain());
        if (photo == null || photo.getWidth() != width || photo.getHeight() != height) {
            throw damaged(where);
        }
        give(photo, new int[width], resizer);
        photo.recycle();
    }

    private static BitmapFactory.Options plain() {
        BitmapFactory.Options options = new BitmapFactory.Options();
        options.inScaled = false;
        options.inPremultiplied = false; // what is transparent keeps its colour, as in Pillow's conversion to RGB
        options.inPreferredConfig = Bitmap.Config.ARGB_8888;
        return options;
    }

    private static PhotoException damaged(String where) {
        return new PhotoException(where + " is damaged or truncated; copy it again from its source");
    }

    /** A small picture to show, upright; null where the photo is gone. */
    static Bitmap small(ContentResolver resolver, Uri uri, int side) {
        try {
            return small(read(resolver, uri), side);
        } catch (PhotoException gone) {
            return null; // a picture less; what was recognised in it stays
        }
    }

    /** As {@link #small(ContentResolver, Uri, int)}, of a file that was read. */
    static Bitmap small(byte[] content, int side) {
        try {
            BitmapFactory.Options options = new BitmapFactory.Options();
            options.inJustDecodeBounds = true;
            BitmapFactory.decodeByteArray(content, 0, content.length, options);
            options.inSampleSize = Math.max(1, Math.min(options.outWidth, options.outHeight) / side);
            options.inJustDecodeBounds = false;
            Bitmap found = BitmapFactory.decodeByteArray(content, 0, content.length, options);
            return found == null ? null : upright(found, Exif.orientation(content));
        } catch (RuntimeException | OutOfMemoryError error) {
            return null;
        }
    }

    /** Writes a small picture, whole or not at all; where there is no room, a picture is missing later. */
    static void keep(Bitmap picture, File file) {
        File made = new File(file.getPath() + ".new");
        file.getParentFile().mkdirs();
        boolean whole;
        try (FileOutputStream out = new FileOutputStream(made)) {
            whole = picture.compress(Bitmap.CompressFormat.JPEG, 80, out); // which raises nothing where the disk is full
        } catch (IOException full) {
            whole = false;
        }
        if (!whole || !made.renameTo(file)) {
            made.delete();
        }
    }

    private static Bitmap upright(Bitmap picture, int orientation) {
        android.graphics.Matrix turn = new android.graphics.Matrix();
        int[] degrees = {0, 0, 0, 180, 180, 90, 90, 270, 270};
        boolean mirrored = orientation == 2 || orientation == 4 || orientation == 5 || orientation == 7;
        if (mirrored) {
            turn.postScale(-1, 1);
        }
        turn.postRotate(degrees[mirrored && orientation != 2 && orientation != 4 ? 12 - orientation : orientation]);
        return turn.isIdentity() ? picture
                : Bitmap.createBitmap(picture, 0, 0, picture.getWidth(), picture.getHeight(), turn, true);
    }
}
