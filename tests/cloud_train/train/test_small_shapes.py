"""``train iciia`` with its defaults on many small shapes of data: it ends well and delivers no less than plain."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.table import PhotoTable, split_clients
from refocus.cloud_train.methods.iciia.delivery import (
    accuracy_of,
    logits_in_every_way,
    plain_logits,
    right_answers,
)
from refocus.cloud_train.methods.iciia.programs import iciia_head
from refocus.cloud_train.methods.iciia.train import Devices
from refocus.cloud_train.runs.iciia import (
    SHARES,
    DataConfig,
    Prepared,
    Run,
    RunConfig,
    chosen_by,
    delivered_variant,
    variant_name,
)
from refocus.cloud_train.train.iciia import IciiaSettings, blocks_of
from refocus.export.program import SIGNATURE, Card, save_checkpoint

# people, photos of each, classes, width of features, their scale
FEW = [
    (6, 4, 2, 192, 1), (6, 5, 5, 960, 100), (12, 4, 10, 960, 0.1), (6, 4, 1000, 192, 1), (14, 4, 3, 192, 0.1),
    (6, 4, 10, 2048, 100), (10, 5, 31, 1280, 1), (10, 4, 7, 192, 1),
]  # fmt: skip
MANY = [
    (300, 4, 20, 192, 1), (6, 200, 10, 192, 0.1), (6, 20, 1000, 192, 100), (50, 4, 10, 192, 1),
    (6, 4, 2, 960, 100), (24, 5, 7, 960, 1), (50, 4, 50, 960, 0.1), (20, 4, 200, 960, 1),
    (6, 4, 1000, 1280, 0.1), (24, 5, 10, 1280, 100), (12, 12, 4, 1280, 1), (40, 4, 100, 1280, 1),
    (6, 4, 2, 2048, 0.1), (12, 6, 12, 2048, 1), (6, 8, 1000, 2048, 1), (20, 4, 3, 2048, 100),
]  # fmt: skip


def bank_of(people: int, photos: int, classes: int, width: int, scale: float) -> tuple[FeatureCache, nn.Linear]:
    """Return photos of people with four classes and a look each, and the classifier of their network."""
    rng, rows = np.random.default_rng(people + photos), people * photos
    label = np.concatenate([rng.choice(rng.choice(classes, min(classes, 4), False), photos) for _ in range(people)])
    means, look = (size / width**0.5 * rng.normal(size=(n, width)) for n, size in ((classes, 3.0), (people, 2.0)))
    features = scale * (means[label] + np.repeat(look, photos, axis=0) + rng.normal(size=(rows, width)))
    plain = nn.Linear(width, classes)
    plain.weight.data = torch.from_numpy(means / scale).float()
    plain.bias.data = torch.from_numpy(-(means**2).sum(1) / 2).float()
    table = PhotoTable(
        photo=np.arange(rows).astype(str),
        label=label.astype(np.int64),
        client=np.repeat([f"person {number}" for number in range(people)], photos),
        domain=np.full(rows, ""),
        split=np.full(rows, "", dtype="<U10"),
        classes=tuple(map(str, range(classes))),
        read=str.encode,
    )
    stored = np.hstack([features, np.zeros((rows, SIGNATURE))]).astype(np.float32)
    return FeatureCache(split_clients(table, SHARES, 0), stored, "toy", np.arange(rows)), plain


def train_on(bank: FeatureCache, plain: nn.Linear, folder) -> tuple[float, ...]:
    """Train with the defaults for photos on given features.

    Returns:
        Accuracy of what is delivered and of plain on validation people, and of both on test people.
    """
    settings = IciiaSettings.named("default", {"data": {"source": "photos"}})
    run = Run(folder, RunConfig(DataConfig()), bank.table)
    save_checkpoint(run.encoder_path, {"weight": torch.zeros(1)}, Card(builder="timm_encoder", config={}, labels=()))
    prepared, fabric = Prepared(None, bank, plain), Devices(accelerator="cpu").launch()
    heads = [
        run.train_head(variant_name(block), block, settings.recipe, prepared, fabric, settings.gate)
        for block in blocks_of(settings, bank.width, bank.of_split("train").table)
    ]
    assert chosen_by(heads)[-1].startswith("validation people are served best by iciia_")
    best = next(head for head in heads if head.path.stem == delivered_variant([h.path for h in heads], "run"))
    delivery, head, test = best.card.training["delivery"], iciia_head(best), bank.of_split("test")
    asked = delivery["history"], delivery["temperature"], 16, delivery["gated"]
    right = right_answers(logits_in_every_way(head, test, plain_logits(head.plain, test), *asked))
    way = str(delivery["with_head"]) if delivery["choice"] == "both" else delivery["choice"]
    on_test = (float(np.mean([person[name].mean() for person in right])) for name in (way, "plain"))
    return accuracy_of(delivery), delivery["accuracy"]["plain"], *on_test


def check(shapes, folder) -> None:
    for number, shape in enumerate(shapes):
        delivered, plain, *_ = train_on(*bank_of(*shape), folder / str(number))
        assert delivered >= plain, shape


@pytest.mark.slow
def test_defaults_train_on_small_shapes_and_deliver_no_less_than_plain(tmp_path):
    check(FEW, tmp_path)


@pytest.mark.slow
def test_defaults_train_on_more_shapes_and_deliver_no_less_than_plain(tmp_path):
    check(MANY, tmp_path)
