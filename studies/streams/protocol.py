"""The stream protocol: methods that personalise, one factor varied at a time, on pseudo-people of real photo sets.

Every method sees a stream of (feature, logits) of one person and answers photos of theirs. A point is one set of
photos, one encoder and one seed (:mod:`studies.streams.points`). Everything that is chosen is
chosen on people of validation photos.

    RUN/points/DATA-ENCODER-SEED.json    the methods without training, in all cells of one point
    RUN/heads/                           trained heads, see :mod:`studies.streams.heads`
    RUN/ceilings/                        see :mod:`studies.streams.ceilings`
    RUN/studies/stream.json              the results document
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from refocus.benchmarks.measure import interleave, worst_tenth
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.progress import track
from studies.streams.answers import OVER, Answers, photos_of
from studies.streams.ceilings import run_ceilings
from studies.streams.heads import HEADS, run_head
from studies.streams.judging import Evaluated, Make, evaluate, summed_up
from studies.streams.points import Point, StreamSettings, cells_with_people, of_all_points, prepare
from studies.streams.pseudo_people import BASE, RECOVERY
from studies.streams.rivals.lame import Lame
from studies.streams.rivals.method import KnownClasses, Original
from studies.streams.rivals.prototypes import OnlinePrototypes
from studies.streams.rivals.shares import SharesMethod
from studies.streams.rivals.stata import StatA
from studies.streams.rivals.t3a import T3A

TIMED_ROUNDS = 16  # of a person's stream, each method once in each


def _for_all(make: Make, point: Point) -> Any:
    return lambda person: make(point.knowledge)


def choose(point: Point, settings: StreamSettings, seed: int) -> dict[str, Any]:
    """What each method's settings are, by the accuracy of validation people in the base cell; ties: the first."""
    split = point.splits["validation"]
    people = point.people("validation", BASE, settings.people, min(settings.targets, 8), seed + 1000)
    candidates: dict[str, list[tuple[Any, Make]]] = {
        "t3a_keep": [(keep, partial(T3A, keep=keep)) for keep in (20, 5, 100)],
        "stata_strength": [(strength, partial(StatA, strength=strength)) for strength in (1.0, 10.0)],
        "prototypes_tau": [(tau, partial(OnlinePrototypes, tau=tau)) for tau in (5.0, 0.0, 20.0)],
    }
    chosen = {}
    for name, options in candidates.items():
        scores = [np.mean(evaluate(_for_all(make, point), people, split).right) for _, make in options]
        chosen[name] = options[int(np.argmax(scores))][0]
    return chosen


def methods(point: Point, settings: StreamSettings, chosen: Mapping[str, Any]) -> dict[str, Make]:
    """Name -> method, made again for every stream."""
    return {
        "original": Original,
        "shares": partial(SharesMethod, settings=settings.shares),
        "lame": Lame,
        "t3a": partial(T3A, keep=chosen["t3a_keep"]),
        "stata": partial(StatA, strength=chosen["stata_strength"]),
        "prototypes": partial(OnlinePrototypes, tau=chosen["prototypes_tau"]),
    }


def run_point(settings: StreamSettings, run: Path, data: str, encoder: str, seed: int) -> dict[str, Any]:
    """All cells of one point, answered by the methods without training."""
    point = prepare(settings, run, data, encoder, seed)
    chosen = choose(point, settings, seed)
    split, cells = point.splits["test"], {}
    every = [*cells_with_people(point, settings, seed)]
    for cell, people in track(every, f"{data} {encoder} seed {seed}", len(every)):
        known = evaluate(lambda person: KnownClasses(point.knowledge, person.classes), people, split)
        found: dict[str, Evaluated] = {
            name: evaluate(_for_all(make, point), people, split)
            for name, make in methods(point, settings, chosen).items()
        }
        plain = found["original"]
        cells[cell.name] = {
            "people": len(people),
            "targets": sum(map(len, plain.flags)),
            "history": cell.history,
            "photos": photos_of(point, people, seed),
            "known": [steps[-1] for steps in known.right],
            "methods": {name: summed_up(judged, plain) for name, judged in found.items()},
        }
    return {"facts": dict(point.facts), "chosen": chosen, "cells": cells}


def study_stream(settings: StreamSettings, run: Path, seeds: Sequence[int], command: str) -> dict[str, Any]:
    """The results document; points and heads that are there are not computed again.

    Raises:
        UsageError: an unknown name.
        DataError: a photo set or weights are not there.
    """
    unknown = set(settings.heads) - set(HEADS)
    if unknown:
        raise UsageError(f"study: {', '.join(sorted(unknown))} is none of {', '.join(HEADS)}")
    points = of_all_points(settings, run, "points", run_point, seeds)
    trained = []
    for head in settings.heads:
        found = of_all_points(settings, run, f"heads/{head}", partial(run_head, head), seeds)
        for key, of in found.items():
            for seed, one, point in zip(seeds, of, points[key], strict=True):
                _merge(point, one)
                facts_of = {name: one[name] for name in ("epochs", "best_epoch", "seconds")}
                where = {"data": key[0], "encoder": key[1], "seed": seed, "head": head}
                trained.append({**where, **facts_of, **one["chosen"]})
    for key, of in of_all_points(settings, run, "ceilings", run_ceilings, seeds).items():
        for one, point in zip(of, points[key], strict=True):
            _merge(point, one)
            point["chosen"]["of_test_photos"] = one["of_test_photos"]
    facts = [
        {"data": data, "encoder": encoder, "seed": seed, **point["facts"], **point["chosen"]}
        for (data, encoder), of in points.items()
        for seed, point in zip(seeds, of, strict=True)
    ]
    rows = [row for (data, encoder), of in points.items() for row in _rows(data, encoder, of)]
    rows.sort(key=lambda row: row["gain"]["mean"] if row["method"] == "shares" else 1.0)
    costs = [cost for (data, encoder), of in points.items() for cost in _costs(settings, run, data, encoder, seeds, of)]
    more = {"rows": rows, "costs": costs, "points": facts, "heads": trained, "settings": asdict(settings.shares)}
    said = {"people": settings.people, "targets": settings.targets, "photos_per_class": settings.photos_per_class}
    return page.study_document("stream", command, seeds, intervals=OVER, **said, **more)


def _merge(point: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    """Puts methods that were judged apart beside the others of a point, cell by cell."""
    for cell, by_method in more["cells"].items():
        point["cells"][cell]["methods"] |= by_method


def _rows(data: str, encoder: str, points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for cell in points[0]["cells"]:
        found = [point["cells"][cell] for point in points if cell in point["cells"]]
        answers = Answers.of([one["photos"] for one in found])
        plain, shares = (answers.right([one["methods"][name] for one in found]) for name in ("original", "shares"))
        known = np.concatenate([one["known"] for one in found]) - answers.by_person(plain)
        for method in found[0]["methods"]:
            parts = [one["methods"][method] for one in found]
            right = answers.right(parts)
            by_seed = [
                np.mean(np.concatenate(p["flags"])) - np.mean(np.concatenate(o["methods"]["original"]["flags"]))
                for p, o in zip(parts, found, strict=True)
            ]
            row = {
                "data": data,
                "encoder": encoder,
                "cell": cell,
                "method": method,
                "people": answers.people,
                "targets": sum(one["targets"] for one in found),
                "accuracy": float(answers.by_person(right).mean()),
                "known_gain": float(known.mean()),
                "gain": {**answers.interval(right - plain), "seeds": [float(value) for value in by_seed]},
                "ece": float(np.mean([part["ece"] for part in parts])),
                "harmed": float(np.mean(np.concatenate([part["harmed"] for part in parts]))),
                "worst_tenth": worst_tenth(answers.by_person(right - plain)),
                "over_shares": answers.interval(right - shares),
                "state_bytes": max(part["state_bytes"] for part in parts),
                "history": found[0]["history"],
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


def _costs(
    settings: StreamSettings,
    run: Path,
    data: str,
    encoder: str,
    seeds: Sequence[int],
    points: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Time of the methods without training on a person of the base cell, by photo that is shown or answered.

    Measured anew whenever the document is written, interleaved, so that what else a machine did while points were
    computed has no part in it.
    """
    point = prepare(settings, run, data, encoder, seeds[0])
    [person] = point.people("test", BASE, 1, min(settings.targets, 8), seeds[0])
    split, steps = point.splits["test"], person.cases[0].steps
    photos = sum(len(observed) + len(answered) for observed, answered in steps)

    def show(make: Make) -> None:
        method = make(point.knowledge)
        for observed, answered in steps:
            for row in observed.tolist():
                method.observe(split.features[row], split.logits[row])
            for row in answered.tolist():
                method.answer(split.features[row], split.logits[row])

    made = methods(point, settings, points[0]["chosen"])
    timings = interleave({name: partial(show, make) for name, make in made.items()}, TIMED_ROUNDS, 2)
    return [
        {"data": data, "encoder": encoder, "method": name, "us_a_photo": 1e3 * timings.percentile(name, 50) / photos}
        for name in made
    ]
