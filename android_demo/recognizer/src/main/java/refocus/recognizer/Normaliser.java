package refocus.recognizer;

import java.nio.FloatBuffer;

/** 8-bit pixels to the encoder's input: scaled to [0, 1], minus mean, over std, in float32 as {@code edge} rounds it. */
public final class Normaliser {
    private final int pixels;
    private final float[][] value = new float[3][256];

    public Normaliser(Preprocessing contract) {
        pixels = contract.crop * contract.crop;
        for (int channel = 0; channel < 3; channel++) {
            float factor = (float) (1 / (255 * contract.std(channel)));
            float offset = (float) (contract.mean(channel) / contract.std(channel));
            for (int i = 0; i < 256; i++) {
                float scaled = i * factor; // rounded before the subtraction: no fused multiply-add
                value[channel][i] = scaled - offset;
            }
        }
    }

    /**
     * @param square (crop x crop x 3), as {@link Resizer#finish} gives it
     * @param input (1, 3, crop, crop); written from its first number on
     */
    public void write(byte[] square, FloatBuffer input) {
        float[] plane = new float[pixels];
        FloatBuffer to = input.duplicate();
        to.clear();
        for (int channel = 0; channel < 3; channel++) {
            float[] table = value[channel];
            for (int i = 0; i < pixels; i++) {
                plane[i] = table[square[3 * i + channel] & 255];
            }
            to.put(plane);
        }
    }
}
