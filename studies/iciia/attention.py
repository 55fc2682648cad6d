"""Measure attention on photos of the target's class (studies attention).

ICIIA's Fig. 4 shows one person for whom the history photo of the target's class has the most attention. This module
computes a statistic over all test people: the part of a target's attention to its history that is on photos of the
target's class, compared with the share of such photos in that history. Only histories with photos of that class and of
others count. The control is the same block before training. Run it with ``python -m studies attention``.

Notation: T targets, K history photos, D features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.heads import PerPerson, Target, choose_targets
from refocus.cloud_train.evaluate.pairs import paired
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.programs import iciia_head
from refocus.cloud_train.runs.iciia import Run
from refocus.export.program import load_checkpoint

HISTORY = 15  # photos before each target, as many as a window of the paper has
_BATCH = 256
Weights = np.ndarray  # (T, K): attention of each target to its history photos, which sums to 1 over these


def study_attention(run: Run, seeds: Sequence[int], command: str, targets_per_client: int = 8) -> dict[str, Any]:
    """Build the document: a row for each kind of head with all of the seeds.

    Raises:
        UsageError: the run has no head with attention for the seeds.
        DataError: there are too few test people, or no person has photos of the target's class and of others.
    """
    bank = run.bank(run.backbone()).of_split("test")
    features = {name: bank.take_rows(rows) for name, rows in bank.table.clients()}
    chosen = choose_targets(bank.table, features, HISTORY, targets_per_client)
    targets, same = with_both(chosen, bank.table)
    people = PerPerson.of(np.zeros(len(targets), dtype=int), [target.client for target in targets])
    rows = []
    for name in _variants(run, seeds):
        heads = [load_checkpoint(run.head_path(seed, name)) for seed in seeds]
        models = [iciia_head(head).personal.eval() for head in heads]
        found = [attention_of(model, targets) for model in models]
        untrained = [attention_of(_untrained(model, seed), targets) for model, seed in zip(models, seeds, strict=True)]
        rows.append({"name": name, **_row(people, same, found, untrained)})
    counts = {"test_clients": len(people.sizes), "targets": len(targets), **run.kind_of_people()}
    data = page.data_of(run.config.data.source, run.table, **counts)
    about = {"data": data, "backbone": run.backbone_name, "history": HISTORY, "left_out": len(chosen) - len(targets)}
    return page.study_document("attention", command, seeds, **about, rows=rows)


def with_both(targets: Sequence[Target], table: PhotoTable) -> tuple[list[Target], np.ndarray]:
    """Keep targets whose history has photos of their class and of others.

    Returns:
        The targets, and a mask (T, K) of the history photos of the target's class.

    Raises:
        DataError: there is none.
    """
    label_of = dict(zip(table.photo.tolist(), table.label.tolist(), strict=True))
    flags = [[bool(label_of[name] == target.label) for name in target.own_photos] for target in targets]
    same: np.ndarray = np.array(flags, dtype=bool)
    both = same.any(axis=1) & ~same.all(axis=1)
    if not both.any():
        raise DataError("no test photo has both photos of its class and others among the photos before it")
    return [targets[row] for row in np.flatnonzero(both).tolist()], same[both]


@torch.no_grad()
def attention_of(model: IciiaClassifier, targets: Sequence[Target]) -> Weights:
    """Compute the attention of each target to its own history, (T, K).

    It is the mean over layers and heads, without the attention of the target to itself, and sums to 1.
    """
    width = model.iciia.config.width
    rows = np.stack([np.concatenate([target.own, target.feature[None]]) for target in targets])[..., :width]
    found = []
    for part in torch.from_numpy(rows.astype(np.float32)).split(_BATCH):
        _, weights = model.last(part, torch.ones(part.shape[:2], dtype=torch.bool))
        found.append(weights[:, :-1])
    weights = torch.cat(found).double()
    return np.asarray((weights / weights.sum(1, keepdim=True).clamp_min(1e-12)).numpy())


def _untrained(model: IciiaClassifier, seed: int) -> IciiaClassifier:
    """Build the same block with the initial weights of a seed."""
    torch.manual_seed(seed)
    config: IciiaConfig = model.iciia.config
    classes = model.classifier.out_features if hasattr(model, "classifier") else 2
    plain = torch.nn.Linear(config.width, classes) if config.classifier != "own" else None
    return IciiaClassifier(config, classes, plain).eval()


def _variants(run: Run, seeds: Sequence[int]) -> list[str]:
    """List kinds of heads with attention that all seeds have, as ``iciia_t``."""
    names = sorted({path.stem for path in run.heads() if path.parent.name == f"seed-{seeds[0]}"})
    there = [name for name in names if all(run.head_path(seed, name).exists() for seed in seeds)]
    kept = [name for name in there if "no_attention" not in name]
    if not kept:
        raise UsageError(f"{run.folder}: no head with attention for the seeds {', '.join(map(str, seeds))}; train one")
    return kept


def _row(
    people: PerPerson, same: np.ndarray, found: Sequence[Weights], untrained: Sequence[Weights]
) -> Mapping[str, Any]:
    """Compute the shares and paired differences of one kind of head.

    Intervals are over people, with the mean over seeds.
    """
    share, mean = same.mean(axis=1), people.shares
    most = [same[np.arange(len(same)), weights.argmax(axis=1)] for weights in found]
    on_class = [(weights * same).sum(axis=1) for weights in found]
    before = [(weights * same).sum(axis=1) for weights in untrained]
    return {
        "share": float(share.mean()),
        "attention": float(np.mean(on_class)),
        "difference": paired([mean(one - share) for one in on_class], people.sizes),
        "untrained": paired([mean(one - share) for one in before], people.sizes),
        "most": float(np.mean(most)),
        "most_difference": paired([mean(one - share) for one in most], people.sizes),
    }


COLUMNS: page.Columns = {
    "head": lambda row: page.method_name(row["name"]),
    "photos of the class in the history": page.percent("share"),
    "attention on them": page.percent("attention"),
    "more than their share": page.gain("difference"),
    "control: never trained": page.gain("untrained"),
    "most attended photo is of the class": page.percent("most"),
    "more often than by chance": page.gain("most_difference"),
}


def _about(document: page.Document) -> str:
    return (
        f"{document['data']['targets']} target photos of {document['data']['test_clients']} unseen"
        f" {page.judged_people(document)} with"
        f" {document['history']} photos before each, some of its class and some not ({document['left_out']} others are"
        f" left out), backbone `{document['backbone']}`, {page.seeds_line(document)}. Attention is the mean over layers"
        " and heads, without what a photo gives itself. Intervals are over people."
    )


PAGES = {"attention": page.StudyPage("attention on photos of the same class (ICIIA Fig. 4)", COLUMNS, _about)}
