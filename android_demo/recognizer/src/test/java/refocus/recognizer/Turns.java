package refocus.recognizer;

import java.awt.image.BufferedImage;

/** Photos as a camera that was held otherwise would have stored them. */
final class Turns {
    private Turns() {}

    /** The same photo, stored so that EXIF's number must turn it back. */
    static PhotoRows stored(BufferedImage upright, int orientation) {
        int w = upright.getWidth();
        int h = upright.getHeight();
        boolean swapped = orientation >= 5;
        BufferedImage image = new BufferedImage(swapped ? h : w, swapped ? w : h, BufferedImage.TYPE_INT_RGB);
        for (int y = 0; y < h; y++) {
            for (int x = 0; x < w; x++) {
                int sx = x;
                int sy = y;
                switch (orientation) { // as the EXIF standard draws them
                    case 2: sx = w - 1 - x; break;
                    case 3: sx = w - 1 - x; sy = h - 1 - y; break;
                    case 4: sy = h - 1 - y; break;
                    case 5: sx = y; sy = x; break;
                    case 6: sx = y; sy = w - 1 - x; break;
                    case 7: sx = h - 1 - y; sy = w - 1 - x; break;
                    case 8: sx = h - 1 - y; sy = x; break;
                    default: break;
                }
                image.setRGB(sx, sy, upright.getRGB(x, y));
            }
        }
        return Golden.rows(image, orientation);
    }
}
