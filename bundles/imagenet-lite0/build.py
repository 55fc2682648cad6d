"""Build the default bundle: EfficientNet-Lite0 of ImageNet for ONNX Runtime, int8.

``python build.py`` writes it into ``bundle/`` from the package of its weights and from ``photos/``, and the model card
``README.md``. Programs that are those of ``measured.json`` byte by byte get the parity that was measured there.
``python build.py --measure FOLDER`` writes that file from labelled photos of ImageNet, and the temperature and
scores of every network in the table of ``cloud_train/backbones``.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import timm
from msgspec import structs

from refocus import Recognizer, load_bundle
from refocus.cloud_train.backbones import packaged_networks
from refocus.cloud_train.backbones.timm_networks import imagenet_labels
from refocus.edge.bundle import Bundle, Parity, put_in_place, write_manifest
from refocus.export import ExportSettings, export
from refocus.export.bundle.proof import remove_unlisted

HERE = Path(__file__).parent
MEASURED = HERE / "measured.json"
TABLE = Path(packaged_networks.__file__).with_suffix(".json")
NETWORK = "efficientnet-lite0"
TARGET = "onnxruntime:w8a8"
ABOUT = """# {name}
The default bundle of Refocus: EfficientNet-Lite0 for the 1000 classes of ImageNet, in int8, for ONNX Runtime. Commands
of [Refocus](../../README.md) use it where none is named. {size:.1f} MB, no code, no dependencies.

```sh
pip install '.[cpu]' ./bundles/imagenet-lite0   # in a checkout
refocus album ~/Pictures --html album.html
```

| | |
|---|---|
| network | `tf_efficientnet_lite0` of timm; photos are resized to {resize} pixels and cropped to {crop} |
| weights | package `{weights}`, SHA-256 `{sha256}`; trained on ImageNet-1k |
| licence | {licence}, as the weights' package |
| precision | {precision} |
| class shares | temperature {temperature:g} |
| rejection threshold | {rejection:g}: photos with a lower score are marked as unknown |
| accuracy | top-1 {top1:.1%}, top-5 {top5:.1%}; the same network in PyTorch: top-1 {top1_pytorch:.1%} |
| same label as PyTorch | {same_top1:.1%} |

**Measurement.** Temperature, rejection threshold, accuracy and agreement come from {photos} labelled photos, one of
every fifth class of ImageNet, through this bundle (`build.py --measure`, [measured.json](measured.json)). The
photos are few and look like those that the network was trained on: compare runtimes by these figures, and do not expect
this accuracy on photos of your own. None of them is in the package; photos of the self-test have no copyright
([sources](photos/README.md)).

**Limits.** The network knows the classes of ImageNet: some 120 breeds of dogs, many animals, vehicles and tools;
hardly any people, no places, no brands. A native head is left out: that format is for ICIIA heads. So is the
classifier's file for further training, which would double the size: export `package:efficientnet-lite0` to train on it.

**Rebuild.** `make bundle-imagenet`; with `REFOCUS_DATA` it measures again. Why the files are in the repository:
[decision 30](../../docs/decisions/0030-default-bundle.md).
"""


def built(network: str, photos: Path, out: Path, targets: str = "onnx:w8a8") -> Bundle:
    """Export a network, with int8 ranges from the photos of this folder."""
    made = export(
        ExportSettings(
            models=(f"package:{network}",),
            out=out,
            to=targets,
            photos=photos,
            calibration=HERE / "photos",
            name="imagenet-lite0",
            personalise="shares",
        ),
        lambda line: sys.stderr.write(f"{line}\n"),
    )
    if not made.complete:
        sys.exit(f"some targets failed: {[outcome for outcome in made.outcomes if outcome.status != 'written']}")
    return made.bundle


def build(out: Path, targets: str) -> None:
    """Write the bundle."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        made = built(NETWORK, HERE / "photos", Path(temporary) / "bundle", targets)
        parities = msgspec.convert(json.loads(MEASURED.read_text())["parity"], dict[str, Parity])
        manifest = structs.replace(
            made.manifest,
            heads=tuple(structs.replace(head, classifier=None) for head in made.manifest.heads),
            artifacts=tuple(
                structs.replace(each, parity=parities.get(each.sha256, each.parity)) for each in made.manifest.artifacts
            ),
        )
        remove_unlisted(write_manifest(made.folder, manifest))
        put_in_place(made.folder, out, Path(temporary))


def measure(source: Path) -> None:
    """Measure on labelled photos, and write the results."""
    with tempfile.TemporaryDirectory() as temporary:
        (folder := Path(temporary) / "photos").mkdir()
        photos = labelled(source, folder)
        table = json.loads(TABLE.read_text())
        for network in table:
            made = built(network, folder, Path(temporary) / network)
            head = made.manifest.head()
            table[network]["calibration"] = {
                "temperature": head.personalisation.shares.temperature,
                "known_scores": head.known_scores,
                "measured_on": f"{len(photos)} labelled photos of ImageNet",
            }
            if network == NETWORK:
                MEASURED.write_text(json.dumps(measured(made, photos), indent=2) + "\n")
        TABLE.write_text(json.dumps(table, indent=2) + "\n")


def labelled(source: Path, folder: Path) -> list[tuple[Path, str]]:
    """Copy photos named by their synset into a folder, with the table of their labels."""
    names = imagenet_labels(timm.create_model("tf_efficientnet_lite0"))
    synsets = [line.split("_")[0] for line in (source / "classes.txt").read_text().split()]
    label = dict(zip(synsets, names or (), strict=True))
    found = [(photo, label[photo.name.split("_")[0]]) for photo in sorted(source.glob("*.JPEG"))]
    for photo, _ in found:
        (folder / photo.name).write_bytes(photo.read_bytes())
    with (folder / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file_name", "label"), *((photo.name, name) for photo, name in found)])
    return found


def measured(bundle: Bundle, photos: list[tuple[Path, str]]) -> dict:
    """Return the accuracy of a bundle that was exported on labelled photos, and its parity there."""
    parity = bundle.artifact("head", *TARGET.split(":")).parity
    with Recognizer.open(bundle.folder, runtime="onnxruntime", precision="w8a8", shares=False) as recognizer:
        best = [recognizer.recognize(photo.read_bytes()).labels[:5] for photo, _ in photos]
    correct = np.mean([labels[0] == name for labels, (_, name) in zip(best, photos, strict=True)])
    return {
        "photos": len(photos),
        "top1": round(float(correct), 4),
        "top5": float(np.mean([name in labels for labels, (_, name) in zip(best, photos, strict=True)])),
        "top1_pytorch": round(float(correct + parity.accuracy_loss), 4),
        "same_top1": parity.top1_agreement,
        "parity": {each.sha256: msgspec.to_builtins(each.parity) for each in bundle.manifest.artifacts},
    }


def card(bundle: Bundle) -> str:
    """Return the model card."""
    head, photos = bundle.manifest.head(), bundle.manifest.preprocessing
    return ABOUT.format(
        name=bundle.manifest.name,
        size=sum((bundle.folder / file).stat().st_size for file in bundle.files()) / 1e6,
        resize=photos.resize_shorter,
        crop=photos.crop,
        weights=head.training["weights"],
        sha256=head.training["weights_sha256"],
        licence=head.training["weights_licence"],
        precision=bundle.artifact("encoder", *TARGET.split(":")).recipe["quantisation"],
        temperature=head.personalisation.shares.temperature,
        rejection=head.rejection,
        **json.loads(MEASURED.read_text()),
    )


def main() -> None:
    """Measure, or build the bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--measure", type=Path, help="folder of ImageNet photos with classes.txt: measure, build nothing"
    )
    parser.add_argument("--out", type=Path, help="folder of the bundle; the model card is then left as it is")
    parser.add_argument("--to", default="onnx:w8a8", help="targets, comma-separated")
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.measure)
        return
    build(asked.out or HERE / "bundle", asked.to)
    if not asked.out:
        (HERE / "README.md").write_text(card(load_bundle(HERE / "bundle")))


if __name__ == "__main__":
    main()
