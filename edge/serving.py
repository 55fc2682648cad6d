"""Serving a person with the release that is right now: needs no network, and no part of the update."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType

import msgspec

from edge.bundle import load_bundle
from edge.check import answer_all
from edge.errors import BundleError, HistoryError, RefocusError, UpdateError
from edge.history import FeatureHistory
from edge.migrating import MigratingRecognizer
from edge.recognizer import Answer, Recognizer
from edge.slots import Record, Slot, Slots
from edge.stages import read_record
from edge.updates import ATTEMPTS, Settings, Updates

_LOADED = 3  # releases whose programs are kept in memory: one that serves, one on the way, one just left


class Serving:
    """Recognises the photos of one person, whatever an update is doing meanwhile.

    An update that another process makes takes effect with the next photo. A release that cannot be loaded gives way to
    the one before it.

    Args:
        slots: the device's releases.
        settings: how it runs them.
        profile: file of the person's history.

    Raises:
        UpdateError: no release is installed yet.
        BundleError: the release is damaged, and there is none before it.
    """

    def __init__(self, slots: Slots, settings: Settings, profile: Path) -> None:
        self._slots, self._settings, self._profile = slots, settings, profile
        self._models: dict[str, Recognizer] = {}
        self._serving: Recognizer | MigratingRecognizer | None = None
        self._mark = (0, 0)
        self._open()

    @property
    def release(self) -> Slot:
        """The active release; while somebody moves, :attr:`recognizer` says whose head answers."""
        active = self._slots.read().active
        if active is None:
            raise UpdateError(f"{self._slots.folder}: no release is installed yet; run refocus update run")
        return active

    @property
    def recognizer(self) -> Recognizer:
        """The recogniser that answers now."""
        serving = self._served
        return serving.serving if isinstance(serving, MigratingRecognizer) else serving

    @property
    def _served(self) -> Recognizer | MigratingRecognizer:
        assert self._serving is not None  # noqa: S101  # open raises otherwise
        return self._serving

    def recognize(self, content: bytes, where: str = "photo", remember: bool = True) -> Answer:
        """As :meth:`edge.recognizer.Recognizer.recognize`."""
        if self._mark != self._slots.mark():
            self._open()
        return self._served.recognize(content, where, remember)

    def close(self) -> None:
        """Closes the profile."""
        if self._serving is not None:
            self._serving.close()
        for model in self._models.values():
            model.close()

    def __enter__(self) -> Serving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what serves

    def _open(self) -> None:
        """Opens what the record says; a release that does not load gives way to the one before."""
        while True:
            self.close()
            self._mark = self._slots.mark()  # before the record: a change in between is then seen with the next photo
            record = self._slots.read()
            if record.active is None:
                raise UpdateError(f"{self._slots.folder}: no release is installed yet; run refocus update run")
            try:
                if record.stage == "trial":
                    self._try(record.active)
                    continue  # the record has changed: look again
                self._serving = self._opened(record, record.active)
            except RefocusError as error:
                now = self._slots.read()
                if (now.stage, now.active) != (record.stage, record.active):
                    continue  # it was just changed, and what it named before may be gone
                if isinstance(error, HistoryError) or record.previous is None or not self._loads(record.previous):
                    raise
                Updates(self._slots, self._settings).back(f"it does not load: {error}")
            else:
                return

    def _try(self, active: Slot) -> None:
        """Lets a release that is on trial answer its own photos in this very process.

        One process at a time does, so that an attempt that did not end is a death. It stays in the record; after the
        last one the release before serves again.
        """
        with self._slots.trying():
            record = self._slots.read()
            if (record.stage, record.active) != ("trial", active):
                return  # another process has just done it
            if record.attempts >= ATTEMPTS and record.previous is not None:
                Updates(self._slots, self._settings).back(f"the process did not survive it, {record.attempts} times")
                return
            self._slots.change(lambda now: msgspec.structs.replace(now, attempts=now.attempts + 1))
            try:
                answer_all(load_bundle(self._slots.path(active)), self._model(active))
            except Exception as error:  # whatever a program does, it must not serve
                raise BundleError(f"it fails on its own photos: {error}") from error
            self._slots.change(
                lambda now: msgspec.structs.replace(now, stage="settled", attempts=0) if now.stage == "trial" else None
            )

    def _loads(self, slot: Slot) -> bool:
        """Whether a release can serve: if none can, it is no release's fault, and the record stays as it is."""
        with contextlib.suppress(RefocusError):
            self._model(slot)
            return True
        return False

    def _opened(self, record: Record, active: Slot) -> Recognizer | MigratingRecognizer:
        other, goes_back = record.candidate, record.stage == "returning"
        if record.stage in ("moving", "returning") and other is not None and other.space != active.space:
            return self._moving(active, other, goes_back) or self._alone(active)
        before = record.previous
        if before is not None and before.space != active.space and self._is_behind(before, active):
            return self._moving(before, active) or self._alone(active)
        return self._alone(active)

    def _moving(self, old: Slot, new: Slot, goes_back: bool = False) -> MigratingRecognizer | None:
        """Both releases, one of which serves this person; None if this person cannot move."""
        with contextlib.suppress(RefocusError):
            migrating = MigratingRecognizer(self._model(old), self._model(new), self._profile)
            try:
                migrating.migration.back() if goes_back else migrating.migration.start()
                return migrating
            except BaseException:
                migrating.close()
                raise
        return None

    def _is_behind(self, before: Slot, active: Slot) -> bool:
        """Whether a history is still that of the release before, as one that was restored from a copy is."""
        if not self._profile.exists():
            return False
        with FeatureHistory(self._profile) as history:
            _, found = read_record(history)
            if found and (found.old, found.new) == (before.space, active.space):
                return found.stage == "warming"
            return found is None and history.count(before.space) > 0 and history.count(active.space) == 0

    def _alone(self, slot: Slot) -> Recognizer:
        model = self._model(slot)
        model.switch(self._profile)
        return model

    def _model(self, slot: Slot) -> Recognizer:
        if slot.identity not in self._models:
            if len(self._models) >= _LOADED:
                self._models.clear()
            self._models[slot.identity] = self._settings.recognizer(self._slots.path(slot))
        return self._models[slot.identity]
