"""The stream protocol: methods that personalise, one factor varied at a time, on pseudo-people of real photo sets.

Every method sees a stream of (feature, logits) of one person and answers photos of theirs. A point is one set of
photos, one encoder and one seed, which draws the validation photos (a quarter of the training photos) and the people
again; test photos stay as the set has them. Everything that is chosen is chosen on people dealt from validation photos.

    RUN/features/KEY/                    features, see :mod:`refocus.cloud_train.backbones.feature_cache`
    RUN/plain/DATA-ENCODER-SEED.npz      one point's plain classifier: weight, bias, and its L2 penalty
    RUN/points/DATA-ENCODER-SEED.json    one point's methods and cells
    RUN/studies/stream.json              the results document
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refocus.benchmarks.measure import bootstrap_mean, worst_tenth
from refocus.cloud_train.backbones.feature_cache import FeatureCache, extract
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.pseudo_people import BASE, CELLS, RECOVERY, PseudoPerson, deal
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.plain_classifier import fit_plain_classifier
from refocus.cloud_train.methods.test_time.lame import Lame
from refocus.cloud_train.methods.test_time.method import (
    Knowledge,
    KnownClasses,
    Original,
    StreamMethod,
    calibrate,
    unit,
)
from refocus.cloud_train.methods.test_time.prototypes import OnlinePrototypes
from refocus.cloud_train.methods.test_time.shares import SharesMethod
from refocus.cloud_train.methods.test_time.stata import StatA
from refocus.cloud_train.methods.test_time.t3a import T3A
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.runs.folder import once
from refocus.cloud_train.runs.iciia import RunConfig, load_backbone
from refocus.cloud_train.studies import page
from refocus.edge.files import write_file
from refocus.edge.recognize import ShareSettings

Make = Callable[[Knowledge], StreamMethod]
FEWEST = 10  # people without whom a cell is left out


@dataclass(frozen=True)
class Encoder:
    """An encoder with published weights: file name without suffix, and how timm makes the network."""

    backbone: str
    weights: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()


ENCODERS = {
    "mobilenetv2": Encoder("mobilenetv2_100", "mobilenetv2_100_in1k", {"pad_type": "same"}, (0.5, 0.5, 0.5)),
    "deit_tiny": Encoder("deit_tiny_patch16_224", "deit_tiny_patch16_224_in1k"),
}
# Name -> file, and the column of class sets that belong together; "": people have random classes.
DATA = {
    "office-31": ("office-31.zip", ""),
    "grocery-store": ("grocery-store.zip", ""),
    "tiny-imagenet": ("tiny-imagenet-subset.zip", ""),
    "tiny-imagenet-by-parent": ("tiny-imagenet-subset.zip", "parent"),
}


@dataclass(frozen=True)
class StreamSettings:
    """What the study runs.

    Attributes:
        source: folder of the photo sets, with ``weights/``.
        data, encoders: names of ``DATA`` and ``ENCODERS``.
        people: pseudo-people of each cell.
        targets: photos of each person that are answered.
        shares: how shares are estimated, apart from what each point calibrates.
    """

    source: str
    data: tuple[str, ...] = tuple(DATA)
    encoders: tuple[str, ...] = tuple(ENCODERS)
    people: int = 40
    targets: int = 24
    shares: ShareSettings = field(default_factory=ShareSettings)


@dataclass(frozen=True)
class Split:
    """Photos of one split: features (R, D), the plain classifier's logits (R, C), labels (R,)."""

    features: np.ndarray
    logits: np.ndarray
    label: np.ndarray


@dataclass(frozen=True)
class Point:
    """What a data set, an encoder and a seed give."""

    knowledge: Knowledge
    splits: Mapping[str, Split]
    groups: tuple[np.ndarray, ...] | None
    facts: Mapping[str, float]


def prepare(settings: StreamSettings, run: Path, data: str, encoder: str, seed: int) -> Point:
    """Features, the plain classifier and its calibration of one point."""
    file, parent = DATA[data]
    made = ENCODERS[encoder]
    table = load_photos(Path(settings.source) / file, domain_column="", parent_column=parent)
    weights = Path(settings.source) / "weights" / f"{made.weights}.safetensors"
    config = RunConfig(
        backbone=made.backbone, checkpoint=str(weights), arguments=dict(made.arguments), mean=made.mean, std=made.mean
    )
    cache = extract(load_backbone(config), table, run / "features")
    cache = replace(cache, table=replace(table, split=draw_split(table, seed)))
    return _point(cache, parent, _plain(cache, run / "plain" / f"{data}-{encoder}-{seed}.npz", seed))


def draw_split(table: PhotoTable, seed: int) -> np.ndarray:
    """(R,) test as the photos say; of the others, a quarter of each class is for validation, others for each seed."""
    rng = np.random.default_rng(seed)
    split = np.where(table.split == "test", "test", "train").astype("<U10")
    for number in range(len(table.classes)):
        rows = rng.permutation(np.flatnonzero((table.label == number) & (split == "train")))
        split[rows[: len(rows) // 4]] = "validation"
    return split


def _plain(cache: FeatureCache, path: Path, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Weight (C, D), bias (C,) and L2 penalty of the plain classifier; made once."""
    if not path.exists():
        torch.manual_seed(seed)
        plain = fit_plain_classifier(cache.of_split("train"), cache.of_split("validation"))
        content = io.BytesIO()
        weight, bias = (part.detach().numpy() for part in (plain.layer.weight, plain.layer.bias))
        np.savez(content, weight=weight, bias=bias, l2=plain.l2)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content.getvalue())
    with np.load(path, allow_pickle=False) as kept:
        return kept["weight"], kept["bias"], float(kept["l2"])


def _point(cache: FeatureCache, parent: str, plain: tuple[np.ndarray, np.ndarray, float]) -> Point:
    weight, bias, l2 = plain
    train, splits = cache.of_split("train"), {}
    for name in ("validation", "test"):
        part = cache.of_split(name)
        features = part.take()
        splits[name] = Split(features, features @ weight.T + bias, part.table.label)
    lengths = unit(train.take())
    label, classes = train.table.label, len(cache.table.classes)
    means = np.stack([lengths[label == number].mean(0) for number in range(classes)])
    knowledge = Knowledge(
        temperature=calibrate(splits["validation"].logits, splits["validation"].label),
        base=np.bincount(label, minlength=classes) / len(label),
        weight=weight,
        bias=bias,
        means=means,
        variance=((lengths - means[label]) ** 2).mean(0),
    )
    right = {name: float((part.logits.argmax(1) == part.label).mean()) for name, part in splits.items()}
    facts = {
        "l2": l2,
        "temperature": knowledge.temperature,
        "plain_validation": right["validation"],
        "plain_test": right["test"],
    }
    return Point(knowledge, splits, _groups(cache.table) if parent else None, facts)


def _groups(table: PhotoTable) -> tuple[np.ndarray, ...]:
    """Class sets of the parent categories that have at least two classes."""
    sets = (np.unique(table.label[table.parent == name]) for name in np.unique(table.parent))
    return tuple(classes for classes in sets if len(classes) > 1)


@dataclass
class Evaluated:
    """Answers of one method to the photos of people.

    Attributes:
        right: of each person, the share of right answers at each step, (people, steps).
        flags: of each person, whether each answer of the last step was right, (people, targets).
        confidence: of these, the probability of the answer.
        state_bytes: largest state of a stream.
    """

    right: list[list[float]] = field(default_factory=list)
    flags: list[list[bool]] = field(default_factory=list)
    confidence: list[list[float]] = field(default_factory=list)
    state_bytes: int = 0


def evaluate(make: Callable[[PseudoPerson], StreamMethod], people: Sequence[PseudoPerson], split: Split) -> Evaluated:
    """Shows each person's streams to a fresh method and asks it."""
    result = Evaluated()
    for person in people:
        steps: list[list[bool]] = [[] for _ in person.cases[0].steps]
        sure: list[float] = []
        for case in person.cases:
            method = make(person)
            for number, (observed, answered) in enumerate(case.steps):
                for row in observed.tolist():
                    method.observe(split.features[row], split.logits[row])
                answers = [method.answer(split.features[row], split.logits[row]) for row in answered.tolist()]
                labels = split.label[answered]
                steps[number] += [int(p.argmax()) == label for p, label in zip(answers, labels, strict=True)]
                if number == len(case.steps) - 1:
                    sure += [float(p.max()) for p in answers]
            result.state_bytes = max(result.state_bytes, method.state_bytes())
        result.right.append([float(np.mean(step)) for step in steps])
        result.flags.append(steps[-1])
        result.confidence.append(sure)
    return result


def _for_all(make: Make, knowledge: Knowledge) -> Callable[[PseudoPerson], StreamMethod]:
    return lambda person: make(knowledge)


def calibration_error(flags: np.ndarray, confidence: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error over equally wide bins (Guo et al., ICML 2017, equation 3), of answers (n,)."""
    number = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [abs(flags[number == b].mean() - confidence[number == b].mean()) * (number == b).mean() for b in set(number)]
    return float(sum(gaps))


def harmed(flags: np.ndarray, plain: np.ndarray) -> bool:
    """Whether a person's paired loss, with its own 95 % normal interval over their photos, lies below zero."""
    difference = flags.astype(float) - plain.astype(float)
    return bool(difference.mean() + 1.96 * difference.std(ddof=1) / np.sqrt(len(difference)) < 0)


def choose(point: Point, settings: StreamSettings, seed: int) -> dict[str, Any]:
    """What each method's settings are, by the accuracy of validation people in the base cell; ties: the first."""
    split = point.splits["validation"]
    people = deal(split.label, point.groups, BASE, settings.people, min(settings.targets, 8), seed + 1000)
    candidates: dict[str, list[tuple[Any, Make]]] = {
        "t3a_keep": [(keep, partial(T3A, keep=keep)) for keep in (20, 5, 100)],
        "stata_strength": [(strength, partial(StatA, strength=strength)) for strength in (1.0, 10.0)],
        "prototypes_tau": [(tau, partial(OnlinePrototypes, tau=tau)) for tau in (5.0, 0.0, 20.0)],
    }
    chosen = {}
    for name, options in candidates.items():
        scores = [np.mean(evaluate(_for_all(make, point.knowledge), people, split).right) for _, make in options]
        chosen[name] = options[int(np.argmax(scores))][0]
    return chosen


def methods(point: Point, settings: StreamSettings, chosen: Mapping[str, Any]) -> dict[str, Make]:
    """Name -> method, made anew for every stream."""
    return {
        "original": Original,
        "shares": partial(SharesMethod, settings=settings.shares),
        "lame": Lame,
        "t3a": partial(T3A, keep=chosen["t3a_keep"]),
        "stata": partial(StatA, strength=chosen["stata_strength"]),
        "prototypes": partial(OnlinePrototypes, tau=chosen["prototypes_tau"]),
    }


def run_point(settings: StreamSettings, run: Path, data: str, encoder: str, seed: int) -> dict[str, Any]:
    """All cells and methods of one point."""
    point = prepare(settings, run, data, encoder, seed)
    chosen = choose(point, settings, seed)
    split, cells = point.splits["test"], {}
    for number, cell in enumerate(track(CELLS, f"{data} {encoder} seed {seed}", len(CELLS))):
        if point.groups is not None and cell.factor == "classes" and cell.classes is not None:
            continue  # a parent decides how many classes a person has
        targets = settings.targets if cell.order == "iid" else settings.targets // 3
        people = deal(split.label, point.groups, cell, settings.people, targets, 100 * seed + number)
        if len(people) < FEWEST:
            say(f"{data}: {cell.name} is left out, photos suffice for {len(people)} people only")
            continue
        cells[cell.name] = _cell(point, settings, chosen, people, split)
    return {"facts": dict(point.facts), "chosen": chosen, "cells": cells}


def _cell(
    point: Point, settings: StreamSettings, chosen: Mapping[str, Any], people: Sequence[PseudoPerson], split: Split
) -> dict[str, Any]:
    known = evaluate(lambda person: KnownClasses(point.knowledge, person.classes), people, split)
    found = {
        name: evaluate(_for_all(make, point.knowledge), people, split)
        for name, make in methods(point, settings, chosen).items()
    }
    plain = found["original"]
    return {
        "people": len(people),
        "targets": sum(map(len, plain.flags)),
        "known": [steps[-1] for steps in known.right],
        "methods": {
            name: {
                "right": [steps[-1] for steps in judged.right],
                "steps": np.mean(judged.right, axis=0).tolist(),
                "ece": calibration_error(np.concatenate(judged.flags), np.concatenate(judged.confidence)),
                "harmed": [
                    harmed(np.array(one), np.array(other)) for one, other in zip(judged.flags, plain.flags, strict=True)
                ],
                "state_bytes": judged.state_bytes,
            }
            for name, judged in found.items()
        },
    }


def of_all_points(
    settings: StreamSettings, run: Path, folder: str, make: Callable[..., dict[str, Any]], seeds: Sequence[int]
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What ``make`` gives of each set and encoder, by seed; computed once each, in ``RUN/FOLDER``.

    Raises:
        UsageError: an unknown name.
        DataError: a photo set or weights are not there.
    """
    for names, known in ((settings.data, DATA), (settings.encoders, ENCODERS)):
        unknown = set(names) - set(known)
        if unknown:
            raise UsageError(f"study: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    if not settings.source:
        raise UsageError("name the folder of photo sets and weights with --data")
    (run / folder).mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in seeds:  # what is stopped half-way has a whole seed rather than a whole data set
        for data, encoder in itertools.product(settings.data, settings.encoders):
            path, what = run / folder / f"{data}-{encoder}-{seed}.json", f"{data}, {encoder}, seed {seed}"
            made = once(path, partial(make, settings, run, data, encoder, seed), what)
            found.setdefault((data, encoder), []).append(made)
    return found


def study_stream(settings: StreamSettings, run: Path, seeds: Sequence[int], command: str) -> dict[str, Any]:
    """The results document; points that are there are not computed again.

    Raises:
        UsageError: an unknown name.
        DataError: a photo set or weights are not there.
    """
    points = of_all_points(settings, run, "points", run_point, seeds)
    rows = [row for (data, encoder), of in points.items() for row in _rows(data, encoder, of)]
    facts = [
        {"data": data, "encoder": encoder, "seed": seed, **point["facts"], **point["chosen"]}
        for (data, encoder), of in points.items()
        for seed, point in zip(seeds, of, strict=True)
    ]
    rows.sort(key=lambda row: row["gain"]["mean"] if row["method"] == "shares" else 1.0)
    more = {"rows": rows, "points": facts, "settings": asdict(settings.shares)}
    return page.study_document("stream", command, seeds, people=settings.people, **more)


def _rows(data: str, encoder: str, points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for cell in points[0]["cells"]:
        found = [point["cells"][cell] for point in points if cell in point["cells"]]
        plain = np.concatenate([one["methods"]["original"]["right"] for one in found])
        known = np.concatenate([one["known"] for one in found]) - plain
        for method in found[0]["methods"]:
            parts = [one["methods"][method] for one in found]
            right = np.concatenate([part["right"] for part in parts])
            gain = right - plain
            by_seed = [
                np.mean(p["right"]) - np.mean(o["methods"]["original"]["right"])
                for p, o in zip(parts, found, strict=True)
            ]
            row = {
                "data": data,
                "encoder": encoder,
                "cell": cell,
                "method": method,
                "people": len(gain),
                "targets": sum(one["targets"] for one in found),
                "accuracy": float(right.mean()),
                "known_gain": float(known.mean()),
                "gain": {**bootstrap_mean(gain).as_dict(), "seeds": [float(value) for value in by_seed]},
                "ece": float(np.mean([part["ece"] for part in parts])),
                "harmed": float(np.mean(np.concatenate([part["harmed"] for part in parts]))),
                "worst_tenth": worst_tenth(gain),
                "state_bytes": max(part["state_bytes"] for part in parts),
            }
            steps = np.mean([part["steps"] for part in parts], axis=0)
            if len(steps) > 1:
                start = np.mean([one["methods"]["original"]["steps"] for one in found], axis=0)
                row["recovery"] = recovery(steps - start)
                row["gain_after"] = {str(photos): float(g) for photos, g in zip(RECOVERY, steps - start, strict=True)}
            rows.append(row)
    return rows


def recovery(gains: np.ndarray) -> int | None:
    """Own photos after which the gains (steps,) at ``RECOVERY`` are no longer negative; None: not within these."""
    after = [photos for number, photos in enumerate(RECOVERY) if (gains[number:] >= 0).all()]
    return after[0] if after else None


METHODS = {
    "shares": "class shares",
    "lame": "LAME",
    "t3a": "T3A",
    "stata": "StatA",
    "prototypes": "prototypes (after UL-TTA)",
}


class StreamPage(page.StudyPage):
    """A row for each set, encoder and cell, a column for each method; the least gain of shares first."""

    def table(self, document: page.Document) -> page.Table:
        header = ["data", "encoder", "cell", "people", "original", "classes known", *METHODS.values()]
        header += ["people harmed by shares", "worst tenth, shares"]
        by_key: dict[tuple[str, ...], dict[str, Any]] = {}
        for row in document["rows"]:
            by_key.setdefault((row["data"], row["encoder"], row["cell"]), {})[row["method"]] = row
        ordered = sorted(by_key.items(), key=lambda item: item[1]["shares"]["gain"]["mean"])
        rows = []
        for key, of in ordered:
            original, shares = of["original"], of["shares"]
            rows.append(
                [
                    *key,
                    str(original["people"]),
                    f"{original['accuracy']:.1%}",
                    f"{100 * original['known_gain']:+.1f}",
                    *(page.short_points(of[name]["gain"]) if name in of else "" for name in METHODS),
                    f"{shares['harmed']:.0%}",
                    f"{100 * shares['worst_tenth']:+.1f}",
                ]
            )
        return header, rows


def _about(document: page.Document) -> str:
    return (
        f"{about_pseudo_people(document)} {document['people']} people of each cell and seed. The least gain of shares"
        " stands first."
    )


def about_pseudo_people(document: page.Document) -> str:
    """Whom the figures are of."""
    return (
        f"Pseudo-people dealt from labelled sets, {page.seeds_line(document)} that redraw validation photos and people;"
        " both encoders saw the training photos of Tiny-ImageNet when they were pre-trained. Gains are paired, in"
        " points over the plain classifier, with 95 % intervals over people."
    )


PAGES = {"stream": StreamPage("Stream protocol: class shares beside other methods without training", {}, _about)}
