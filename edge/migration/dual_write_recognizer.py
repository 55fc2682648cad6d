"""Serving a person while their model changes."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from refocus.edge.errors import HistoryError, RefocusError
from refocus.edge.history import rows as placing
from refocus.edge.history.eviction import Bounds
from refocus.edge.history.feature_history import FeatureHistory, stored_name
from refocus.edge.history.rows import Filling
from refocus.edge.migration.migration import Migration
from refocus.edge.migration.stages import Side, State
from refocus.edge.recognize.recognizer import Answer, Recognizer


class DualWriteRecognizer:
    """Recognises photos with the model that serves, and remembers them for every model that is kept.

    As long as a move is under way each photo is encoded by both models and stored in both histories in one
    transaction, so neither has a hole, whichever serves in the end. Each head meets the features of its own encoder
    alone.

    Args:
        old, new: the recognisers of the two bundles, of one keeping; this object takes them over.
        profile: file of the person's history.

    Attributes:
        migration: the move; call its ``start`` once, and its ``step`` whenever there is a moment.

    Raises:
        BundleError: both bundles have one feature space.
        HistoryError: the profile cannot be opened.
    """

    def __init__(self, old: Recognizer, new: Recognizer, profile: Path) -> None:
        self._models: dict[Side, Recognizer] = {"old": old, "new": new}
        self._closed = False
        try:
            for model in self._models.values():
                model.switch(profile)
            self.migration = Migration(_history(old), old, new)
        except BaseException:
            self.close()
            raise

    @property
    def serving(self) -> Recognizer:
        """The recogniser that answers now."""
        return self._models[self.migration.state.now.serves]

    def recognize(self, content: bytes, where: str = "photo", remember: bool = True) -> Answer:
        """As :meth:`refocus.edge.recognize.recognizer.Recognizer.recognize`.

        A stage that another process changes meanwhile takes effect before the photo is stored. A photo that cannot be
        stored, as on a full disk, is answered with a notice.

        Raises:
            RefocusError: it is closed.
        """
        if self._closed:
            raise RefocusError("this migrating recognizer is closed; make a new one")
        photo, state = hashlib.sha256(content).hexdigest(), self.migration.state
        serving = self._models[state.now.serves]
        answer = serving.recognize(content, where, remember=False)
        features: dict[Side, np.ndarray] = {state.now.serves: answer.feature}
        while remember:
            for side in state.now.keeps:
                if side not in features:
                    features[side] = self._models[side].encode(content, where)
            kept = {self._models[side].space: features[side] for side in state.now.keeps}
            try:
                newest = _store(_history(serving), state, photo, kept, where)
            except HistoryError as error:
                return replace(answer, notices=(*answer.notices, f"the photo was not stored: {error}"))
            if newest is not None:
                if newest and serving.space in kept:
                    serving.stored(answer.feature, photo, where)
                break
            state = self.migration.state
        return answer

    def close(self) -> None:
        """Closes the profile; the programs stay loaded, and their recognisers may switch to another one."""
        self._closed = True
        for model in self._models.values():
            model.leave()

    def __enter__(self) -> DualWriteRecognizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _store(
    history: FeatureHistory, state: State, photo: str, features: Mapping[str, np.ndarray], name: str
) -> bool | None:
    """Stores a photo in each space, at one place.

    Returns:
        whether it is the newest photo now; a photo that was stored already keeps its place, and is given it in spaces
        that lacked it. None: the stage has changed, and nothing was stored.
    """
    values, name = {space: history.value(feature) for space, feature in features.items()}, stored_name(name)

    def work(database: sqlite3.Connection, bounds: Bounds) -> bool | None:
        if not placing.holds(database, state.setting):
            return None
        known = [space for space in values if placing.has(database, space, photo)]
        if not known:
            placing.append(database, bounds, photo, values, name)
            return True
        for space in values.keys() - set(known):
            placing.fill(database, bounds, Filling(known[0], space, make_room=True), photo, values[space])
        return False

    return history.transaction(work)


def _history(recognizer: Recognizer) -> FeatureHistory:
    assert recognizer.history is not None  # noqa: S101  # it serves a profile
    return recognizer.history
