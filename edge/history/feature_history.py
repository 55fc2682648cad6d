"""A person's feature history: bounded, durable, and never mixed between encoders.

One SQLite file per profile, which several processes may share: its tables (``schema.py``) and rows (``rows.py``),
locking and transactions (``profile_file.py``), eviction, recovery and export.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from refocus.edge.errors import HistoryError
from refocus.edge.history import likely_classes, rows, schema, takeout
from refocus.edge.history.damage import Unwritable, is_full
from refocus.edge.history.eviction import Bounds, policy
from refocus.edge.history.likely_classes import Classifier, LikelyClasses, LikelyColumn
from refocus.edge.history.profile_file import ProfileFile
from refocus.edge.history.read_only import ReadOnlyFile
from refocus.edge.history.recovery import Recovery
from refocus.edge.history.rows import Entry, HistorySlice, Row, Space, remembered
from refocus.edge.history.schema import Result, Tally

__all__ = ["Entry", "FeatureHistory", "HistorySlice", "RetentionPolicy", "Space", "stored_name"]

CAPACITY = 256  # features per profile and feature space: 1.3 MB at D = 1280
MAX_BYTES = 64 << 20  # of features per profile: two spaces, while a model changes, of 4096 features of D = 2048 each
PROTECT = 64  # newest photos of a space that no policy may evict: a head's window and some more
_LONGEST_NAME = 4096  # characters: the longest path
_COLUMNS = "slot, sequence, photo, stored, name, seal, value"


@dataclass(frozen=True)
class RetentionPolicy:
    """What a profile keeps, and how safely; see :class:`FeatureHistory`.

    Attributes:
        capacity: None: ``CAPACITY``, or what a recogniser's bundle needs; a longer history then stays as long as it is.
    """

    capacity: int | None = None
    max_bytes: int = MAX_BYTES
    eviction: str = "oldest"
    durability: str = "process"


class FeatureHistory:
    """The features of one profile.

    A feature belongs to the feature space that made it, and to the photo it was made of: the same photo is stored
    once per space. Rows carry a checksum over everything in them. If a row or the file itself is damaged, the readable
    rows move to a fresh file, and :attr:`recovered` says what was kept, what was lost and where the damaged file is.
    Files up to 16 MB are checked whole when they are opened, the rows of larger ones as they are read.

    An append that returned survives a kill of the process at any moment, and never leaves half of itself. What a power
    cut may take depends on ``durability``: with "process" the newest 128 photos at most, never the file; with "power"
    nothing, but every append waits for the disk. Labels and settings always survive.

    Time per append and per :meth:`recall` does not grow with the number of stored photos.

    Args:
        path: the profile's file; made, readable by its owner only, if it is missing.
        capacity: features kept per feature space; a space that holds more is cut to it with the next photo. None: as
            ``usual`` says, and a space that holds more gives up one photo for each that is stored.
        max_bytes: bytes of features kept in the whole profile; the space that holds most gives way.
        eviction: which photo goes when a bound is reached: "oldest", "redundant" (one of two similar ones) or
            "reservoir" (what stays is a uniform sample of all photos ever stored).
        durability: "process" or "power".
        protect: newest photos of each space that no policy evicts, as far as the bounds allow.
        usual: features kept per feature space where nobody asked for a number.
        or_read_only: a history that cannot be written, as on a read-only disk, is opened to be read, if it is there;
            every write then raises.

    Attributes:
        refusal: why nothing can be written; "" where it can.

    Raises:
        Unwritable: nothing can be written there; with ``or_read_only``, nor can the history be read.
        HistoryError: the file cannot be opened, is another program's, or is of a newer schema; an argument is wrong.
    """

    def __init__(
        self,
        path: Path,
        capacity: int | None = None,
        max_bytes: int = MAX_BYTES,
        eviction: str = "oldest",
        durability: str = "process",
        protect: int = PROTECT,
        usual: int = CAPACITY,
        or_read_only: bool = False,
    ) -> None:
        shrinks, capacity = capacity is not None, usual if capacity is None else capacity
        if capacity < 1:
            raise HistoryError(f"capacity {capacity}: a history keeps at least one feature")
        self.path, self.capacity = path, capacity
        self._paths: dict[str, str] = {}
        self._capacities: dict[str, int] = {}
        chosen, protected = policy(eviction), min(protect, capacity - 1)
        self._bounds = Bounds(capacity, max_bytes, protected, chosen, self._paths, self._capacities, shrinks)
        self.refusal = ""
        try:
            self._file = ProfileFile(path, durability)
        except Unwritable as error:
            if not or_read_only:
                raise
            self._file, self.refusal = ReadOnlyFile(path, error), str(error)

    @property
    def damaged(self) -> int:
        """Features that this connection found lost or unusable."""
        return self._file.damaged

    @property
    def recovered(self) -> Recovery | None:
        """Recovery report: rows kept and lost; None unless this connection found the file damaged."""
        return self._file.recovered

    # ---- storing

    def computed_by(self, space: str, path: str) -> None:
        """Says what computes the features of a space from now on; it is recorded beside each that is stored.

        Args:
            path: runtime, version and provider, as of :meth:`refocus.edge.runtimes.Program.numeric_path`.
        """
        self._paths[space] = path

    def keeps(self, space: str, capacity: int) -> None:
        """Says how many photos of a space its model keeps, where that is more than this history's own capacity."""
        self._capacities[space] = capacity

    def append(
        self,
        space: str,
        photo: str,
        feature: np.ndarray,
        name: str = "",
        likely: tuple[Classifier, LikelyClasses] | None = None,
    ) -> tuple[str, ...]:
        """Stores one feature; survives a kill once it returns. A photo already there is left as it is.

        Args:
            space: feature space of the encoder.
            photo: identity of the photo (its SHA-256).
            feature: (D,) float32.
            name: where the photo is, for explanations; never read otherwise.
            likely: a classifier, and the photo's most likely classes by it.

        Returns:
            identities of the photos of that space that were evicted for it.

        Raises:
            HistoryError: the disk is full, the file may not be written, one feature is larger than ``max_bytes``, has
                another width than those of its space, or NaN or infinite numbers, or the photo's identity is no text.
        """
        value, name = self.value(feature), stored_name(name)
        _check_text(("feature space", space), ("identity of a photo", photo))

        def work(database: sqlite3.Connection, held: Tally) -> tuple[str, ...]:
            if rows.has(database, space, photo):
                return ()
            evicted = rows.append(database, self._bounds, photo, {space: value}, name, held=held)
            if likely is not None:
                likely_classes.put(database, space, likely[0], {photo: likely[1]})
            return tuple(gone for where, gone in evicted if where == space)

        return self._file.add(work)

    def value(self, feature: np.ndarray) -> bytes:
        """The bytes that are stored of a feature.

        Raises:
            HistoryError: they are more than the whole history may have, or the feature has NaN or infinite numbers.
        """
        value = np.asarray(feature, dtype="<f4")
        if not np.isfinite(value).all():
            raise HistoryError("a feature has NaN or infinite numbers; it was not stored")
        if value.nbytes > self._bounds.max_bytes:
            raise HistoryError(
                f"a feature of {value.nbytes} bytes: larger than the {self._bounds.max_bytes} of a history"
            )
        return value.tobytes()

    def transaction(self, work: Callable[[sqlite3.Connection, Bounds], Result], durably: bool = False) -> Result:
        """Runs functions of :mod:`refocus.edge.history.rows` as one: all of it survives a kill, or nothing.

        Args:
            work: what to do; it may run twice, the first time without effect.
            durably: survive a power cut too.
        """
        return self._file.write(lambda database: work(database, self._bounds), durably)

    # ---- reading

    def recent(self, space: str, count: int, width: int, before: str | None = None) -> np.ndarray:
        """The features of :meth:`recall`, (n, D)."""
        return self.recall(space, count, width, before).features

    def recall(self, space: str, count: int, width: int, before: str | None = None) -> HistorySlice:
        """The newest photos of one space, oldest first.

        Args:
            space: only features of this space are ever returned.
            count: at most this many.
            width: D; features of another width, which earlier releases took, are left out.
            before: identity of a photo; if it is stored, only features older than it are returned: a photo
                recognised again meets the photos before it that are still kept, and never itself.

        Returns:
            n photos, n <= count.

        Raises:
            HistoryError: all features of the space are of another width; or the file cannot be read.
        """
        query = (
            f"select {_COLUMNS} from feature indexed by newest where space = ? and sequence < coalesce("  # noqa: S608
            "(select sequence from feature where space = ? and photo = ?), ?){} order by sequence desc limit ?"
        )

        def read(of_width: str) -> list[Row]:
            return self._file.read(query.format(of_width), (space, space, before, schema.NO_SEQUENCE, count))[::-1]

        found = self._whole(space, read, width)
        if len(found) < count and before is None and self._lacks(space, width, len(found)):
            self._file.verify()  # the index may lack some, or another process has just stored one
            found = self._whole(space, read, width)
        return remembered(found, width)

    def iterate(self, space: str, width: int, newest: int | None = None, chunk: int = 256) -> Iterator[HistorySlice]:
        """The photos of one space, oldest first, in pieces: a long history need not fit into memory.

        Between two pieces nothing is locked; photos that come or go meanwhile may be left out.

        Args:
            space, width: as in :meth:`recall`.
            newest: only this many of the newest; default: all.
            chunk: photos per piece at most.

        Raises:
            HistoryError: as :meth:`recall`.
        """
        bounds = "select sequence from feature indexed by newest where space = ? order by sequence desc limit {}"
        last = self._file.read(bounds.format(1), (space,))
        before_first = self._file.read(bounds.format("1 offset ?"), (space, newest)) if newest is not None else []
        after, end = before_first[0][0] if before_first else -1, last[0][0] if last else -1
        for found in self._pieces(space, width, after, end, chunk):
            yield remembered(found, width)

    def _pieces(
        self, space: str, width: int | None = None, after: int = -1, end: int = schema.NO_SEQUENCE, chunk: int = 256
    ) -> Iterator[list[Row]]:
        """Whole rows of a space, oldest first, with places above ``after`` and up to ``end``; None: of any width."""
        query = (
            f"select {_COLUMNS} from feature indexed by newest where space = ? and sequence > ? and sequence <= ?"  # noqa: S608
            "{} order by sequence limit ?"
        )

        def read(of_width: str) -> list[Row]:
            return self._file.read(query.format(of_width), (space, after, end, chunk))

        while found := self._whole(space, read, width):
            after = found[-1][1]
            yield found

    def rows(self, space: str, photos: Sequence[str], width: int) -> HistorySlice:
        """The given photos of one space, in the order given; those that are not stored are left out.

        Raises:
            HistoryError: as :meth:`recall`.
        """
        query = f"select {_COLUMNS} from feature where space = ? and photo = ?{{}}"  # noqa: S608

        def read(of_width: str) -> list[Row]:
            one = query.format(of_width)
            return [row for photo in photos for row in self._file.read(one, (space, photo))]

        return remembered(self._whole(space, read, width, in_order=False), width)

    def _whole(
        self, space: str, read: Callable[[str], list[Row]], width: int | None, in_order: bool = True
    ) -> list[Row]:
        """As :meth:`_sound`, of one width alone; None: of any.

        Args:
            read: reads rows to which one more condition applies.

        Raises:
            HistoryError: all features of the space are of another width. They stay: a bundle may say of another one's
                feature space that it is its own.
        """
        found = self._sound(space, lambda: read(""), in_order)
        if width is None or all(len(row[6]) == 4 * width for row in found):
            return found
        self._file.guarded(lambda: rows.check_width(self._file.read, space, 4 * width))
        return self._sound(space, lambda: read(f" and length(value) = {4 * width}"), in_order)

    def _lacks(self, space: str, width: int, found: int) -> bool:
        """Whether a space has more features of a width than were found."""
        count = self.count(space)
        if found >= count:
            return False
        others = "select count(*) from feature indexed by newest where space = ? and length(value) <> ?"
        return found < count - int(self._file.guarded(lambda: self._file.read(others, (space, 4 * width)))[0][0])

    def _sound(self, space: str, read: Callable[[], list[Row]], in_order: bool) -> list[Row]:
        """What ``read`` finds, after the file was repaired if a row there is not as it was written."""
        found = read()
        whole = all(schema.is_whole(space, *row[1:]) for row in found)
        if not whole or (in_order and any(row[1] >= after[1] for row, after in itertools.pairwise(found))):
            self._file.repair("a feature does not match its checksum or its place")
            found = [row for row in read() if schema.is_whole(space, *row[1:])]
        return found

    def has(self, space: str, photo: str) -> bool:
        """Whether a photo's feature of that space is stored."""
        return bool(self._file.read("select 1 from feature where space = ? and photo = ?", (space, photo)))

    def photos(self, space: str) -> set[str]:
        """The identities of the photos stored of one space."""
        return {photo for (photo,) in self._file.read("select photo from feature where space = ?", (space,))}

    def count(self, space: str) -> int:
        """Features stored of one space."""
        query = "select coalesce((select count from tally where space = ?), 0)"
        return self._file.guarded(lambda: int(self._file.read(query, (space,))[0][0]))

    def count_apart(self, space: str, other: str) -> int:
        """Photos with a feature of one space and none of another."""
        query = (
            "select count(*) from feature as one where space = ?"
            " and not exists (select 1 from feature where space = ? and photo = one.photo)"
        )
        return self._file.guarded(lambda: int(self._file.read(query, (space, other))[0][0]))

    def spaces(self) -> dict[str, Space]:
        """Every feature space of which something is stored."""
        query = (
            "select space, count, bytes, (select length(value) / 4 from feature indexed by newest"
            " where feature.space = tally.space order by sequence desc limit 1) from tally where count > 0"
            " order by space"
        )
        return self._file.guarded(
            lambda: {str(space): Space(*map(int, rest)) for space, *rest in self._file.read(query)}
        )

    def entries(self) -> list[Entry]:
        """Everything that is stored, by space, oldest first."""
        return [
            Entry(photo, name, space, datetime.fromtimestamp(at / 1000, timezone.utc) if at else None, len(value))
            for space in self.spaces()
            for found in self._pieces(space)
            for _, _, photo, at, name, _, value in found
        ]

    def version(self) -> int:
        """A number that grows with every write, by whomever. Costs microseconds."""
        return self._file.look("0", ())[0]

    def look(self, space: str, photo: str) -> tuple[int, bool]:
        """:meth:`version`, and whether a photo's feature of that space is stored, in one look at the file.

        A reader that keeps photos in memory asks this before it trusts them.
        """
        return self._file.look("exists(select 1 from feature where space = ? and photo = ?)", (space, photo))

    def numeric_paths(self, space: str) -> dict[str, int]:
        """Number of stored features of a space by what computed them, most first; "" where nothing says so."""
        if not self._file.read(rows.PATHS_THERE)[0][0]:
            count = self.count(space)
            return {rows.UNKNOWN_PATH: count} if count else {}
        common = self._file.read(rows.COMMON_PATH, (space,))
        return rows.path_counts(space, common, self._file.read(rows.PATH_ROWS, (space,)))

    # ---- the likely classes of photos, derived from their features

    def likely(self, space: str, by: Classifier, count: int, before: str | None = None) -> LikelyColumn:
        """The likely classes of the photos of one space, as a classifier derived them, oldest first.

        Args:
            count: classes of each photo; rows of another number count as missing.
            before: as in :meth:`recall`.

        Raises:
            HistoryError: the file cannot be read.
        """

        return likely_classes.column(space, by, count, self._likely_rows(space, before))

    def put_likely(self, space: str, by: Classifier, found: Mapping[str, LikelyClasses]) -> None:
        """Stores the likely classes of photos; those of another classifier in that space are deleted.

        Raises:
            HistoryError: as :meth:`append`; nothing was stored.
        """
        self._file.add(lambda database, _: likely_classes.put(database, space, by, found))

    def likely_by(self, space: str) -> Classifier | None:
        """The classifier of the likely classes that are stored of a space; None: there is none."""
        rows = self._file.read(likely_classes.CLASSIFIER, (space,)) if self._has_likely() else ()
        return likely_classes.classifier_of(space, rows)

    def _likely_rows(self, space: str, before: str | None = None) -> list[Row]:
        query = likely_classes.COLUMN if self._has_likely() else likely_classes.PHOTOS
        return self._file.read(query, (space, space, before, schema.NO_SEQUENCE))

    def _has_likely(self) -> bool:
        return bool(self._file.read(likely_classes.THERE)[0][0])

    def forget_likely(self, space: str | None = None) -> None:
        """Forgets likely classes, None: of all spaces. Features stay, from which they can be computed again."""
        self._file.write(lambda database: likely_classes.forget(database, space), durably=True)

    # ---- what the owner said

    def labels(self) -> dict[str, str]:
        """What the owner said about photos, by identity. Labels belong to photos: they outlive a change of model."""
        return self._pairs("label")

    def set_label(self, photo: str, label: str | None) -> None:
        """Remembers what the owner said about a photo, which need not be in the history; None forgets it."""
        self._set("label", "photo", photo, label)

    def settings(self) -> dict[str, str]:
        """The profile's settings."""
        return self._pairs("setting")

    def set_setting(self, name: str, value: str | None) -> None:
        """Changes one setting; None removes it."""
        self._set("setting", "name", name, value)

    def _pairs(self, table: str) -> dict[str, str]:
        found = self._file.read(f"select * from {table}")  # noqa: S608
        if not all(schema.is_whole_pair(table, *row) for row in found):
            self._file.repair(f"a {table} does not match its checksum")
            found = self._file.read(f"select * from {table}")  # noqa: S608
        return {key: value for key, value, seal in found if schema.is_whole_pair(table, key, value, seal)}

    def _set(self, table: str, column: str, key: str, value: str | None) -> None:
        _check_text((column, key), (table, value or ""))

        def work(database: sqlite3.Connection) -> None:
            if value is None:
                database.execute(f"delete from {table} where {column} = ?", (key,))  # noqa: S608
            else:
                database.execute(schema.TWO_COLUMNS[table], (key, value, schema.pair_seal(table, key, value)))

        self._file.write(work, durably=True)

    # ---- a person's rights

    def erase(self, photo: str | None = None, space: str | None = None) -> int:
        """Forgets, in the file too: one photo with its label, one feature space, one photo in one space, or everything.

        Whatever names no space also deletes the damaged files that recoveries set aside: what is in them cannot be
        picked apart.

        Returns:
            the number of features that were erased.

        Raises:
            HistoryError: another process still reads an older state, or the disk is too full to erase a part; erase
                again. Erasing everything needs no room.
        """
        conditions = {"photo": photo, "space": space}
        given = {column: value for column, value in conditions.items() if value is not None}
        where = " and ".join(f"{column} = :{column}" for column in given) or "true"

        def work(database: sqlite3.Connection) -> int:
            erased = database.execute(f"delete from feature where {where}", given).rowcount  # noqa: S608
            schema.recount(database)
            if space is None:
                database.execute(f"delete from label where {where}", given)  # noqa: S608
            if not given:
                database.execute("delete from setting")
            if photo is None:
                likely_classes.forget(database, space)
                rows.forget_paths(database, space)
            return erased

        if space is None:
            self._file.discard_set_aside()  # first: it gives room
        try:
            erased = self._file.write(work, durably=True)
        except HistoryError as error:
            if not is_full(error.__context__):
                raise
            return self._erase_on_full_disk(work, everything=not given)
        self._file.scrub(shrink=photo is None)
        return erased

    def _erase_on_full_disk(self, work: Callable[[sqlite3.Connection], int], everything: bool) -> int:
        if everything:
            erased = sum(about.count for about in self.spaces().values())
            self._file.start_over()
            return erased
        self._file.make_room()
        try:
            erased = self._file.write(work, durably=True)
        except HistoryError as error:
            raise HistoryError(
                f"{self.path}: the disk is full and nothing was erased; free some space and erase again, or erase"
                " everything of the person, which needs none"
            ) from error
        self._file.scrub(shrink=False)
        return erased

    def scrub(self) -> None:
        """Makes sure that nothing of what was deleted is left in the file, and makes the file smaller.

        Raises:
            HistoryError: as :meth:`erase`.
        """
        self._file.scrub(shrink=True)

    def export(self, path: Path) -> None:
        """Writes everything that is known about this person into a zip
        (:func:`refocus.edge.history.takeout.export`).
        """
        entries = self.entries()
        stored = {(entry.space, entry.photo): entry.stored for entry in entries}
        widths = dict.fromkeys((entry.space, entry.size // 4) for entry in entries)
        spaces = ((space, self.recall(space, self.count(space), width)) for space, width in widths)
        by = {space: found for space in self.spaces() if (found := self.likely_by(space)) is not None}
        likely = {space: likely_classes.by_label(space, found, self._likely_rows(space)) for space, found in by.items()}
        paths = {space: self.numeric_paths(space) for space in self.spaces()}
        computed = {space: found for space, found in paths.items() if any(found)}
        takeout.export(path, spaces, stored, likely, computed, labels=self.labels(), settings=self.settings())

    def verify(self) -> None:
        """Reads everything that is stored; :attr:`recovered` then says of any damage, in files of any size.

        Raises:
            HistoryError: the file cannot be read or repaired.
        """
        self._file.verify()

    # ---- the end

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> FeatureHistory:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _check_text(*given: tuple[str, str]) -> None:
    """Checks that texts can be stored as UTF-8; of each what it is, and the text.

    Raises:
        HistoryError: one cannot be stored, as the name of a file that is not UTF-8 cannot.
    """
    for what, text in given:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise HistoryError(
                f"the {what} {text[:80]!a} is not text in UTF-8; it was not stored: give the SHA-256 of the photo's"
                " bytes, or another name"
            ) from None


def stored_name(name: str) -> str:
    """A photo's name as it is stored: cut where it is too long, with replacements for what is not text."""
    return name[:_LONGEST_NAME].encode(errors="replace").decode()
