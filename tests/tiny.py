"""The run that most tests share: few people, and a network that one core trains in seconds."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from refocus.cloud_train.runs.iciia import Run
    from refocus.edge.bundle import Bundle

WIDTH = 512  # of its features, D
STORED = WIDTH + 12  # numbers that are stored of a photo: its feature, and what the gate asks
BACKBONE = "resnet14t"
ARGUMENTS: dict[str, Any] = {"channels": [16, 32, 64, WIDTH // 4], "stem_width": 16}
CLIENTS = {"train": 96, "validation": 6, "gate": 8, "test": 6}


def tiny_run(folder: Path) -> Run:
    """A run, with what of it is in its folder already."""
    from refocus.cloud_train.backbones.pretrain import EncoderRecipe
    from refocus.cloud_train.runs.iciia import DataConfig, Run, RunConfig

    data = DataConfig(glyph_clients=CLIENTS, photos_per_client=32)
    return Run(folder, RunConfig(data, BACKBONE, arguments=ARGUMENTS, encoder=EncoderRecipe(epochs=3, batch=32)))


def train_tiny_run(folder: Path) -> Run:
    """The run with an encoder, one ICIIA-T head, its gate and their bundle."""
    import torch

    from refocus.cloud_train.evaluate.heads import bundle_of
    from refocus.cloud_train.methods.iciia.block import IciiaConfig
    from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe
    from refocus.cloud_train.methods.iciia.train_gate import GateRecipe

    torch.manual_seed(0)
    run, fabric = tiny_run(folder), Devices(accelerator="cpu").launch()
    recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=8, epochs=4)
    gate = GateRecipe(windows=2000, fewest=0)  # the few gate clients of a tiny run will do
    run.train_head("iciia_t", IciiaConfig(width=WIDTH, layers=1), recipe, run.prepare(fabric), fabric, gate)
    bundle_of(run, run.head_path(0, "iciia_t"))
    return run


def taught(bundle: Bundle, folder: Path, contents: Iterable[bytes]) -> Bundle:
    """A copy of a bundle that names these photo files as those that taught it."""
    import numpy as np
    from msgspec import structs

    from refocus.edge.bundle import Defaults, encode_tensors, load_bundle, photo_hash, write_manifest

    shutil.copytree(bundle.folder, folder)
    hashes = np.frombuffer(b"".join(sorted(map(photo_hash, contents))), np.int8).reshape(-1, 4)
    content = b"".join(encode_tensors({"photos": hashes}))
    (folder / "taught.safetensors").write_bytes(content)
    listed = Defaults(file="taught.safetensors", sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    manifest = load_bundle(folder).manifest
    heads = (structs.replace(manifest.heads[0], taught_by=listed), *manifest.heads[1:])
    return write_manifest(folder, structs.replace(manifest, heads=heads))


def stream_of(run: Run) -> list[bytes]:
    """Return one unseen person's photos, as encoded bytes in order."""
    test = run.table.of_split("test")
    _, rows = next(test.clients())
    return [test.read(name) for name in test.photo[rows].tolist()]


def write_letters(archive: Path) -> None:
    """Train the run, and write its bundle and one person's photos for environments without torch."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = train_tiny_run(folder / "run")
        (folder / "photos").mkdir()
        for number, content in enumerate(stream_of(run)):
            (folder / "photos" / f"{number:03d}.png").write_bytes(content)
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(run.folder / "seed-0" / "bundles" / "iciia_t", "bundle")
            tar.add(folder / "photos", "photos")


if __name__ == "__main__":
    write_letters(Path(__file__).parent / "fixtures" / "letters.tar.xz")
