"""Many photos of one person at once: encoded in batches, then each answered with the help of the others.

A person's album is at hand as a whole (the Google Photos case of the paper), so a photo need not wait for later ones:
a head that sees a window is given the photos nearest to it on both sides. What took long, the features, is kept in a
work file beside the results until these are in place: an interrupted album resumes.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import functools
import io
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

import numpy as np

from refocus.edge.errors import HistoryError, PhotoError, RefocusError
from refocus.edge.files import check_output, new_file, printable, walk
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.likely_classes import LikelyClasses
from refocus.edge.history.recovery import beside, set_aside_files
from refocus.edge.photos.clip import ANIMATED_ENDINGS
from refocus.edge.photos.workers import prepare_files
from refocus.edge.recognize.album_page import Row, album_page
from refocus.edge.recognize.explain import Ranking, largest, ranking
from refocus.edge.recognize.history_selection import CHOICES, HISTORY_SELECTIONS, RetrievalIndex
from refocus.edge.recognize.label_sets import LABEL_SEPARATOR, AnyShares
from refocus.edge.recognize.recognizer import Answer, Displayed, Recognizer
from refocus.edge.recognize.rejection import known_scores_of

ORDERS = ("time", "name")
# Of what lies in a folder, these are photos. What cannot be decoded here is still somebody's photo: it gets its row.
ENDINGS = frozenset({".avif", ".bmp", ".gif", ".heic", ".heif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
BATCH = 4  # photos encoded at once; more take longer each on a processor, whose caches they do not fit
MOST_NAMED = 5  # photos that a row names as those its answer rests on
_DIGITS = 4  # of a probability or weight: the size of a batch may change digits far behind these
_NO_BOUND = 1 << 62  # a work file gives nothing up

T = TypeVar("T")


class Track(Protocol):
    """Shows how far a long phase is."""

    def __call__(self, items: Iterable[T], what: str, total: int) -> Iterable[T]:
        """Yields the items, of which there are ``total``, while it shows how far ``what`` is."""


def unwatched(items: Iterable[T], what: str, total: int) -> Iterable[T]:
    """Where nobody looks."""
    return items


@dataclass(frozen=True)
class Photo:
    """One photo of an album.

    Attributes:
        file: as it was given or found; of a clip perhaps the folder of its frames.
        identity: SHA-256 of its bytes, or over those of its frames; "" where they could not be read.
        taken: when, as its EXIF data says: ``YYYY:MM:DD hh:mm:ss`` and fractions of a second; "" where they do not.
        error: why it has no feature; "" if it has one.
    """

    file: Path
    identity: str = ""
    taken: str = ""
    error: str = ""


@dataclass(frozen=True)
class Report:
    """The answers to an album.

    Attributes:
        rows: one for each file, in the album's order.
        encoded: photos that this run had to encode.
        photographs: the classes with the largest shares after the album; empty where no class shares are estimated.
    """

    rows: tuple[Row, ...]
    encoded: int
    photographs: Ranking = ()

    @property
    def failed(self) -> int:
        """Files without an answer."""
        return sum(bool(row.error) for row in self.rows)


def find_photos(given: Sequence[Path], of_clips: bool = False) -> list[Path]:
    """The photos among files and folders, each once, by name.

    A file is taken whatever its name. In folders, and the folders in them, linked ones too, files count whose names
    end as photos do (:data:`ENDINGS`); hidden ones are left out. A folder to which several names lead counts once.

    Args:
        of_clips: a folder of two or more still pictures is one clip, whose frames these are; an animated file is one
            by itself, and whatever lies beside one.

    Raises:
        RefocusError: there is no such file or folder, or no photo in any of them.
    """
    found: dict[Path, Path] = {}
    seen: set[tuple[int, int]] = set()
    for path in given:
        if not path.exists():
            raise RefocusError(f"{path} is not there; give photos, or folders with photos")
        for file in _inside(path, of_clips, seen) if path.is_dir() else [path]:
            found.setdefault(file.absolute(), file)
    if not found:
        raise RefocusError(f"{', '.join(map(str, given))}: no photo in it; expected names ending in {_list(ENDINGS)}")
    return sorted(found.values(), key=lambda file: file.parts)


def _inside(folder: Path, of_clips: bool, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The photos, or clips, in a folder.

    Args:
        seen: folders (device, inode) that were looked into, which are passed over; it grows.
    """
    for place, folders, names in walk(folder, seen):
        # A folder's own name comes before those of links to it.
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=lambda f: ((place / f).is_symlink(), f))
        files = [place / file for file in names if Path(file).suffix.lower() in ENDINGS and not file.startswith(".")]
        frames = of_clips and len(files) > 1 and not any(file.suffix.lower() in ANIMATED_ENDINGS for file in files)
        yield from [place] if frames else files


def in_order(photos: Iterable[Photo], order: str) -> list[Photo]:
    """The photos by name, or by the time they were taken: those without one come last, by name."""
    if order == "name":
        return sorted(photos, key=lambda photo: photo.file.parts)
    return sorted(photos, key=lambda photo: (not photo.taken, photo.taken, photo.file.parts))


def nearest(identities: Sequence[str], position: int, count: int) -> list[int]:
    """The positions of the photos nearest to one photo, on both sides, in order.

    No two of them are of one identity, and none is of the photo's own: neither itself nor a copy of it. Of two that are
    equally near, the earlier is nearer.

    Args:
        identities: of all photos, in order.
        position: of the photo.
        count: at most this many.
    """
    found: dict[str, int] = {}
    for distance in range(1, len(identities)):
        for other in (position - distance, position + distance):
            if len(found) == count:
                return sorted(found.values())
            if 0 <= other < len(identities) and identities[other] != identities[position]:
                found.setdefault(identities[other], other)
    return sorted(found.values())


def answer_album(
    recognizer: Recognizer,
    files: Sequence[Path],
    out: Path,
    order: str = "time",
    batch: int = BATCH,
    memory: str = "newest",
    top: int = 3,
    remember: bool = False,
    track: Track = unwatched,
    workers: int = 0,
    html: Path | None = None,
) -> Report:
    """Recognises all photos of one person and writes a table of the answers.

    What is encoded is kept in ``OUT.unfinished``, which holds features as a profile does and is removed once the
    results are in place. A run that was stopped is gone on with by the same call; at most one batch is encoded again.
    Memory holds one batch of pixels, those of eleven more photos for each worker, and a few rows per photo of the
    album; a worker may need what decoding one photo takes.

    Args:
        recognizer: open for the profile whose newest photos stand before the album, or for none.
        files: the photos, as :func:`find_photos` finds them.
        out: the results, as ``.csv``, ``.json`` or ``.html``; written whole or not at all.
        order: "time" or "name"; see :func:`in_order`.
        batch: photos encoded at once, where the encoder takes several.
        memory: for a head that sees a window: "newest" gives each photo those nearest to it in the album, "similar"
            the most similar ones of the whole album, "spread" a sample of it. A streaming head sees the photos before
            it in any case.
        top: labels in each row.
        remember: adds the photos to the profile, in order. Otherwise nothing in it changes.
        track: shows the progress of the phases "encoding" and "answering".
        workers: processes that decode photos while others are encoded; 1: none but this one; 0: as many as the cores.
            The answers do not depend on it.
        html: a page of the results besides ``out``, with a thumbnail of each photo.

    Returns:
        the rows in the album's order, as they were written.

    Raises:
        RefocusError: an argument is not one of those expected, nothing can be written beside ``out``, or no other
            process can be started.
        HistoryError: the work file or the profile cannot be read or written.
        OSError: the results cannot be written; the work file is still there.
    """
    outputs = dict.fromkeys((out, html or out))
    for path in outputs:
        _check_output(path)
    _check(recognizer, order, memory, remember)
    work_file = beside(out, ".unfinished")
    with FeatureHistory(work_file, _NO_BOUND, _NO_BOUND) as work:
        photos, encoded = _encode(recognizer, work, files, batch, track, workers)
        photos = in_order(photos, order)
        album = _Album(recognizer, work, photos)
        answers = album.answers(memory, top)
        rows = tuple(
            replace(next(answers), file=str(photo.file)) if not photo.error else Row(str(photo.file), error=photo.error)
            for photo in track(photos, "answering", len(photos))
        )
        if remember:
            album.remember()
        report = Report(rows, encoded, album.photographs(top))
    for path in outputs:
        _write(report, min(top, len(recognizer.card.labels)), path)
    _discard(work_file)
    return report


def _check(recognizer: Recognizer, order: str, memory: str, remember: bool) -> None:
    """Everything that can be wrong is found before hours of work."""
    if order not in ORDERS:
        raise RefocusError(f"--order {order}: expected {' or '.join(ORDERS)}")
    if memory not in HISTORY_SELECTIONS:
        raise RefocusError(f"--memory {memory}: expected {' or '.join(HISTORY_SELECTIONS)}")
    if memory != "newest" and recognizer.card.personalisation.form == "streaming":
        raise RefocusError(
            f"--memory {memory}: the head {recognizer.card.name} is a streaming one, which sees the photos before each"
            " photo alone; give --memory newest, or --head with one that sees a window"
        )
    if memory != "newest" and recognizer.card.personalisation.form == "none":
        raise RefocusError(f"--memory {memory}: the head {recognizer.card.name} reads no history; leave --memory out")
    if recognizer.refusal and (remember or recognizer.history is None):
        raise HistoryError(recognizer.refusal)
    if remember and recognizer.history is None:
        raise RefocusError("--remember: expected --profile NAME, the one to remember the photos in")


def _check_output(out: Path) -> None:
    if out.suffix.lower() not in _WRITERS or out.is_dir():
        raise RefocusError(f"{out}: expected the name of a file, ending in {_list(_WRITERS)}")
    for path in (out, beside(out, ".unfinished")):
        check_output(path)
    try:
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise RefocusError(
            f"{out}: {out.parent} cannot hold it ({error.strerror}); make the folder, or check its rights"
        ) from None


def _encode(
    recognizer: Recognizer, work: FeatureHistory, files: Sequence[Path], batch: int, track: Track, workers: int
) -> tuple[list[Photo], int]:
    """Sees to it that the work file has the feature of every photo; returns the photos and how many it encoded."""
    photos: list[Photo] = []
    waiting: dict[str, np.ndarray] = {}  # pixels (1, 3, S, S) by identity
    refused: set[str] = set()  # identities of photos whose features are no numbers
    encoded, batch = 0, min(batch, recognizer.at_once)

    def store() -> int:
        if waiting:
            features = recognizer.features_of(np.concatenate([*waiting.values()]))
            for identity, feature in zip(waiting, features, strict=True):
                if np.isfinite(feature).all():
                    work.append(recognizer.space, identity, feature)
                    stored.add(identity)
                else:
                    refused.add(identity)
        count = len(waiting)
        waiting.clear()
        return count

    known = frozenset(work.photos(recognizer.space))
    stored = set(known)
    with contextlib.closing(prepare_files(files, recognizer.manifest.preprocessing, known, workers)) as prepared:
        for file, found in zip(files, track(prepared, "encoding", len(files)), strict=True):
            photos.append(Photo(file, found.identity, found.taken, found.error))
            if found.pixels is not None and found.identity not in stored:
                waiting.setdefault(found.identity, found.pixels)
            if len(waiting) == batch:
                encoded += store()
        encoded += store()
    what = "the encoder gave NaN or infinite numbers for it; run refocus check, or choose another precision"
    return [replace(photo, error=what) if photo.identity in refused else photo for photo in photos], encoded


class _Album:
    """The answers to an album whose features are all in a work file.

    Args:
        recognizer, work: as in :func:`answer_album`.
        photos: all of the album, in order.
    """

    def __init__(self, recognizer: Recognizer, work: FeatureHistory, photos: Sequence[Photo]) -> None:
        self._recognizer, self._work, self._window = recognizer, work, recognizer.window
        self._photos = [photo for photo in photos if not photo.error]
        self._identities = [photo.identity for photo in self._photos]
        # A window slides: it shares all but a few photos with the one before.
        self._feature = functools.lru_cache(maxsize=4 * (self._window + 1))(self._read)
        self._before = self._photos_before()
        past = work.rows(recognizer.space, self._before, recognizer.width)
        self._names = {photo: name or photo[:12] for photo, name in zip(past.photos, past.names, strict=True)}
        for photo in self._photos:
            self._names.setdefault(photo.identity, str(photo.file))
        self._shares = self._shares_before()
        self._rows: dict[str, LikelyClasses] = {}  # of the album's photos, once they are answered

    def _shares_before(self) -> AnyShares | None:
        """The class shares of the profile's photos that are not in the album.

        The rows of all its photos are chosen once, as the photos are; a run that goes on may have others in its album.
        """
        state, profile = self._recognizer.empty_shares(), self._recognizer.history
        if state is None or profile is None:
            return state
        card = self._recognizer.card
        by = f"{self._recognizer.classifier}:{state.settings.identity(card.labels, known_scores_of(card))}"
        key = f"likely classes by photo before the album: {printable(profile.path)} by {by}"
        chosen = self._work.settings().get(key)
        if chosen is None:
            rows = self._recognizer.likely_by_photo()
            chosen = json.dumps([(photo, base64.b64encode(row.value).decode()) for photo, row in rows])
            self._work.set_setting(key, chosen)
        album = set(self._identities)
        state.extend(state.decode(base64.b64decode(row)) for photo, row in json.loads(chosen) if photo not in album)
        return state

    def _photos_before(self) -> list[str]:
        """The identities of the profile's newest photos that are not in the album; the work file has their features.

        They are chosen once: a run that goes on answers as the one before it would have, though that may have begun to
        add the album to the profile.
        """
        profile, space, album = self._recognizer.history, self._recognizer.space, set(self._identities)
        if profile is None:
            return []
        key = f"photos before the album: {self._window} of {printable(profile.path)} in {space}"
        chosen = self._work.settings().get(key)
        if chosen is None:
            in_both = sum(profile.has(space, identity) for identity in album)
            past = profile.recall(space, self._window + in_both, self._recognizer.width)
            rows = [row for row in zip(past.photos, past.features, past.names, strict=True) if row[0] not in album]
            rows = rows[max(0, len(rows) - self._window) :]
            for identity, feature, name in rows:
                self._work.append(space, identity, feature, name)
            chosen = json.dumps([row[0] for row in rows])
            self._work.set_setting(key, chosen)
        return [identity for identity in json.loads(chosen) if identity not in album]

    def _read(self, identity: str) -> np.ndarray:
        """The feature (D,) of one photo."""
        found = self._work.rows(self._recognizer.space, [identity], self._recognizer.width).features
        if not len(found):
            raise HistoryError(
                f"{self._work.path}: the feature of photo {identity[:12]} is gone; see that no other run has the same"
                " --out, and run the command again"
            )
        feature: np.ndarray = found[0]
        return feature

    def answers(self, memory: str, top: int) -> Iterator[Row]:
        """A row, without the file's name, for each photo that has a feature, in order."""
        if self._recognizer.card.personalisation.form == "streaming":
            return self._in_a_stream(top)
        return self._in_windows(top) if memory == "newest" else self._among_all(memory, top)

    def _in_windows(self, top: int) -> Iterator[Row]:
        everything = [*self._before, *self._identities]
        alone: dict[str, Row] = {}  # where nothing is looked at but the photo, a copy's answer is the photo's
        for position in range(len(self._before), len(everything)):
            if everything[position] in alone:
                yield alone[everything[position]]
                continue
            past = [everything[other] for other in nearest(everything, position, self._window)]
            features = [self._feature(identity) for identity in past]
            row = self._answer(everything[position], past, features, top)
            if self._recognizer.card.personalisation.form == "none":
                alone[everything[position]] = row
            yield row

    def _among_all(self, memory: str, top: int) -> Iterator[Row]:
        index = RetrievalIndex(self._work, self._recognizer.space, self._recognizer.width)
        for identity in dict.fromkeys([*self._before, *self._identities]):
            index.add(identity, self._feature(identity))
        for identity in self._identities:
            found = CHOICES[memory](index, self._feature(identity), self._window, identity)
            yield self._answer(identity, found.photos, found.features, top)

    def _answer(self, identity: str, past: Sequence[str], features: Sequence[np.ndarray] | np.ndarray, top: int) -> Row:
        history = np.asarray(features, dtype=np.float32).reshape(len(past), self._recognizer.width)
        if self._shares is not None:
            self._shares.forget(identity)  # a copy's: a photo never meets itself
        try:
            answer = self._recognizer.answer(self._feature(identity), history, [*past, identity], self._shares)
        except PhotoError as error:  # NaN or infinite
            return Row("", error=str(error))
        self._count(answer, identity)
        return self._row(answer, past, top)

    def _count(self, answer: Answer, identity: str) -> None:
        if self._shares is not None and answer.shared is not None:
            self._shares.add(answer.shared.row, identity)
            self._rows[identity] = answer.shared.row

    def _in_a_stream(self, top: int) -> Iterator[Row]:
        """One pass in order. A copy of an earlier photo gets that one's answer and, as in a profile, is met once."""
        met = [*self._before]
        answers = self._recognizer.replay_programs(map(self._feature, [*met, *dict.fromkeys(self._identities)]))
        for _ in met:
            next(answers)
        rows: dict[str, Row] = {}
        for identity in self._identities:
            if identity not in rows:
                answer = next(answers)
                if self._shares is not None:
                    answer = self._recognizer.with_shares(answer, self._shares)
                    self._count(answer, identity)
                rows[identity] = self._row(answer, met[max(0, len(met) - self._window) :], top)
                met.append(identity)
            yield rows[identity]

    def _row(self, answer: Answer, past: Sequence[str], top: int) -> Row:
        """The row of an answer whose attention goes to the photos ``past``, in that order, and to the photo itself."""
        weights = zip((self._names[identity] for identity in past), answer.attention[:-1].tolist(), strict=True)
        heaviest = sorted(weights, key=lambda named: -named[1])[:MOST_NAMED]
        several = answer.thresholds is not None
        return Row(
            "",
            tuple(Displayed(name, *np.round(numbers, _DIGITS).tolist()) for name, *numbers in answer.displayed(top)),
            round(answer.trust, _DIGITS),
            _rounded(heaviest),
            alone=_rounded(ranking(answer.alone_logits, self._recognizer.card.labels, top, several)),
            moved=None if answer.shared is None else round(answer.shared.moved, _DIGITS),
            known=None if answer.rejection is None else answer.is_known,
            known_score=None if answer.rejection is None else float(f"{answer.known_score:.{_DIGITS}g}"),
            rejection=answer.rejection,
            labels=tuple(name for name, _ in answer.label_set) if several else None,
            labels_alone=tuple(name for name, _ in answer.plain_label_set) if several else None,
        )

    def photographs(self, top: int) -> Ranking:
        """The classes with the largest shares, once all photos are answered."""
        if self._shares is None:
            return ()
        return _rounded(largest(self._shares.estimate().shares, self._recognizer.card.labels, top))

    def remember(self) -> None:
        """Adds the album to the profile, in order."""
        assert self._recognizer.history is not None  # noqa: S101
        for photo in self._photos:
            feature, name = self._feature(photo.identity), printable(photo.file.resolve())
            likely = self._recognizer.likely(self._rows.get(photo.identity))
            self._recognizer.history.append(self._recognizer.space, photo.identity, feature, name, likely)


def _rounded(ranking: Iterable[tuple[str, float]]) -> Ranking:
    return tuple((name, round(number, _DIGITS)) for name, number in ranking)


def _list(names: Iterable[str]) -> str:
    *most, last = sorted(names)
    return f"{', '.join(most)} or {last}"


# ---- the results


def _write_csv(report: Report, top: int, stream: TextIO) -> None:
    """One line per photo; columns of labels are numbered from the second on. Where photos have several labels, one
    column more has those of the answer, with ``;`` between them."""
    numbers = ["", *(f"_{number}" for number in range(2, top + 1))]
    labels = [f"{what}{number}" for number in numbers for what in ("label", "confidence")]
    table = csv.writer(stream)
    several = any(row.labels is not None for row in report.rows)
    table.writerow(["file", *(["labels"] if several else []), *labels, "trust", "rests_on", "known", "error"])
    for row in report.rows:
        ranking: list[Any] = [value for shown in row.answer for value in shown[:2]]
        ranking += [""] * (len(labels) - len(ranking))
        rests_on = "; ".join(name for name, _ in row.rests_on)
        chosen = [LABEL_SEPARATOR.join(row.labels or ())] if several else []
        known = "" if row.known is None else ("yes" if row.known else "no")
        table.writerow([row.file, *chosen, *ranking, row.trust, rests_on, known, row.error])


def _write_json(report: Report, top: int, stream: TextIO) -> None:
    """A list of one object per photo."""
    documents: list[dict[str, Any]] = []
    for row in report.rows:
        rests_on = [{"file": name, "weight": weight} for name, weight in row.rests_on]
        fields = asdict(row)
        if row.labels is None:
            del fields["labels"], fields["labels_alone"]
        answer = [shown._asdict() for shown in row.answer]
        documents.append({**fields, "answer": answer, "rests_on": rests_on, "error": row.error or None})
    json.dump(documents, stream, ensure_ascii=False, indent=2)
    stream.write("\n")


def _write_html(report: Report, top: int, stream: TextIO) -> None:
    """A page for a browser."""
    stream.write(album_page("Refocus: an album", report.rows, report.photographs))


_WRITERS: dict[str, Callable[[Report, int, TextIO], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".html": _write_html,
}


def _write(report: Report, top: int, out: Path) -> None:
    """Puts the results in place, whole or not at all, readable by their owner only."""
    # On the disk when it is closed: a power cut must not take the results and, just after, the work file.
    with new_file(out, private=True) as stream:
        text = io.TextIOWrapper(
            stream, encoding="utf-8", errors="backslashreplace", newline=""
        )  # a name may be no text
        _WRITERS[out.suffix.lower()](report, top, text)
        text.detach()


def _discard(work_file: Path) -> None:
    for file in (*set_aside_files(work_file), work_file, beside(work_file, ".lock")):
        file.unlink(missing_ok=True)
