"""An album as one HTML page: each photo, its answer alone and with the history, and the photos it rests on."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from refocus.edge.files import printable
from refocus.edge.pages import data_uri, page
from refocus.edge.recognize.explain import Ranking, thumbnail
from refocus.edge.recognize.recognizer import Displayed

SIDE = 192  # pixels of a thumbnail's longer side
_QUALITY = 80


@dataclass(frozen=True)
class Row:
    """Result of one photo of an album.

    Attributes:
        file: the photo.
        answer: the most likely labels; empty where there is an error.
        trust: weight of the answer with the other photos in the delivered one, in [0, 1].
        rests_on: the other photos with the largest attention, at most ``MOST_NAMED``, and their weights.
        error: why there is no answer; "" if there is one.
        alone: the most likely labels of the photo without any other, with their probabilities.
        moved: probability that class shares moved from some labels to others, in [0, 1]; None without class shares.
        known: whether the photo shows one of the labels; if not, the answer is a guess. None: the bundle cannot tell.
        known_score, rejection: score of the photo, and the minimum of known ones; None: the bundle has no minimum.
        labels, labels_alone: where photos have several labels, those of the answer and of the photo alone; else None.
    """

    file: str
    answer: tuple[Displayed, ...] = ()
    trust: float | None = None
    rests_on: Ranking = ()
    error: str = ""
    alone: Ranking = ()
    moved: float | None = None
    known: bool | None = None
    known_score: float | None = None
    rejection: float | None = None
    labels: tuple[str, ...] | None = None
    labels_alone: tuple[str, ...] | None = None

    @property
    def changed(self) -> bool:
        """Whether the other photos changed the best label, or the labels where photos have several."""
        if self.labels is not None and self.labels_alone is not None:
            return set(self.labels) != set(self.labels_alone)
        return bool(self.answer) and self.answer[0][0] != self.alone[0][0]


def album_page(title: str, rows: Sequence[Row], photographs: Ranking = ()) -> str:
    """The page. It holds a thumbnail of every photo, some 10 kB each, and asks no network for anything.

    Args:
        title: of the page.
        rows: of the album, in order.
        photographs: the classes with the largest estimated shares; empty without class shares.
    """
    places = {row.file: number for number, row in enumerate(rows)}
    cards = "".join(_card(number, row) for number, row in enumerate(rows))
    details = json.dumps([_detail(row, places) for row in rows], ensure_ascii=False).replace("<", "\\u003c")
    folder = Path(__file__).parent
    return page(
        title,
        f"{_summary(rows, photographs)}{_CONTROLS}<ul id=grid>{cards}</ul>{_DIALOG}"
        f'<script type="application/json" id="details">{details}</script>',
        (folder / "album_page.css").read_text(encoding="utf-8"),
        (folder / "album_page.js").read_text(encoding="utf-8"),
    )


_CONTROLS = (
    '<form id=controls role="search"><label>Find a label or a file <input id=words type="search"></label> '
    "<label>Show <select id=kind><option value=all>all photos<option value=changed>answers that the history changed"
    "<option value=unknown>unknown photos<option value=error>photos without an answer</select></label> "
    '<output id=count aria-live="polite"></output></form>'
    "<p class=note>Keys: <kbd>/</kbd> finds, arrows move, <kbd>Enter</kbd> opens a photo, <kbd>Esc</kbd> closes it.</p>"
)
_DIALOG = (
    "<dialog id=detail aria-labelledby=name><h2 id=name tabindex=-1></h2><div id=content></div>"
    "<p><button type=button id=before>Previous</button> <button type=button id=after>Next</button> "
    "<button type=button id=close>Close</button></p></dialog>"
)


def _summary(rows: Sequence[Row], photographs: Ranking) -> str:
    answered = [row for row in rows if row.answer]
    what = "labels" if any(row.labels is not None for row in answered) else "best label"
    lines = [
        f"{len(rows)} photos, {len(answered)} with an answer",
        f"the other photos changed the {what} of {sum(row.changed for row in answered)}",
    ]
    if any(row.known is not None for row in answered):
        guesses = sum(row.known is False for row in answered)
        lines.append(f"{guesses} look as if they show none of the labels; their answers are guesses")
    if photographs:
        shares = ", ".join(f"{escape(label)} {share:.1%}" for label, share in photographs)
        lines.append(f"class shares, estimated from the history: {shares}")
    return f"<ul class=facts>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"


def _card(number: int, row: Row) -> str:
    name = escape(printable(row.file).replace("\\", "/").rsplit("/", 1)[-1])
    label, kind = ("no answer", "error") if row.error else (row.answer[0][0], "changed" if row.changed else "same")
    if row.known is False:
        label, kind = f"unknown, perhaps {label}", f"{kind} unknown"
    confidence = f" <b>{row.answer[0][1]:.0%}</b>" if row.answer else ""
    alone = row.alone[0][0] if row.alone else ""
    if row.labels is not None and row.labels_alone is not None:
        label, alone, confidence = _joined(row.labels), _joined(row.labels_alone), ""
    small = _thumbnail(row.file)
    picture = f'<img src="{small}" alt="" loading="lazy">' if small else "<span class=empty></span>"
    was = f"<small>alone: {escape(alone)}</small>" if row.changed else ""
    return (
        f'<li data-kind="{kind}" id="p{number}"><button type=button data-number="{number}">{picture}'
        f"<span>{escape(label)}{confidence}</span>{was}<small>{name}</small></button></li>"
    )


def _joined(labels: Sequence[str]) -> str:
    return ", ".join(labels) or "no label"


def _detail(row: Row, places: dict[str, int]) -> dict[str, object]:
    """What the script shows of one photo; photos of the album are named by their places."""
    rests_on = [[places.get(name, -1), printable(name), weight] for name, weight in row.rests_on]
    named = {"file": printable(row.file), "answer": row.answer, "alone": row.alone, "trust": row.trust}
    return {**named, "rests_on": rests_on, "moved": row.moved, "error": row.error}


def _thumbnail(name: str) -> str:
    """A small JPEG of the photo as a data URI; "" where it cannot be read or decoded."""
    photo = thumbnail(name, SIDE, enlarge=False)
    if photo is None:
        return ""
    stream = io.BytesIO()
    photo.save(stream, "JPEG", quality=_QUALITY)
    return data_uri(stream.getvalue(), "image/jpeg")
