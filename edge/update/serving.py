"""Serving a person with the release that is right now: needs no network, and no part of the update."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from PIL import Image

from refocus.edge.bundle.load import load_bundle
from refocus.edge.errors import BundleError, HistoryError, PersonalWeightsError, RefocusError, UpdateError
from refocus.edge.history.damage import Unwritable
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.migration.stages import Side
from refocus.edge.recognize.profile_shares import LabelSetError
from refocus.edge.recognize.recognizer import Answer, Recognizer
from refocus.edge.recognize.self_test import answer_all
from refocus.edge.update import transitions
from refocus.edge.update.canary import is_shortage
from refocus.edge.update.device_state import Slot, Slots, UpdateState
from refocus.edge.update.loaded_releases import LoadedReleases, Settings
from refocus.edge.update.profile_rollout import is_behind
from refocus.edge.update.transitions import ATTEMPTS

_OF_PERSON = (HistoryError, PersonalWeightsError)  # which say nothing of a release
_LOADED = 3  # releases whose programs are kept in memory: one that serves, one on the way, one just left


class _Unfit(BundleError):
    """A release fails on its own photos: its own fault, unlike damage to its files."""


class Serving(contextlib.AbstractContextManager["Serving"]):
    """Recognises the photos of one person, whatever an update is doing meanwhile.

    An update that another process makes takes effect with the next photo. A new release answers its own photos before
    it serves, which ends its trial; no later release is taken before. A release that cannot be loaded gives way to the
    one before it. After an error the next photo is tried again, with the person's history; until :meth:`close`.

    Args:
        slots: the device's releases: ``Slots(folder)``, of the folder that ``refocus update init`` set up.
        settings: how it runs them: ``Settings(profiles)`` at least, where ``profiles`` is a folder.
        profile: file of the person's history in that folder: ``refocus.edge.profile_path(profiles, "anna")``.

    Raises:
        UpdateError: no release is installed yet.
        BundleError: the release is damaged, and there is none before it.
        PersonalWeightsError: the person's weights are damaged or do not fit; damaged ones are set aside.
    """

    def __init__(self, slots: Slots, settings: Settings, profile: Path) -> None:
        self._slots, self._settings, self._profile = slots, settings, profile
        self._models = LoadedReleases(slots, settings, _LOADED)
        self._serving: Recognizer | DualWriteRecognizer | None = None
        self._releases: dict[Side, Slot] = {}  # of what answers
        self._untold: list[str] = []  # of the history, that the next answer says
        self._mark = (0, 0)
        self._closed = False
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def release(self) -> Slot:
        """The active release of the device; while this person moves, :attr:`answering` may be another one."""
        return self._active(self._slots.read())

    @property
    def answering(self) -> Slot:
        """The release whose head answers this person now."""
        serving = self._served
        return self._releases[serving.migration.state.now.serves if isinstance(serving, DualWriteRecognizer) else "new"]

    def _active(self, record: UpdateState) -> Slot:
        if record.active is None:
            raise UpdateError(f"{self._slots.folder}: no release is installed yet; run refocus update run")
        return record.active

    @property
    def recognizer(self) -> Recognizer:
        """The recogniser that answers now."""
        serving = self._served
        return serving.serving if isinstance(serving, DualWriteRecognizer) else serving

    @property
    def _served(self) -> Recognizer | DualWriteRecognizer:
        """What answers, opened again where an update has changed it or an error has closed it."""
        if self._closed:
            raise RefocusError("this serving object is closed; make a new one")
        if self._serving is None or self._mark != self._slots.mark():
            self._open()
        assert self._serving is not None  # noqa: S101  # open raises otherwise
        return self._serving

    def recognize(
        self, content: bytes | str | os.PathLike[str] | Image.Image, where: str = "", remember: bool = True
    ) -> Answer:
        """As :meth:`refocus.edge.recognize.recognizer.Recognizer.recognize`.

        Raises:
            RefocusError: it is closed; or what an update changed cannot be opened, and the next photo is tried again.
        """
        answer = self._served.recognize(content, where, remember)
        untold, self._untold = self._untold, []
        return replace(answer, notices=(*untold, *answer.notices)) if untold else answer

    def close(self) -> None:
        """Closes the profile and frees the programs."""
        self._closed, self._serving = True, None
        self._models.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what serves

    def _open(self) -> None:
        """Opens what the record says; a release that does not load gives way to the one before."""
        self._serving = None  # so that after an error the next photo opens it again
        while True:
            self._models.leave()
            mark = self._slots.mark()  # before the record: a change in between is then seen with the next photo
            record = self._slots.read()
            active = self._active(record)
            try:
                if record.stage == "trial" and self._try(active):
                    continue  # the record has changed: look again
                self._serving = self._opened(record, active)
            except Exception as error:
                now = self._slots.read()
                if (now.stage, now.active) != (record.stage, active):
                    continue  # it was just changed, and what it named before may be gone
                if isinstance(error, _OF_PERSON) or record.previous is None or not self._loads(record.previous):
                    raise
                self._give_way(error)
            else:
                self._mark = mark
                return

    def _give_way(self, error: Exception) -> None:
        """Lets the release before serve again.

        Raises:
            UpdateError: the record cannot be written.
        """
        try:
            self._slots.change(transitions.rolled_back, f"it does not load: {error}", isinstance(error, _Unfit))
        except OSError as trouble:
            raise UpdateError(f"{self._slots.folder}: {trouble}; make room or check the rights") from error

    def _try(self, active: Slot) -> bool:
        """Lets a release that is on trial answer its own photos in this very process; whether the record has changed.

        One process at a time does, so that an attempt that did not end is an interruption. It stays in the record;
        after the last one the release before serves again, and this one is tried later. A disk that cannot be written
        or read puts the trial off, and the release serves.
        """
        with contextlib.suppress(OSError), self._slots.trying():
            record = self._slots.read()
            if (record.stage, record.active) != ("trial", active):
                return True  # another process has just done it
            if record.attempts >= ATTEMPTS and record.previous is not None:
                why = f"{ATTEMPTS} processes ended while they tried it"
                self._slots.change(transitions.rolled_back, why, blame=False)
                return True
            self._slots.change(transitions.attempted, "trial", record.attempts + 1)
            try:
                self._answer_own_photos(active)
            except BaseException:
                with contextlib.suppress(OSError):  # which must not hide the error
                    self._slots.change(transitions.attempted, "trial", record.attempts)  # it has ended, however
                raise
            self._slots.change(transitions.passed, active)
            return True
        return False

    def _answer_own_photos(self, active: Slot) -> None:
        bundle, model = load_bundle(self._slots.path(active)), self._models.get(active)
        model.encode_as(None)  # nobody's weights
        try:
            answer_all(bundle, model)
        except Exception as error:  # whatever a program does, it must not serve
            if is_shortage(error):
                raise
            raise _Unfit(f"it fails on its own photos: {error}") from error

    def _loads(self, slot: Slot) -> bool:
        """Whether a release can serve: if none can, it is no release's fault, and the record stays as it is."""
        try:
            self._models.get(slot)
        except Exception:  # of native libraries too
            return False
        return True

    def _opened(self, record: UpdateState, active: Slot) -> Recognizer | DualWriteRecognizer:
        other, before, migrating = record.candidate, record.previous, None
        if self._profile.exists():
            with contextlib.suppress(Unwritable), self._history():  # first, so that damage is told
                pass
        if record.stage in ("moving", "returning") and other is not None:
            migrating = self._moving(active, other, record.stage == "returning")
        elif before is not None and self._is_behind(before, active):
            migrating = self._moving(before, active)
        if migrating is not None:
            return migrating
        self._releases = {"new": active}
        model = self._models.get(active)
        try:
            model.switch(self._profile)
        except LabelSetError:  # a release with other labels on the same encoder: its classes are counted anew
            with self._history() as history:
                history.forget_likely(model.space)
            model.switch(self._profile)
        return model

    def _differ(self, one: Slot, other: Slot) -> bool:
        """Whether two releases have different feature spaces, with the person's weights if they have any."""
        return self._models.of(one, self._profile).space != self._models.of(other, self._profile).space

    def _moving(self, old: Slot, new: Slot, goes_back: bool = False) -> DualWriteRecognizer | None:
        """Both releases, one of which serves this person; None if this person cannot move."""
        if not self._differ(old, new):
            return None
        with contextlib.suppress(RefocusError):
            migrating = DualWriteRecognizer(self._models.get(old), self._models.get(new), self._profile)
            try:
                if goes_back:
                    migrating.migration.adopt()
                    migrating.migration.back()
                else:
                    migrating.migration.start()
                self._releases = {"old": old, "new": new}
                return migrating
            except BaseException:
                migrating.close()
                raise
        return None

    def _is_behind(self, before: Slot, active: Slot) -> bool:
        if not self._profile.exists() or not self._differ(before, active):
            return False
        own = (self._models.of(slot, self._profile) for slot in (before, active))
        with self._history() as history:
            return is_behind(history, *own)

    @contextlib.contextmanager
    def _history(self) -> Iterator[FeatureHistory]:
        """The person's history; what is recovered of a damaged one is told with the next answer."""
        with FeatureHistory(self._profile, or_read_only=True) as history:
            try:
                yield history
            finally:
                if history.recovered is not None:
                    self._untold.append(str(history.recovered))
