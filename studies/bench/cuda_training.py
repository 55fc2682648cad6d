"""Measure training on a GPU and compare it with the CPU.

It covers an ICIIA epoch, TAPER steps and federated steps. Features and photos are drawn: the time of a step does not
depend on them, and the losses of the same steps on a CPU show whether the GPU, and mixed precision on it, computes the
same.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.backbones.feature_cache import SIGNATURE, FeatureCache
from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.federated.local_training import ClientRecipe, ClientStep, together
from refocus.cloud_train.federated.parameters import ClientNetwork, tensors_of
from refocus.cloud_train.methods.iciia.block import IciiaConfig
from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe, train_iciia
from refocus.cloud_train.methods.peft.prompts import PromptedViT
from refocus.cloud_train.methods.taper import tasks
from refocus.cloud_train.methods.taper.bank import Bases, MixerPredictor, Taper, layout_of
from refocus.cloud_train.methods.taper.descriptions import bag_of_words
from refocus.cloud_train.methods.taper.train import TaperRecipe, train_mixing

WINDOW, PHOTOS_OF_A_PERSON = 16, 64
# Largest differences of losses to those of the CPU in fp32, relative to the loss.
TOLERANCES = {"fp32": 1e-3, "bf16": 0.05}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measured trainings.

    Attributes:
        photos: drawn features of the epoch; ImageNet has 1,281,167 photos.
        width: numbers in a feature.
        classes: classes of the features.
        windows_per_step: windows of 16 photos.
        compared: steps whose losses are compared with the CPU's.
        steps: timed steps of TAPER and of a client.
        network: timm name of the bases.
        vit: timm name of the prompted transformer.
        side: pixels of drawn photos.
        bases: bases of TAPER.
        batch: photos per batch of TAPER and of the client.
    """

    photos: int = 1_280_000
    width: int = 1280
    classes: int = 1000
    windows_per_step: int = 64
    compared: int = 4
    steps: int = 60
    network: str = "resnet18"
    vit: str = "deit_tiny_patch16_224"
    side: int = 224
    bases: int = 10
    batch: int = 128


DRY = Sizes(2048, 64, 20, 8, 3, 2, "resnet10t", "vit_tiny_patch16_224", 64, 2, 16)


@contextlib.contextmanager
def autocast(device: str, precision: str) -> Iterator[None]:
    """Use fp32 without TF32, or bf16 where autocast supports it."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        # Without its cache, which would hold weights as they were before a step for as long as the context is open.
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def wait(device: str) -> None:
    """Wait until the GPU has finished all work."""
    if device == "cuda":
        torch.cuda.synchronize()


def drawn_features(sizes: Sizes, photos: int, split: str, seed: int) -> FeatureCache:
    """Draw a cache of features.

    Each class has its own direction, and each person a few classes.
    """
    rng = np.random.default_rng(seed)
    people = photos // PHOTOS_OF_A_PERSON
    own = rng.integers(0, sizes.classes, (people, 8))
    label = np.take_along_axis(own, rng.integers(0, 8, (people, PHOTOS_OF_A_PERSON)), 1).ravel()
    directions = np.random.default_rng(0).standard_normal((sizes.classes, sizes.width), dtype=np.float32)
    features = np.empty((len(label), sizes.width + SIGNATURE), dtype=np.float32)
    for start in range(0, len(label), 65536):  # so that no second copy of all is held
        part = slice(start, min(start + 65536, len(label)))
        noise = rng.standard_normal((part.stop - start, sizes.width + SIGNATURE), dtype=np.float32)
        features[part] = 2 * noise
        features[part, : sizes.width] += directions[label[part]]
    client = np.repeat([f"{split} {number}" for number in range(people)], PHOTOS_OF_A_PERSON)
    names = np.arange(len(label)).astype(str)
    classes = tuple(map(str, range(sizes.classes)))
    empty = np.full(len(label), "", dtype="<U1")
    table = PhotoTable(names, label.astype(np.int64), client, empty, np.full(len(label), split), classes, _no_photo)
    return FeatureCache(table, features, "drawn", np.arange(len(label)))


def _no_photo(name: str) -> bytes:
    raise ValueError(f"{name} is a drawn feature; it has no photo")


def iciia_epoch(device: str, sizes: Sizes) -> dict[str, Any]:
    """Time an epoch of ICIIA-T on drawn features in fp32 and bf16.

    A shorter epoch is compared with the CPU.
    """
    config = IciiaConfig(sizes.width, partitions=min(256, sizes.width // 2), window=WINDOW)
    recipe = IciiaRecipe(learning_rate=0.1, windows_per_step=sizes.windows_per_step, epochs=1, draw_again=False)
    began = time.perf_counter()
    train = drawn_features(sizes, sizes.photos, "train", 1)
    few = drawn_features(sizes, PHOTOS_OF_A_PERSON * 16, "validation", 2)
    drawing = time.perf_counter() - began
    rows = []
    for precision, name in (("fp32", "32-true"), ("bf16", "bf16-mixed")):
        fabric = Devices(1, device, name).launch()
        begin = time.perf_counter()
        trained = train_iciia(train, few, config, recipe, fabric)
        wait(device)
        seconds = time.perf_counter() - begin
        rows.append(
            {
                "precision": precision,
                "seconds": seconds,
                "photos_per_second": len(train.table.label) / seconds,
                "validation": trained.validation,
            }
        )
    small = drawn_features(sizes, PHOTOS_OF_A_PERSON * sizes.windows_per_step, "train", 3)
    still = replace(config, dropout=0.0)  # masks of dropout differ between devices
    weights: dict[str, torch.Tensor] = {}
    for where, name in (("cpu", "32-true"), (device, "32-true"), (device, "bf16-mixed")):
        trained = train_iciia(small, small, still, replace(recipe, epochs=4), Devices(1, where, name).launch())
        if not trained.best_epoch:
            raise ValueError(f"no epoch in {name} on {where} was better than none, so there is nothing to compare")
        weights[where if len(weights) == 0 else name] = torch.cat(
            [p.detach().float().ravel() for p in trained.model.parameters()]
        )
    scale = float(weights["cpu"].norm())
    differences = {
        precision: float((weights[name] - weights["cpu"]).norm()) / scale
        for precision, name in (("fp32", "32-true"), ("bf16", "bf16-mixed"))
    }
    return {"photos": len(train.table.label), "width": sizes.width, "drawing_seconds": drawing, "rows": rows,
            **agreement(differences)}  # fmt: skip


def agreement(differences: dict[str, float]) -> dict[str, Any]:
    """Compare relative differences to the CPU in fp32 with their tolerances."""
    agrees = {name: value <= TOLERANCES[name] for name, value in differences.items()}
    return {"difference_to_cpu": differences, "agrees": agrees, "tolerances": TOLERANCES}


def drawn_photos(sizes: Sizes, count: int, device: str) -> Photos:
    """Draw photos whose classes are colours."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, min(sizes.classes, 20), count)
    colours = rng.integers(0, 256, (20, 3))
    pixels = colours[label][:, :, None, None] + rng.integers(-20, 20, (count, 3, sizes.side, sizes.side))
    half = (0.5, 0.5, 0.5)
    values = torch.from_numpy(np.clip(pixels, 0, 255).astype(np.uint8))
    return Photos(values.to(device), torch.from_numpy(label).to(device), np.zeros(count, int), half, half)


def taper_steps(device: str, sizes: Sizes) -> dict[str, Any]:
    """Time steps of TAPER's third stage.

    They train all bases and the mixer predictor together.
    """

    def losses(where: str, precision: str, steps: int) -> tuple[list[float], float]:
        networks = []
        for seed in range(sizes.bases):
            torch.manual_seed(seed)
            networks.append(create_backbone(sizes.network, 20).network)
        layout = layout_of(networks[0])
        rows = torch.stack([layout.join(network.state_dict()) for network in networks])
        torch.manual_seed(0)
        taper = Taper(networks[0].to(where), Bases(layout, rows), MixerPredictor(20, layout.mixers, len(rows)), "task")
        taper.to(where)
        photos, tasks_at_once = drawn_photos(sizes, max(2 * sizes.batch, 64), where), 4
        recipe = TaperRecipe(batch=sizes.batch, tasks=tasks_at_once, any_domain=0.0)
        told: list[float] = []
        wait(where)
        begin = time.perf_counter()
        with autocast(where, precision):
            about = photos, tasks.fixed(20, 5), False, bag_of_words(20, 1), recipe
            epochs = steps * sizes.batch / len(photos)
            train_mixing(taper, *about, epochs, watch=lambda step, loss: told.append(loss))
        wait(where)
        return told, time.perf_counter() - begin

    # Under vmap autocast leaves the mixed weights in bf16 and the photos in fp32, which convolutions refuse.
    found = _compared(losses, device, sizes, sizes.batch, ("fp32",))
    return {**found, "missing": "bf16: autocast does not reach convolutions under vmap"}


def federated_steps(device: str, sizes: Sizes) -> dict[str, Any]:
    """Time steps of a client with prompts on a frozen vision transformer.

    The steps train the prompts and a classifier.
    """

    def losses(where: str, precision: str, steps: int) -> tuple[list[float], float]:
        torch.manual_seed(0)
        more: dict[str, Any] = {"img_size": sizes.side} if sizes.side != 224 else {}
        body = PromptedViT(create_backbone(sizes.vit, 0, **more).network, 8)
        network = ClientNetwork(body, nn.Linear(body.network.num_features, 20)).to(where).eval()
        names = [name for name in tensors_of(network) if "prompts" in name or name.startswith("head.")]
        photos = drawn_photos(sizes, 2 * sizes.batch, where)
        recipe = ClientRecipe(batch=sizes.batch, learning_rate=0.01, steps=1)
        told: list[float] = []
        rng = np.random.default_rng(0)
        wait(where)
        begin = time.perf_counter()
        with autocast(where, precision):
            for _ in range(steps):
                job = ClientStep(network, names, (), photos, recipe, rng)
                together(job)
                told.append(job.progress.loss / job.progress.photos)
        wait(where)
        return told, time.perf_counter() - begin

    return _compared(losses, device, sizes, sizes.batch)


def _compared(
    losses: Any, device: str, sizes: Sizes, photos_a_step: int, precisions: tuple[str, ...] = ("fp32", "bf16")
) -> dict[str, Any]:
    """Compute steps per second in each precision, and compare losses.

    The losses of the first steps are compared with the CPU's.
    """
    wanted, cpu_seconds = losses("cpu", "fp32", sizes.compared)
    rows, differences = [], {}
    for precision in precisions:
        found, _ = losses(device, precision, sizes.compared)  # also allocates and chooses kernels
        differences[precision] = max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
        told, seconds = losses(device, precision, sizes.steps)
        rate = len(told) / seconds
        rows.append({"precision": precision, "steps_per_second": rate, "photos_per_second": rate * photos_a_step,
                     "losses": copy.copy(found)})  # fmt: skip
    cpu = {"steps_per_second": len(wanted) / cpu_seconds, "losses": wanted}
    return {"rows": rows, "cpu": cpu, **agreement(differences)}
