"""Evaluate rivals of ICIIA on the same photos.

They are baselines that are given labels, and class shares, which need none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refocus.cloud_train.methods.iciia.delivery import calibrate, plain_logits
from refocus.edge.recognize import ClassShares, ShareSettings, known_scores
from studies.iciia.labelled_baselines import (
    LabelledRecipe,
    Split,
    fine_tuning,
    overall,
    prompt_tuning,
    right_share,
    split_labelled,
)
from studies.iciia.orders import FINE_TUNING, PROMPT_TUNING
from studies.iciia.points import TEST_CLIENTS, Bench, first_clients, right_by_client, targets_by_client, targets_of

LABELLED: dict[str, Callable[..., dict[str, float]]] = {FINE_TUNING: fine_tuning, PROMPT_TUNING: prompt_tuning}
RATE = LabelledRecipe.learning_rate  # the paper's; tried besides those that are given


def best_rate(bench: Bench, name: str, seed: int, rates: Sequence[float]) -> float:
    """Choose the learning rate of a labelled baseline on validation clients.

    It is the rate with the best accuracy on the later half of their photos, or the paper's if there are no rates to
    choose from.
    """
    if not rates:
        return RATE
    tried = sorted({RATE, *rates})

    def compute() -> dict[str, Any]:
        bank = bench.split("validation")
        parts = split_labelled(bank)
        train = LABELLED[name]
        found = {
            rate: overall(train(bank, bench.prepared.plain, parts, LabelledRecipe(rate, seed=seed)), parts)
            for rate in tried
        }
        return {"validation": {f"{rate:g}": share for rate, share in found.items()}}

    found = bench.once({"baseline": name, "seed": seed, "rates": tried}, compute)["validation"]
    return float(max(found, key=found.__getitem__))


def labelled_points(
    bench: Bench, name: str, seeds: Sequence[int], rate: float = RATE, heterogeneity: float = 1.0
) -> list[dict[str, Any]]:
    """Evaluate a labelled baseline with all seeds.

    It gets the labels of each test client's first half.
    """
    return [_labelled_point(bench, name, seed, rate, heterogeneity) for seed in seeds]


def _labelled_point(bench: Bench, name: str, seed: int, rate: float, heterogeneity: float) -> dict[str, Any]:
    def compute() -> dict[str, Any]:
        started, test = time.monotonic(), first_clients(bench.split("test", heterogeneity), TEST_CLIENTS)
        windows, clients = targets_of(test, bench.targets_per_client, bench.history)
        parts: dict[str, Split] = {}
        for number, (client, (labelled, _)) in enumerate(split_labelled(test).items()):
            judged = windows[clients == number, -1]
            if len(judged):
                parts[client] = labelled, judged
        plain = bench.prepared.plain
        alone = {client: right_share(plain, test, judged) for client, (_, judged) in parts.items()}
        right = LABELLED[name](test, plain, parts, LabelledRecipe(rate, seed=seed))
        answers = {"plain": [alone[c] for c in parts], "personal": [right[c] for c in parts]}
        return {
            "right": {"own": {str(bench.history): answers}},
            "targets": [len(judged) for _, judged in parts.values()],
            "labels": float(np.mean([len(labelled) for labelled, _ in parts.values()])),
            "learning_rate": rate,
            "seconds": round(time.monotonic() - started, 1),
        }

    about = {"baseline": name, "seed": seed, "learning_rate": rate, "heterogeneity": heterogeneity}
    return bench.once(about, compute)


def shares_point(bench: Bench, heterogeneity: float = 1.0) -> dict[str, Any]:
    """Evaluate class shares after the same histories.

    The device's own code computes them; they need no training, so there are no seeds.
    """

    def compute() -> dict[str, Any]:
        started, test = time.monotonic(), first_clients(bench.split("test", heterogeneity), TEST_CLIENTS)
        plain, validation = bench.prepared.plain, bench.split("validation")
        known = plain_logits(plain, validation)
        temperature = calibrate(known, validation.table.label)
        lengths, of_test = (np.linalg.norm(bank.take(), axis=1) for bank in (validation, test))
        scores = known_scores(known, lengths, [None] * len(known), ())
        shares = ClassShares(ShareSettings(temperature=temperature), plain.out_features, known=scores)
        logits = plain_logits(plain, test)
        windows, clients = targets_of(test, bench.targets_per_client, bench.history)
        right: dict[str, list[bool]] = {"plain": [], "personal": []}
        for rows in windows:
            shares.clear()
            shares.extend(shares.row(logits[row], of_test[row]) for row in rows[:-1])
            answer, label = shares.answer(logits[rows[-1]], of_test[rows[-1]]), test.table.label[rows[-1]]
            right["plain"].append(int(answer.plain_logits.argmax()) == label)
            right["personal"].append(int(answer.logits.argmax()) == label)
        answers = {name: right_by_client(np.array(flags), clients) for name, flags in right.items()}
        return {
            "right": {"own": {str(bench.history): answers}},
            "targets": targets_by_client(clients),
            "seconds": round(time.monotonic() - started, 1),
        }

    return bench.once({"baseline": "class shares", "heterogeneity": heterogeneity}, compute)
