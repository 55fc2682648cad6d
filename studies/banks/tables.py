"""Compare TAPER with all alternatives of the paper (Tables 2 to 7).

Every row is evaluated on the same tasks of held-out photos, so differences are paired. The control is TAPER under the
description of another task: it must lose accuracy, otherwise the description has no effect.

Notation: K tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from functools import cache, partial
from typing import Any

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.evaluate.bank_tasks import Evaluation, Shares, data_of_tasks, inner, inner_plot
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.runs.taper import FOLDED, TAPER, TaperRun, Variant
from studies.banks import orders
from studies.banks.evaluation import (
    by_ceiling,
    by_free_words,
    by_one_network,
    by_specialists,
    by_taper,
    likeness_of_free_words,
)
from studies.banks.kept_rows import kept

# Statistics of networks that never saw a photo normalise nothing: naive training needs the statistics of its photos,
# and the rates of untrained networks (at 0.01 its predictor leaves the even mixers late: after half an epoch the
# validation accuracy is 6 %, at 0.1 it is 38 %).
NAIVE = Variant("naive", rows="random", whole=True, norm="task", rates=(0.1, 0.1))
TUNED = Variant("tuned", rows="average")
BAG_OF_WORDS = Variant("bag-of-words", text=False)
ONE_MIXER = Variant("one-mixer", blockwise=False)
NO_SELECTION = Variant("no-selection", select=False)
TASK_STATISTICS = Variant("task-statistics", norm="task")
NO_NORMS = Variant("no-norms", norm=FOLDED)
DYNAMIC = Variant("dynamic", kind="dynamic")

Row = tuple[str, str, bool, Callable[[int], Shares]]  # name, network, whether classes are selected, shares by seed


def rows_of(run: TaperRun, evaluation: Evaluation) -> list[Row]:
    """Return the rows of Tables 2 and 6: baselines, then ablations."""
    whole = sum(run.config.recipe.epochs)

    @cache  # two rows each
    def both(seed: int, which: str, epochs: int) -> tuple[Shares, Shares]:
        return by_one_network(run, evaluation, run.generic(seed, which, epochs), which)

    def one(which: str, epochs: int, select: bool) -> Callable[[int], Shares]:
        return lambda seed: both(seed, which, epochs)[int(select)]

    def average(seed: int) -> Shares:
        state = run.layout().split(run.specialists(seed).mean(0))
        return by_one_network(run, evaluation, state)[1]

    def taper(variant: Variant, select: bool = True, foreign: bool = False) -> Callable[[int], Shares]:
        return lambda seed: by_taper(run, evaluation, seed, variant, select, foreign)

    first, whole_network = run.config.recipe.epochs[0], not run.config.small.frozen
    larger = [
        ("no personalisation", "large", False, one("large", whole, False)),
        ("classifier selection", "large", True, one("large", whole, True)),
    ]
    folded = [("TAPER, norms folded before stage 3", "small", True, taper(NO_NORMS))]
    free = [("TAPER, described in free words", "small", True, partial(by_free_words, run, evaluation))]
    return [
        ("classifier selection", "small", True, one("small", whole, True)),
        ("no personalisation", "small", False, one("small", whole, False)),
        # behind frozen blocks it would need its own activations; and the large network of a run may not be larger
        *(larger if whole_network and run.parameters("large") > run.parameters() else []),
        ("TAPER, naive training", "small", True, taper(NAIVE)),
        ("TAPER after stage 1", "small", False, one("small", first, False)),
        ("TAPER after stage 1, classes selected", "small", True, one("small", first, True)),
        ("TAPER after stage 2, the specialist of the task", "small", True, partial(by_specialists, run, evaluation)),
        ("uniform average of stage 2", "small", True, average),
        ("that average tuned on tasks, without descriptions", "small", True, taper(TUNED)),
        ("TAPER", "small", True, taper(TAPER)),
        ("TAPER, bag of words", "small", True, taper(BAG_OF_WORDS)),
        ("TAPER, one mixer", "small", True, taper(ONE_MIXER)),
        ("TAPER, without classifier selection", "small", False, taper(NO_SELECTION, select=False)),
        ("TAPER, normalised by each task's own statistics", "small", True, taper(TASK_STATISTICS)),
        *(folded if whole_network else []),
        ("TAPER, statistics of the mix measured", "small", True, lambda s: by_ceiling(run, evaluation, s, False)),
        ("ceiling: mixers found on labelled photos", "small", True, lambda s: by_ceiling(run, evaluation, s, True)),
        *(free if len(run.group_names) > 1 else []),  # else there is nothing to talk about
        ("control: TAPER under another task's description", "small", True, taper(TAPER, foreign=True)),
    ]


def study_taper(run: TaperRun, seeds: Sequence[int], command: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """Train missing networks, evaluate every row and return the document.

    All rows are paired with the first.

    Args:
        run: trained banks and their photos.
        seeds: seeds of the trainings.
        command: command line, stored in the document.
        names: names of the rows to evaluate besides the first; ``*`` matches any text. Default: all.

    Raises:
        UsageError: a name matches no row.
    """
    evaluation = Evaluation.draw(run)
    known = list(dict.fromkeys(name for name, *_ in rows_of(run, evaluation)))
    for wanted in names:
        if not any(fnmatch(name, wanted) for name in known):
            listed = "', '".join(known)
            raise UsageError(f"--rows '{wanted}' is no row of this run; it has '{listed}'")
    rows: list[dict[str, Any]] = []
    found: dict[orders.Name, list[Shares]] = {}
    free: dict[str, Any] = {}
    for name, which, select, answer in rows_of(run, evaluation):
        if names and rows and not any(fnmatch(name, wanted) for wanted in names):
            continue
        say(f"{name} ({which})")
        row = f"{name} ({which})"
        shares = [kept(run, seed, row, evaluation, answer) for seed in track(seeds, name, len(seeds))]
        found[name, which] = shares
        about = {"name": name, "network": which, "parameters": run.parameters(which), "selection": select}
        first = next(iter(found.values()))
        rows.append({**about, **evaluation.scores(shares, first), "domains": evaluation.by_domain(shares, run.domains)})
        if (name, which) == orders.FREE:
            free = {"free_words": likeness_of_free_words(run, evaluation, seeds)}
    seen = orders.judged(found, evaluation.sizes)
    drawn = inner(run, evaluation, seeds[0])
    return _document("taper", run, evaluation, rows, seeds, command, inner=drawn, orders=seen, **free)


def _by_selection(run: TaperRun, evaluation: Evaluation, seed: int) -> Shares:
    """Evaluate the generic network with classifier selection.

    It is trained for as many epochs as all stages together.
    """
    return by_one_network(run, evaluation, run.generic(seed, "small", sum(run.config.recipe.epochs)))[1]


def study_ways(run: TaperRun, seeds: Sequence[int], command: str) -> dict[str, Any]:
    """Compare tasks of fixed and of changing numbers of classes (Table 3).

    TAPER is trained and evaluated on both. The tasks are any classes of the data.
    """
    fixed = replace(TAPER, name="fixed", kind="fixed")
    rows: list[dict[str, Any]] = []
    for kind in ("fixed", "dynamic"):
        evaluation = Evaluation.draw(run, kind)
        first: list[Shares] = []
        for name, answer in (
            ("classifier selection", partial(_by_selection, run, evaluation)),
            ("TAPER trained on fixed", lambda s, e=evaluation: by_taper(run, e, s, fixed)),
            ("TAPER trained on dynamic", lambda s, e=evaluation: by_taper(run, e, s, DYNAMIC)),
        ):
            shares = [kept(run, seed, f"{name}, judged on {kind}", evaluation, answer) for seed in seeds]
            first = first or shares
            rows.append({"name": name, "judged_on": kind, **evaluation.scores(shares, first)})
    return _document("ways", run, evaluation, rows, seeds, command)


def study_bases(run: TaperRun, seeds: Sequence[int], command: str, counts: Sequence[int]) -> dict[str, Any]:
    """Train and evaluate one bank per number of bases (TAPER, Table 5).

    The tasks are those of :func:`study_taper`. All banks start from the same stage 1 and have the epochs of stages 2
    and 3 of the run.

    Raises:
        UsageError: a basis of one of the banks would have no photos.
    """
    for count in counts:
        run.check_bases(count)
    evaluation = Evaluation.draw(run)
    selection = partial(_by_selection, run, evaluation)
    first = [kept(run, seed, "classifier selection", evaluation, selection) for seed in seeds]
    found = {"classifier selection": (0, first)}
    for count in sorted({*counts, run.config.bases}):
        own = count == run.config.bases
        variant = TAPER if own else replace(TAPER, name=f"bases-{count}", bases=count)
        name = f"TAPER, {count} {'basis' if count == 1 else 'bases'}"
        answer = partial(by_taper, run, evaluation, variant=variant)
        found[name] = count, [kept(run, s, name, evaluation, answer) for s in track(seeds, name, len(seeds))]
    rows = [
        {
            "name": name,
            "bases": count,
            **evaluation.scores(shares, first),
            "domains": evaluation.by_domain(shares, run.domains),
        }
        for name, (count, shares) in found.items()
    ]
    return _document("bases", run, evaluation, rows, seeds, command)


def _document(
    study: str,
    run: TaperRun,
    evaluation: Evaluation,
    rows: list[dict[str, Any]],
    seeds: Sequence[int],
    command: str,
    **more: Any,
) -> dict[str, Any]:
    config = run.config
    settings = {name: getattr(config, name) for name in ("side", "bases", "shards", "ways", "norm")}
    return page.study_document(
        study,
        command,
        seeds,
        data=data_of_tasks(run, evaluation),
        backbone=config.small.name,
        networks={"small": config.small.arguments, "large": config.large.arguments},
        settings=settings | {"tasks": config.kind} | ({"teacher": run.about_teacher()} if config.teacher.name else {}),
        recipe={k: v for k, v in asdict(config.recipe).items() if k != "seed"},
        seconds=run.seconds(),
        rows=rows,
        **more,
    )


# ---- how the studies are shown


def about_tasks(document: page.Document) -> str:
    """Describe the data and the conditions of a document about tasks."""
    data, settings = document["data"], document["settings"]
    domains = f" in {data['domains']} domains" if data["domains"] > 1 else ""
    most = "up to " if settings["tasks"] == "group" else ""  # a super-category may have fewer
    taught = f", all networks taught by `{settings['teacher']['name']}` too" if settings.get("teacher") else ""
    return (
        f"{data['classes']} classes{domains}, photos of {settings['side']} pixels;"
        f" {data['tasks']} tasks of {most}{settings['ways']} classes ({settings['tasks']}) with"
        f" {data['targets']} photos that nobody trained on. `{document['backbone']}`{_arguments(document)};"
        f" {settings['bases']} bases{taught}; epochs of the stages"
        f" {', '.join(map(str, document['recipe']['epochs']))}, of the other rows as many in all;"
        f" {page.seeds_line(document)}; {sum(document['seconds'].values()) / 60:.0f} minutes of training a seed."
        " Intervals are over tasks of these photos, of which some are in several: for other photos they are wider."
        + _likeness_line(document)
    )


def _arguments(document: page.Document) -> str:
    """Return the arguments of the networks with rows in the table."""
    networks = document["networks"]
    seen = {row.get("network", "small") for row in document["rows"]}
    return "".join(f", {which} {networks[which]}" for which in ("small", "large") if which in seen and networks[which])


def _likeness_line(document: page.Document) -> str:
    """Describe the similarity of mixers of free words and of class names.

    Table 7 uses free words; documents without them get "".
    """
    if "free_words" not in document:
        return ""
    likeness = document["free_words"]
    return (
        f" The mixers that free words ask for have a cosine of {likeness['cosine']:.2f} to those of the same task's"
        f" class names; those of another task's names, {likeness['of_others']:.2f}."
    )


@dataclass(frozen=True)
class TablesPage(page.StudyPage):
    """Also what each domain has, where there are several (Table 5)."""

    def more(self, document: page.Document) -> list[tuple[str, page.Table]]:
        """Return the table of accuracies by domain, if the document has domains."""
        rows = [row for row in document["rows"] if row.get("selection", True) and row.get("domains")]
        if not rows:
            return []
        about = [name for name in ("name", "network") if name in rows[0]]
        header = ["", *about[1:], *rows[0]["domains"]]
        cells = [[*(row[name] for name in about), *(f"{v:.1%}" for v in row["domains"].values())] for row in rows]
        return [("Accuracy by the domain of the task, classes selected (Table 5)", (header, cells))]


PAGES = {
    "taper": TablesPage(
        "a network of its own for each task (TAPER Tables 2 and 4 to 7)",
        {
            "": page.text("name"),
            "network": page.text("network"),
            "parameters": lambda row: f"{row['parameters'] / 1e6:.3g} M",
            "classes selected": lambda row: "yes" if row["selection"] else "no",
            "accuracy": page.percent("accuracy"),
            "against the first row": page.gain(),
        },
        about_tasks,
        inner_plot,
        plotted="inner",
    ),
    "bases": TablesPage(
        "banks of fewer bases (TAPER Table 5, and the effect of their number)",
        {
            "": page.text("name"),
            "bases": lambda row: str(row["bases"] or ""),
            "accuracy": page.percent("accuracy"),
            "against the first row": page.gain(),
        },
        about_tasks,
    ),
    "ways": page.StudyPage(
        "tasks of a fixed and of a changing number of classes (TAPER Table 3)",
        {
            "": page.text("name"),
            "judged on tasks": page.text("judged_on"),
            "accuracy": page.percent("accuracy"),
            "against selection on the same tasks": page.gain(),
        },
        about_tasks,
    ),
}
