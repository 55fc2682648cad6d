"""Measure accuracy and cost by attention window (studies windows).

ICIIA trains on 16 photos, and its Fig. 5 shows accuracy growing beyond them. Each head of the run is exported at longer
windows than it was trained with, and the bundles answer the same target photos, each after a full history: a window of
W photos reads the W - 1 before the target. Features are those stored by the run; heads and their cost are measured
through the bundles. Run it with ``python -m studies windows``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.heads import (
    PerPerson,
    Predictions,
    Target,
    answer_targets,
    bundle_of,
    choose_targets,
    latency,
)
from refocus.cloud_train.evaluate.pairs import paired
from refocus.cloud_train.methods.iciia.block import IciiaConfig, mac_count
from refocus.cloud_train.runs.folder import once
from refocus.cloud_train.runs.iciia import TINY, Run
from refocus.edge.bundle import Bundle
from refocus.edge.recognize import Recognizer
from refocus.export.program import load_checkpoint

WINDOWS = (16, 32, 46, 64)
MIXED, FOREIGN = "mixed_", "foreign_"  # histories of photos of everybody, of another person


def study_windows(
    run: Run, seeds: Sequence[int], command: str, windows: Sequence[int] = WINDOWS, targets_per_client: int = 8
) -> dict[str, Any]:
    """Evaluate a run's heads, one per seed, at each attention window.

    Answers are cached in ``RUN/studies/windows``, so the study resumes.

    Args:
        run: run with trained heads.
        seeds: seeds of the heads.
        command: command line, stored in the document.
        windows: photos that attention spans, including the target; the others are compared with the first.
        targets_per_client: maximum number of target photos of each client.

    Returns:
        A study's results document.

    Raises:
        DataError: fewer than two test clients have more photos than the longest window needs.
    """
    if min(windows) < 2:
        raise DataError(f"--windows {min(windows)}: a window has 2 photos or more, the answered one among them")
    bank = run.bank(run.backbone()).of_split("test")
    features = {name: bank.take_rows(rows) for name, rows in bank.table.clients()}
    targets = choose_targets(bank.table, features, max(windows) - 1, targets_per_client)
    truth = np.array([target.label for target in targets])
    people = PerPerson.of(truth, [target.client for target in targets])
    heads = [run.head_path(seed, TINY) for seed in seeds]
    rows: list[dict[str, Any]] = []
    reference: list[Predictions] = []
    for window in windows:
        bundles = [bundle_of(run, head, window) for head in heads]
        found = [_answers(run, bundle, targets, window) for bundle in bundles]
        reference = reference or found
        config = IciiaConfig(**load_checkpoint(heads[0], window=window).card.config["iciia"])
        rows.append(_row(people, window, found, reference) | _cost(bundles[0], config, run))
    counts = {"test_clients": len(people.sizes), "targets": len(targets), **run.kind_of_people()}
    data = page.data_of(run.config.data.source, run.table, **counts)
    about = {"data": data, "backbone": run.backbone_name, "trained_window": _trained_window(heads[0])}
    return page.study_document("windows", command, seeds, **about, rows=rows)


def _trained_window(head: Path) -> int:
    return IciiaConfig(**load_checkpoint(head).card.config["iciia"]).window


def _answers(run: Run, bundle: Bundle, targets: Sequence[Target], window: int) -> Predictions:
    """Answer each target after its own, a foreign and a mixed history.

    Returns:
        Class of each target, by the name of the answer.
    """
    digest = hashlib.sha256(str(bundle.manifest.head().training.get("checkpoint_sha256")).encode())
    for target in targets:
        digest.update(target.content)

    def answer() -> dict[str, np.ndarray]:
        with Recognizer(bundle, threads=1) as device:
            found = answer_targets(device, TINY, targets, (window - 1,), device)
        return {name: best[window - 1] for name, best in found.items()}

    kept = once(run.folder / "studies" / "windows" / f"{window}-{digest.hexdigest()[:16]}.npz", answer)
    return {name: {window - 1: best} for name, best in kept.items()}


def _row(
    people: PerPerson, window: int, found: Sequence[Predictions], reference: Sequence[Predictions]
) -> dict[str, Any]:
    """Compute the accuracy and paired differences of one window.

    Intervals are over people, with the mean over seeds.
    """

    def right(of: Sequence[Predictions], name: str) -> list[np.ndarray]:
        """Return the accuracy of each person, by seed."""
        rows = [(next(iter(best[name].values())) == people.truth) * 1.0 for best in of]
        return [people.shares(row) for row in rows]

    def over(name: str, of: Sequence[Predictions], other: str) -> dict[str, Any]:
        pairs = zip(right(found, name), right(of, other), strict=True)
        return paired([one - two for one, two in pairs], people.sizes)

    accuracy = {
        name: float(np.mean([np.average(row, weights=people.sizes) for row in right(found, of)]))
        for name, of in (("original", "original"), ("ungated", TINY), ("delivered", "delivered"))
    }
    return {
        "name": str(window),
        "window": window,
        **accuracy,
        "gain": over("delivered", found, "original"),
        "ungated_gain": over(TINY, found, "original"),
        "over_first": over("delivered", reference, "delivered"),
        "ungated_over_first": over(TINY, reference, TINY),
        "mixed": over(f"{MIXED}delivered", found, "original"),
        "foreign": over(f"{FOREIGN}delivered", found, "original"),
    }


def _cost(bundle: Bundle, config: IciiaConfig, run: Run) -> dict[str, Any]:
    """Measure operations, stored bytes and time with a full history."""
    timed = latency(bundle, run.table.of_split("test"))
    return {
        "macs": mac_count(config.width, config.partitions, config.layers, config.window),
        "state_bytes": sum(4 * int(np.prod(state.shape)) for state in bundle.manifest.head().state),
        "head_ms": timed["latency_ms"]["head"]["p50"],
        "head_over_encoder": timed["overhead"]["head_over_encoder"],
    }


COLUMNS: page.Columns = {
    "window": page.text("window"),
    "original": page.percent("original"),
    "ICIIA alone": page.percent("ungated"),
    "delivered": page.percent("delivered"),
    "delivered, gain": page.gain(),
    "over the first": page.gain("over_first"),
    "ICIIA alone, over the first": page.gain("ungated_over_first"),
    "mixed history: delivered, gain": page.gain("mixed"),
    "foreign history": page.gain("foreign"),
    "million MACs": lambda row: f"{row['macs'] / 1e6:.1f}",
    "history kept, kB": lambda row: f"{row['state_bytes'] / 1e3:.0f}",
    "head, ms": page.text("head_ms", ".2f"),
    "head over encoder": lambda row: "{mean:.2f} ({low:.2f} to {high:.2f})".format(**row["head_over_encoder"]),
}


def _about(document: page.Document) -> str:
    best = max(document["rows"], key=lambda row: row["delivered"])
    last = document["rows"][-1]
    return (
        f"heads trained with windows of {document['trained_window']} photos. At {last['window']} photos delivered is"
        f" {page.short_points(last['over_first'])} points over {document['rows'][0]['window']}; the best is"
        f" {best['window']}. {document['data']['targets']} target photos of {document['data']['test_clients']} unseen"
        f" {page.judged_people(document)} after a full history, backbone `{document['backbone']}`,"
        f" {page.seeds_line(document)}. Time: one thread, p50, interleaved with the encoder."
    )


PAGES = {"windows": page.StudyPage("attention windows longer than in training (ICIIA Fig. 5)", COLUMNS, _about)}
