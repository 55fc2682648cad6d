"""Compare decoding of large JPEGs at a reduced size with the full size.

The results are the effects on features and predictions. Real photos are enlarged to the sizes of cameras and saved as
JPEG; an encoder with published weights gets each file twice, decoded at full size and as ``pillow-scaled`` defines.
Enlarged photos have less detail than those of a camera, so one row adds noise to every pixel. The control decodes below
the target and enlarges, as a decoder does that scales too far.

    RUN/photos/NAME-PHOTO-WEIGHTS.json     one photo: every variant of it
    RUN/studies/decoding.json     the results document
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from PIL import Image

from refocus.benchmarks.measure import bootstrap_mean
from refocus.cloud_train.backbones.backbone import Backbone
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.progress import track
from refocus.cloud_train.runs.folder import once
from refocus.edge.bundle import Preprocessing
from refocus.edge.files import file_sha256
from refocus.edge.photos import decode_photo, preprocess
from refocus.export.program import weights_hash
from studies.encoders import ENCODERS, published_backbone

ENCODER = "mobilenetv2"
NOISE = 8.0  # levels of 255, standard deviation


@dataclass(frozen=True)
class Variant:
    """Settings to save a photo and to decode it.

    Attributes:
        megapixels: size to which the photo is enlarged.
        quality: quality of the JPEG.
        noise: standard deviation of the noise added to every pixel, in levels of 255.
        at_least: minimum of the decoded shorter side, in multiples of the target; the contract's is 2.
    """

    megapixels: int
    quality: int
    noise: float = 0.0
    at_least: float = 2.0

    @property
    def what(self) -> str:
        """Description of the variant in tables; "" for the default."""
        if self.at_least != 2:
            return f"control: at least {self.at_least:g} x the target"
        return f"noise of {self.noise:g} levels" if self.noise else ""


VARIANTS = (
    Variant(3, 92, at_least=0.5),
    *(Variant(megapixels, quality) for megapixels in (3, 6, 12) for quality in (75, 92)),
    Variant(12, 92, NOISE),
    *(Variant(24, quality) for quality in (75, 92)),
)


def study_decoding(source: str, run: Path, command: str, photos: int = 0) -> dict[str, Any]:
    """Run the study and return its document; it resumes photo by photo.

    Args:
        source: folder with ``photos/``, whose names begin with a class of its ``classes.txt``, and ``weights/``.
        run: folder of the results per photo.
        command: command line, stored in the document.
        photos: number of photos, the first ones; 0: all.

    Raises:
        UsageError: the folder has no such photos.
    """
    folder, made = Path(source) / "photos", ENCODERS[ENCODER]
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in {".jpeg", ".jpg"})[: photos or None]
    if not files or not (folder / "classes.txt").is_file():
        raise UsageError(f"--data {source}: expected photos/CLASS.JPEG, photos/classes.txt and weights/")
    classes = (folder / "classes.txt").read_text(encoding="utf-8").split()
    backbone, kept = published_backbone(made, source), run / "photos"
    kept.mkdir(parents=True, exist_ok=True)
    weights, rows = weights_hash(backbone.network)[:8], list[list[dict[str, Any]]]()
    for path in track(files, "decoding", len(files)):
        variants = functools.partial(_variants, path, backbone)
        rows.append(once(kept / f"{path.stem}-{file_sha256(path)[:16]}-{weights}.json", variants))
    truth = np.array([classes.index(path.stem) for path in files])
    return page.study_document(
        "decoding",
        command,
        [0],
        data={"source": "photos", "fingerprint": _fingerprint(files), "classes": len(classes), "photos": len(files)},
        backbone=made.backbone,
        preprocessing=msgspec.to_builtins(backbone.preprocessing),
        rows=[_row(variant, [each[at] for each in rows], truth) for at, variant in enumerate(VARIANTS)],
    )


def _fingerprint(files: Sequence[Path]) -> str:
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()


def _variants(path: Path, backbone: Backbone) -> list[dict[str, Any]]:
    return list(_photo(path, backbone))


def _photo(path: Path, backbone: Backbone) -> Iterator[dict[str, Any]]:
    """Yield the results of a photo for every variant.

    They are the distance of the pixels, the cosine of the features, and both predictions.
    """
    original = decode_photo(path.read_bytes(), str(path))
    scaled = backbone.preprocessing
    full = msgspec.structs.replace(scaled, decoder="pillow-full-size")
    large = functools.lru_cache(maxsize=1)(lambda megapixels: _larger(original, megapixels))
    for variant in VARIANTS:
        content = _saved(large(variant.megapixels), variant)
        one, other = preprocess(content, full), _decoded(content, scaled, variant)
        (feature, answer), (also, answered) = _seen(backbone, one), _seen(backbone, other)
        off = np.abs(one - other)[0] * np.asarray(scaled.std)[:, None, None] * 255
        yield {
            "levels_mean": float(off.mean()),
            "levels_max": float(off.max()),
            "cosine": float(feature @ also / np.linalg.norm(feature) / np.linalg.norm(also)),
            "full": int(answer.argmax()),
            "scaled": int(answered.argmax()),
        }


def enlarged(photo: Image.Image, variant: Variant) -> bytes:
    """Enlarge a photo to a JPEG with 4:2:0 subsampling, as cameras write it."""
    return _saved(_larger(photo, variant.megapixels), variant)


def _larger(photo: Image.Image, megapixels: int) -> Image.Image:
    scale = (megapixels * 1e6 / (photo.width * photo.height)) ** 0.5
    return photo.resize((round(photo.width * scale), round(photo.height * scale)), Image.Resampling.BICUBIC)


def _saved(large: Image.Image, variant: Variant) -> bytes:
    if variant.noise:
        pixels = np.asarray(large, dtype=np.float32)
        noise = np.random.default_rng(0).standard_normal(pixels.shape, dtype=np.float32)
        large = Image.fromarray((pixels + variant.noise * noise).round().clip(0, 255).astype(np.uint8))
    stream = io.BytesIO()
    large.save(stream, "JPEG", quality=variant.quality, subsampling="4:2:0")
    return stream.getvalue()


def _decoded(content: bytes, contract: Preprocessing, variant: Variant) -> np.ndarray:
    """Decode a photo to pixels (1, 3, S, S) as the contract defines.

    For a control Pillow's draft alone decodes, and the photo is then enlarged.
    """
    if variant.at_least == 2:
        return preprocess(content, contract)
    photo = Image.open(io.BytesIO(content))
    side = round(variant.at_least * contract.resize_shorter)
    photo.draft(None, (side, side))
    stream = io.BytesIO()
    photo.save(stream, "PNG")
    return preprocess(stream.getvalue(), contract)


def _seen(backbone: Backbone, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the feature (D,) and the logits (C,)."""
    with torch.inference_mode():
        maps = backbone.network.forward_features(torch.from_numpy(pixels))
        feature = backbone.network.forward_head(maps, pre_logits=True)
        return feature[0].numpy(), backbone.network.get_classifier()(feature)[0].numpy()


def _row(variant: Variant, photos: Sequence[dict[str, Any]], truth: np.ndarray) -> dict[str, Any]:
    full, scaled = (np.array([photo[which] for photo in photos]) for which in ("full", "scaled"))
    cosine = np.array([photo["cosine"] for photo in photos])
    difference = (scaled == truth).astype(float) - (full == truth)
    return {
        **asdict(variant),
        "what": variant.what,
        "photos": len(photos),
        "same_top1": float((full == scaled).mean()),
        "cosine": {"least": float(cosine.min()), "mean": float(cosine.mean())},
        "full": float((full == truth).mean()),
        "scaled": float((scaled == truth).mean()),
        "gain": bootstrap_mean(difference).as_dict(),
        "levels": {
            "mean": float(np.mean([photo["levels_mean"] for photo in photos])),
            "largest": float(max(photo["levels_max"] for photo in photos)),
        },
    }


def _about(document: page.Document) -> str:
    photos, rows = document["data"]["photos"], document["rows"]
    same = [row["same_top1"] for row in rows if row["at_least"] == 2]
    return (
        f"{photos} photos of {document['data']['classes']} classes, enlarged by bicubic interpolation and saved as JPEG"
        f" (4:2:0), `{document['backbone']}` with published weights. Each file is decoded at full size and at the"
        f" reduced size of `pillow-scaled`: {sum(same) / len(same):.1%} of all files get the same best label, in the"
        f" worst row {min(same):.1%}. Gains are"
        f" paired, over photos, in points; where no answer changes, a change of up to {300 / photos:.1f} points could"
        " have been missed (95 %). Enlarged photos have less detail than those of a camera, hence the row with noise."
        " The control is decoded too small, and enlarged: it must differ."
    )


COLUMNS: page.Columns = {
    "megapixels": page.text("megapixels"),
    "JPEG quality": page.text("quality"),
    "": page.text("what"),
    "same top-1": page.percent("same_top1"),
    "cosine, least": lambda row: f"{row['cosine']['least']:.4f}",
    "cosine, mean": lambda row: f"{row['cosine']['mean']:.4f}",
    "full size": page.percent("full"),
    "reduced": page.percent("scaled"),
    "gain": page.gain(),
    "pixels, mean and largest": lambda row: f"{row['levels']['mean']:.2f}, {row['levels']['largest']:.0f} of 255",
}
PAGES = {"decoding": page.StudyPage("large JPEGs decoded at a reduced size", COLUMNS, _about)}
