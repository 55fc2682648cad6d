"""Findings of the gates in each run of a pipeline, as a results document."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure import bootstrap_mean, worst_tenth
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.pipeline.data import read_list
from refocus.cloud_train.pipeline.gates import judged_gates
from refocus.cloud_train.pipeline.run import runs_of
from refocus.cloud_train.pipeline.state import read_state

SCHEMA = 1
COMMAND = "refocus pipeline gates --folder PIPELINE --json"


def gates_document(folder: Path) -> dict[str, Any]:
    """Accuracy of the test people and every gate's finding, of each run that judged people, the oldest first.

    Raises:
        UsageError: no run has judged people yet.
    """
    runs = [row for row in runs_of(folder) if "people" in read_state(_work(folder, row), "evaluate")]
    if not runs:
        raise UsageError(f"{folder}: no run has judged people yet; refocus pipeline show says what became of each")
    last = _work(folder, runs[-1])
    config, ingest = read_state(last, "pipeline"), read_state(last, "ingest")
    about = {
        "name": config["name"],
        "method": config["method"],
        "source": Path(config["data"]["source"]).name,
        "target": config["judging"]["target"],
        **{name: ingest[name] for name in ("photos", "people", "classes", "splits")},
    }
    return {
        "schema_version": SCHEMA,
        "command": COMMAND,
        "retrainings": about,
        "rows": [{**row, **_judged(_work(folder, row))} for row in runs],
    }


def _work(folder: Path, row: dict[str, Any]) -> Path:
    return folder / "runs" / str(row["run"])


def _judged(work: Path) -> dict[str, Any]:
    """Accuracies over the test people of one run, differences with their intervals over people, and its gates."""
    found = read_state(work, "evaluate")
    photos, current, candidate, plain = (
        np.array(found[name], dtype=float) for name in ("photos", "current", "candidate", "plain")
    )
    shares = {"plain": plain, "candidate": candidate}
    if read_state(work, "current"):
        shares["current"] = current
    changes = {name: bootstrap_mean(candidate - other, photos) for name, other in shares.items() if name != "candidate"}
    return {
        "against": found["against"],
        "people": len(photos),
        "photos": int(photos.sum()),
        "classes_of_a_person": _classes_of_a_person(work, set(found["people"])),
        "accuracy": {name: float(np.average(share, weights=photos)) for name, share in shares.items()},
        "worst_tenth": {name: worst_tenth(share) for name, share in shares.items()},
        "over": {name: {"mean": c.mean, "low": c.low, "high": c.high} for name, c in changes.items()},
        "gates": judged_gates(work),
        **_owners(work),
    }


def _owners(work: Path) -> dict[str, Any]:
    """Of a bank, what served the owners of its validation photos best, and so serves its owners."""
    found = read_state(work, "train").get("training", {}).get("owners")
    if not found or found["generic"] is None:
        return {}
    from refocus.cloud_train.methods.taper.owners import OwnersGain  # with PyTorch, which the gates do without

    return {"owners": {**found, "best": OwnersGain(**found).best}}


def _classes_of_a_person(work: Path, people: set[str]) -> float:
    """The mean number of classes that a test person has photos of."""
    labels: dict[str, set[str]] = defaultdict(set)
    for row in read_list(work / "photos.csv"):
        if row["client"] in people:
            labels[row["client"]].add(row["label"])
    return float(np.mean([len(found) for found in labels.values()])) if labels else 0.0
