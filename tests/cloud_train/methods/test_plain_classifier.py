"""The plain classifier against scikit-learn's logistic regression, and what it refuses."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.iciia.block import IciiaConfig
from refocus.cloud_train.methods.iciia.plain_classifier import PlainRecipe, fit_plain_classifier, plain_accuracy
from refocus.cloud_train.methods.iciia.train import IciiaRecipe, train_iciia
from refocus.export.program import SIGNATURE


def bank(features: np.ndarray, labels: np.ndarray, people: int = 0) -> FeatureCache:
    """Features (n, D) as a cache; dealt to so many people in turn."""
    client = [f"person-{i % people}" if people else "" for i in range(len(labels))]
    table = PhotoTable.of(
        [str(i) for i in range(len(labels))], labels, lambda _: b"", tuple("0123456789"), client=client
    )
    rows = np.hstack([features, np.zeros((len(labels), SIGNATURE))]).astype(np.float32)
    return FeatureCache(table, rows, "pixels", np.arange(len(labels)))


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    return load_digits(return_X_y=True)


def mnist() -> tuple[np.ndarray, np.ndarray]:
    folder = os.environ.get("REFOCUS_DATA")
    if not folder:
        pytest.skip("REFOCUS_DATA names no folder of real photos and weights")
    with np.load(next((Path(folder) / "mnist-20-clients").glob("*.npz"))) as file:
        chosen = np.random.default_rng(0).choice(len(file["y"]), 6000, replace=False)
        return file["x"][chosen].reshape(6000, -1)[:, ::3] / 255, file["y"][chosen].astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize("data", [digits, mnist])
def test_it_is_as_good_as_scikit_learns(data):
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = data()
    order = np.random.default_rng(1).permutation(len(labels))
    thirds = np.split(order, [len(order) // 3, len(order) // 2])  # train, validation, test
    train, validation, test = (bank(features[rows], labels[rows]) for rows in thirds)
    ours = fit_plain_classifier(train, validation)
    theirs, chosen = -1.0, None
    scale = np.sqrt((train.take() ** 2).mean())
    for c in (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10):
        model = linear_model.LogisticRegression(C=c, max_iter=3000).fit(train.take() / scale, train.table.label)
        probability = model.predict_proba(validation.take() / scale)
        score = np.log(probability[np.arange(len(probability)), validation.table.label]).mean()
        if chosen is None or score > theirs:
            theirs, chosen = score, model
    assert -ours.cross_entropy == pytest.approx(theirs, abs=0.01)
    reference = chosen.score(test.take() / scale, test.table.label)
    assert plain_accuracy(ours.layer, test) == pytest.approx(reference, abs=0.003)


@pytest.mark.slow
def test_a_classifier_that_stops_early_would_be_worse():
    """The control of the test above: it tells five steps of training from convergence."""
    features, labels = digits()
    rows = np.random.default_rng(1).permutation(len(labels))
    train, validation = bank(features[rows[:900]], labels[rows[:900]]), bank(features[rows[900:]], labels[rows[900:]])
    whole = fit_plain_classifier(train, validation)
    short = fit_plain_classifier(train, validation, PlainRecipe(steps=5, l2=(whole.l2,)))
    assert short.cross_entropy > whole.cross_entropy + 0.02


def test_confidence_that_the_penalty_took_is_given_back():
    """With one strong penalty the logits are too small; calibration undoes it and leaves every label as it is."""
    features, labels = digits()
    rows = np.random.default_rng(1).permutation(len(labels))
    train, validation = bank(features[rows[:900]], labels[rows[:900]]), bank(features[rows[900:]], labels[rows[900:]])
    found = fit_plain_classifier(train, validation, PlainRecipe(l2=(0.1,)))
    logits, right = found.layer(torch.from_numpy(validation.take())), torch.from_numpy(validation.table.label)
    assert found.temperature < 0.7
    losses = [float(functional.cross_entropy(logits * factor, right)) for factor in (found.temperature, 0.9, 1.0, 1.1)]
    assert min(losses) == losses[2]
    assert losses[2] == pytest.approx(found.cross_entropy, abs=1e-5)
    assert float((logits.argmax(1) == right).double().mean()) == pytest.approx(found.accuracy)


def test_features_that_are_not_finite_are_refused():
    features = np.ones((30, 4))
    features[3, 2] = np.nan
    with pytest.raises(DataError, match="not finite"):
        fit_plain_classifier(bank(features, np.arange(30) % 10), bank(np.ones((10, 4)), np.arange(10)))


def test_no_validation_photos_are_refused():
    with pytest.raises(DataError, match="no validation photos"):
        fit_plain_classifier(bank(np.ones((30, 4)), np.arange(30) % 10), bank(np.ones((0, 4)), np.zeros(0, int)))


def test_a_head_that_diverges_is_an_error_with_advice():
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    labels = rng.integers(0, 10, 320)
    train = bank(30 * rng.normal(size=(320, 16)), labels, people=10)
    validation = bank(rng.normal(size=(80, 16)), labels[:80], people=4)
    validation = replace(validation, table=replace(validation.table, client=np.char.add("v", validation.table.client)))
    config = IciiaConfig(width=16, layers=1, partitions=1, heads=2, window=8)
    with pytest.raises(UsageError, match="diverges.*learning_rate"):
        train_iciia(train, validation, config, IciiaRecipe(learning_rate=1e4, momentum=0.9, clip_norm=1e9, epochs=5))
