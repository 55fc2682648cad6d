"""Methods of the stream protocol, and their answers in one cell.

In addition to class shares and their rivals there are two upper bounds of shares that use labels of test photos.
"counted": shares are counted from the labels of the history instead of estimated from the classifier's answers.
"recalibrated": they are estimated, by a classifier whose temperature fits the test photos instead of the validation
photos, which come from the training photos. The remaining distance to known classes is due to short histories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from refocus.cloud_train.methods.iciia.delivery import calibrate
from refocus.cloud_train.progress import say
from refocus.edge.recognize import ShareSettings
from studies.experiment import Cache, Cell, Needs, Row
from studies.streams.heads import HEADS, chosen_head, head_needs, ways_of
from studies.streams.judging import evaluate, evaluate_head, row
from studies.streams.points import FEWEST, LENGTHS, Point, StreamSettings, cells_of, point_needs, prepare
from studies.streams.pseudo_people import BASE, PseudoPerson
from studies.streams.rivals.lame import Lame
from studies.streams.rivals.method import Knowledge, KnownClasses, Original, StreamMethod, softmax
from studies.streams.rivals.prototypes import OnlinePrototypes
from studies.streams.rivals.shares import SharesMethod, settings_for
from studies.streams.rivals.stata import StatA
from studies.streams.rivals.t3a import T3A
from studies.streams.rivals.trade_off import ratio_of

WITHOUT_TRAINING: Mapping[str, Callable[..., StreamMethod]] = {
    "original": Original,
    "shares": SharesMethod,
    "lame": Lame,
    "t3a": T3A,
    "stata": StatA,
    "prototypes": OnlinePrototypes,
}
# Method -> a setting that validation people choose, and its values; of equally accurate values the first.
TRIED: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "t3a": ("keep", (20, 5, 100)),
    "stata": ("strength", (1.0, 10.0)),
    "prototypes": ("tau", (5.0, 0.0, 20.0)),
}
KNOWN, COUNTED, RECALIBRATED = "known classes", "counted", "recalibrated"
METHODS = (*WITHOUT_TRAINING, KNOWN, *HEADS, COUNTED, RECALIBRATED)
_WITH_SHARES = ("shares", COUNTED, RECALIBRATED)
_SHARES_CODE = (
    "refocus.edge.recognize.class_shares",
    "studies.streams.rivals.shares",
    "studies.streams.rivals.trade_off",
)


class CountedShares(Original):
    """Class shares counted from the labels of the history.

    They have the same prior and the same share of other photos as estimated shares.

    Args:
        knowledge: calibration and class shares of the training photos.
        settings: settings of class shares.
        labels: labels of the photos of the history, (H,).
    """

    def __init__(self, knowledge: Knowledge, settings: ShareSettings, labels: Sequence[int]) -> None:
        super().__init__(knowledge)
        base = np.array(settings_for(knowledge, settings).base)
        counts, strength = np.bincount(np.asarray(labels, dtype=int), minlength=len(base)), settings.strength
        shares = (counts + strength * base) / (len(labels) + strength)
        self._ratio = ratio_of(shares, base, settings.elsewhere)

    def answer(self, feature: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities (C,) of a photo."""
        return softmax(logits / self._temperature + np.log(self._ratio))


def needs(settings: StreamSettings, cell: Cell) -> Needs:
    """Return what the answers of a cell's method depend on."""
    method = str(cell["method"])
    used: dict[str, Any] = {"people": settings.people, "targets": settings.targets}
    code: tuple[str, ...] = ("studies.streams.methods",)
    if method in _WITH_SHARES:
        used, code = used | {"shares": asdict(settings.shares)}, (*code, *_SHARES_CODE)
    elif method in ("lame", *TRIED):
        code = (*code, f"studies.streams.rivals.{method}")
    of_point = head_needs(settings, cell) if method in HEADS else point_needs(settings, cell)
    return of_point | Needs(used, {}, code)


def evaluate_cell(settings: StreamSettings, cell: Cell, seed: int, cache: Cache) -> list[Row]:
    """Return the answers of a cell's method.

    There are none if the data set has no such cell, or too few people.
    """
    data, method = str(cell["data"]), str(cell["method"])
    cells = cells_of(data)
    history = next((one for one in cells if one.name == cell["cell"]), None)
    if history is None:
        return []
    if method in (COUNTED, RECALIBRATED) and (
        history.factor not in ("base", "history") or history.history not in LENGTHS
    ):
        return []
    point = prepare(settings, cache, data, str(cell["encoder"]), seed)
    targets = settings.targets if history.order == "iid" else settings.targets // 3
    people = point.people("test", history, settings.people, targets, 100 * seed + cells.index(history))
    if len(people) < FEWEST:
        say(f"{history.name} is left out: photos suffice for {len(people)} people only")
        return []
    answers, split = point.answers(people, seed), point.splits["test"]
    shown = {"history": history.history}
    if method in HEADS:
        model, facts = chosen_head(point, method, settings, cache, cell, seed)
        found = evaluate_head(model, people, split, point.knowledge, settings.shares, (facts["exponent"],))
        return [
            row({"method": name}, answers, found[way], shown | {"head": {"head": method, **facts}})
            for name, way in ways_of(method, facts).items()
        ]
    make, facts = maker(point, settings, method, cell, seed, cache)
    return [row({}, answers, evaluate(make, people, split), shown | {"point": facts})]


def maker(
    point: Point, settings: StreamSettings, method: str, cell: Cell, seed: int, cache: Cache
) -> tuple[Callable[[PseudoPerson], StreamMethod], dict[str, Any]]:
    """Return a factory of a method without training, and facts of the point.

    The factory makes the method for a person. The document states the facts.
    """
    if method == KNOWN:
        return lambda person: KnownClasses(point.knowledge, person.classes), {}
    if method == COUNTED:
        return lambda person: CountedShares(point.knowledge, settings.shares, _labels(point, person)), {}
    if method == RECALIBRATED:
        split = point.splits["test"]
        fitting = replace(point.knowledge, temperature=calibrate(split.logits, split.label))
        return lambda _: SharesMethod(fitting, settings.shares), {"of_test_photos": fitting.temperature}
    facts = dict(point.facts) if method == "original" else {}
    make = partial(SharesMethod, settings=settings.shares) if method == "shares" else WITHOUT_TRAINING[method]
    if method in TRIED:
        name, _ = TRIED[method]
        what = {"chosen": method, "data": cell["data"], "encoder": cell["encoder"], "seed": seed}
        kept = cache.once(what, needs(settings, cell), lambda: {name: choose(point, settings, method, seed)})
        make, facts = partial(make, **kept), {f"{method}_{name}": kept[name]}
    return lambda _: make(point.knowledge), facts


def _labels(point: Point, person: PseudoPerson) -> list[int]:
    ((observed, _),) = person.cases[0].steps
    labels: list[int] = point.splits["test"].label[observed].tolist()
    return labels


def choose(point: Point, settings: StreamSettings, method: str, seed: int) -> float:
    """Return the value of a method's setting with the best accuracy.

    The accuracy is that of validation people in the base cell.
    """
    split = point.splits["validation"]
    people = point.people("validation", BASE, settings.people, min(settings.targets, 8), seed + 1000)
    name, values = TRIED[method]

    def accuracy(value: float) -> float:
        make = partial(WITHOUT_TRAINING[method], **{name: value})
        return float(np.mean(evaluate(lambda _: make(point.knowledge), people, split).right))

    return max(values, key=accuracy)
