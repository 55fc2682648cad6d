"""Results page of the stream protocol.

Reversed and missing results come first, then every cell and method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.evaluate import page
from studies.experiment import ExperimentPage, shown_of
from studies.streams.heads import HEADS
from studies.streams.methods import COUNTED, RECALIBRATED

SHOWN = shown_of(Path(__file__).with_name("stream.toml"))
METHODS = {str(column.of["method"]): title for title, column in SHOWN.columns.items() if column.field == "gain"}
CEILINGS = {
    COUNTED: "shares counted from the labels of the history",
    RECALIBRATED: "shares by a classifier whose temperature fits the test photos",
}
CONTENTS = {
    "own, 3": "history of 3",
    "own, 15": "base",
    "own, 63": "history of 63",
    "mixed, 15": "mixed history of 15",
    "mixed, 63": "mixed history of 63",
    "foreign, 15": "foreign history of 15",
    "foreign, 63": "foreign history of 63",
    "turns, 15": "turns history of 15",
    "changed, 15": "changed history of 15",
}
WANTED = {"base": 1 / 3, "history of 63": 1 / 2}  # parts of the gain of known classes
WITHIN = (
    "people, with these photos: one photo judges several people, and intervals that hold for other photos too are wider"
)
Row = Mapping[str, Any]


class StreamPage(ExperimentPage):
    """Page with a row per set, encoder and cell, and a column per method.

    Rows are sorted by the gain of shares, the least first.
    """

    def more(self, document: page.Document) -> list[tuple[str, page.Table]]:
        """Return further tables with their titles; empty tables are left out."""
        tables = [
            (
                "Every method over all sets and encoders: gain by the content and the length of the history",
                _pooled(document),
            ),
            ("The same methods: calibration, people who lose, cost", _facts(document)),
            ("Histories that are not the person's own, on the worst set too", _losses(document)),
            ("What trained heads add to class shares at 15 own photos", _additions(document)),
            ("Own photos after 63 of somebody else", _recovery(document)),
            *_ceilings(document),
        ]
        return [(title, table) for title, table in tables if table[1]]


def _of(document: page.Document, method: str, cell: str) -> list[Row]:
    return [row for row in document["rows"] if (row["method"], row["cell"]) == (method, cell)]


def _present(document: page.Document) -> list[str]:
    return ["original", *(name for name in METHODS if any(row["method"] == name for row in document["rows"]))]


def _weighted(rows: Sequence[Row], value: str) -> float:
    return float(np.average([_number(row, value) for row in rows], weights=[row["people"] for row in rows]))


def _number(row: Row, value: str) -> float:
    return float(row["gain"]["mean"] if value == "gain" else row[value])


def _pooled(document: page.Document) -> page.Table:
    """Return the mean gain over people by method and history, in points."""
    rows = []
    for name in _present(document)[1:]:
        found = [_of(document, name, cell) for cell in CONTENTS.values()]
        rows.append([METHODS[name], *(f"{100 * _weighted(part, 'gain'):+.1f}" if part else "" for part in found)])
    return ["method", *CONTENTS], rows


def _facts(document: page.Document) -> page.Table:
    """Return calibration error, people harmed and cost by method."""
    header = ["method", "calibration error, own 15", "harmed: own 15", "foreign 15", "foreign 63", "mixed 63"]
    header += ["worst tenth, own 15", "worst tenth, foreign 63", "µs a photo", "bytes a photo"]
    rows = []
    for name in _present(document):
        own, *others = (
            _of(document, name, cell)
            for cell in ("base", "foreign history of 15", "foreign history of 63", "mixed history of 63")
        )
        cells = [METHODS.get(name, "original"), _cell(own, "ece", "{:.3f}"), _cell(own, "harmed", "{:.0%}")]
        cells += [_cell(part, "harmed", "{:.0%}") for part in others]
        cells += [_cell(part, "worst_tenth", "{:+.1f}", 100) for part in (own, others[1])]
        timed = [cost["us_a_photo"] for cost in document["costs"] if cost["method"] == name]
        cells.append(f"{np.median(timed):.0f}" if timed else "")
        kept = [row["state_bytes"] / row["history"] for row in own]
        cells.append(f"{max(kept):.0f}" if kept and timed else "")
        rows.append(cells)
    return header, rows


def _cell(rows: Sequence[Row], value: str, form: str, scale: float = 1.0) -> str:
    return form.format(scale * _weighted(rows, value)) if rows else ""


def _recovery(document: page.Document) -> page.Table:
    """Return the gain by number of own photos after a foreign history.

    Also returns after how many photos it is no longer negative. Gains are pooled over sets and encoders.
    """
    cell, rows = "recovery history of 63", []
    after: Mapping[str, float] = next((row["gain_after"] for row in document["rows"] if "gain_after" in row), {})
    for name in _present(document)[1:]:
        found = _of(document, name, cell)
        if found:
            gains = [100 * float(np.mean([row["gain_after"][photos] for row in found])) for photos in after]
            never = sum(row["recovery"] is None for row in found)
            known = [row["recovery"] for row in found if row["recovery"] is not None]
            when = f"{np.median(known):.0f}" if known else "not within these"
            rows.append([METHODS[name], *(f"{gain:+.1f}" for gain in gains), when, f"{never} of {len(found)}"])
    return [
        "method",
        *(f"after {photos}" for photos in after),
        "no longer negative after",
        "never, sets and encoders",
    ], rows


def _ceilings(document: page.Document) -> list[tuple[str, page.Table]]:
    """Return the gain of shares as a part of that of known classes.

    The same part is returned for shares that use labels of test photos.
    """
    temperatures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for point in document["points"]:
        if "of_test_photos" in point:
            both = point["temperature"], point["of_test_photos"]
            temperatures.setdefault((point["data"], point["encoder"]), []).append(both)
    rows = []
    for cell in WANTED:
        for row in sorted(_of(document, "shares", cell), key=_part_of_the_way):
            found = {
                name: _part_of_the_way(other)
                for name in CEILINGS
                for other in _of(document, name, cell)
                if (other["data"], other["encoder"]) == (row["data"], row["encoder"])
            }
            if found:
                fitted, fitting = np.mean(temperatures[row["data"], row["encoder"]], axis=0)
                parts = [f"{part:.0%}" for part in (_part_of_the_way(row), *(found[name] for name in CEILINGS))]
                rows.append([row["data"], row["encoder"], cell, *parts, f"{fitted:.2f}", f"{fitting:.2f}"])
    header = ["data", "encoder", "cell", "class shares", *CEILINGS.values(), "temperature", "that fits the test photos"]
    title = "Part of the way to known classes, and what would be gone with labels of test photos, which no method has"
    return [(title, (header, rows))] if rows else []


def _part_of_the_way(row: Row) -> float:
    return float(row["gain"]["mean"] / row["known_gain"]) if row["known_gain"] > 0 else 0.0


def _about(document: page.Document) -> str:
    limit = document.get("photos_per_class")
    parts = [
        _closures(document),
        _long(document),
        about_pseudo_people(document),
        f"{document['people']} people of each cell and seed at most, {document.get('targets', 24)} photos of each.",
        f"The first {limit} training and test photos of each class." if limit else "",
        "The least gain of shares stands first. A person is harmed where their own 95 % interval lies below zero;"
        " µs for a photo in Python, shown or answered, on one thread, methods interleaved; bytes of state.",
    ]
    return " ".join(part for part in parts if part)


def _closures(document: page.Document) -> str:
    """Return sentences with the part of the gain of known classes.

    The gain is that of shares, or of the delivered method, with own histories; the smallest part comes first.
    """
    sentences = []
    best = "delivered" if any(row["method"] == "delivered" for row in document["rows"]) else "shares"
    for cell, wanted in WANTED.items():
        closed = {
            f"{r['data']}, {r['encoder']}": _part_of_the_way(r)
            for r in _of(document, best, cell)
            if r["known_gain"] > 0
        }
        short = [f"{name} {part:.0%}" for name, part in sorted(closed.items(), key=lambda i: i[1]) if part < wanted]
        sentences.append(
            f"{'At 15' if cell == 'base' else 'At 63'} own photos {best} goes {wanted:.0%} of the way to known classes"
            f" on {len(closed) - len(short)} of {len(closed)} sets and encoders"
            + (f" (not {'; '.join(short)})." if short else ".")
        )
    return " ".join(sentences)


def _losses(document: page.Document) -> page.Table:
    """Return the loss of accuracy with mixed and foreign histories.

    It is that of class shares and of the delivered method.
    """
    cells = []
    for method in ("shares", "delivered"):
        for history in ("foreign history of 15", "foreign history of 63", "mixed history of 15", "mixed history of 63"):
            if rows := _of(document, method, history):
                worst = min(rows, key=lambda row: row["gain"]["mean"])
                name, points = f"{worst['data']}, {worst['encoder']}", page.short_points(worst["gain"])
                mean = f"{100 * _weighted(rows, 'gain'):+.1f}"
                cells.append([METHODS[method], history, mean, name, points, f"{worst['harmed']:.0%}"])
    return ["method", "history", "gain", "worst on", "gain there", "harmed there"], cells


def _additions(document: page.Document) -> page.Table:
    """Return the gain of trained heads over class shares at 15 own photos.

    A row is a set and an encoder.
    """
    ways = [f"{name}{suffix}" for name in HEADS for suffix in ("+shares", "+shares, gated")]
    found = {way: {(r["data"], r["encoder"]): r for r in _of(document, way, "base")} for way in ways}
    ways = [way for way in ways if found[way]]
    rows = [
        [*key, *(page.short_points(found[way][key]["over_shares"]) if key in found[way] else "" for way in ways)]
        for key in sorted({key for way in ways for key in found[way]})
    ]
    return ["data", "encoder", *(METHODS[way] for way in ways)], rows


def _long(document: page.Document) -> str:
    """Return a sentence with the accuracy of shares by history length."""
    parts = []
    for cell in ("history of 0", "history of 3", "base", "history of 63", "history of 255", "history of 1023"):
        parts += [
            f"{r['history']} photos {r['accuracy']:.1%}" for r in _of(document, "shares", cell) if r["data"] == "glyphs"
        ]
    return f"Class shares on glyphs by own photos: {', '.join(parts)}." if parts else ""


def about_pseudo_people(document: page.Document) -> str:
    """Return sentences on the people, photos and intervals of a document."""
    drawn = any(row["data"] == "glyphs" for row in document["rows"])
    return (
        f"Pseudo-people dealt from labelled sets{' (of glyphs: writers)' if drawn else ''}, {page.seeds_line(document)}"
        " that redraw validation photos and people; both encoders saw the training photos of Tiny-ImageNet when they"
        " were pre-trained. Gains are paired, in points over the plain classifier, with 95 % intervals over"
        f" {document.get('intervals', WITHIN)}."
    )


PAGES = {"stream": StreamPage.of(SHOWN, about=_about)}
