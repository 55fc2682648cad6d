"""Trained heads in the stream protocol: ICIIA-B, ICIIA-T and streaming.

They are evaluated alone, with class shares, and gated. A head is trained on pseudo-people dealt from the training
photos (for glyphs: on their writers), with early stopping on people of the validation photos. It is evaluated on the
same people and photos as the other methods. Validation people choose the exponent of the shares and the delivered
method: the ones with the best expected accuracy if a part of the photos comes after another person's history.

    RUN/cache/KEY.npz     one head of one point
    RUN/cache/KEY.json    choices by validation people for this head
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.partitions import by_parent, random_classes
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.delivery import CLOSE, EXPONENTS, expected_of
from refocus.cloud_train.methods.iciia.train import IciiaRecipe, Trained, train_iciia
from refocus.cloud_train.progress import say
from studies.experiment import Cache, Cell, Needs
from studies.streams import pseudo_people
from studies.streams.judging import evaluate_head
from studies.streams.points import FEWEST, LENGTHS, Point, StreamSettings, point_needs
from studies.streams.pseudo_people import BASE

TRAINED_PHOTOS, CHECKED_PHOTOS = 32, 24  # photos of a training and of a validation pseudo-person
WINDOWS = 16  # per gradient step
CHOOSERS, CHOSEN_BY = 120, 8  # validation people, at most, and photos of each; twenty would choose by chance
RATES = (1.0, 0.3, 0.1)  # factors of a head's learning rate; the next one is tried if training diverges


@dataclass(frozen=True)
class HeadPlan:
    """A head of the study.

    Attributes:
        partitions: maximum P; the block has the largest power of two up to it that divides the width.
        attention: attention of the block.
        learning_rate: learning rate of SGD with momentum 0.9.
        delivered: whether the study also evaluates the delivered method of this head.
    """

    partitions: int
    attention: str = "full"
    learning_rate: float = 0.1
    delivered: bool = False

    def block(self, width: int, layers: int) -> IciiaConfig:
        """Return the configuration of the block for a feature width."""
        partitions = max(p for p in (1, 2, 4, 8, 16, 32, 64, 128, 256) if p <= self.partitions and width % p == 0)
        return IciiaConfig(width=width, layers=layers, partitions=partitions, attention=self.attention)  # type: ignore[arg-type]


HEADS: Mapping[str, HeadPlan] = {
    "iciia_t": HeadPlan(256, delivered=True),
    "streaming": HeadPlan(256, "causal"),
    "iciia_b": HeadPlan(1, learning_rate=0.03),
}
CODE = (
    "refocus.cloud_train.methods.iciia.block",
    "refocus.cloud_train.methods.iciia.train",
    "refocus.edge.recognize.class_shares",
    "studies.streams.heads",
    "studies.streams.rivals.shares",
)


def head_needs(settings: StreamSettings, cell: Mapping[str, Any]) -> Needs:
    """Return what a head of a point depends on."""
    own = {"steps": settings.steps, "targets": settings.targets, "shares": asdict(settings.shares)}
    return point_needs(settings, cell) | Needs(own, {}, CODE)


def chosen_head(
    point: Point, head: str, settings: StreamSettings, cache: Cache, cell: Cell, seed: int, people: int = 0
) -> tuple[IciiaClassifier, dict[str, Any]]:
    """Return a trained head, with its training facts and choices.

    Args:
        point: data set, encoder and seed.
        head: name of the head in ``HEADS``.
        settings: settings of the study.
        cache: cache of heads and choices.
        cell: cell with the names of the data set and the encoder.
        seed: random seed.
        people: number of training people; 0: all to whom the training photos can be dealt.

    Returns:
        The head in evaluation mode; its epochs, seconds, exponent and delivered method.
    """
    needs = head_needs(settings, cell)
    what = {"head": head, "data": cell["data"], "encoder": cell["encoder"], "seed": seed, "people": people}

    def fitted() -> dict[str, Any]:
        trained = train_head(point, HEADS[head], settings, seed, people)
        facts = {"epochs": len(trained.validation) - 1, "best_epoch": trained.best_epoch, "seconds": trained.seconds}
        return {**{name: value.numpy() for name, value in trained.model.state_dict().items()}, **facts}

    kept = cache.once(what | {"result": "head"}, needs, fitted, ".npz", dict)
    facts = {name: kept.pop(name).item() for name in ("epochs", "best_epoch", "seconds")}
    model = IciiaClassifier(HEADS[head].block(point.cache.width, layers_of(point)), len(point.knowledge.base))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in kept.items()})
    model.eval()
    chosen = cache.once(what | {"result": "chosen"}, needs, lambda: choose(point, model, settings, seed))
    return model, {**facts, "seconds": round(facts["seconds"], 1), **chosen}


def layers_of(point: Point) -> int:
    """Return the number of layers of a head."""
    return 1 if point.owned else 3


def train_head(point: Point, plan: HeadPlan, settings: StreamSettings, seed: int, people: int = 0) -> Trained:
    """Train one head of one point.

    Args:
        point: data set, encoder and seed.
        plan: configuration of the head.
        settings: settings of the study.
        seed: random seed.
        people: number of training people; 0: all to whom the training photos can be dealt.

    Raises:
        UsageError: training diverges at every rate.
    """
    train, held = (
        with_people(point, "train", TRAINED_PHOTOS, seed),
        with_people(point, "validation", CHECKED_PHOTOS, seed),
    )
    if people:
        names = np.random.default_rng(seed).permutation(np.unique(train.table.client))[:people]
        train = train.rows(np.isin(train.table.client, names))
    config = plan.block(train.width, layers_of(point))
    length = min(64, TRAINED_PHOTOS) if plan.attention == "causal" else config.window
    epochs = max(1, round(settings.steps * WINDOWS * length / max(1, len(train.table))))
    for share in RATES:
        recipe = IciiaRecipe(
            share * plan.learning_rate, 0.9, WINDOWS, epochs, max(3, epochs // 4), deal_again=not people, seed=seed
        )
        try:
            return train_iciia(train, held, config, recipe)
        except UsageError as error:
            if share == RATES[-1]:
                raise
            say(str(error))
    raise AssertionError  # RATES is not empty


def with_people(point: Point, split: str, photos: int, seed: int) -> FeatureCache:
    """Return the photos of a split, dealt to pseudo-people.

    Photos with owners keep them.
    """
    part = point.cache.of_split(split)
    if point.owned:
        return part
    if point.groups is not None:
        client = by_parent(part.table.group, photos, 1.0, seed)
    else:
        client = random_classes(part.table.label, photos, BASE.classes or (5, 10), seed)
    return replace(part, table=replace(part.table, client=client)).rows(client != "")


def ways_of(head: str, chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return the way of answering by the name of the method in results."""
    g = f"{chosen['exponent']:g}"
    names = {head: "head", f"{head}+shares": f"both {g}", f"{head}+shares, gated": f"gated {g}"}
    return names | ({"delivered": chosen["delivered"]} if HEADS[head].delivered else {})


def choose(point: Point, model: IciiaClassifier, settings: StreamSettings, seed: int) -> dict[str, Any]:
    """Choose the exponent of the shares and the delivered method.

    Both maximise the expected accuracy (:func:`expected_of`) of validation people with histories of ``LENGTHS`` photos.
    Lengths for which photos do not suffice are left out.

    Raises:
        DataError: validation photos do not suffice for any person.
    """
    own: list[dict[str, float]] = []
    foreign, people = [], 0
    for length in LENGTHS:
        (count, mine), (others, theirs) = (_judged(point, model, settings, c, seed) for c in _contents(length))
        if min(count, others) >= FEWEST or (count and not own):
            people = max(people, count)
            own.append(mine)
            foreign.append(theirs or mine)
    if not own:
        raise DataError(f"validation photos suffice for no person with {LENGTHS[0]} photos before those evaluated")
    mean = _means([expected_of(mine, theirs) for mine, theirs in zip(own, foreign, strict=True)])
    exponent = max(EXPONENTS, key=lambda value: mean[f"both {value:g}"])
    g = f"{exponent:g}"
    ways = ("plain", "shares", f"gated {g}", f"both {g}", "head")  # the safest first
    best = max(mean[way] for way in ways)
    return {
        "exponent": exponent,
        "delivered": next(way for way in ways if mean[way] >= best - CLOSE),
        "people": people,
        "accuracy": _rounded(mean),
        "own": _rounded(_means(own)),
        "foreign": _rounded(_means(foreign)),
    }


def _means(by_length: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in by_length])) for name in by_length[0]}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _contents(length: int) -> tuple[pseudo_people.Cell, pseudo_people.Cell]:
    foreign = pseudo_people.Cell("content", history=length, content="foreign")
    return pseudo_people.Cell("history", history=length), foreign


def _judged(
    point: Point, model: IciiaClassifier, settings: StreamSettings, cell: pseudo_people.Cell, seed: int
) -> tuple[int, dict[str, float]]:
    """Return the number of validation people in a cell, and accuracies.

    These are mean accuracies by way of answering; empty without people.
    """
    people = point.people("validation", cell, CHOOSERS, min(settings.targets, CHOSEN_BY), seed + 2000)
    if not people:
        return 0, {}
    split = point.splits["validation"]
    found = evaluate_head(model, people, split, point.knowledge, settings.shares, EXPONENTS)
    return len(people), {name: float(np.mean(judged.right)) for name, judged in found.items()}
