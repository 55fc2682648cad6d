"""The stages of a move from one model to another, as data, and what of them is stored in a profile's file.

docs/decisions/0011-model-change.md draws them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from refocus.edge.errors import HistoryError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.rows import Setting

SETTING = "migration"

Side = Literal["old", "new"]
StageName = Literal["settled", "warming", "switched", "returning", "leaving", "finishing", "finished"]


class Stage(NamedTuple):
    """Actions of one stage of a migration.

    Attributes:
        serves: whose head answers.
        keeps: whose features are stored of a photo that comes in.
        fills: whose history is computed from originals.
        erases: whose history was just erased; the stage lasts until its bytes are gone from the file too.
    """

    serves: Side
    keeps: tuple[Side, ...]
    fills: Side | None = None
    erases: Side | None = None


STAGES: dict[StageName, Stage] = {
    "settled": Stage(serves="old", keeps=("old",)),
    "warming": Stage(serves="old", keeps=("old", "new"), fills="new"),
    "switched": Stage(serves="new", keeps=("old", "new"), fills="new"),
    "returning": Stage(serves="old", keeps=("old", "new"), fills="old"),
    "leaving": Stage(serves="old", keeps=("old",), erases="new"),
    "finishing": Stage(serves="new", keeps=("new",), erases="old"),
    "finished": Stage(serves="new", keeps=("new",)),
}
AFTER_ERASING: dict[StageName, StageName] = {"leaving": "settled", "finishing": "finished"}


class MigrationRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is stored of a move. A profile without one is settled.

    Attributes:
        old, new: the feature spaces.
        enough: photos that the new history must hold to be warm.
    """

    schema_version: Literal[1] = 1
    stage: StageName
    old: str
    new: str
    enough: int


@dataclass(frozen=True)
class State:
    """The stage that was read, and what the setting was then, so that a change can tell whether it still holds."""

    stage: StageName
    enough: int
    setting: Setting

    @property
    def now(self) -> Stage:
        return STAGES[self.stage]


@dataclass(frozen=True)
class Status:
    """How far a move is.

    Attributes:
        stage: its stage.
        serves: the feature space whose head answers.
        old, new: photos that each history holds.
        enough: photos that the new one needs to be warm.
        lacking: photos still to be computed from their originals, without those that were tried and left out.
        without_original: photos that cannot be computed, because no file is where they were.
        old_alone: photos that the old history holds and the new one does not, those it has no room for among them.
    """

    stage: StageName
    serves: str
    old: int
    new: int
    enough: int
    lacking: int
    without_original: int
    old_alone: int


def read_record(history: FeatureHistory) -> tuple[Setting, MigrationRecord | None]:
    """What is stored of a move, as it is stored and as it is meant.

    Raises:
        HistoryError: a newer Refocus wrote it.
    """
    text = history.settings().get(SETTING)
    try:
        return Setting(SETTING, text), None if text is None else msgspec.json.decode(text, type=MigrationRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HistoryError(f"{history.path}: its migration state cannot be read ({error}); update refocus") from None
