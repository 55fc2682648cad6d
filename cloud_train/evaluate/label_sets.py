"""Evaluate heads for photos with several labels (CelebA in ICIIA, 4.1).

Heads are evaluated through exported bundles on people who are not in any other split, with the histories of other
people as control. The device's own recogniser replays every person's photos in order from an empty history. The results
are the mean share of correct labels, which is the accuracy of the paper's Table 3, and the mean average precision.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from refocus.benchmarks.measure import Photos, evaluate, summarise
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.heads import bundle_of, delivered_bundle_of
from refocus.cloud_train.evaluate.page import data_of
from refocus.cloud_train.progress import track
from refocus.cloud_train.runs.iciia import Run
from refocus.edge.bundle import Bundle
from refocus.edge.recognize import LABEL_SEPARATOR
from refocus.export.program import load_checkpoint

SCHEMA = 1
TARGET = ("onnxruntime", "fp32")


def evaluate_sets(run: Run, photos_per_client: int = 48, command: str = "") -> dict[str, Any]:
    """Evaluate all trained heads of a run and the delivered answers.

    Args:
        run: run with trained heads.
        photos_per_client: number of photos of each person, the first ones.
        command: command line, stored in the document.

    Returns:
        The results document (``docs/results-format.md``).

    Raises:
        DataError: no head was trained.
    """
    heads, started = run.heads(), time.monotonic()
    if not heads:
        raise DataError(f"{run.folder} has no trained head; run refocus train iciia {run.folder}")
    test = run.table.of_split("test")
    people = {
        name: [(str(test.photo[row]), LABEL_SEPARATOR.join(test.names(row))) for row in rows[:photos_per_client]]
        for name, rows in test.clients()
    }
    photos = Photos(run.config.data.source, test.fingerprint(), people, test.read)
    rows = []
    for head in heads:
        card = load_checkpoint(head).card
        about = {"seed": int(head.parent.name[5:]), "variant": head.stem, "steps": card.training.get("steps")}
        choice = card.training["delivery"]["choice"]
        rows.append({**about, "answers": "head", **_judged(bundle_of(run, head), photos)})
        if choice != "head":
            delivered = _judged(delivered_bundle_of(run, head), photos)
            rows.append({**about, "answers": f"delivered: {choice}", **delivered})
    return {
        "schema_version": SCHEMA,
        "data": data_of(run.config.data.source, run.table, test_clients=len(people)),
        "labels": list(run.table.classes),
        "backbone": run.backbone_name,
        "seeds": sorted({row["seed"] for row in rows}),
        "accuracy_of_sets": {"photos": sum(map(len, people.values())), "people": len(people)},
        "rows": rows,
        "commands": [*run.commands(), *([command] if command else [])],
        "seconds": round(time.monotonic() - started),
    }


def _judged(bundle: Bundle, photos: Photos) -> dict[str, Any]:
    progress = partial(track, what=f"answering with {bundle.folder.name}", total=len(photos.people))
    [row] = summarise(evaluate(bundle, photos, [TARGET], track=progress), photos)["rows"]
    return {name: value for name, value in row.items() if name != "target"}
