"""Ceilings of class shares: their accuracy if labels of test photos helped them, in two ways.

"counted": shares are counted from the labels of the history instead of estimated from what the classifier says of it.
"recalibrated": they are estimated, by a classifier whose temperature fits the test photos instead of the validation
photos, which come from the training photos. What is left above both is that a history has few photos.

    RUN/ceilings/DATA-ENCODER-SEED.json    answers in the cells with own histories of ``LENGTHS``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.methods.iciia.delivery import calibrate
from refocus.edge.recognize import ShareSettings
from studies.streams.judging import evaluate, summed_up
from studies.streams.points import LENGTHS, StreamSettings, cells_with_people, prepare
from studies.streams.pseudo_people import PseudoPerson
from studies.streams.rivals.method import Knowledge, Original, StreamMethod, softmax
from studies.streams.rivals.shares import SharesMethod, settings_for
from studies.streams.rivals.trade_off import ratio_of

COUNTED, RECALIBRATED = "counted", "recalibrated"


class CountedShares(Original):
    """Shares counted from labels, with the prior and the part of other photos that estimated ones have.

    Args:
        labels: (H,) of the photos of the history.
    """

    def __init__(self, knowledge: Knowledge, settings: ShareSettings, labels: Sequence[int]) -> None:
        super().__init__(knowledge)
        base = np.array(settings_for(knowledge, settings).base)
        counts, strength = np.bincount(np.asarray(labels, dtype=int), minlength=len(base)), settings.strengths[0]
        shares = (counts + strength * base) / (len(labels) + strength)
        self._ratio = ratio_of(shares, base, settings.elsewhere)

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return softmax(logits / self._temperature + np.log(self._ratio))


def run_ceilings(settings: StreamSettings, run: Path, data: str, encoder: str, seed: int) -> dict[str, Any]:
    """Both ceilings of one point, on the people and photos of the other methods."""
    point = prepare(settings, run, data, encoder, seed)
    split = point.splits["test"]
    fitting = replace(point.knowledge, temperature=calibrate(split.logits, split.label))

    def counted(person: PseudoPerson) -> StreamMethod:
        ((observed, _),) = person.cases[0].steps
        return CountedShares(point.knowledge, settings.shares, split.label[observed].tolist())

    makers: dict[str, Callable[[PseudoPerson], StreamMethod]] = {
        COUNTED: counted,
        RECALIBRATED: lambda _: SharesMethod(fitting, settings.shares),
    }
    cells = {}
    for cell, people in cells_with_people(point, settings, seed):
        if cell.factor in ("base", "history") and cell.history in LENGTHS:
            plain = evaluate(lambda _: Original(point.knowledge), people, split)
            cells[cell.name] = {name: summed_up(evaluate(make, people, split), plain) for name, make in makers.items()}
    return {"of_test_photos": fitting.temperature, "cells": cells}
