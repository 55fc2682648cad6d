"""Compare the labelled baselines of ICIIA 4.1 with what a run delivers.

The baselines are fine-tuning and prompt tuning per client.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate.heads import delivered_bundle_of, replay
from refocus.cloud_train.runs.iciia import Run, delivered_variant
from studies.iciia.labelled_baselines import fine_tuning, overall, prompt_tuning, split_labelled


def with_labelled(run: Run) -> dict[str, Any]:
    """Return the results document of a run with the section ``labelled``.

    The baselines are given the labels of half of each test client's photos; the device is given none. All are evaluated
    on the other half; the delivered answers are those of the replayed streams.

    Raises:
        UsageError: the run was not evaluated.
    """
    path = run.folder / "results.json"
    if not path.is_file():
        raise UsageError(f"{path} does not exist; run refocus evaluate {run.folder} first")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    heads = run.heads()
    name = delivered_variant(heads, str(run.folder))
    test = run.table.of_split("test")
    stream = replay(delivered_bundle_of(run, next(head for head in heads if head.stem == name)), test)
    backbone = run.backbone()
    whole = run.bank(backbone)
    plain, bank = run.plain_classifier(backbone, whole), whole.of_split("test")
    parts = split_labelled(bank)
    evaluated = np.concatenate([rows for _, rows in parts.values()])
    original = plain(torch.from_numpy(bank.take(evaluated))).argmax(-1).numpy() == test.label[evaluated]
    position = {int(row): (name, i) for name, rows in test.clients() for i, row in enumerate(rows)}
    answers = [stream[name][i].labels[0] for name, i in (position[int(row)] for row in evaluated)]
    delivered = [answer == test.classes[label] for answer, label in zip(answers, test.label[evaluated], strict=True)]
    document["labelled"] = {
        "labelled_photos_per_client": float(np.mean([len(rows) for rows, _ in parts.values()])),
        "original": float(original.mean()),
        "delivered": float(np.mean(delivered)),
        "fine_tuning": overall(fine_tuning(bank, plain, parts), parts),
        "prompt_tuning": overall(prompt_tuning(bank, plain, parts), parts),
    }
    return document
