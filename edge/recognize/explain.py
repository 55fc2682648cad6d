"""Why an answer is what it is: the history photos it rests on, their weights, and how far the gate trusted them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from refocus.edge.errors import PhotoError
from refocus.edge.files import new_file, original, printable
from refocus.edge.photos.clip import frame_files
from refocus.edge.photos.decode import decode
from refocus.edge.photos.preprocess import folder_identity, read_photo
from refocus.edge.recognize.label_sets import probabilities_of
from refocus.edge.recognize.profile_shares import Shared
from refocus.edge.recognize.recognizer import Answer, Displayed

Ranking = tuple[tuple[str, float], ...]  # label and probability, most likely first


@dataclass(frozen=True)
class Attended:
    """One history photo of an answer.

    Attributes:
        photo: its identity, the SHA-256 of its bytes.
        name: what it was called when it was stored; "" if unknown.
        weight: its attention, the mean over layers and heads; all weights and the photo's own add up to 1.
    """

    photo: str
    name: str
    weight: float


@dataclass(frozen=True)
class SharesExplained:
    """Effect of class shares on an answer.

    Attributes:
        photographs: what the person photographs: the classes with the largest estimated shares, before this photo;
            empty while all shares are equal.
        photos: of the history, that the estimate rests on.
        trust: probability that this photo is one of what the person photographs, rather than of anything.
        moved: probability that the shares moved from some labels to others, in [0, 1].
        without: the answer without them.
    """

    photographs: Ranking
    photos: int
    trust: float
    moved: float
    without: Ranking


@dataclass(frozen=True)
class Explanation:
    """What one answer rests on.

    Attributes:
        name: of the photo that was answered.
        delivered: the answer; that of a bundle whose photos have several labels is the set of them.
        plain, with_history: the two that it was mixed from.
        trust: weight of ``with_history`` in the answer, in [0, 1]; the rest is ``plain``.
        own_weight: attention of the photo to itself.
        attended: the history photos, heaviest first.
        shares: what class shares did; None where they have no part in answers.
    """

    name: str
    delivered: tuple[Displayed, ...]
    plain: Ranking
    with_history: Ranking
    trust: float
    own_weight: float
    attended: tuple[Attended, ...]
    shares: SharesExplained | None = None

    @property
    def counted(self) -> SharesExplained | None:
        """Return what class shares did, or None while all shares are equal."""
        return self.shares if self.shares is not None and self.shares.photographs else None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {name: value for name, value in asdict(self).items() if name not in ("name", "delivered")}

    def lines(self, most: int = 5) -> list[str]:
        """For a terminal: the answers that were mixed, the heaviest history photos, and the shares, if any."""
        counted = self.counted
        if not self.attended and counted is None:
            return ["  no history: the photo alone decided"]
        lines = [f"  the photo alone: {text(self.plain)}"]
        if self.attended:
            lines.append(f"  with its history: {text(self.with_history)}")
            heaviest = [f"{Path(a.name).name or a.photo[:12]} {a.weight:.2f}" for a in self.attended[:most]]
            if len(self.attended) > most:
                rest = sum(a.weight for a in self.attended[most:])
                heaviest.append(f"{len(self.attended) - most} others {rest:.2f}")
            lines.append(f"  attended to: {', '.join([*heaviest, f'itself {self.own_weight:.2f}'])}")
        if counted is not None:
            lines.append(f"  what you photograph, by {number_of(counted.photos)}: {text(counted.photographs)}")
            answer = text((one.label, one.probability) for one in self.delivered)
            lines.append(f"  with that: {answer}; it moved {counted.moved:.1%} of the answer")
        return lines


def explain(answer: Answer, labels: Sequence[str], name: str, top: int = 3) -> Explanation:
    """Explains an answer of :meth:`Recognizer.recognize`.

    Args:
        labels: of the bundle's manifest, in its order.
        name: of the photo.
        top: labels in each ranking.
    """
    several, shown = answer.thresholds is not None, answer.displayed(top)
    if several:
        chosen = dict(answer.label_set)
        shown = tuple(one for one in answer.displayed(len(labels)) if one.label in chosen)
    # A head that reads no history gives the same numbers twice; both are then calibrated as its answer is.
    unread = np.array_equal(answer.calibrated_logits, answer.plain_logits)
    with_history = answer.alone_logits if unread else answer.calibrated_logits
    past = zip(answer.history_photos, answer.history_names, answer.attention[:-1].tolist(), strict=True)
    return Explanation(
        name=name,
        delivered=shown,
        plain=ranking(answer.alone_logits, labels, top, several),
        with_history=ranking(with_history, labels, top, several),
        trust=answer.trust,
        attended=tuple(sorted((Attended(*row) for row in past), key=lambda a: -a.weight)),
        own_weight=float(answer.attention[-1]),
        shares=_shares(answer.shared, labels, top, several) if answer.shared is not None else None,
    )


def _shares(shared: Shared, labels: Sequence[str], top: int, several: bool) -> SharesExplained:
    shares = shared.estimate.shares
    photographs = largest(shares, labels, top) if shared.estimate.photos else ()
    without = ranking(shared.logits, labels, top, several)
    return SharesExplained(photographs, shared.estimate.photos, shared.trust, shared.moved, without)


def ranking(logits: np.ndarray, labels: Sequence[str], top: int, several: bool = False) -> Ranking:
    """The ``top`` most likely labels of logits (C,) with their probabilities, without those of probability 0, as the
    classes that a condensed bundle masks.

    Args:
        several: photos have several labels, and each label a probability of its own.
    """
    probabilities = probabilities_of(logits, several)
    order = np.argsort(-logits, kind="stable")[:top].tolist()
    return tuple((labels[i], float(probabilities[i])) for i in order if probabilities[i] > 0)


def largest(shares: np.ndarray, labels: Sequence[str], top: int) -> Ranking:
    """Return the ``top`` classes with the largest shares (C,).

    Classes that have the smallest share together are left out: no photo has a vote for them.
    """
    order, least = np.argsort(-shares, kind="stable")[:top].tolist(), shares <= (1 + 1e-6) * shares.min()
    least &= least.sum() > 1
    return tuple((labels[i], float(shares[i])) for i in order if not least[i])


def number_of(photos: int) -> str:
    """``1 photo``, ``2 photos``."""
    return f"{photos} photo{'s' * (photos != 1)}"


def text(ranking: Iterable[tuple[str, float] | Displayed]) -> str:
    """``label 71.2%, other 20.1%``."""
    return ", ".join(f"{label} {number:.1%}" for label, number, *_ in ranking) or "no label"


def save_picture(explanations: Sequence[Explanation], path: Path) -> None:
    """Writes :func:`draw` as PNG, whole or not at all, readable by its owner only.

    Raises:
        RefocusError: the path is a link, a device or another thing that is not replaced.
    """
    picture = draw(explanations)
    with new_file(path, private=True) as stream:
        picture.save(stream, "PNG")


_SIDE, _GAP, _LINE, _MOST = 96, 12, 16, 8  # pixels of a thumbnail, between two, of a line of text; history photos shown
_TEXT_WIDTH = 260
_INK, _GREY, _GREEN = "#111827", "#6b7280", "#15803d"


def draw(explanations: Sequence[Explanation]) -> Image.Image:
    """One strip per answer: the heaviest history photos, the photo itself, the two answers and the mix.

    A history photo that is no longer where it was, or is another one by now, is drawn as an empty frame.
    """
    height = 2 * _GAP + _SIDE + 2 * _LINE
    most = min(_MOST, max(len(explanation.attended) for explanation in explanations))
    width = (most + 1) * (_SIDE + _GAP) + (3 if most else 2) * (_TEXT_WIDTH + _GAP) + _GAP
    canvas = Image.new("RGB", (width, height * len(explanations)), "white")
    for row, explanation in enumerate(explanations):
        _draw_strip(canvas, row * height + _GAP, explanation, most)
    return canvas


def _draw_strip(canvas: Image.Image, top: int, explanation: Explanation, most: int) -> None:
    from PIL import ImageDraw, ImageFont  # for pictures alone: an answer starts faster without

    pen, font, bold = ImageDraw.Draw(canvas), ImageFont.load_default(11), ImageFont.load_default(13)
    left = _GAP
    for attended in explanation.attended[:_MOST]:
        _draw_photo(canvas, (left, top), thumbnail(attended.name, _SIDE, attended.photo))
        pen.text((left, top + _SIDE + 2), f"weight {attended.weight:.2f}", fill=_INK, font=font)
        pen.text((left, top + _SIDE + 2 + _LINE), _short(attended.name or attended.photo), fill=_GREY, font=font)
        left += _SIDE + _GAP
    left = _GAP + most * (_SIDE + _GAP)
    _draw_photo(canvas, (left, top), thumbnail(explanation.name, _SIDE))
    pen.rectangle((left - 2, top - 2, left + _SIDE + 1, top + _SIDE + 1), outline=_GREEN, width=2)
    pen.text((left, top + _SIDE + 2), f"itself {explanation.own_weight:.2f}", fill=_INK, font=font)
    pen.text((left, top + _SIDE + 2 + _LINE), _short(explanation.name), fill=_GREY, font=font)
    columns: dict[str, Sequence[tuple[str, float] | Displayed]] = {"the photo alone": explanation.plain}
    if explanation.attended:
        columns[f"with its history (trust {explanation.trust:.2f})"] = explanation.with_history
    for number, (title, ranking) in enumerate([*columns.items(), ("answer", explanation.delivered)]):
        x = left + (_SIDE + _GAP) + number * (_TEXT_WIDTH + _GAP)
        pen.text((x, top), title, fill=_GREY, font=font)
        for line, (label, share, *_) in enumerate(ranking):
            text, colour = f"{share:4.0%}  {label[:34]}", _GREEN if number == len(columns) and line == 0 else _INK
            pen.text((x, top + (line + 1) * (_LINE + 4)), text, fill=colour, font=bold)


def _draw_photo(canvas: Image.Image, corner: tuple[int, int], photo: Image.Image | None) -> None:
    from PIL import ImageDraw

    left, top = corner
    ImageDraw.Draw(canvas).rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), outline=_GREY)
    if photo is not None:
        canvas.paste(photo, (left + (_SIDE - photo.width) // 2, top + (_SIDE - photo.height) // 2))


def thumbnail(name: str, side: int, identity: str = "", enlarge: bool = True) -> Image.Image | None:
    """Thumbnail of a photo, or of the middle frame of a folder of frames; None if it cannot be read or decoded.

    Args:
        side: pixels of the longer side.
        identity: SHA-256 of its bytes, if it must still be the same photo.
        enlarge: whether a photo that is smaller is made larger; otherwise it keeps its size.
    """
    try:
        if not name:
            return None
        path = original(name)
        if path.is_dir():  # the frames of a clip
            frames = frame_files(path)
            if identity and folder_identity(path) != identity:
                return None
            return thumbnail(str(frames[len(frames) // 2]), side, enlarge=enlarge)
        content = read_photo(path)
        if identity and hashlib.sha256(content).hexdigest() != identity:
            return None
        photo = decode(content, name, at_least=side)
        scale = side / max(photo.size)
        if scale > 1 and not enlarge:
            return photo.whole()
        size = max(1, round(photo.width * scale)), max(1, round(photo.height * scale))
        return photo.resized(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
    except (OSError, ValueError, PhotoError):
        return None


def _short(name: str) -> str:
    last = printable(name).replace("\\", "/").rsplit("/", 1)[-1]
    return last if len(last) <= 15 else "…" + last[-14:]
