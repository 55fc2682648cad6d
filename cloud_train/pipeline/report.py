"""What a retraining came to, for people: the one-page report and the model card."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure import worst_tenth
from refocus.cloud_train.pipeline.gates import JUDGED, judged_gates
from refocus.cloud_train.pipeline.state import current_work, folder_of, read_state

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2430;background:#fff}
h1{margin-bottom:0}h2{margin-top:2rem;border-bottom:1px solid #d5dbe3}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #e6eaf0;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.go{color:#176b3a;font-weight:600}.stop{color:#a3201d;font-weight:600}.verdict{font-size:1.2rem}
svg{max-width:100%}
@media(prefers-color-scheme:dark){body{color:#dfe5ee;background:#14181f}th,td,h2{border-color:#303947}.go{color:#5fd08f}.stop{color:#ff8a80}}
"""
Row = tuple[str, str, str]  # what, current release, candidate


def write_report(work: Path, out: Path, outcome: dict[str, Any]) -> None:
    """One HTML page without scripts, pictures from elsewhere or network."""
    config = read_state(work, "pipeline")
    title = f"{config['name']}: run {work.name}"
    if outcome["passed"]:
        verdict = f"<span class=go>Released</span> as release {outcome['release']}."
    else:
        verdict = f"<span class=stop>Stopped.</span> {_text('; '.join(outcome['reasons']))}"
    current = read_state(work, "current")
    against = f"release {current['number']} (run {current['run']})" if current else "nothing: this is the first release"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{_text(title)}</title><style>{STYLE}</style><h1>{_text(title)}</h1><p class=verdict>{verdict}</p>"
        f"<p>Compared with {_text(against)}.</p>",
        "<h2>What changed</h2>",
        _table(("", "current release", "this run"), changes(work)),
        "<h2>Gates</h2>",
        _gates(work),
        "<h2>People</h2>",
        _people(work),
        "<h2>Targets</h2>",
        _targets(work),
        "<h2>Made of</h2>",
        _table(("", ""), made_of(work)),
        "</html>\n",
    ]
    temporary = out.with_suffix(".tmp")
    temporary.write_text("\n".join(parts), encoding="utf-8")
    temporary.replace(out)


def model_card(work: Path) -> str:
    """The model card, in Markdown: what it is, of what it was made, how it was judged, what it is not for."""
    config, ingest, found = (read_state(work, name) for name in ("pipeline", "ingest", "evaluate"))
    network = {
        "iciia": config["model"]["backbone"],
        "taper": config["taper"]["small"]["name"],
        "prompts": config["prompts"]["backbone"],
    }[config["method"]]
    gates = [f"| {g['name']} | {g['value']:.4g} | {g['limit']:.4g} | {g['why']} |" for g in judged_gates(work)]
    lines = [
        f"# {config['name']}, run {work.name}",
        "",
        f"Recognises {ingest['classes']} classes and gets better for its owner from the owner's own unlabelled photos"
        f" ({config['method'].upper()} on {network}). It runs on the device; no photo leaves it.",
        "",
        "## Data",
        "",
        f"{ingest['photos']} photos of {ingest['people']} people; {ingest['unreadable']} unreadable and"
        f" {ingest['left_out']} repeated or contradictory photos were left out. Photos by split:"
        f" {', '.join(f'{name} {count}' for name, count in ingest['splits'].items())}. Nobody is in two splits.",
        "",
        "## Figures",
        "",
        f"On {len(found['people'])} people who taught nothing, photo by photo from an empty history, against"
        f" {found['against']}:",
        "",
        "| | before | this model |",
        "|---|---|---|",
        *(f"| {name} | {before} | {now} |" for name, before, now in _figures(work)),
        "",
        "## Gates",
        "",
        "| gate | value | limit | why |",
        "|---|---|---|---|",
        *gates,
        "",
        "## Limits",
        "",
        "Judged on the people named above alone; classes that they did not photograph are not. Answers may get worse for"
        " somebody whose photos have nothing in common; the gate inside the head and the share above bound that.",
        "",
        "## Made of",
        "",
        *(f"- {name}: `{value}`" for name, value in made_of(work)),
        "",
    ]
    return "\n".join(lines)


def changes(work: Path) -> list[Row]:
    """What is different from the current release: data, figures, sizes, time, targets."""
    before = current_work(work)
    rows: list[Row] = []
    ingest, earlier = read_state(work, "ingest"), read_state(before, "ingest") if before is not None else {}
    for name in ("photos", "people", "classes"):
        rows.append((name, _count(earlier.get(name)), _count(ingest.get(name))))
    if ingest.get("new_photos") is not None:
        rows.append(("photos that are new / gone", "", f"{ingest['new_photos']} / {ingest['gone_photos']}"))
    rows.append(("encoder", _of(before, "features", "encoder")[:12], _of(work, "features", "encoder")[:12]))
    if "people" in read_state(work, "evaluate"):
        rows += [(name, old if before is not None else "", new) for name, old, new in _figures(work)]
    cost = read_state(work, "benchmark")
    if cost:
        rows.append(("bytes", _count(cost.get("current_bytes")), _count(cost["bytes"])))
        if "latency_ratio" in cost:
            middle, low = cost["latency_ratio"]
            rows.append(("time per photo", "1", f"{middle:.2f} ({low:.2f} at least)"))
    rows.append(("targets", ", ".join(_of(before, "pipeline", "targets")), ", ".join(_of(work, "pipeline", "targets"))))
    return rows


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
    found = read_state(work, "evaluate")
    photos, before, now, plain = (np.array(found[n], dtype=float) for n in ("photos", "current", "candidate", "plain"))

    def mean(values: np.ndarray) -> str:
        return f"{(values * photos).sum() / photos.sum():.1%}"

    return [
        ("right answers", mean(before), mean(now)),
        ("right answers, worst served tenth", f"{worst_tenth(before):.1%}", f"{worst_tenth(now):.1%}"),
        ("plain classifier, without history", "", mean(plain)),
    ]


def _gates(work: Path) -> str:
    rows = "".join(
        f"<tr><td>{_text(g['name'])}<td class={'go' if g['passed'] else 'stop'}>{'passed' if g['passed'] else 'refused'}"
        f"<td class=n>{g['value']:.4g}<td class=n>{g['limit']:.4g}<td>{_text(g['why'])}"
        for g in judged_gates(work)
    )
    missing = [name for name in JUDGED if not read_state(work, name)]
    rest = f"<p>Not judged, because an earlier gate refused: {', '.join(missing)}.</p>" if missing else ""
    return f"<table><tr><th>gate<th>verdict<th>value<th>limit<th>why</tr>{rows}</table>{rest}"


def _people(work: Path) -> str:
    """Each test person as a dot: before to the right, now upwards; below the line is worse."""
    found = read_state(work, "evaluate")
    if "people" not in found:
        return "<p>Nobody was judged.</p>"
    size, dots = 300, []
    for name, before, now in zip(found["people"], found["current"], found["candidate"], strict=True):
        dots.append(
            f"<circle cx='{30 + before * size:.1f}' cy='{10 + (1 - now) * size:.1f}' r=4 fill=#2f6fde fill-opacity=.6>"
            f"<title>{_text(name)}: {before:.0%} to {now:.0%}</title></circle>"
        )
    frame = (
        f"<rect x=30 y=10 width={size} height={size} fill=none stroke=#8a94a3 />"
        f"<line x1=30 y1={10 + size} x2={30 + size} y2=10 stroke=#8a94a3 stroke-dasharray=4 />"
    )
    words = (
        f"<text x=30 y={size + 28} font-size=12 fill=currentColor>{_text(found['against'])}: right answers, 0 to 1</text>"
        f"<text x=12 y={10 + size} font-size=12 fill=currentColor transform='rotate(-90 12 {10 + size})'>this run</text>"
    )
    return (
        f"<svg width={size + 60} height={size + 40} role=img>{frame}{''.join(dots)}{words}</svg><p>A dot is a person; above"
        " the line they are served better than before.</p>"
    )


def _targets(work: Path) -> str:
    rows = []
    for target in read_state(work, "pipeline")["targets"]:
        state = read_state(work, f"export-{folder_of(target)}")
        said = state.get("mismatch") or (f"{state['bytes']} bytes" if state else "not exported")
        rows.append((target, str(said)))
    return _table(("target", ""), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}" for cell in row) + "</tr>" for row in rows)
    return "<table><tr>" + "".join(f"<th>{_text(cell)}" for cell in head) + f"</tr>{body}</table>"


def _count(value: Any) -> str:
    return "" if value is None else str(value)


def _text(value: str) -> str:
    return html.escape(value)
