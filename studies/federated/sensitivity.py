"""Measure how sensitive transformer layers are to clients' photos.

Each client keeps one kind of layer, alone and together with the classifier; all other layers are shared (FedPerfix
Table 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.clients import data_of_clients, shares
from refocus.cloud_train.evaluate.pairs import paired
from refocus.cloud_train.federated.run import FederatedRun

# Kind of layer -> methods that keep it local alone, and with the classifier.
LAYERS: dict[str, tuple[str, str | None]] = {
    "all local": ("local", None),
    "all global": ("fedavg", None),
    "classifier": ("own-head", None),
    "patch embedding": ("own-patch", "own-patch-head"),
    "position embedding": ("own-position", "own-position-head"),
    "layer norm": ("fedbn", "own-norm-head"),
    "self-attention": ("own-attention", "vanilla-attention"),
    "MLP": ("own-mlp", "own-mlp-head"),
}


def study_sensitivity(run: FederatedRun, seeds: Sequence[int], command: str) -> dict[str, Any]:
    """Train missing networks on a run's clients and return the document.

    Raises:
        UsageError, DataError: as of :meth:`FederatedRun.check`; the network is not a vision transformer.
    """
    names = [name for pair in LAYERS.values() for name in pair if name]
    run.check(names)
    rates = {name: run.best_rates(name, seeds[0]) for name in names}
    results = {name: [run.result(name, seed, rates[name]) for seed in seeds] for name in names}
    recipe = run.config.recipe
    return page.study_document(
        "sensitivity",
        command,
        seeds,
        data=data_of_clients(run),
        backbone=run.config.backbone,
        rounds=recipe.rounds,
        steps=recipe.steps,
        rates={name: asdict(rate) for name, rate in rates.items()},
        rows=[_row(name, pair, results) for name, pair in LAYERS.items()],
    )


def _row(name: str, pair: tuple[str, str | None], results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    alone, shared = _used(results[pair[0]]), _used(results["fedavg"])
    together = None if pair[1] is None else _used(results[pair[1]])
    return {
        "name": name,
        "alone": float(alone.mean()),
        "deviation": float(alone.mean(0).std()),
        "combined": None if together is None else float(together.mean()),
        "overall": None if together is None else float((alone.mean() + together.mean()) / 2),
        "over_global": paired([*(alone - shared)], np.ones(alone.shape[1])),
    }


def _used(results: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the test accuracy per seed and client, (S, clients)."""
    return np.array([shares(result, "members", "used") for result in results])


def _about(document: page.Document) -> str:
    data, steps = document["data"], document["steps"] or "no fixed number of"
    return (
        f"{data['classes']} classes; {data['clients']} clients ({data['partition']}), {data['targets']} photos to be"
        f" judged by. `{document['backbone']}`, {document['rounds']} rounds of {steps} steps,"
        f" {page.seeds_line(document)}. Means and intervals are over clients."
    )


_COLUMNS: page.Columns = {
    "kept local": page.text("name"),
    "alone": page.percent("alone"),
    "deviation": lambda row: f"{100 * row['deviation']:.1f}",
    "with the classifier": page.percent("combined"),
    "overall": page.percent("overall"),
    "alone over all global": page.gain("over_global"),
}
PAGES = {"sensitivity": page.StudyPage("layers kept local (FedPerfix Table 1)", _COLUMNS, _about)}
