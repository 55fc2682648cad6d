"""Compute the ICIIA studies: trained points, rows and the paper's orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from refocus.benchmarks.measure import bootstrap_mean
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.pairs import paired
from refocus.cloud_train.methods.iciia.block import Iciia, IciiaConfig
from refocus.cloud_train.methods.iciia.train import IciiaRecipe
from refocus.cloud_train.methods.iciia.train_gate import CONTENTS, GateRecipe
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.iciia import Run
from studies.comparisons import Order, differences, judge_orders
from studies.iciia import orders
from studies.iciia.points import (
    TEST_CLIENTS,
    Bench,
    Point,
    accuracy_of,
    at_best_rate,
    compare,
    first_clients,
    seconds_of,
    shares,
    targets_of,
    train_best,
    train_point,
)
from studies.iciia.rivals import LABELLED, best_rate, labelled_points, shares_point

Results = Sequence[dict[str, Any]]  # of one point, a row per seed
Found = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # rows of a study, and the paper's orders
SHARES = "class shares"


@dataclass(frozen=True)
class Axes:
    """Values that a study tries.

    Attributes:
        ratios: heterogeneity levels.
        partitions: P.
        layers: N; the block's own needs no mention.
        heads: H.
        rates: learning rates to choose from; none leaves that of the recipe.
    """

    ratios: Sequence[float] = (0, 0.25, 0.5, 0.75, 1)
    partitions: Sequence[int] = (1, 16, 256)
    layers: Sequence[int] = ()
    heads: Sequence[int] = (1, 2, 4, 8)
    rates: Sequence[float] = ()


def heterogeneity(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], axes: Axes) -> Found:
    """Train and evaluate at each level of heterogeneity (Fig. 6).

    At level 0 no client's photos have anything in common. Learning rates are chosen at level 1, and are the same at all
    levels.
    """
    big, tiny = (at_best_rate(bench, point, seeds[0], axes.rates) for point in _both(iciia, recipe))
    tiny = replace(tiny, gated=True)
    rates = {name: best_rate(bench, name, seeds[0], axes.rates) for name in LABELLED}
    rows, levels = [], {}
    for ratio in axes.ratios:
        trained = [
            [train_point(bench, replace(point, heterogeneity=ratio), seed) for seed in seeds] for point in (big, tiny)
        ]
        results = {
            SHARES: [shares_point(bench, ratio)],
            orders.ICIIA_B: trained[0],
            orders.ICIIA_T: trained[1],
            **{name: labelled_points(bench, name, seeds, rate, ratio) for name, rate in rates.items()},
        }
        methods = [
            {"name": name, "accuracy": accuracy_of(found, "personal"), "gain": compare(found, "personal")}
            for name, found in results.items()
        ]
        delivered = {"accuracy": accuracy_of(trained[1], "delivered"), "gain": compare(trained[1], "delivered")}
        methods.insert(3, {"name": "ICIIA-T, gated", **delivered})
        rows.append(
            {
                "name": f"{ratio:g}",
                "original": accuracy_of(trained[1], "plain"),
                "methods": methods,
                "seconds": sum(seconds_of(found) for found in results.values()),
            }
        )
        levels[ratio] = results
    return rows, _orders_of_levels(levels)


def _both(iciia: IciiaConfig, recipe: IciiaRecipe) -> list[Point]:
    """Return the points of ICIIA-B and ICIIA-T."""
    return [Point(orders.ICIIA_B, replace(iciia, partitions=1), recipe), Point(orders.ICIIA_T, iciia, recipe)]


def _orders_of_levels(levels: Mapping[float, Mapping[str, Results]]) -> list[dict[str, Any]]:
    """Compare levels (Fig. 6): gains grow with the level; ICIIA-B is best.

    ICIIA-B is compared with the labelled baselines at the highest level.
    """
    low, high = min(levels), max(levels)
    highest, lowest = levels[high], levels[low]
    sizes = np.array(highest[orders.ICIIA_B][0]["targets"])
    ahead = {name: shares(found, "personal") for name, found in highest.items() if name != SHARES}
    asked = [(orders.ICIIA_B, other, f"Fig. 6, level {high:g}") for other in LABELLED]
    gains = {}
    for name in ahead:
        for level, found in ((high, highest[name]), (low, lowest[name])):
            if found[0]["targets"] == sizes.tolist():
                gains[_at(name, level)] = differences(shares(found, "personal"), shares(found, "plain"))
    grown = [(_at(name, high), _at(name, low), "Fig. 6") for name in ahead] if high > low else []
    return judge_orders([*asked, *grown], {**ahead, **gains}, sizes)


def _at(name: str, level: float) -> str:
    return f"gain of {name} at level {level:g}"


def blocks(bench: Bench, points: Sequence[Point], seeds: Sequence[int], axes: Axes, asked: Sequence[Order]) -> Found:
    """Train points that differ only in the block (Figs. 7, 8; Table 4).

    They also serve appendix A.
    """
    found = {point.name: train_best(bench, point, seeds, axes.rates) for point in points}
    first = next(iter(found.values()))
    right = {orders.ORIGINAL: shares(first, "plain")} | {name: shares(one, "personal") for name, one in found.items()}
    rows = [_block_row(point, found[point.name], axes.rates) for point in points]
    return rows, judge_orders(asked, right, np.array(first[0]["targets"]))


def _block_row(point: Point, results: Results, rates: Sequence[float]) -> dict[str, Any]:
    return {
        "name": point.name,
        "layers": point.iciia.layers,
        "partitions": point.iciia.partitions,
        "heads": point.iciia.heads,
        "shuffle": point.iciia.shuffle,
        "attention": point.iciia.attention,
        "parameters": sum(p.numel() for p in Iciia(point.iciia).parameters()),
        "original": accuracy_of(results, "plain"),
        "accuracy": accuracy_of(results, "personal"),
        "gain": compare(results, "personal"),
        **({"learning_rate": results[0]["learning_rate"]} if rates else {}),
        "seconds": seconds_of(results),
    }


def shuffling(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], axes: Axes) -> Found:
    """Compare the block with and without shuffling on the same targets.

    Each is trained at its best learning rate.
    """
    found: list[Results] = []
    rows = []
    for name, shuffle in (("shuffled", True), ("not shuffled", False)):
        point = Point(name, replace(iciia, shuffle=shuffle), recipe)
        found.append(train_best(bench, point, seeds, axes.rates))
        over = differences(shares(found[-1], "personal"), shares(found[0], "personal"))
        row = _block_row(point, found[-1], axes.rates)
        rows.append(row | {"over_shuffled": paired(over, np.array(found[0][0]["targets"]))})
    return rows, []


def partition_points(iciia: IciiaConfig, recipe: IciiaRecipe, axes: Axes) -> list[Point]:
    """Return the points with other P, other N, and without shuffling.

    Each P is combined with the block's own N, with and without shuffling, and each other N with the block's own P.
    Shuffling changes nothing with one partition or with partitions of one number each; both are left out.
    """
    points = []
    for p in axes.partitions:
        for shuffle in (True, False) if 1 < p < iciia.width else (True,):
            config = replace(iciia, partitions=p, shuffle=shuffle)
            points.append(Point(f"N={iciia.layers}, P={p}{'' if shuffle else ', not shuffled'}", config, recipe))
    others = [n for n in axes.layers if n != iciia.layers]
    return points + [Point(f"N={n}, P={iciia.partitions}", replace(iciia, layers=n), recipe) for n in others]


def head_points(iciia: IciiaConfig, recipe: IciiaRecipe, axes: Axes) -> list[Point]:
    """Return a point for each number of attention heads."""
    return [Point(f"H={heads}", replace(iciia, heads=heads), recipe) for heads in axes.heads]


def ablation_points(iciia: IciiaConfig, recipe: IciiaRecipe) -> list[Point]:
    """Return the points of Table 4, each after the full block it reduces."""
    big, tiny = replace(iciia, partitions=1), iciia
    return [
        Point(orders.ICIIA_B, big, recipe),
        Point(orders.NO_ATTENTION, replace(big, attention="none"), recipe),
        Point(orders.ICIIA_T, tiny, recipe),
        Point(orders.NO_PROJECTION, replace(tiny, attention="alone"), recipe),
        Point(orders.NO_SHUFFLING, replace(tiny, shuffle=False), recipe),
    ]


def baselines(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], axes: Axes) -> Found:
    """Compare labelled baselines and ICIIA on the same targets (Table 3).

    ICIIA and class shares are given no label.
    """
    results: dict[str, Results] = {SHARES: [shares_point(bench)]}
    results |= {point.name: train_best(bench, point, seeds, axes.rates) for point in _both(iciia, recipe)}
    for name in LABELLED:
        results[name] = labelled_points(bench, name, seeds, best_rate(bench, name, seeds[0], axes.rates))
    tiny = results[orders.ICIIA_T]
    rows: list[dict[str, Any]] = [{"name": orders.ORIGINAL, "accuracy": accuracy_of(tiny, "plain"), "labels": 0}]
    rows += [
        {
            "name": name,
            "accuracy": accuracy_of(found, "personal"),
            "gain": compare(found, "personal"),
            "labels": found[0].get("labels", 0),
            "learning_rate": found[0].get("learning_rate"),
            "seconds": seconds_of(found),
        }
        for name, found in results.items()
    ]
    right = {orders.ORIGINAL: shares(tiny, "plain")}
    right |= {name: shares(found, "personal") for name, found in results.items() if name != SHARES}
    return rows, judge_orders(orders.BASELINES, right, np.array(tiny[0]["targets"]))


def gates(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], axes: Axes) -> Found:
    """Compare gating methods on own, mixed and foreign histories.

    They keep an answer from being worse than the photo alone; all history lengths are evaluated.
    """
    careful = replace(recipe, mixed=0.5, vary_history=True)

    def idea(answer: str, gated: bool = True, recipe: IciiaRecipe = recipe, **config: Any) -> tuple[Point, str]:
        return Point("", replace(iciia, **config), recipe, gated=gated, contents=CONTENTS), answer

    ideas = {
        "ICIIA alone": idea("personal"),
        "fixed warm-up": idea("warm_up"),
        "gate on statistics": idea("delivered"),
        "half of the training mixed": idea("personal", gated=False, recipe=careful),
        "residual on the plain logits": idea("personal", gated=False, recipe=careful, classifier="residual"),
        "residual, gated": idea("delivered", classifier="residual"),
        "shared classifier": idea("personal", classifier="shared"),
        "shared classifier, gated": idea("delivered", classifier="shared"),
    }
    rows = []
    for name, (point, answer) in ideas.items():
        points = [train_point(bench, point, seed) for seed in seeds]
        rows.append({"name": name, **_by_content(points, answer), "seconds": seconds_of(points)})
    return rows, []


def streaming(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], axes: Axes) -> Found:
    """Compare full and causal attention, each with own or plain classifier.

    All are evaluated behind their gate. A causal step takes fewer windows, because its windows are longer: the number
    of photos per step and the number of steps are equal.
    """
    causal = replace(recipe, windows_per_step=max(1, round(recipe.windows_per_step * iciia.window / recipe.stream)))
    forms = {"full attention": ("full", recipe), "streaming": ("causal", causal)}
    reference, rows = None, []
    for name, (attention, steps) in forms.items():
        for classifier in ("own", "shared"):
            config = replace(iciia, attention=attention, classifier=classifier)  # type: ignore[arg-type]
            point = Point("", config, steps, gated=True, contents=CONTENTS)
            points = [train_point(bench, point, seed) for seed in seeds]
            reference = reference or points
            longest = max(int(k) for k in points[0]["right"]["own"])
            both = (shares(some, "delivered", length=longest) for some in (points, reference))
            row = {
                "name": f"{name}, {classifier} classifier",
                **_by_content(points, "delivered"),
                "ungated": compare(points, "personal"),
                "over_full": paired(differences(*both), np.array(points[0]["targets"])),
                "seconds": seconds_of(points),
            }
            rows.append(row)
    return rows, []


def _by_content(points: Sequence[dict[str, Any]], answer: str) -> dict[str, Any]:
    """Compute gains over the plain classifier by kind of history.

    The gain on own histories is by length; that on other histories is pooled over all lengths.
    """
    lengths = [int(k) for k in points[0]["right"]["own"]]
    own = {str(k): compare(points, answer, k) for k in lengths}
    sizes, pooled = np.array(points[0]["targets"]), {}
    for content in ("mixed", "foreign"):
        answers = [(shares(points, answer, content, k), shares(points, "plain", content, k)) for k in lengths]
        rows = [row for one, plain in answers for row in differences(one, plain)]
        pooled[content] = bootstrap_mean(np.mean(rows, axis=0), sizes).as_dict()
    return {"own": own, **pooled}


def document(
    bench: Bench,
    study: str,
    iciia: IciiaConfig,
    found: Found,
    seeds: Sequence[int],
    recipe: IciiaRecipe,
    command: str,
) -> dict[str, Any]:
    """Build the study's results document (``docs/results-format.md``)."""
    test, config = first_clients(bench.split("test"), TEST_CLIENTS), bench.run.config
    targets, clients = targets_of(test, bench.targets_per_client, bench.history)
    people = {"test_clients": len(np.unique(clients)), "targets": len(targets), **bench.run.kind_of_people()}
    rows, judged = found
    return page.study_document(
        study,
        command,
        seeds,
        data=page.data_of(config.data.source, bench.run.table, **people),
        backbone=bench.run.backbone_name,
        history=bench.history,
        block={"layers": iciia.layers, "partitions": iciia.partitions, "heads": iciia.heads},
        recipe={k: v for k, v in asdict(recipe).items() if k != "seed"},
        rows=rows,
        **({"orders": judged} if judged else {}),
    )


Study = Callable[[Bench, IciiaConfig, IciiaRecipe, Sequence[int], Axes], Found]


def _partitions(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], axes: Axes) -> Found:
    asked = orders.partitions(iciia.layers, axes.partitions, iciia.width, iciia.partitions)
    return blocks(bench, partition_points(iciia, recipe, axes), seeds, axes, asked)


def _heads(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], axes: Axes) -> Found:
    return blocks(bench, head_points(iciia, recipe, axes), seeds, axes, orders.heads(axes.heads))


def _ablations(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], axes: Axes) -> Found:
    return blocks(bench, ablation_points(iciia, recipe), seeds, axes, orders.ABLATIONS)


STUDIES: dict[str, Study] = {
    "heterogeneity": heterogeneity,
    "partitions": _partitions,
    "heads": _heads,
    "ablations": _ablations,
    "shuffling": shuffling,
    "baselines": baselines,
    "gates": gates,
    "streaming": streaming,
}


def run_study(
    run: Run,
    study: str,
    iciia: IciiaConfig,
    recipe: IciiaRecipe,
    seeds: Sequence[int],
    command: str,
    targets_per_client: int = 8,
    axes: Axes | None = None,
    gate_windows: int = GateRecipe.windows,
) -> dict[str, Any]:
    """Run one study and return its document.

    Raises:
        UsageError: no study has that name.
    """
    if study not in STUDIES:
        raise UsageError(f"python -m studies {study}: expected one of {', '.join(STUDIES)}, memories")
    bench = Bench.open(run, targets_per_client, gate_windows)
    found = STUDIES[study](bench, iciia, recipe, seeds, axes or Axes())
    say(f"{study}: {len(found[0])} rows over seeds {', '.join(map(str, seeds))}")
    return document(bench, study, iciia, found, seeds, recipe, command)
