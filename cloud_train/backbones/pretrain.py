"""Training a small encoder from scratch, for data that has no pretrained network: the embedded glyphs.

Not a substitute for a real backbone: users of real photos bring one with ``--checkpoint``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone
from refocus.cloud_train.backbones.clip import Pooling, over_frames
from refocus.cloud_train.data.image_tensors import Photos, decoded
from refocus.cloud_train.data.label_loss import descend, label_loss
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.settings import Count, NotNegative, Positive
from refocus.cloud_train.tracking import log_metrics
from refocus.edge.bundle import Preprocessing

GLYPH_BACKBONE = "mobilenet_edgetpu_v2_xs"  # ends in D = 1280, and its dense convolutions train fast on a CPU
# Of drawn clips, whose every frame costs what a photo does: it ends in D = 256.
CLIP_BACKBONE = "resnet10t"
CLIP_ARGUMENTS: dict[str, Any] = {"channels": [16, 32, 64, 256], "stem_width": 8}
GLYPH_PREPROCESSING = Preprocessing(
    resize_shorter=32,
    crop=32,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    resize_filter="bilinear",
    decoder="pillow-scaled",
)


@dataclass(frozen=True)
class EncoderRecipe:
    """AdamW with a one-cycle schedule on plain cross-entropy; binary where photos have several labels.

    Attributes:
        epochs: passes over the training photos or clips.
        batch: photos or clips per step.
        learning_rate, weight_decay: of AdamW; the rate is the largest of the cycle.
        seed: initial weights and order.
    """

    epochs: Count = 3
    batch: Count = 64
    learning_rate: Positive = 0.004
    weight_decay: NotNegative = 0.02
    seed: int = 0


def train_encoder(
    table: PhotoTable,
    recipe: EncoderRecipe,
    name: str = GLYPH_BACKBONE,
    preprocessing: Preprocessing | None = None,
    read_out: nn.Module | None = None,
    outputs: int = 0,
    pooling: Pooling = "conv",
    **arguments: Any,
) -> Backbone:
    """Trains a timm network on the training clients' photos of the table, or on clips as the preprocessing states.

    The photos are kept in memory as uint8: for small pictures only.

    Args:
        read_out: turns the network's outputs into logits, as cosines to sentences do; default: they are the logits.
        outputs: of the network; default: one per class.
        pooling: of clips, how features of frames become one.
        arguments: of ``timm.create_model``.
    """
    torch.manual_seed(recipe.seed)
    backbone = create_backbone(name, outputs or len(table.classes), preprocessing or GLYPH_PREPROCESSING, **arguments)
    if backbone.preprocessing.of_clips:
        backbone = over_frames(backbone, backbone.preprocessing.input_shape[0], pooling)
    network = backbone.network.train().to(memory_format=torch.channels_last)
    train = table.of_split("train")
    contract = backbone.preprocessing
    pixels, labels = torch.from_numpy(decoded(train, contract, "drawing")), torch.from_numpy(train.label)
    photos = Photos(pixels, labels, train.domain, contract.mean, contract.std)
    batch = min(recipe.batch, len(train))
    per_epoch = len(train) // batch
    steps = recipe.epochs * per_epoch
    optimiser = torch.optim.AdamW(network.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.learning_rate, total_steps=steps, pct_start=0.2)
    order = torch.Generator().manual_seed(recipe.seed)
    started, recent = time.monotonic(), 0.0
    for step in track(range(steps), "encoder", steps):
        if step % per_epoch == 0:
            queue = torch.randperm(len(train), generator=order).split(batch)
        rows = queue[step % per_epoch]
        logits = network(photos.batch(rows)) if read_out is None else read_out(network(photos.batch(rows)))
        loss = label_loss(logits, labels[rows])
        descend(loss, optimiser, schedule)
        recent = 0.95 * recent + 0.05 * loss.item()
        log_metrics("encoder", step + 1, loss=loss.item())
    network.eval().to(memory_format=torch.contiguous_format)
    say(f"encoder: {name}, {steps} steps, loss {recent:.3f}, {time.monotonic() - started:.0f} s")
    return backbone
