"""Content of a run's report, common to all kinds of training: curves, people, the worst tenth, budgets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomllib

from refocus.benchmarks.measure import worst_tenth
from refocus.benchmarks.report.charts import COLOURS, new_axes, svg
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.page import Table
from refocus.cloud_train.runs.folder import RUN_SETTINGS
from refocus.cloud_train.tracking import Curve

Chart = tuple[str, str]  # caption, and an svg element
MOST_LINES = len(COLOURS)  # of a chart: each has a colour of its own
_MOST_POINTS = 200  # of a line
_AXES = {"loss": "loss, nats", "validation_accuracy": "validation accuracy, %", "validation": "validation accuracy, %"}


@dataclass
class Story:
    """The content of a page.

    Attributes:
        title: of the page.
        missing: sentences on what the run does not hold yet, and which command makes it.
        facts: names with their values.
        curves: charts of training.
        people: charts of the gain of each person.
        people_tables: captions with tables of people; folded on the page.
        worst: a table of how people are served, the worst tenth beside the mean; None where nobody was judged.
        why_no_people: said where nobody was judged.
        budgets: what the recipe allowed and what was used.
        tables: captions with further tables.
    """

    title: str
    missing: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    curves: list[Chart] = field(default_factory=list)
    people: list[Chart] = field(default_factory=list)
    people_tables: list[tuple[str, Table]] = field(default_factory=list)
    worst: Table | None = None
    why_no_people: str = ""
    budgets: Table = field(default_factory=lambda: ([], []))
    tables: list[tuple[str, Table]] = field(default_factory=list)


def read_document(path: Path) -> dict[str, Any] | None:
    """A JSON document of a run; None where it is not there.

    Raises:
        DataError: it is damaged.
    """
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); remove it and run the command that wrote it again") from None
    if not isinstance(document, dict):
        raise DataError(f"{path} is not a results document; remove it and run the command that wrote it again")
    return document


def asked_for(folder: Path) -> dict[str, Any]:
    """The settings in ``run.toml``; empty where preparing the run has not ended, or a study made it.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / RUN_SETTINGS
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error})") from None


def not_ended(progress: str) -> str:
    """The sentence on a training that was stopped or is still running, such as for "1 of 3 heads are trained"."""
    return f"Training has not ended: {progress}. Give the command of the training again to go on."


# ---- curves


def curve_charts(curves: Mapping[str, Mapping[str, Curve]]) -> Iterator[Chart]:
    """A chart for each metric of trainings that differ in numbers alone, as in their seeds."""
    groups: dict[tuple[str, str, str], dict[str, Curve]] = {}
    for what, metrics in curves.items():
        for metric, curve in metrics.items():
            across = "epoch" if "validation_accuracy" in metrics else "step"
            groups.setdefault((re.sub(r"\d+", "N", what), metric, across), {})[what] = curve
    for (pattern, metric, across), lines in groups.items():
        only = next(iter(lines))
        caption = f"{only if len(lines) == 1 else pattern}: {metric.replace('_', ' ')}"
        yield caption, line_chart(lines, caption, across, metric)


def line_chart(lines: Mapping[str, Curve], caption: str, across: str, metric: str) -> str:
    """Lines of a metric; more than :data:`MOST_LINES` are drawn alike, as one crowd."""
    axes, crowd = new_axes(across, _AXES.get(metric, metric)), len(lines) > MOST_LINES
    scale = 1 if metric == "loss" else 100
    for number, (name, (steps, values)) in enumerate(lines.items()):
        x, y = _thinned(np.array(steps, float)), scale * _thinned(np.array(values, float))
        marker = "o" if len(x) <= 30 and not crowd else None
        if crowd:
            label = f"each of {len(lines)}" if not number else None
            axes.plot(x, y, color="#7f7f7f", alpha=0.5, lw=0.8, label=label)
        else:
            axes.plot(x, y, marker=marker, ms=3, label=name)
    return svg(axes, caption)


def _thinned(values: np.ndarray) -> np.ndarray:
    """Means of neighbours where there are more values than a chart can show."""
    if len(values) <= _MOST_POINTS:
        return values
    return np.array([part.mean() for part in np.array_split(values, _MOST_POINTS)])


# ---- people


def gain_charts(gains: Mapping[str, np.ndarray], over: str) -> Iterator[Chart]:
    """Each person's gain, from the largest loss to the largest gain, for each method.

    Args:
        gains: (people,) differences of shares of right answers, by method.
        over: what they are differences to.
    """
    names = [*gains]
    for first in range(0, len(names), MOST_LINES):
        axes = new_axes("people, in the order of their gain", f"gain over {over}, points")
        axes.axhline(0, color="#808080", lw=1)
        for name in names[first : first + MOST_LINES]:
            values = 100 * np.sort(gains[name])
            axes.plot(range(1, len(values) + 1), values, marker="o", ms=3, lw=1, label=name)
        caption = f"gain of each person over {over}"
        yield caption, svg(axes, caption)


def served_row(name: str, shares: np.ndarray, before: np.ndarray | None) -> list[str]:
    """Cells of a method: mean, worst tenth, and the people who gain and lose.

    Args:
        shares: (people,) of right answers.
        before: the same of what people are compared with; None for that itself.
    """
    row = [name, f"{shares.mean():.1%}", f"{worst_tenth(shares):.1%}"]
    if before is None:
        return [*row, "", "", ""]
    gain = shares - before
    return [*row, f"{100 * gain.mean():+.1f}", f"{int((gain > 0).sum())}", f"{int((gain < 0).sum())}"]


def served_header(over: str) -> list[str]:
    """The header of :func:`served_row`."""
    return ["", "mean over people", "worst tenth", f"points over {over}", "people who gain", "people who lose"]


def person_table(names: Sequence[str], columns: Mapping[str, np.ndarray]) -> Table:
    """A row of each person: shares of right answers."""
    rows = [[name, *(f"{shares[n]:.1%}" for shares in columns.values())] for n, name in enumerate(names)]
    return ["person", *columns], rows


def duration(seconds: Any) -> str:
    """``3 min 20 s``; "" for what was not noted."""
    if seconds is None or seconds == "":
        return ""
    whole = round(float(seconds))
    minutes, rest = divmod(whole, 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{float(seconds):.1f} s"
