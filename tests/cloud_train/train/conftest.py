"""Small photos of people, an untrained network, and its bundle: what training is tried on in seconds."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from PIL import Image

LABELS = ("red", "green", "blue", "grey")
NETWORK = {"channels": [8, 16, 32, 64], "stem_width": 8}  # resnet10t: D = 64
SMALL = ("partitions=[4]", "block.layers=1", "block.window=3", "gate.kind=warm_up", "recipe.epochs=2",
         "recipe.windows_per_step=4", "devices.accelerator=cpu")  # fmt: skip


@pytest.fixture(scope="session")
def people(tmp_path_factory):
    """Twenty-four people with ten coloured photos each, and a metadata.csv."""
    folder, rng = tmp_path_factory.mktemp("people"), np.random.default_rng(0)
    colours = np.array([(200, 40, 40), (40, 200, 40), (40, 40, 200), (120, 120, 120)])
    rows = []
    for person in range(24):
        for number in range(10):
            label = int(rng.integers(0, 4)) if number else person % 4
            pixels = (colours[label] + rng.integers(-40, 40, (40, 40, 3))).astype(np.uint8)
            name = f"{person:02d}-{number}.png"
            Image.fromarray(pixels).save(folder / name)
            rows.append((name, LABELS[label], f"person {person}"))
    with (folder / "metadata.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("file_name", "label", "client"), *rows])
    return folder


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """An untrained network's, with a classifier of four classes."""
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_file(timm.create_model("resnet10t", num_classes=len(LABELS), **NETWORK).state_dict(), path)
    return path


@pytest.fixture(scope="session")
def network_bundle(people, weights, tmp_path_factory):
    """What ``refocus export timm:resnet10t`` makes of it, for two targets."""
    from refocus.export.bundle import Export, export_bundle
    from refocus.export.parity.photos import pooled_streams
    from refocus.export.program import NetworkSettings, checkpoint_of, open_network

    folder = tmp_path_factory.mktemp("network")
    (folder / "labels.txt").write_text("\n".join(reversed(LABELS)))
    asked = NetworkSettings(
        checkpoint=weights,
        arguments={"num_classes": len(LABELS), **NETWORK},
        labels=folder / "labels.txt",
        preprocessing={"crop": 32, "resize_shorter": 32},
    )
    (folder / "photos").mkdir()
    for path in sorted(people.glob("*.png"))[:20]:
        shutil.copy(path, folder / "photos")
    network = open_network("timm:resnet10t", asked)
    export = Export(["onnx:fp32", "onnx:fp16"])
    return export_bundle(
        [checkpoint_of(network)], folder / "bundle", export, pooled_streams(folder / "photos"), "network"
    )


@pytest.fixture(scope="session")
def squares(tmp_path_factory):
    """Three clients with squares of six brightnesses, and weights of a small vision transformer."""
    import timm
    from safetensors.torch import save_file

    from refocus.cloud_train.data import glyphs

    folder, rng = tmp_path_factory.mktemp("squares"), np.random.default_rng(0)
    label = rng.integers(0, 6, 120)
    pixels = (40 * label[:, None, None, None] + rng.integers(0, 9, (120, 16, 16, 3))).astype(np.uint8)
    np.savez(folder / "squares.npz", x=pixels, y=label, client=np.arange(120) % 3)
    about = dict(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=len(glyphs.CLASSES))
    save_file(timm.create_model("vit_tiny_patch16_224", **about).state_dict(), folder / "vit.safetensors")
    return folder


@pytest.fixture
def train():
    """Runs ``refocus train`` in this process: each start of another would import torch."""
    from typer.testing import CliRunner

    from refocus.cloud_train.commands.train import train_app

    def run(*words):
        done = CliRunner().invoke(train_app, [str(word) for word in words])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


@pytest.fixture
def changes():
    """``--set`` of each."""

    def of(*texts):
        return [word for text in texts for word in ("--set", text)]

    return of
