"""Migration of a profile from one model's feature space to another's.

The state of a migration is one setting in the profile's own file, so a kill leaves exactly one stage. Every change is
one transaction that first checks that the stage is still the one the caller has read, so several processes may work at
one migration. The stages are in :mod:`refocus.edge.migration.stages`.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from refocus.edge.errors import BundleError, HistoryError, PhotoError
from refocus.edge.files import original
from refocus.edge.history import rows as placing
from refocus.edge.history.eviction import Bounds
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.rows import Filling
from refocus.edge.migration.stages import (
    AFTER_ERASING,
    STAGES,
    MigrationRecord,
    Side,
    StageName,
    State,
    Status,
    read_record,
)
from refocus.edge.photos.preprocess import folder_identity, read_photo

_AT_ONCE = 64  # photos that are looked up together


class Model(Protocol):
    """What a move needs of a model; a :class:`refocus.edge.recognize.recognizer.Recognizer` has it.

    Attributes:
        space: its feature space.
        width: D.
        window: photos that its head looks back on.

    One that has ``numeric_path`` too has it recorded beside its features; one that has ``capacity``, the number of
    photos that it keeps, finds as many of them, however few the history was opened for. One that has ``looks_back``,
    the number of photos that its answers rest on, is warm with as many, where its head's window is not all of it.
    """

    space: str
    width: int
    window: int

    def encode(self, content: bytes | Path, where: str = ...) -> np.ndarray:
        """One photo, or the folder of a clip's frames -> its feature (D,)."""


@dataclass
class AbsentModel:
    """In the place of a :class:`Model` that does not load: its feature space is known, and it encodes nothing."""

    space: str
    width: int = 0
    window: int = 0

    def encode(self, content: bytes | Path, where: str = "photo") -> np.ndarray:
        raise BundleError(f"the model of feature space {self.space[:12]} is not there")


class Migration:
    """One profile's move from an old model to a new one.

    Nothing changes before :meth:`start`. From then on :meth:`step` computes the new history from the originals, newest
    photos first, and switches when it is warm: when it holds as many photos as the new model looks back on, or as the
    old history held, whichever is less. Where originals are gone, new photos make it warm instead. Labels and settings
    belong to photos and to the profile: nothing here touches them.

    All may be called again after a kill, and by several processes at once.

    Args:
        history: the profile.
        old, new: the models.

    Attributes:
        left_out: of photos that could not be computed by this object, by identity: why. They are tried again after the
            next :meth:`start` or :meth:`back`.

    Raises:
        BundleError: both models have one feature space, so there is nothing to move.
    """

    def __init__(self, history: FeatureHistory, old: Model, new: Model) -> None:
        if old.space == new.space:
            raise BundleError("both bundles have one feature space: nothing to migrate, the history stays as it is")
        self._history = history
        self._models: dict[Side, Model] = {"old": old, "new": new}
        for model in self._models.values():
            if path := getattr(model, "numeric_path", ""):
                history.computed_by(model.space, path)
            history.keeps(model.space, getattr(model, "capacity", 0))
        self._queue: deque[tuple[str, str]] = deque()
        self._queued_for: Side | None = None
        self.left_out: dict[str, str] = {}

    # ---- the stored state

    def space(self, side: Side) -> str:
        """The feature space of one of the models."""
        return self._models[side].space

    @property
    def state(self) -> State:
        """What the profile's file says now.

        Raises:
            HistoryError: the profile is on another move, or a newer Refocus began one.
        """
        setting, record = read_record(self._history)
        if record is not None and (record.old, record.new) == (self.space("old"), self.space("new")):
            return State(record.stage, record.enough, setting)
        if record is not None and record.stage != "finished":
            raise HistoryError(
                f"{self._history.path} is on its way from feature space {record.old[:12]} to {record.new[:12]}"
                f" ({record.stage}), which are not those of these two bundles; finish that migration or go back first"
            )
        return State("settled", 0, setting)

    def warm(self) -> bool:
        """Whether the new history can serve."""
        return self._history.count(self.space("new")) >= self.state.enough

    def status(self) -> Status:
        """How far the move is."""
        state, count = self.state, self._history.count
        found = self._lacking(state.now.fills, limit=1 << 31) if state.now.fills else []
        named = [photo for photo, name in found if name and _is_there(original(name))]
        return Status(
            stage=state.stage,
            serves=self.space(state.now.serves),
            old=count(self.space("old")),
            new=count(self.space("new")),
            enough=state.enough,
            lacking=sum(photo not in self.left_out for photo in named),
            without_original=len(found) - len(named),
            old_alone=self._history.count_apart(self.space("old"), self.space("new")),
        )

    # ---- what the owner decides

    def start(self) -> None:
        """Starts or resumes the migration. The old model serves until the new one is warm.

        Raises:
            HistoryError: nothing is stored of the old model, but of others; or as :attr:`state`.
        """
        self.left_out.clear()
        while (state := self.state).stage not in ("warming", "switched"):
            held = self._history.count(self.space("old"))
            if state.now.erases:
                self._scrub(state)
            elif state.stage == "finished" and not held:
                return
            else:
                self._check_old(held)
                new = self._models["new"]
                self._move(state, "warming", enough=min(getattr(new, "looks_back", new.window), held))

    def start_instead(self) -> None:
        """As :meth:`start`, in the place of an unfinished move between other models, which is forgotten; its features
        stay."""
        setting, record = read_record(self._history)
        if record is not None and (record.old, record.new) != (self.space("old"), self.space("new")):
            self._move(State("settled", 0, setting), "warming", enough=0)
        self.start()

    def adopt(self) -> None:
        """Counts the new model as the one that serves somebody who is on no move, where it has stored photos, as of
        people whom it was the first to see: so :meth:`back` takes those along."""
        if (state := self.state).stage == "settled" and self._history.count(self.space("new")):
            self._move(state, "switched", enough=0)

    def switch(self) -> None:
        """Lets the new model serve now, warm or not.

        Raises:
            HistoryError: no move is under way, or it is on its way back.
        """
        while (state := self.state).stage not in ("switched", "finishing", "finished"):
            if state.stage != "warming":
                raise HistoryError(f"nothing to switch: the migration is {state.stage}; start it first")
            self._move(state, "switched")

    def back(self) -> None:
        """Lets the old model serve again, at once, with its history as it was and the photos seen since.

        Photos that the new model saw alone are computed from their originals by :meth:`step`, which then erases the
        new history.

        Raises:
            HistoryError: the old history was erased by :meth:`finish`.
        """
        self.left_out.clear()
        while (state := self.state).now.serves == "new" or state.stage == "warming":
            if "old" not in state.now.keeps:
                raise HistoryError(
                    "the old history was erased, so rollback is impossible; to use the old bundle again, migrate to it"
                )
            self._move(state, "returning")

    def finish(self) -> None:
        """Erases the old history; the new model goes on alone.

        Raises:
            HistoryError: the new model does not serve yet; or another process still reads what was erased.
        """
        while (state := self.state).stage != "finished":
            if state.now.serves != "new":
                raise HistoryError(
                    f"the migration is {state.stage}, and the old model serves; switch before its history is erased"
                )
            if state.now.erases:
                self._scrub(state)
            else:
                self._move(state, "finishing")

    # ---- the work

    def step(self, photos: int | None = None, seconds: float = float("inf"), leave: bool = True) -> int:
        """Does a part of what is to be done, for a device that has a moment.

        Args:
            photos: at most so many pieces of work, each about the time of one photo; None: all there is to do.
            seconds: begins no piece after this time.
            leave: False: on the way back the new history is not erased yet, whatever of it could not be taken over.

        Returns:
            pieces done; 0: there is nothing more to do, or nothing before new photos come in.

        Raises:
            HistoryError: the history cannot be read or written.
            BundleError: as the model says.
        """
        end, done = time.monotonic() + seconds, 0
        while (photos is None or done < photos) and time.monotonic() < end and self._piece(leave):
            done += 1
        return done

    def _piece(self, leave: bool) -> bool:
        """One piece of work; False if there is none."""
        state = self.state
        if state.now.erases:
            self._scrub(state)
        elif state.stage == "warming" and self.warm():
            self._move(state, "switched")
        elif state.now.fills and (found := self._next(state.now.fills)):
            self._compute(state, state.now.fills, *found)
        elif state.stage == "returning" and leave:
            self._move(state, "leaving", filled="old")
        else:
            return False
        return True

    def _next(self, side: Side) -> tuple[str, str] | None:
        """Identity and name of a photo to compute for one side, newest first; None if there is none."""
        if side != self._queued_for:
            self._queue.clear()
        if not self._queue:
            found = self._lacking(side, limit=len(self.left_out) + _AT_ONCE)
            self._queue.extend(named for named in found if named[0] not in self.left_out)
            self._queued_for = side
        return self._queue.popleft() if self._queue else None

    def _lacking(self, side: Side, limit: int) -> list[tuple[str, str]]:
        return self._history.transaction(lambda database, bounds: self._look(database, bounds, side, limit))

    def _look(self, database: sqlite3.Connection, bounds: Bounds, side: Side, limit: int) -> list[tuple[str, str]]:
        return placing.lacking(database, bounds, self._filling(side), self._models[side].width, limit)

    def _filling(self, side: Side) -> Filling:
        # Going back, photos seen since push out the oldest, as they would have if the old model had served all along.
        return Filling(self.space("old" if side == "new" else "new"), self.space(side), make_room=side == "old")

    def _compute(self, state: State, side: Side, photo: str, name: str) -> None:
        """Takes one photo over, if its original still is what it was."""
        try:
            path = original(name)
            content = path if path.is_dir() else read_photo(path)  # of a clip, a folder of frames
            identity = folder_identity(path) if isinstance(content, Path) else hashlib.sha256(content).hexdigest()
            if identity != photo:
                raise PhotoError(f"{name} is not the photo that was there")
            feature = self._models[side].encode(content, name)
        except (PhotoError, OSError, ValueError) as error:  # ValueError: a name that cannot be a path
            self.left_out[photo] = str(error)
            return
        value, what = self._history.value(feature), self._filling(side)

        def work(database: sqlite3.Connection, bounds: Bounds) -> bool:
            if not placing.holds(database, state.setting):
                return True  # somebody has decided otherwise meanwhile
            done = placing.fill(database, bounds, what, photo, value)
            return done or placing.has(database, what.target, photo)

        if not self._history.transaction(work):
            self.left_out[photo] = f"{name} was erased meanwhile, finds no room, or its row in the history is damaged"

    # ---- changes of the stage

    def _move(self, state: State, stage: StageName, enough: int | None = None, filled: Side | None = None) -> None:
        """One transition, unless somebody else has just made one, or stored a photo that the side to be ``filled``
        lacks: then the caller looks again."""
        text: str | None = None
        if stage != "settled":
            enough = state.enough if enough is None else enough
            record = MigrationRecord(stage=stage, old=self.space("old"), new=self.space("new"), enough=enough)
            text = msgspec.json.encode(record).decode()
        erased = STAGES[stage].erases

        def work(database: sqlite3.Connection, bounds: Bounds) -> None:
            lacking = self._look(database, bounds, filled, len(self.left_out) + 1) if filled else ()
            if any(photo not in self.left_out for photo, _ in lacking):
                return
            if placing.change(database, state.setting, text) and erased:
                placing.forget(database, self.space(erased))

        self._history.transaction(work, durably=True)

    def _scrub(self, state: State) -> None:
        """Ends a stage in which a history was erased. A kill in between leaves the stage, so it is done again."""
        self._history.scrub()
        self._move(state, AFTER_ERASING[state.stage])

    def _check_old(self, held: int) -> None:
        others = self._history.spaces().keys() - {self.space("old"), self.space("new")}
        if not held and others:
            raise HistoryError(
                f"{self._history.path} has nothing of feature space {self.space('old')[:12]}, but of"
                f" {', '.join(sorted(space[:12] for space in others))}; give the bundle that made it as the old one"
            )


def _is_there(path: Path) -> bool:
    """Whether there is a photo's file, or a clip's folder of frames."""
    return os.path.isfile(path) or os.path.isdir(path)  # noqa: PTH112, PTH113  # never raise
