package refocus.app;

import android.graphics.Bitmap;
import android.graphics.BitmapFactory;
import android.graphics.BitmapRegionDecoder;
import android.graphics.Rect;
import java.io.IOException;
import org.robolectric.annotation.Implementation;
import org.robolectric.annotation.Implements;
import org.robolectric.shadow.api.Shadow;

/**
 * Decoding in strips. Robolectric's own stand-in hands out empty pictures; this one cuts them from the whole photo, which
 * Android's real decoder has decoded. So what is tested is the app's use of strips, not their saving of memory.
 */
@Implements(BitmapRegionDecoder.class)
public class Strips {
    private byte[] content;
    private Bitmap whole;

    @Implementation
    protected static BitmapRegionDecoder newInstance(byte[] data, int offset, int length, boolean shared) throws IOException {
        BitmapFactory.Options size = new BitmapFactory.Options();
        size.inJustDecodeBounds = true;
        BitmapFactory.decodeByteArray(data, offset, length, size);
        if (size.outWidth < 1) {
            throw new IOException("Image format not supported");
        }
        BitmapRegionDecoder decoder = Shadow.newInstanceOf(BitmapRegionDecoder.class);
        Strips strips = Shadow.extract(decoder);
        strips.content = data;
        return decoder;
    }

    @Implementation
    protected Bitmap decodeRegion(Rect region, BitmapFactory.Options options) {
        if (whole == null) {
            whole = BitmapFactory.decodeByteArray(content, 0, content.length, options);
        }
        return Bitmap.createBitmap(whole, region.left, region.top, region.width(), region.height())
                .copy(Bitmap.Config.ARGB_8888, false); // the caller may recycle it
    }

    @Implementation
    protected void recycle() {
        whole = null;
    }
}
