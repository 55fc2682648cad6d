"""Recognition: the recogniser, head state, history selection, albums, explanations, self-test."""

from refocus.edge.recognize.album import answer_album, find_photos
from refocus.edge.recognize.check import check, head_targets
from refocus.edge.recognize.class_shares import ClassShares, ShareAnswer, ShareRow, Shares, ShareSettings
from refocus.edge.recognize.explain import explain
from refocus.edge.recognize.head_state import StreamState
from refocus.edge.recognize.history_selection import HISTORY_SELECTIONS
from refocus.edge.recognize.recognizer import STAGES, Answer, Recognizer, profile_path, softmax
from refocus.edge.recognize.self_test import answer_all, expected_answer

__all__ = [
    "HISTORY_SELECTIONS",
    "STAGES",
    "Answer",
    "ClassShares",
    "Recognizer",
    "ShareAnswer",
    "ShareRow",
    "ShareSettings",
    "Shares",
    "StreamState",
    "answer_album",
    "answer_all",
    "check",
    "expected_answer",
    "explain",
    "find_photos",
    "head_targets",
    "profile_path",
    "softmax",
]
