"""Default bundle: accuracy of EfficientNet-Lite0 in every target.

The network of the default bundle is exported as that bundle is, with int8 ranges from the bundle's own photos. Each
target answers the same labelled photos of ImageNet through the device runtime, and so does PyTorch. The photos are few,
one of every fifth class: they compare targets; the published accuracy is of all 50,000 validation photos.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from refocus.cloud_train.backbones.packaged_networks import packaged_backbone
from refocus.cloud_train.evaluate import page
from refocus.edge.bundle import load_bundle
from refocus.edge.photos import preprocess
from refocus.edge.recognize import Recognizer
from refocus.export import ExportSettings, export
from refocus.export.targets import find_target
from studies.encoders import ENCODERS, weights_file
from studies.experiment import Cache, Cell, ExperimentPage, Needs, Row, Study, shown_of

NETWORK = "efficientnet_lite0"
PYTORCH = "pytorch"
RANGES = Path(__file__).parents[2] / "bundles" / "imagenet-lite0" / "photos"
# github.com/tensorflow/tpu, models/official/efficientnet/lite/README.md: the authors' fp32 and int8 programs.
PUBLISHED = {PYTORCH: 0.751, "onnx:w8a8": 0.744}


@dataclass(frozen=True)
class DefaultBundleSettings:
    """Settings of the study.

    Attributes:
        source: folder with ``photos``, 200 photos of ImageNet that are named by their synset.
    """

    source: str = "data"


@dataclass(frozen=True)
class DefaultBundleGrid:
    """Axes of the study.

    Attributes:
        target: "pytorch", or a target of ``refocus export``.
    """

    target: tuple[str, ...] = (PYTORCH, "onnx:fp32", "onnx:w8a8", "executorch:fp32")


def needs(settings: DefaultBundleSettings, cell: Cell) -> Needs:
    """Return what the answers of a cell depend on."""
    files = {path.name: path for path in photos_of(settings)}
    return Needs({}, files | {"weights": weights_file(ENCODERS[NETWORK], "")}, (__name__,))


def photos_of(settings: DefaultBundleSettings) -> list[Path]:
    """Return the photos in a fixed order."""
    return sorted((Path(settings.source) / "photos").glob("*.JPEG"))


def evaluate_cell(settings: DefaultBundleSettings, cell: Cell, seed: int, cache: Cache) -> list[Row]:
    """Return the answers of a target to all photos."""
    target, photos = str(cell["target"]), photos_of(settings)
    reference = cache.once({"logits": PYTORCH}, needs(settings, cell), lambda: _eager(photos).tolist(), read=np.array)
    logits, size = (reference, 0) if target == PYTORCH else _exported(target, photos, cache)
    synsets = [line.split("_")[0] for line in (photos[0].parent / "classes.txt").read_text().split()]
    label = np.array([synsets.index(photo.name.split("_")[0]) for photo in photos])
    values = {
        "accuracy": logits.argmax(1) == label,
        "top5": (np.argsort(-logits, axis=1)[:, :5] == label[:, None]).any(1),
        "same": logits.argmax(1) == reference.argmax(1),
        "difference": np.abs(logits - reference).max(1),
    }
    values |= {"megabytes": np.full(len(photos), size / 1e6)} if size else {}
    values |= {"published": np.full(len(photos), PUBLISHED[target])} if target in PUBLISHED else {}
    numbers = np.arange(len(photos))
    return [Row({}, numbers, numbers, {name: of.astype(float) for name, of in values.items()})]


def _eager(photos: list[Path]) -> np.ndarray:
    """Return the logits of PyTorch (n, C)."""
    backbone = packaged_backbone(ENCODERS[NETWORK].backbone)[0]
    with torch.inference_mode():
        found = [backbone.network(torch.from_numpy(preprocess(photo.read_bytes(), backbone.preprocessing)))
                 for photo in photos]  # fmt: skip
    return torch.cat(found).numpy()


def _exported(target: str, photos: list[Path], cache: Cache) -> tuple[np.ndarray, int]:
    """Return the logits of a target (n, C), and the bytes of its programs."""
    folder = cache.run / "bundles" / target.replace(":", "-")
    if not (folder / "manifest.json").is_file():
        settings = ExportSettings((f"package:{ENCODERS[NETWORK].backbone}",), folder, (target,), RANGES, RANGES)
        export(settings, lambda line: None)
    found, precision = find_target(target)
    runtime, bundle = found.RUNTIME, load_bundle(folder)
    with Recognizer.open(folder, runtime=runtime, precision=precision, shares=False) as recognizer:
        logits = np.stack([recognizer.recognize(photo.read_bytes()).plain_logits for photo in photos])
    return logits, sum(bundle.artifact(role, runtime, precision).size_bytes for role in ("encoder", "head"))


def _about(document: page.Document) -> str:
    photos = document["rows"][0]["targets"]
    return (
        f"The {photos} photos, one of every fifth class, are few and easy: compare targets by them."
        " The published accuracy is that of the authors' fp32 and int8 programs on all validation photos of ImageNet."
    )


PAGES = {
    "default-bundle": ExperimentPage.of(shown_of(Path(__file__).with_name("default-bundle.toml")), about=_about),
}
STUDY = Study(DefaultBundleSettings(), DefaultBundleGrid(), needs, evaluate_cell)
