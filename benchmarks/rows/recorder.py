"""From series to the document's rows and ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from refocus.benchmarks.document.schema import (
    Accuracy,
    Conditions,
    Document,
    Energy,
    Machine,
    Memory,
    Missing,
    Ran,
    Ratio,
    Row,
)
from refocus.benchmarks.measure.machine_monitor import MachineMonitor
from refocus.benchmarks.measure.statistics import bootstrap_median
from refocus.benchmarks.measure.target import Target
from refocus.benchmarks.measure.timer import BLOCK, Series, measure
from refocus.benchmarks.measure.verdict import verdict_of

Action = Callable[[], object]
LISTS = ("ran", "rows", "ratios", "memory", "energy", "accuracy", "missing")


@dataclass
class Rows:
    """Recorder of the measured rows of one bundle and target.

    Attributes:
        machine: the machine's description, for the verdicts.
        conditions: default measurement conditions of a row.
        monitor: makes the machine monitor of one row.
    """

    bundle: str
    target_name: str
    machine: Machine
    conditions: Conditions
    monitor: Callable[[], MachineMonitor] = MachineMonitor
    ran: list[Ran] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    energy: list[Energy] = field(default_factory=list)
    accuracy: list[Accuracy] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def time(
        self,
        group: str,
        candidates: Mapping[str, Action],
        before: Mapping[str, Action] | None = None,
        photos: Mapping[str, int] | None = None,
        name: str = "",
        conditions: Conditions | None = None,
        over: str = "",
    ) -> dict[str, Series]:
        """Times candidates in turns and adds a row for each.

        Args:
            name: of all of them; a candidate's own name is then its place on the group's axis.
            photos: that one sample of a candidate is for; default: one.
            conditions: other than the table's.
            over: the candidate to which the ratio of every other one is added; "" adds none.
        """
        found = measure(candidates, conditions or self.conditions, self.monitor(), before)
        for label, series in found.items():
            self.add(group, series, name or label, label if name else "", (photos or {}).get(label, 1), conditions)
        for label in found if over else ():
            if label != over:
                self.ratio(group, found, label, over)
        return found

    def add(
        self, group: str, series: Series, name: str, at: str = "", photos: int = 1, conditions: Conditions | None = None
    ) -> None:
        """Adds the row of a series."""
        about: dict[str, Any] = {"target": self.target_name, "group": group, "name": name, "at": at, "photos": photos}
        self.rows.append(Row(**about, **self.measured(series, conditions)))

    def measured(self, series: Series, conditions: Conditions | None = None) -> dict[str, Any]:
        """The fields of a row that follow from its series."""
        conditions = conditions or self.conditions
        return {
            "bundle": self.bundle,
            "conditions": conditions,
            "samples_ms": tuple(round(value, 6) for value in series.samples_ms.tolist()),
            "starts_s": tuple(round(value, 6) for value in series.starts_s.tolist()),
            "summary": series.summary(),
            "verdict": verdict_of(series, conditions, self.machine),
            "observations": series.observations,
            "start": series.start,
        }

    def ratio(self, group: str, found: Mapping[str, Series], name: str, over: str) -> None:
        """Adds the ratio of two candidates that were timed in turns."""
        ratios = found[name].samples_ms / found[over].samples_ms
        interval = bootstrap_median(ratios, min(BLOCK, max(1, len(ratios) // 8)))
        about = {"bundle": self.bundle, "target": self.target_name, "group": group, "name": name, "over": over}
        self.ratios.append(Ratio(**about, ratio=interval.mean, low=interval.low, high=interval.high))

    def lacks(self, what: str, why: str) -> None:
        """Says what was not measured."""
        self.missing.append(Missing(what=f"{self.bundle} {self.target_name}: {what}", why=why))

    def added_to(self, document: Document) -> Document:
        """The document with everything found here behind what it holds."""
        found = {name: (*getattr(document, name), *getattr(self, name)) for name in LISTS}
        return msgspec.structs.replace(document, **found)


class Table(Rows):
    """The rows of one target of a bundle at work.

    Attributes:
        target: what is measured.
    """

    def __init__(
        self,
        target: Target,
        machine: Machine,
        conditions: Conditions,
        monitor: Callable[[], MachineMonitor] = MachineMonitor,
    ) -> None:
        super().__init__(target.name, target.target_name, machine, conditions, monitor)
        self.target = target
