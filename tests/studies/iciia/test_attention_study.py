"""Attention on photos of the same class: a block that compares features finds them, one that never trained does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.heads import PerPerson, Target
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from studies.iciia.attention import _row, attention_of, with_both
from studies.report.pages import STUDIES

CLASSES, HISTORY, TARGETS = 4, 6, 40
CONFIG = IciiaConfig(width=8, partitions=1, layers=1, heads=1, window=HISTORY + 1)


def people() -> tuple[list[Target], PhotoTable]:
    """Targets whose feature says which class they are of."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, CLASSES, TARGETS * (HISTORY + 1))
    feature = (np.eye(8)[label] + rng.normal(0, 0.05, (len(label), 8))).astype(np.float32)
    names = [f"{number}.png" for number in range(len(label))]
    table = PhotoTable.of(names, label, lambda name: b"", tuple("abcd"))
    targets = []
    for number in range(TARGETS):
        rows = np.arange(HISTORY + 1) + number * (HISTORY + 1)
        before, last = rows[:-1], int(rows[-1])
        own, photos = feature[before], tuple(names[row] for row in before)
        person = f"person {number % 5}"
        targets.append(Target(person, int(label[last]), names[last], feature[last], own, photos, own, own))
    return targets, table


def comparing(strength: float) -> IciiaClassifier:
    """A block that attends to features like the target's own."""
    model = IciiaClassifier(CONFIG, CLASSES)
    with torch.no_grad():
        query_and_key = strength * torch.eye(8)
        model.iciia.layers[0].attention.qkv.weight[0] = torch.cat([query_and_key, query_and_key, torch.eye(8)])
    return model.eval()


def test_a_block_that_compares_features_attends_to_photos_of_the_class():
    targets, same = with_both(*people())
    assert same.any(axis=1).all()
    assert not same.all(axis=1).any()
    group = PerPerson.of(np.zeros(len(targets), dtype=int), [target.client for target in targets])
    torch.manual_seed(0)
    found, even = attention_of(comparing(8), targets), attention_of(comparing(0), targets)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    np.testing.assert_allclose(even, 1 / HISTORY)
    row = _row(group, same, [found], [even])
    assert row["attention"] > 0.9 > row["share"] + 0.3
    assert row["most"] == 1
    assert row["difference"]["low"] > 0.3
    assert abs(row["untrained"]["mean"]) < 1e-9
    header, [cells] = STUDIES["attention"].table({"rows": [{"name": "iciia_t", **row}]})
    assert dict(zip(header, cells, strict=True))["head"] == "ICIIA-T"


def test_histories_of_one_class_say_nothing():
    targets, table = people()
    alone = PhotoTable.of(table.photo, np.zeros(len(table), dtype=int), table.read, ("a", "b"))
    same_class = [Target(t.client, 0, t.photo, t.feature, t.own, t.own_photos, t.own, t.own) for t in targets]
    with pytest.raises(DataError, match="both photos of its class and others"):
        with_both(same_class, alone)
