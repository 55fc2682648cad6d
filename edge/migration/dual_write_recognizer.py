"""Serving a person while their model changes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from PIL import Image

from refocus.edge.errors import HistoryError, RefocusError
from refocus.edge.history import rows as placing
from refocus.edge.history.eviction import Bounds
from refocus.edge.history.feature_history import FeatureHistory, stored_name
from refocus.edge.history.likely_classes import Classifier, LikelyClasses, put
from refocus.edge.history.rows import Filling
from refocus.edge.migration.migration import Migration
from refocus.edge.migration.stages import Side, State
from refocus.edge.recognize.recognizer import Answer, Recognizer


class DualWriteRecognizer(AbstractContextManager["DualWriteRecognizer"]):
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
        self._serves: Side = "old"  # when the stage was last read
        try:
            for model in self._models.values():
                model.switch(profile)  # both first: their spaces may be those of the person's weights
            for model in self._models.values():
                for other in self._models.values():
                    _history(model).computed_by(other.space, other.numeric_path)
                    _history(model).keeps(other.space, other.capacity)
            self.migration = Migration(_history(old), old, new)
        except BaseException:
            self.close()
            raise

    @property
    def serving(self) -> Recognizer:
        """The recogniser that answers now."""
        return self._models[self.migration.state.now.serves]

    def recognize(
        self, content: bytes | str | os.PathLike[str] | Image.Image, where: str = "", remember: bool = True
    ) -> Answer:
        """As :meth:`refocus.edge.recognize.recognizer.Recognizer.recognize`.

        A stage that another process changes meanwhile takes effect before the photo is stored. A photo that cannot be
        stored, as on a full disk, is answered with a notice; so is one that the model that does not serve cannot
        encode, which is stored for the other one alone.

        Raises:
            RefocusError: it is closed, or used in another thread than the one that opened it.
        """
        answer = self._recognize(content, where, remember)
        return _noticed(answer, *(text for model in self._models.values() for text in model.untold()))

    def _recognize(self, content: bytes | str | os.PathLike[str] | Image.Image, where: str, remember: bool) -> Answer:
        if self._closed:
            raise RefocusError("this migrating recognizer is closed; make a new one")
        self._models["old"].check_thread()
        try:
            state = self.migration.state
            self._serves = state.now.serves
        except HistoryError as error:
            answer = self._models[self._serves].recognize(content, where, remember=False)
            return _noticed(answer, f"answered without the history, and not stored: {error}")
        serving = self._models[state.now.serves]
        pixels, photo, where = serving.prepare(content, where)
        answer = serving.recognize_pixels(pixels, photo, where, remember=False)
        features: dict[Side, np.ndarray | None] = {state.now.serves: answer.feature}
        while remember:
            for side in state.now.keeps:
                if side not in features:
                    try:
                        features[side] = self._models[side].encode(content, where)
                    except RefocusError as error:
                        features[side] = None
                        answer = _noticed(answer, f"the photo was not stored for the other model: {error}")
            found = {self._models[side].space: features[side] for side in state.now.keeps}
            kept = {space: feature for space, feature in found.items() if feature is not None}
            likely = {serving.space: serving.likely(answer.shared.row if answer.shared is not None else None)}
            try:
                evicted = _store(_history(serving), state, photo, kept, where, likely)
            except HistoryError as error:
                return _noticed(answer, f"the photo was not stored: {error}")
            if evicted is not None:
                if evicted is not False and serving.space in kept:
                    gone = [other for space, other in evicted if space == serving.space]
                    serving.stored(answer, photo, where, gone)
                break
            state = self.migration.state
        return answer

    def close(self) -> None:
        """Closes the profile; the programs stay loaded, and their recognisers may switch to another one."""
        self._closed = True
        for model in self._models.values():
            model.leave()

    def __exit__(self, *_: object) -> None:
        self.close()


def _store(
    history: FeatureHistory,
    state: State,
    photo: str,
    features: Mapping[str, np.ndarray],
    name: str,
    likely: Mapping[str, tuple[Classifier, LikelyClasses] | None] = MappingProxyType({}),
) -> list[tuple[str, str]] | Literal[False] | None:
    """Stores a photo in each space, at one place.

    Args:
        likely: its most likely classes, by which classifier, where they are known; others are computed when needed.

    Returns:
        space and identity of the photos that were evicted, if it is the newest photo now; False: it was stored already,
        keeps its place, and is given it in spaces that lacked it. None: the stage has changed, and nothing was stored.
    """
    values, name = {space: history.value(feature) for space, feature in features.items()}, stored_name(name)

    def work(database: sqlite3.Connection, bounds: Bounds) -> list[tuple[str, str]] | Literal[False] | None:
        if not placing.holds(database, state.setting):
            return None
        known = [space for space in values if placing.has(database, space, photo)]
        if not known:
            evicted = placing.append(database, bounds, photo, values, name)
            for space, found in likely.items():
                if found is not None and space in values:
                    put(database, space, found[0], {photo: found[1]})
            return evicted
        for space in values.keys() - set(known):
            placing.fill(database, bounds, Filling(known[0], space, make_room=True), photo, values[space])
        return False

    return history.transaction(work)


def _noticed(answer: Answer, *notices: str) -> Answer:
    return replace(answer, notices=(*answer.notices, *notices)) if notices else answer


def _history(recognizer: Recognizer) -> FeatureHistory:
    if recognizer.history is None:  # though it serves a profile
        raise HistoryError(recognizer.refusal)
    return recognizer.history
