package refocus.recognizer;

import java.io.File;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The files of other kinds of golden vectors, and what Python prepared of them. */
public final class FormatVectors {
    private final File folder;
    private final List<Fields> formats;
    private final List<Preprocessing> contracts = new ArrayList<>();
    private final Map<String, TensorFile.Values> tensors;

    public FormatVectors(File folder) throws Exception {
        this.folder = folder;
        Fields golden = Fields.of(Json.parse(Files.readAllBytes(new File(folder, "golden.json").toPath())), "golden");
        formats = golden.objects("formats");
        for (Fields contract : golden.objects("contracts")) {
            contracts.add(new Preprocessing(contract));
        }
        File file = new File(folder, "golden.safetensors");
        tensors = TensorFile.decode(Files.readAllBytes(file.toPath()), file.getPath()).tensors;
    }

    public int size() {
        return formats.size();
    }

    public String kind(int format) {
        return formats.get(format).string("kind");
    }

    public double levels(int format) {
        return formats.get(format).number("levels");
    }

    /** Whether a contract has this file decoded at 1/2, 1/4 or 1/8 of its size. */
    public boolean reduced(int format, PhotoRows photo) {
        boolean found = false;
        for (Preprocessing contract : contracts) {
            found = found || contract.scale(photo.width(), photo.height()) > 1;
        }
        return found && kind(format).startsWith("jpeg");
    }

    public byte[] content(int format) throws Exception {
        return Files.readAllBytes(new File(folder, formats.get(format).string("file")).toPath());
    }

    /** The largest difference of a prepared pixel in levels of 255, over all contracts. */
    public double off(int format, PhotoRows photo) throws Exception {
        double found = 0;
        for (int i = 0; i < contracts.size(); i++) {
            Preprocessing contract = contracts.get(i);
            Resizer resizer = new Resizer(contract, photo.width(), photo.height(), photo.orientation());
            photo.readInto(resizer);
            FloatBuffer made = FloatBuffer.allocate(3 * contract.crop * contract.crop);
            new Normaliser(contract).write(resizer.finish(), made);
            float[] wanted = new float[made.capacity()];
            FloatBuffer all = tensors.get("formats." + i).bytes().asFloatBuffer();
            all.position(format * wanted.length);
            all.get(wanted);
            found = Math.max(found, contract.levels(wanted, made.array()));
        }
        return found;
    }
}
