"""What a retraining came to, for people: the one-page report and the model card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure import worst_tenth
from refocus.cloud_train.pipeline.gates import JUDGED, judged_gates
from refocus.cloud_train.pipeline.state import current_work, folder_of, read_state
from refocus.cloud_train.render import render
from refocus.edge.files import write_file

Row = tuple[str, str, str]  # what, current release, candidate


def write_report(work: Path, out: Path, outcome: dict[str, Any]) -> None:
    """Writes one self-contained HTML page, without scripts and external resources."""
    config, current, evaluation = (read_state(work, name) for name in ("pipeline", "current", "evaluate"))
    people = [evaluation[name] for name in ("people", "current", "candidate")] if "people" in evaluation else []
    page = render(
        "pipeline/report.html.j2",
        title=f"{config['name']}: run {work.name}",
        outcome=outcome,
        against=f"release {current['number']} (run {current['run']})"
        if current
        else "nothing: this is the first release",
        changes=[*changes(work)],
        gates=judged_gates(work),
        missing=[name for name in JUDGED if not read_state(work, name)],
        people=list(zip(*people, strict=True)),
        judged_against=evaluation.get("against"),
        targets=[(target, _exported(work, target)) for target in config["targets"]],
        made_of=made_of(work),
    )
    write_file(out, page)


def model_card(work: Path) -> str:
    """The model card, in Markdown: what it is, of what it was made, how it was judged, what it is not for."""
    config, ingest, evaluation = (read_state(work, name) for name in ("pipeline", "ingest", "evaluate"))
    network = {
        "iciia": config["model"]["backbone"],
        "taper": config["taper"]["small"]["name"],
        "prompts": config["prompts"]["backbone"],
    }[config["method"]]
    return render(
        "pipeline/card.md.j2",
        run=work.name,
        config=config,
        ingest=ingest,
        evaluation=evaluation,
        network=network,
        figures=_figures(work),
        gates=judged_gates(work),
        made_of=made_of(work),
    )


def changes(work: Path) -> Iterator[Row]:
    """What is different from the current release: data, figures, sizes, time, targets."""
    before = current_work(work)
    ingest, earlier = read_state(work, "ingest"), read_state(before, "ingest") if before is not None else {}
    for name in ("photos", "people", "classes"):
        yield name, _count(earlier.get(name)), _count(ingest.get(name))
    if ingest.get("new_photos") is not None:
        yield "photos that are new / gone", "", f"{ingest['new_photos']} / {ingest['gone_photos']}"
    yield "encoder", _of(before, "features", "encoder")[:12], _of(work, "features", "encoder")[:12]
    if "people" in read_state(work, "evaluate"):
        yield from ((name, old if before is not None else "", new) for name, old, new in _figures(work))
    cost = read_state(work, "benchmark")
    if cost:
        yield "bytes", _count(cost.get("current_bytes")), _count(cost["bytes"])
        if "latency_ratio" in cost:
            middle, low = cost["latency_ratio"]
            yield "time per photo", "1", f"{middle:.2f} ({low:.2f} at least)"
    yield "targets", ", ".join(_of(before, "pipeline", "targets")), ", ".join(_of(work, "pipeline", "targets"))


def made_of(work: Path) -> list[tuple[str, str]]:
    """What the release can be made again of."""
    states = {name: read_state(work, name) for name in ("ingest", "features", "train")}
    rows = [
        ("photos, SHA-256 of the list", states["ingest"].get("fingerprint")),
        ("encoder, SHA-256", states["features"].get("encoder")),
        ("head, SHA-256", states["train"].get("sha256")),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _of(work: Path | None, name: str, key: str) -> Any:
    return read_state(work, name).get(key, "") if work is not None else ""


def _figures(work: Path) -> list[Row]:
    evaluation = read_state(work, "evaluate")
    photos, before, now, plain = (
        np.array(evaluation[n], dtype=float) for n in ("photos", "current", "candidate", "plain")
    )

    def mean(values: np.ndarray) -> str:
        return f"{(values * photos).sum() / photos.sum():.1%}"

    return [
        ("right answers", mean(before), mean(now)),
        ("right answers, worst served tenth", f"{worst_tenth(before):.1%}", f"{worst_tenth(now):.1%}"),
        ("plain classifier, without history", "", mean(plain)),
    ]


def _exported(work: Path, target: str) -> str:
    """What became of a target."""
    state = read_state(work, f"export-{folder_of(target)}")
    return str(state.get("mismatch") or (f"{state['bytes']} bytes" if state else "not exported"))


def _count(value: Any) -> str:
    return "" if value is None else str(value)
