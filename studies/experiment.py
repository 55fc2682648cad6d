"""Experiments: evaluate a grid of cells with several seeds and compare.

A TOML file lists the cells (:class:`Experiment`); the module that it names evaluates them (:class:`Study`). Each cell
and seed is evaluated once. Its result is cached under a hash of everything that it depends on. Rows are compared in
pairs and shown as a table.

    RUN/cache/KEY.json        rows of one cell and seed, and further cached results (:meth:`Cache.once`)
    RUN/studies/NAME.json     the results document
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np
import tomllib

from refocus.benchmarks.measure import bootstrap_mean
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.evaluate import page
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.runs.folder import once
from refocus.cloud_train.settings import read_settings
from refocus.edge.files import file_sha256, locked
from studies.comparisons import over_people_and_photos

Value = str | int | float | bool
Cell = Mapping[str, Value]  # axis of the grid -> value
Rule = dict[str, tuple[Value, ...]]
Unit = Literal["people", "people and photos"]


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Compare each row with another row of the same people and photos.

    Attributes:
        over: labels in which the other row differs, such as ``{ method = "original" }``.
        measure: name of the values that are compared; rows without them are left out.
        unit: what the interval generalises to: other people, or other people and other photos.
    """

    over: dict[str, Value]
    measure: str = "accuracy"
    unit: Unit = "people and photos"


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Show one field of the rows.

    Attributes:
        field: field of a row; default: the column's title.
        of: labels of the row that is shown; a line combines all rows that agree in the columns without `of`.
        form: a format of :func:`format`, or "points" for a signed number of percentage points.
    """

    field: str = ""
    of: dict[str, Value] = {}
    form: str = ""


class Shown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Describe the table of an experiment.

    Attributes:
        title: heading of the section.
        columns: columns by title; a column without a value in any line is left out.
        sort: title of the column to sort by, ascending; default: the order of the grid.
    """

    title: str = ""
    columns: dict[str, Column] = {}
    sort: str = ""


@dataclass(frozen=True)
class Experiment:
    """Describe what is evaluated and compared.

    Attributes:
        name: name of the results document.
        study: module whose ``STUDY`` evaluates the cells.
        seeds: random seeds; every cell is evaluated with each.
        include: rules of values by axis; if there are any, cells that match none are left out.
        exclude: rules of the same form; cells that match one are left out.
        settings: settings of the study.
        grid: values of each axis; a cell has one value of each.
        comparisons: comparisons by the field of the document that holds their result.
        page: table of the results page.
    """

    name: str = ""
    study: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    include: tuple[Rule, ...] = ()
    exclude: tuple[Rule, ...] = ()
    settings: Any = None
    grid: Any = None
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    page: Shown = field(default_factory=Shown)

    def __post_init__(self) -> None:
        axes = [axis.name for axis in fields(self.grid)]
        unknown = sorted({axis for rule in (*self.include, *self.exclude) for axis in rule} - {*axes})
        if unknown:
            raise UsageError(f"include, exclude: {', '.join(unknown)} is none of {', '.join(axes)}")
        if len({*self.seeds}) != len(self.seeds):
            raise UsageError(f"seeds = {[*self.seeds]}: expected each once")

    def cells(self, patterns: Sequence[str] = ()) -> list[Cell]:
        """Return the cells whose name matches a pattern; default: all.

        An example of a pattern is "office-31:*".

        Raises:
            UsageError: no cell is left.
        """
        axes = {axis.name: getattr(self.grid, axis.name) for axis in fields(self.grid)}
        every: list[Cell] = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        cells = [c for c in every if not _matches(c, self.exclude) and (not self.include or _matches(c, self.include))]
        chosen = [c for c in cells if not patterns or any(fnmatchcase(name_of(c), one) for one in patterns)]
        if not chosen:
            example = f"; there is {name_of(cells[0])}, for example" if cells else ""
            raise UsageError(f"no cell matches {', '.join(patterns) or 'include and exclude'}{example}")
        return chosen


def name_of(cell: Cell) -> str:
    """Return the name of a cell: its values joined by colons."""
    return ":".join(map(str, cell.values()))


def _matches(cell: Cell, rules: Sequence[Rule]) -> bool:
    return any(all(cell[axis] in values for axis, values in rule.items()) for rule in rules)


@dataclass(frozen=True)
class Needs:
    """Name what a result depends on, apart from its cell and seed.

    Attributes:
        settings: settings that the result depends on.
        files: files that are read; the cache key has their content, not their path.
        code: modules that compute it; the cache key has their code without comments and docstrings.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    code: tuple[str, ...] = ()

    def __or__(self, more: Needs) -> Needs:
        return Needs({**self.settings, **more.settings}, {**self.files, **more.files}, (*self.code, *more.code))


def _sha256_of(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path} is not there; check the paths in settings, or name the folder with --data")
    return _sha256_at(path, path.stat().st_size, path.stat().st_mtime_ns)


@functools.cache
def _sha256_at(path: Path, *stamps: int) -> str:
    return file_sha256(path)


@functools.cache
def _sha256_of_code(module: str) -> str:
    spec = importlib.util.find_spec(module)
    tree = ast.parse(Path(str(spec and spec.origin)).read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None  # a docstring
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


@dataclass(frozen=True)
class Row:
    """Hold the answers of one method in one cell with one seed.

    Attributes:
        labels: labels such as the name of the method; they replace those of the cell.
        person: person of each answer, (n,), numbered within the row.
        photo: photo of each answer, (n,); seeds that share photos share their numbers.
        values: values by measure, (n,) each.
        facts: further facts of the study's document, in JSON types.
    """

    labels: dict[str, Value]
    person: np.ndarray
    photo: np.ndarray
    values: dict[str, np.ndarray]
    facts: dict[str, Any] = field(default_factory=dict)

    def kept(self) -> dict[str, Any]:
        """Convert the row to JSON types."""
        arrays = {"person": self.person.tolist(), "photo": self.photo.tolist()}
        values = {name: np.asarray(one).tolist() for name, one in self.values.items()}
        return {"labels": self.labels, **arrays, "values": values, "facts": self.facts}

    @classmethod
    def of(cls, kept: Mapping[str, Any], cell: Cell, seed: int) -> Row:
        """Return the row that :meth:`kept` converted, with its cell and seed."""
        values = {name: np.asarray(one) for name, one in kept["values"].items()}
        labels = {**cell, **kept["labels"], "seed": seed}
        return cls(labels, np.asarray(kept["person"]), np.asarray(kept["photo"]), values, kept["facts"])


@dataclass(frozen=True)
class Cache:
    """Cache of results in ``RUN/cache``, keyed by what they depend on."""

    run: Path

    def path(self, what: Mapping[str, Any], needs: Needs, suffix: str = ".json") -> Path:
        """Return the path of a result, named by the hash of what it depends on."""
        files = {name: _sha256_of(path) for name, path in needs.files.items()}
        code = {name: _sha256_of_code(name) for name in needs.code}
        text = json.dumps([dict(what), dict(needs.settings), files, code], sort_keys=True)
        (self.run / "cache").mkdir(parents=True, exist_ok=True)
        return self.run / "cache" / f"{hashlib.sha256(text.encode()).hexdigest()}{suffix}"

    def once(
        self,
        what: Mapping[str, Any],
        needs: Needs,
        compute: Callable[[], Any],
        suffix: str = ".json",
        read: Callable[[Any], Any] = lambda kept: kept,
    ) -> Any:
        """Return a cached result, or compute and store it.

        One process computes a result while others wait for it. A damaged file is computed again.

        Args:
            what: name of the result among those with the same needs.
            needs: everything else that the result depends on.
            compute: function that returns the content to store.
            suffix: storage format, see :func:`refocus.cloud_train.runs.folder.once`.
            read: function that converts stored content to the result; if it raises, the file is damaged.
        """
        path = self.path(what, needs, suffix)
        try:
            return read(once(path, compute))
        except (DataError, LookupError, TypeError, ValueError, AttributeError) as error:
            if not path.exists():  # it was not computed
                raise
            say(f"{path} is damaged ({error}) and is computed again")
            path.unlink(missing_ok=True)
            return read(once(path, compute))


@dataclass(frozen=True)
class Study:
    """Describe how the cells of an experiment are evaluated.

    Attributes:
        settings: default settings, a dataclass.
        grid: default grid, a dataclass whose fields are the axes, each with a tuple of values.
        needs: function that returns what the rows of a cell depend on.
        evaluate: function that returns the rows of a cell with a seed; none for a cell with too few photos or people.
        document: function that returns fields of the results document; it may add to the records of groups, or
            return other ``rows``.
    """

    settings: Any
    grid: Any
    needs: Callable[[Any, Cell], Needs]
    evaluate: Callable[[Any, Cell, int, Cache], Sequence[Row]]
    document: Callable[[Experiment, Cache, list[Group]], dict[str, Any]] = lambda *_: {}


def study_of(name: str) -> Study:
    """Return the ``STUDY`` of a module.

    Raises:
        UsageError: there is no such module, or it has none.
    """
    try:
        study: Study = importlib.import_module(name).STUDY
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"study = {name!r}: expected a module with a STUDY ({error})") from None
    return study


def read_experiment(file: Path, changes: Sequence[str] = ()) -> Experiment:
    """Read an experiment from a TOML file and apply changes.

    A change is a text such as ``settings.people=8``.

    Raises:
        UsageError: the file is invalid; the message lists all errors.
    """

    def start(given: Mapping[str, Any]) -> Any:
        study = study_of(str(given.get("study", "")))
        return Experiment(settings=study.settings, grid=study.grid)

    return cast(Experiment, read_settings(start, file, changes, flag=""))


def run_experiment(
    experiment: Experiment, run: Path, command: str = "", patterns: Sequence[str] = ()
) -> dict[str, Any]:
    """Evaluate the cells that are not cached; return the results document.

    Args:
        experiment: settings, grid and comparisons.
        run: folder of the results, with the cache.
        command: command line that the document states.
        patterns: patterns of the names of the cells to evaluate; default: all.
    """
    study, cache = study_of(experiment.study), Cache(run)
    groups = grouped(evaluate_cells(experiment, cache, experiment.cells(patterns)))
    for name, comparison in experiment.comparisons.items():
        measured = [group for group in groups if comparison.measure in group.rows[0].values]
        if groups and not measured:
            raise UsageError(f"comparisons.{name}: no row has values of {comparison.measure}")
        for group, other in paired_groups(measured, name, comparison.over):
            group.record[name] = group.over(other, comparison.measure, comparison.unit)
    units = " or ".join(sorted({one.unit for one in experiment.comparisons.values()}))
    made = {"intervals": units, "rows": [group.record for group in groups]}
    made |= study.document(experiment, cache, groups)
    return page.study_document(experiment.name, command, experiment.seeds, **made)


def evaluate_cells(experiment: Experiment, cache: Cache, cells: Sequence[Cell]) -> list[Row]:
    """Return the rows of all cells and seeds.

    Cells that another process evaluates are skipped at first; their results are waited for at the end.
    """
    study, done = study_of(experiment.study), dict[tuple[str, int], list[Row]]()
    # Seed by seed: an interrupted run has all cells of some seeds rather than some cells of all seeds.
    left = [(cell, seed) for seed in experiment.seeds for cell in cells]
    for wait in (False, True):
        for cell, seed in track([*left], experiment.name, len(left)):
            what, needs = {"cell": dict(cell), "seed": seed}, study.needs(experiment.settings, cell)
            if wait or not _busy(cache.path(what, needs)):
                compute = functools.partial(_evaluated, study, experiment.settings, cell, seed, cache)
                read = functools.partial(_rows, cell, seed)
                done[name_of(cell), seed] = cache.once(what, needs, compute, read=read)
                left.remove((cell, seed))
    return [row for cell in cells for seed in experiment.seeds for row in done[name_of(cell), seed]]


def _busy(path: Path) -> bool:
    """Return whether another process computes a result."""
    with locked(path.with_name(f".{path.stem}.lock"), wait=False) as free:
        return not free and not path.exists()


def _evaluated(study: Study, settings: Any, cell: Cell, seed: int, cache: Cache) -> dict[str, Any]:
    rows = [row.kept() for row in study.evaluate(settings, cell, seed, cache)]
    return {"cell": dict(cell), "seed": seed, "rows": rows}


def _rows(cell: Cell, seed: int, kept: Mapping[str, Any]) -> list[Row]:
    return [Row.of(row, cell, seed) for row in kept["rows"]]


@dataclass(frozen=True)
class Group:
    """Hold the rows of all seeds that have the same labels.

    Seeds do not share people.

    Attributes:
        labels: labels of the rows, without the seed.
        rows: one row per seed.
        person: person of each answer, (n,), numbered by first appearance.
        photo: photo of each answer, (n,), numbered likewise.
        record: row of the results document.
    """

    labels: dict[str, Value]
    rows: list[Row]
    person: np.ndarray
    photo: np.ndarray
    record: dict[str, Any]

    @classmethod
    def of(cls, labels: dict[str, Value], rows: list[Row], sets: Sequence[str] = ()) -> Group:
        """Return a group of rows, with their people and photos numbered.

        Args:
            labels: labels of the group.
            rows: rows of all seeds.
            sets: names of labels whose values do not share people and photos.
        """
        person, photo = (
            _numbered([([row.labels[name] for name in of], getattr(row, what)) for row in rows])
            for what, of in (("person", (*sets, "seed")), ("photo", sets))
        )
        group = cls(labels, rows, person, photo, {**labels, "people": int(person.max()) + 1, "targets": len(person)})
        group.record.update({name: float(group.by_person(group.values(name)).mean()) for name in rows[0].values})
        return group

    def values(self, measure: str = "accuracy") -> np.ndarray:
        """Return the values of a measure for all answers, (n,)."""
        return np.concatenate([row.values[measure] for row in self.rows]).astype(float)

    def by_person(self, values: np.ndarray) -> np.ndarray:
        """Return the mean of each person, (people,)."""
        means: np.ndarray = np.bincount(self.person, values) / np.bincount(self.person)
        return means

    def interval(self, values: np.ndarray, unit: Unit = "people and photos") -> dict[str, Any]:
        """Return the mean over people with its 95 % interval, and per seed.

        ``half_width``, half the interval, is the smallest difference from zero that the run could have shown.
        """
        if unit == "people":
            found = bootstrap_mean(self.by_person(values))
        else:
            found = over_people_and_photos(values, self.person, self.photo)
        ends, means = np.cumsum([len(row.person) for row in self.rows])[:-1], self.by_person(values)
        seeds = [float(means[np.unique(of)].mean()) for of in np.split(self.person, ends)]
        return {**found.as_dict(), "half_width": (found.high - found.low) / 2, "seeds": seeds}

    def over(self, other: Group, measure: str = "accuracy", unit: Unit = "people and photos") -> dict[str, Any]:
        """Return the paired difference to another group, see :meth:`interval`.

        Raises:
            DataError: the groups do not have the same people and photos.
        """
        if not (np.array_equal(self.person, other.person) and np.array_equal(self.photo, other.photo)):
            raise DataError(f"{self.labels} and {other.labels} are not of the same people and photos")
        return self.interval(self.values(measure) - other.values(measure), unit)


def _numbered(parts: Sequence[tuple[list[Value], np.ndarray]]) -> np.ndarray:
    """Return numbers of the values of all parts, by first appearance.

    The same value in parts of different names gets different numbers.
    """
    names = [json.dumps(name) for name, _ in parts]
    shifted = [numbers + (names.index(name) << 40) for name, (_, numbers) in zip(names, parts, strict=True)]
    _, first, inverse = np.unique(np.concatenate(shifted), return_index=True, return_inverse=True)
    numbered: np.ndarray = np.argsort(np.argsort(first))[inverse]
    return numbered


def grouped(rows: Sequence[Row]) -> list[Group]:
    """Group rows by their labels without the seed, in the order of rows."""
    found: dict[tuple[tuple[str, Value], ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(item for item in row.labels.items() if item[0] != "seed"), []).append(row)
    return [Group.of(dict(labels), of) for labels, of in found.items()]


def paired_groups(groups: Sequence[Group], name: str, over: Mapping[str, Value]) -> list[tuple[Group, Group]]:
    """Pair each group with the group whose labels differ by ``over``.

    Groups without such a partner are left out.

    Raises:
        UsageError: no group has a partner.
    """
    known = {frozenset(group.labels.items()): group for group in groups}
    others = [(group, known.get(frozenset({**group.labels, **over}.items()))) for group in groups]
    pairs = [(group, other) for group, other in others if other is not None]
    if groups and not pairs:
        wanted = ", ".join(f"{label} = {value}" for label, value in over.items())
        raise UsageError(f"comparisons.{name}: no row has {wanted}")
    return pairs


@dataclass(frozen=True)
class ExperimentPage(page.StudyPage):
    """Page with the columns that an experiment declares."""

    shown: Shown = field(default_factory=Shown)

    @classmethod
    def of(cls, shown: Shown, **more: Any) -> ExperimentPage:
        """Return the page of a table; ``more`` are further fields of the page."""
        return cls(shown.title, {}, shown=shown, **({"about": about} | more))

    def table(self, document: page.Document) -> page.Table:
        """Return header and lines of the table, sorted as declared."""
        columns, lines = self.shown.columns, dict[tuple[Any, ...], list[page.Row]]()
        keys = [column.field or title for title, column in columns.items() if not column.of]
        for number, row in enumerate(document["rows"]):
            key = tuple(row[key] for key in keys) if len(keys) < len(columns) else (number,)
            lines.setdefault(key, []).append(row)
        shown = {title: [_value(title, column, of) for of in lines.values()] for title, column in columns.items()}
        shown = {title: values for title, values in shown.items() if any(value is not None for value in values)}
        order = [*range(len(lines))]
        if self.shown.sort in shown:
            order.sort(key=lambda line: _number(shown[self.shown.sort][line]))
        return [*shown], [[_text(of[line], columns[title].form) for title, of in shown.items()] for line in order]


def shown_of(file: Path) -> Shown:
    """Read the table that a TOML file declares; the rest is ignored."""
    return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8"))["page"], Shown)


def _value(title: str, column: Column, line: Sequence[page.Row]) -> Any:
    wanted = column.of.items()
    return next((row.get(column.field or title) for row in line if all(row.get(k) == v for k, v in wanted)), None)


def _number(value: Any) -> float:
    return float("inf") if value is None else float(value["mean"] if isinstance(value, Mapping) else value)


def _text(value: Any, form: str) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return page.short_points(value)
    return f"{100 * value:+.1f}" if form == "points" else format(value, form)


def about(document: page.Document) -> str:
    """Return a sentence with the number of people and the half-widths."""
    people = sorted(row["people"] for row in document["rows"])
    differences = [value for row in document["rows"] for value in row.values() if isinstance(value, Mapping)]
    widths = sorted(100 * one["half_width"] for one in differences if one.get("half_width"))
    text = f"{people[0]} to {people[-1]} people in each row, {page.seeds_line(document)}" if people else "No rows"
    if widths:
        text += f"; the smallest difference that a row could have shown is {widths[0]:.1f} to {widths[-1]:.1f} points"
    return f"{text}."
