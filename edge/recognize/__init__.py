"""Recognition: the recogniser, head state, history selection, albums, explanations, self-test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refocus.edge.recognize.check import check, head_targets
from refocus.edge.recognize.chosen_target import (
    DEFAULT_TARGET,
    ChosenTarget,
    Measured,
    choice_path,
    forget_choice,
    keep_choice,
    library_version,
    processor,
    read_choice,
)
from refocus.edge.recognize.class_shares import ClassShares, ShareAnswer, ShareSettings, beside_head, softmax
from refocus.edge.recognize.explain import explain
from refocus.edge.recognize.head_state import StreamState
from refocus.edge.recognize.history_selection import HISTORY_SELECTIONS
from refocus.edge.recognize.label_sets import LABEL_SEPARATOR, LabelShares, label_set, sigmoid
from refocus.edge.recognize.recognizer import STAGES, Answer, Recognizer, profile_path
from refocus.edge.recognize.rejection import KnownScores, known_scores, length_of
from refocus.edge.recognize.self_test import answer_all, expected_answer

if TYPE_CHECKING:
    from refocus.edge.recognize.album import answer_album, find_photos

__all__ = [
    "DEFAULT_TARGET",
    "HISTORY_SELECTIONS",
    "LABEL_SEPARATOR",
    "STAGES",
    "Answer",
    "ChosenTarget",
    "ClassShares",
    "KnownScores",
    "LabelShares",
    "Measured",
    "Recognizer",
    "ShareAnswer",
    "ShareSettings",
    "StreamState",
    "answer_album",
    "answer_all",
    "beside_head",
    "check",
    "choice_path",
    "expected_answer",
    "explain",
    "find_photos",
    "forget_choice",
    "head_targets",
    "keep_choice",
    "known_scores",
    "label_set",
    "length_of",
    "library_version",
    "processor",
    "profile_path",
    "read_choice",
    "sigmoid",
    "softmax",
]


def __getattr__(name: str) -> Any:
    """Names of :mod:`refocus.edge.recognize.album`, whose worker processes a single photo does not need."""
    if name not in ("answer_album", "find_photos"):
        raise AttributeError(f"module 'refocus.edge.recognize' has no attribute '{name}'")
    from refocus.edge.recognize import album

    return getattr(album, name)
