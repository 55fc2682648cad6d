"""The studies of the ICIIA paper, and the gate's own, on a run's features: many small trainings, each judged alike.

    heterogeneity   Fig. 6: how different the clients are, with and without the gate
    partitions      Figs. 7 and 8: P and N, with and without shuffling
    ablations       Table 4: what each ingredient is worth
    shuffling       the one of these that the shipped head could do without, and is asked about
    baselines       Table 3: against methods that are given labels on the device
    gates           what keeps an answer from being worse than the photo alone
    streaming       what looking back only, and one classifier instead of two, cost against full attention

A point is one training and what it scored. Points are kept under ``RUN/studies/points``, named by a hash of everything
that decides them, so an interrupted study resumes, and studies share what they have in common. All are
computed in PyTorch on stored features; that exported bundles say the same is proved by every export.

Targets are photos of the second half of each test client's stream, the same in every point; the labelled baselines get
the labels of the first half.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from refocus.benchmarks.measure import bootstrap_mean
from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.iciia.block import Iciia, IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, mix
from refocus.cloud_train.methods.iciia.labelled_baselines import (
    Split,
    fine_tuning,
    prompt_tuning,
    right_share,
    split_labelled,
)
from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe, choose_warm_up, right_by_history, train_iciia
from refocus.cloud_train.methods.iciia.train_gate import (
    CONTENTS,
    GateRecipe,
    answer_windows,
    draw_windows,
    fit_traits,
    train_gate,
)
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import once
from refocus.cloud_train.runs.iciia import Prepared, Run, usable_lengths
from refocus.cloud_train.studies import page

POINT_SCHEMA = 2  # 2: validation accuracy and learning rate are kept
TEST_CLIENTS = 120  # at most; a study has many points
HISTORY = 15


@dataclass(frozen=True)
class Point:
    """One training of a study.

    Attributes:
        name: in the results.
        iciia, recipe: what is trained, and how; the seed is replaced.
        heterogeneity: share of the clients, in training and in judging, whose photos have something in common.
        gated: also train a gate, and judge what would be delivered.
        contents: what stands before a target: "own", "mixed" or "foreign" photos.
    """

    name: str
    iciia: IciiaConfig
    recipe: IciiaRecipe
    heterogeneity: float = 1.0
    gated: bool = False
    contents: tuple[str, ...] = ("own",)


@dataclass
class Bench:
    """A prepared run with what all its points share.

    Attributes:
        targets_per_client: at most.
        windows: examples that each gate is trained on.
    """

    run: Run
    prepared: Prepared
    targets_per_client: int
    windows: int
    _traits: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def open(cls, run: Run, targets_per_client: int, windows: int = GateRecipe.windows) -> Bench:
        return cls(run, run.prepare(Devices(accelerator="cpu").launch()), targets_per_client, windows)

    def split(self, name: str, heterogeneity: float = 1.0) -> FeatureCache:
        bank = self.prepared.bank.of_split(name)
        return bank if heterogeneity == 1 else bank.mixed(heterogeneity, seed=self.run.config.data.seed)

    def traits(self) -> tuple[Tensor, Tensor, Tensor]:
        """Fitted once: they depend on the training clients alone."""
        if not self._traits:
            self._traits.append(fit_traits(self.split("train")))
        return self._traits[0]

    def once(self, what: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A point's result, computed once, with what decides it under "about"."""
        about = {
            **what,
            "data": self.prepared.bank.key,
            "clients": self.prepared.bank.table.fingerprint(),
            "targets_per_client": self.targets_per_client,
            "schema": POINT_SCHEMA,
        }
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
        path = self.run.folder / "studies" / "points" / f"{key}.json"
        return once(path, lambda: {**compute(), "about": about})


def targets_of(bank: FeatureCache, per_client: int, history: int = HISTORY) -> tuple[np.ndarray, np.ndarray]:
    """Targets in the second half of each client's stream, with the photos before them.

    Returns:
        rows (n, history + 1), the target last, and the number of each target's client (n,).

    Raises:
        DataError: no client has more than ``history`` photos.
    """
    rows, clients = [], []
    for number, (_, stream) in enumerate(bank.table.clients()):
        first = max(history, (len(stream) + 1) // 2)
        for position in (
            sorted({int(p) for p in np.linspace(first, len(stream) - 1, per_client)}) if first < len(stream) else ()
        ):
            rows.append(stream[position - history : position + 1])
            clients.append(number)
    if not rows:
        raise DataError(f"no test client has more than {history} photos in front of a target")
    return np.stack(rows), np.array(clients)


def train_point(bench: Bench, point: Point, seed: int) -> dict[str, Any]:
    """Trains one point with one seed and judges it, or finds it on disk.

    Returns:
        ``right``: by content, history length and answer ("plain", "personal", "delivered"), the share of right answers
        of each client; ``targets``: of each client; ``seconds``.
    """
    recipe = replace(point.recipe, seed=seed)
    gate = GateRecipe(seed=seed, windows=bench.windows) if point.gated else None
    about = {
        "iciia": asdict(point.iciia),
        "recipe": asdict(recipe),
        "heterogeneity": point.heterogeneity,
        "gate": gate and gate.as_dict(),
        "contents": list(point.contents),
    }
    return bench.once(about, lambda: _train_and_evaluate(bench, point, recipe, gate))


def _train_and_evaluate(bench: Bench, point: Point, recipe: IciiaRecipe, gate: GateRecipe | None) -> dict[str, Any]:
    started = time.monotonic()
    plain, level = bench.prepared.plain, point.heterogeneity
    train, validation = bench.split("train", level), bench.split("validation", level)
    trained = train_iciia(train, validation, point.iciia, recipe, plain=plain)
    trained_gate = None
    if gate is not None:
        trained_gate = train_gate(bench.split("train"), bench.split("gate"), plain, trained.model, gate, bench.traits())
    test = first_clients(bench.split("test", level), TEST_CLIENTS)
    lengths = usable_lengths(test.table, point.iciia)
    right, targets = evaluate_contents(
        plain, trained.model, trained_gate, test, point.contents, lengths, bench.targets_per_client
    )
    by_history = right_by_history(trained.model, plain, validation, usable_lengths(validation.table, point.iciia))
    warm_up = choose_warm_up(by_history, point.iciia.receptive_field)
    return {
        "right": right,
        "targets": targets,
        "epoch": trained.best_epoch,
        "warm_up": warm_up,
        "validation": trained.validation[trained.best_epoch],
        "learning_rate": recipe.learning_rate,
        "seconds": round(time.monotonic() - started, 1),
    }


def train_best(bench: Bench, point: Point, seeds: Sequence[int], rates: Sequence[float] = ()) -> list[dict[str, Any]]:
    """A point over seeds, with the learning rate that is best for it on the validation clients.

    Args:
        rates: to choose from; none leaves that of the point's recipe.
    """
    if not rates:
        return [train_point(bench, point, seed) for seed in seeds]
    tried = [
        [train_point(bench, replace(point, recipe=replace(point.recipe, learning_rate=rate)), seed) for seed in seeds]
        for rate in rates
    ]
    return max(tried, key=lambda results: float(np.mean([result["validation"] for result in results])))


def first_clients(bank: FeatureCache, most: int) -> FeatureCache:
    """At most that many clients of a bank, spread over their names."""
    names = np.unique(bank.table.client)
    if len(names) <= most:
        return bank
    chosen = names[np.linspace(0, len(names) - 1, most).astype(int)]
    return bank.rows(np.isin(bank.table.client, chosen))


@torch.no_grad()
def evaluate_contents(
    plain: nn.Linear,
    personal: IciiaClassifier,
    gate: StatisticsGate | None,
    bank: FeatureCache,
    contents: Sequence[str],
    lengths: Sequence[int],
    per_client: int,
) -> tuple[dict[str, Any], list[int]]:
    """Share of right answers of each client, by content, history length and answer; and the targets of each client."""
    rows, clients = targets_of(bank, per_client, max(lengths))
    sizes = np.bincount(clients)
    used = gate or StatisticsGate(bank.features.shape[1])
    right: dict[str, Any] = {}
    for content in contents:
        windows = rows if content == "own" else with_other_past(bank, rows, content)
        right[content] = {}
        for length in lengths:
            both = answer_windows(plain, personal, used, bank, windows, np.full(len(windows), length))
            answers = {"plain": both.plain, "personal": both.personal}
            if gate is not None:
                answers["delivered"] = mix(both.plain, both.personal, gate.trust(both.statistics, both.valid))
            right[content][str(length)] = {
                name: _per_client(logits, both.labels, clients, sizes) for name, logits in answers.items()
            }
    return right, sizes.tolist()


def _per_client(logits: Tensor, labels: Tensor, clients: np.ndarray, sizes: np.ndarray) -> list[float]:
    right = (logits.argmax(-1) == labels).numpy().astype(np.float64)
    return [round(value, 6) for value in (np.bincount(clients, weights=right) / sizes).tolist()]


def with_other_past(bank: FeatureCache, rows: np.ndarray, content: str) -> np.ndarray:
    """The same targets behind photos that are not their person's."""
    drawn = draw_windows(bank.table, content, rows.shape[1] - 1, 1, np.random.default_rng(0))
    home = {str(bank.table.client[window[-1]]): window[:-1] for window in drawn}
    return np.stack([np.append(home[str(bank.table.client[row[-1]])], row[-1]) for row in rows])


Difference = dict[str, Any]


def shares(
    points: Sequence[dict[str, Any]], answer: str, content: str = "own", length: int | None = None
) -> list[np.ndarray]:
    """Share of right answers of each client, (clients,), a row per seed; by default behind the longest history.

    "warm_up" is ICIIA's answer behind the count that would have been chosen for it, before that the plain one.
    """
    length = length if length is not None else max(int(k) for k in points[0]["right"][content])

    def of(point: dict[str, Any]) -> np.ndarray:
        name = answer if answer != "warm_up" else "personal" if length >= point["warm_up"] else "plain"
        return np.array(point["right"][content][str(length)][name])

    return [of(point) for point in points]


def paired(rows: Sequence[np.ndarray], sizes: np.ndarray) -> Difference:
    """A paired difference from that of each client, a row per seed; clients count by their targets, (clients,)."""
    interval = bootstrap_mean(np.mean(rows, axis=0), sizes)
    return {**interval.as_dict(), "seeds": [float(np.average(row, weights=sizes)) for row in rows]}


def differences(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [a - b for a, b in zip(one, other, strict=True)]


def compare(points: Sequence[dict[str, Any]], answer: str, length: int | None = None) -> Difference:
    """Paired difference of an answer to the plain one over seeds, with its 95 % interval over clients."""
    rows = differences(shares(points, answer, length=length), shares(points, "plain", length=length))
    return paired(rows, np.array(points[0]["targets"]))


def accuracy_of(points: Sequence[dict[str, Any]], answer: str) -> float:
    """Mean accuracy over seeds after the longest history, with equal weight per target photo."""
    return float(np.mean([np.average(row, weights=points[0]["targets"]) for row in shares(points, answer)]))


def heterogeneity(
    bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], ratios: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Fig. 6: trained and judged at each level; at 0 nobody's photos have anything in common."""
    for ratio in ratios:
        point = Point(f"heterogeneity {ratio:g}", iciia, recipe, heterogeneity=ratio, gated=True)
        points = [train_point(bench, point, seed) for seed in seeds]
        yield {
            "name": f"{ratio:g}",
            "original": accuracy_of(points, "plain"),
            "ungated": accuracy_of(points, "personal"),
            "delivered": accuracy_of(points, "delivered"),
            "ungated_gain": compare(points, "personal"),
            "delivered_gain": compare(points, "delivered"),
            "seconds": _seconds(points),
        }


def blocks(
    bench: Bench, points: Sequence[Point], seeds: Sequence[int], rates: Sequence[float] = ()
) -> Iterator[dict[str, Any]]:
    """Points that differ in the block alone: Figs. 7 and 8, Table 4."""
    for point in points:
        yield _block_row(point, train_best(bench, point, seeds, rates), rates)


def _block_row(point: Point, results: Sequence[dict[str, Any]], rates: Sequence[float]) -> dict[str, Any]:
    return {
        "name": point.name,
        "layers": point.iciia.layers,
        "partitions": point.iciia.partitions,
        "shuffle": point.iciia.shuffle,
        "attention": point.iciia.attention,
        "parameters": sum(p.numel() for p in Iciia(point.iciia).parameters()),
        "original": accuracy_of(results, "plain"),
        "accuracy": accuracy_of(results, "personal"),
        "gain": compare(results, "personal"),
        **({"learning_rate": results[0]["learning_rate"]} if rates else {}),
        "seconds": _seconds(results),
    }


def shuffling(
    bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], rates: Sequence[float] = ()
) -> Iterator[dict[str, Any]]:
    """The block with and without shuffling, paired on the same targets; each with the rate that is best for it."""
    found: list[Sequence[dict[str, Any]]] = []
    for name, shuffle in (("shuffled", True), ("not shuffled", False)):
        point = Point(name, replace(iciia, shuffle=shuffle), recipe)
        found.append(train_best(bench, point, seeds, rates))
        over = differences(shares(found[-1], "personal"), shares(found[0], "personal"))
        row = _block_row(point, found[-1], rates)
        yield row | {"over_shuffled": paired(over, np.array(found[0][0]["targets"]))}


def partition_points(
    iciia: IciiaConfig, recipe: IciiaRecipe, partitions: Sequence[int], layers: Sequence[int]
) -> Iterator[Point]:
    """Each P at the block's own N with and without shuffling, and each other N at the block's own P.

    Shuffling one partition, or partitions of one number each, changes nothing; both are left out.
    """
    for p in partitions:
        for shuffle in (True, False) if 1 < p < iciia.width else (True,):
            config = replace(iciia, partitions=p, shuffle=shuffle)
            yield Point(f"N={iciia.layers}, P={p}{'' if shuffle else ', not shuffled'}", config, recipe)
    for n in layers:
        if n != iciia.layers:
            yield Point(f"N={n}, P={iciia.partitions}", replace(iciia, layers=n), recipe)


def ablation_points(iciia: IciiaConfig, recipe: IciiaRecipe) -> list[Point]:
    """Table 4, each beside what it was taken from."""
    big, tiny = replace(iciia, partitions=1), iciia
    return [
        Point("ICIIA-B", big, recipe),
        Point("ICIIA-B - attention", replace(big, attention="none"), recipe),
        Point("ICIIA-T", tiny, recipe),
        Point("ICIIA-T - projection", replace(tiny, partitions=tiny.width), recipe),
        Point("ICIIA-T - shuffling", replace(tiny, shuffle=False), recipe),
    ]


def baselines(
    bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int], rates: Sequence[float] = ()
) -> Iterator[dict[str, Any]]:
    """Table 3: the labelled baselines and ICIIA on the same targets; ICIIA is given no label on the device."""
    points = [Point("ICIIA-B", replace(iciia, partitions=1), recipe), Point("ICIIA-T", iciia, recipe)]
    by_method = {point.name: train_best(bench, point, seeds, rates) for point in points}
    for name, train in (("fine-tuning", fine_tuning), ("prompt tuning", prompt_tuning)):
        by_method[name] = [_labelled_point(bench, name, train, seed) for seed in seeds]
    yield {"name": "original", "accuracy": accuracy_of(by_method["ICIIA-T"], "plain"), "labels": 0}
    for name, results in by_method.items():
        labels = results[0].get("labels", 0)
        yield {
            "name": name,
            "accuracy": accuracy_of(results, "personal"),
            "gain": compare(results, "personal"),
            "labels": labels,
            "seconds": _seconds(results),
        }


def _labelled_point(bench: Bench, name: str, train: Callable[..., dict[str, float]], seed: int) -> dict[str, Any]:
    def compute() -> dict[str, Any]:
        started, test = time.monotonic(), first_clients(bench.split("test"), TEST_CLIENTS)
        windows, clients = targets_of(test, bench.targets_per_client)
        parts: dict[str, Split] = {}
        for number, (client, (labelled, _)) in enumerate(split_labelled(test).items()):
            judged = windows[clients == number, -1]
            if len(judged):
                parts[client] = labelled, judged
        plain = bench.prepared.plain
        alone = {client: right_share(plain, test, judged) for client, (_, judged) in parts.items()}
        right = train(test, plain, parts, seed=seed)
        answers = {"plain": [alone[c] for c in parts], "personal": [right[c] for c in parts]}
        return {
            "right": {"own": {str(HISTORY): answers}},
            "targets": [len(judged) for _, judged in parts.values()],
            "labels": float(np.mean([len(labelled) for labelled, _ in parts.values()])),
            "seconds": round(time.monotonic() - started, 1),
        }

    return bench.once({"baseline": name, "seed": seed}, compute)


def gates(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Ideas for never being worse, on one's own, mixed and foreign histories of every length."""
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
    for name, (point, answer) in ideas.items():
        points = [train_point(bench, point, seed) for seed in seeds]
        yield {"name": name, **_by_content(points, answer), "seconds": _seconds(points)}


def streaming(bench: Bench, iciia: IciiaConfig, recipe: IciiaRecipe, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Full and causal attention, each with a classifier of its own and with the plain one; all behind their gate.

    A causal step takes fewer windows, because its windows are longer: as many photos a step, as many steps.
    """
    causal = replace(recipe, windows_per_step=max(1, round(recipe.windows_per_step * iciia.window / recipe.stream)))
    forms = {"full attention": ("full", recipe), "streaming": ("causal", causal)}
    reference = None
    for name, (attention, steps) in forms.items():
        for classifier in ("own", "shared"):
            config = replace(iciia, attention=attention, classifier=classifier)  # type: ignore[arg-type]
            point = Point("", config, steps, gated=True, contents=CONTENTS)
            points = [train_point(bench, point, seed) for seed in seeds]
            reference = reference or points
            longest = max(int(k) for k in points[0]["right"]["own"])
            both = (shares(some, "delivered", length=longest) for some in (points, reference))
            yield {
                "name": f"{name}, {classifier} classifier",
                **_by_content(points, "delivered"),
                "ungated": compare(points, "personal"),
                "over_full": paired(differences(*both), np.array(points[0]["targets"])),
                "seconds": _seconds(points),
            }


def _by_content(points: Sequence[dict[str, Any]], answer: str) -> dict[str, Any]:
    """Gains over the plain classifier: on one's own history by length, on the others with all lengths pooled."""
    lengths = [int(k) for k in points[0]["right"]["own"]]
    own = {str(k): compare(points, answer, k) for k in lengths}
    sizes, pooled = np.array(points[0]["targets"]), {}
    for content in ("mixed", "foreign"):
        answers = [(shares(points, answer, content, k), shares(points, "plain", content, k)) for k in lengths]
        rows = [row for one, plain in answers for row in differences(one, plain)]
        pooled[content] = bootstrap_mean(np.mean(rows, axis=0), sizes).as_dict()
    return {"own": own, **pooled}


def _seconds(points: Sequence[dict[str, Any]]) -> float:
    return round(sum(point["seconds"] for point in points), 1)


def document(
    bench: Bench, study: str, rows: list[dict[str, Any]], seeds: Sequence[int], recipe: IciiaRecipe, command: str
) -> dict[str, Any]:
    """The study's results document (``docs/results-format.md``)."""
    test, config = first_clients(bench.split("test"), TEST_CLIENTS), bench.run.config
    targets, clients = targets_of(test, bench.targets_per_client)
    people = {"test_clients": len(np.unique(clients)), "targets": len(targets)}
    return page.study_document(
        study,
        command,
        seeds,
        data=page.data_of(config.data.source, bench.run.table, **people),
        backbone=bench.run.backbone_name,
        history=HISTORY,
        recipe={k: v for k, v in asdict(recipe).items() if k != "seed"},
        rows=rows,
    )


def run_study(
    run: Run,
    study: str,
    iciia: IciiaConfig,
    recipe: IciiaRecipe,
    seeds: Sequence[int],
    command: str,
    targets_per_client: int = 8,
    ratios: Sequence[float] = (0, 0.25, 0.5, 0.75, 1),
    partitions: Sequence[int] = (1, 16, 256),
    layers: Sequence[int] = (),
    gate_windows: int = GateRecipe.windows,
    rates: Sequence[float] = (),
) -> dict[str, Any]:
    """Runs one study and returns its document.

    Args:
        rates: learning rates, of which each point of "partitions", "ablations", "shuffling" and "baselines" takes the
            one that is best for it on the validation clients; none leaves that of the recipe.

    Raises:
        UsageError: no study of that name.
    """
    bench = Bench.open(run, targets_per_client, gate_windows)
    studies: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "heterogeneity": lambda: heterogeneity(bench, iciia, recipe, seeds, ratios),
        "partitions": lambda: blocks(bench, [*partition_points(iciia, recipe, partitions, layers)], seeds, rates),
        "ablations": lambda: blocks(bench, ablation_points(iciia, recipe), seeds, rates),
        "shuffling": lambda: shuffling(bench, iciia, recipe, seeds, rates),
        "baselines": lambda: baselines(bench, iciia, recipe, seeds, rates),
        "gates": lambda: gates(bench, iciia, recipe, seeds),
        "streaming": lambda: streaming(bench, iciia, recipe, seeds),
    }
    if study not in studies:
        raise UsageError(f"refocus study {study}: expected one of {', '.join(studies)}, memories")
    rows = [*studies[study]()]
    say(f"{study}: {len(rows)} rows over seeds {', '.join(map(str, seeds))}")
    return document(bench, study, rows, seeds, recipe, command)


# ---- how the studies are shown


def heterogeneity_plot(document: page.Document) -> bytes:
    """PNG like Fig. 6."""
    figure, axes = page.new_figure()
    levels = [float(row["name"]) for row in document["rows"]]
    lines = {
        "original": ("original backbone", page.GREY),
        "ungated": ("ICIIA-T alone", page.BLUE),
        "delivered": ("delivered (gated)", page.GREEN),
    }
    for key, (name, colour) in lines.items():
        axes.plot(levels, [100 * row[key] for row in document["rows"]], "o-", ms=4, color=colour, label=name)
    return page.accuracy_png(figure, axes, "share of clients whose photos have something in common")


def partitions_plot(document: page.Document) -> bytes:
    """PNG like Figs. 7 and 8."""
    figure, axes = page.new_figure()
    first = document["rows"][0]["layers"]
    for shuffle, style in ((True, "o-"), (False, "s--")):
        rows = [row for row in document["rows"] if row["layers"] == first and row["shuffle"] == shuffle]
        accuracies, name = [100 * row["accuracy"] for row in rows], f"N={first}, {'' if shuffle else 'not '}shuffled"
        axes.plot([row["partitions"] for row in rows], accuracies, style, ms=4, label=name)
    for row in document["rows"]:
        if row["layers"] != first:
            axes.plot([row["partitions"]], [100 * row["accuracy"]], "^", label=row["name"])
    axes.axhline(100 * document["rows"][0]["original"], color=page.GREY, lw=1, label="original backbone")
    axes.set_xscale("log", base=2)
    return page.accuracy_png(figure, axes, "partitions P")


def _own(length: str) -> Callable[[page.Row], str]:
    return lambda row: f"{100 * row['own'][length]['mean']:+.1f}"


def _by_history(document: page.Document) -> page.Columns:
    """Gains by what stands before the photo."""
    lengths = list(document["rows"][0]["own"])
    return {
        "": page.text("name"),
        **{f"own, {length}": _own(length) for length in lengths},
        "mixed, pooled": page.gain("mixed"),
        "foreign, pooled": page.gain("foreign"),
        **({f"against the first, {lengths[-1]}": page.gain("over_full")} if document["study"] == "streaming" else {}),
    }


def _about_shuffling(document: page.Document) -> str:
    shuffled, plain = document["rows"]
    over, recipe = plain["over_shuffled"], document["recipe"]
    if over["low"] > 0:
        verdict = "is better without shuffling"
    elif over["high"] < 0:
        verdict = "is better with shuffling"
    else:
        verdict = "is neither better nor worse without shuffling, as far as these people tell"
    return (
        f"The block {verdict}: {page.short_points(over)} points. {shuffled['layers']} layers of"
        f" {shuffled['partitions']} partitions, at most {recipe['epochs']} epochs; the same target photos of"
        f" {document['data']['test_clients']} clients; {page.seeds_line(document)}."
    )


_BLOCKS = {
    "block": page.text("name"),
    "parameters": lambda row: f"{row['parameters'] / 1e6:.2f} M",
    "accuracy": page.percent("accuracy"),
    "gain": page.gain(),
}
PAGES = {
    "heterogeneity": page.StudyPage(
        "accuracy by cross-client heterogeneity (ICIIA Fig. 6)",
        {
            "share of clients with something in common": page.text("name"),
            "original": page.percent("original"),
            "ICIIA alone": page.percent("ungated"),
            "delivered": page.percent("delivered"),
            "ICIIA alone, gain": page.gain("ungated_gain"),
            "delivered, gain": page.gain("delivered_gain"),
        },
        plot=heterogeneity_plot,
    ),
    "partitions": page.StudyPage(
        "partitions, layers and shuffling (ICIIA Figs. 7 and 8)", _BLOCKS, plot=partitions_plot
    ),
    "ablations": page.StudyPage("what each ingredient is worth (ICIIA Table 4)", _BLOCKS),
    "shuffling": page.StudyPage(
        "whether partitions are shuffled between the layers of the shipped block (ICIIA Table 4)",
        {**_BLOCKS, "against shuffled": page.gain("over_shuffled")},
        _about_shuffling,
    ),
    "baselines": page.StudyPage(
        "against methods that get labels on the device (ICIIA Table 3)",
        {
            "": page.text("name"),
            "labels per client": page.text("labels", ".0f"),
            "accuracy": page.percent("accuracy"),
            "gain": lambda row: page.gain()(row) if "gain" in row else "",
        },
    ),
    "gates": page.StudyPage("ideas for never being worse than the photo alone", _by_history),
    "streaming": page.StudyPage(
        "looking back only, and one classifier for both answers, against full attention", _by_history
    ),
}
