"""From series to the document's rows and ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from refocus.benchmarks.document.schema import Conditions, Machine, Missing, Ratio, Row
from refocus.benchmarks.measure.interleave import BLOCK
from refocus.benchmarks.measure.machine_monitor import MachineMonitor
from refocus.benchmarks.measure.statistics import bootstrap_median
from refocus.benchmarks.measure.target import Target
from refocus.benchmarks.measure.timer import Series, measure
from refocus.benchmarks.measure.verdict import judge

Action = Callable[[], object]


@dataclass
class Rows:
    """The rows of one bundle and target, as they come.

    Attributes:
        machine: for the verdicts.
        conditions: of every row that states none of its own.
        watch: makes the eyes of one row.
    """

    bundle: str
    target: str
    machine: Machine
    conditions: Conditions
    watch: Callable[[], MachineMonitor] = MachineMonitor
    rows: list[Row] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def time(
        self,
        group: str,
        candidates: Mapping[str, Action],
        before: Mapping[str, Action] | None = None,
        photos: Mapping[str, int] | None = None,
        name: str = "",
        conditions: Conditions | None = None,
    ) -> dict[str, Series]:
        """Times candidates in turns and adds a row for each.

        Args:
            name: of all of them; a candidate's own name is then its place on the group's axis.
            photos: that one sample of a candidate is for; default: one.
            conditions: other than the table's.
        """
        found = measure(candidates, conditions or self.conditions, self.watch(), before)
        for label, series in found.items():
            self.add(group, series, name or label, label if name else "", (photos or {}).get(label, 1), conditions)
        return found

    def add(
        self, group: str, series: Series, name: str, at: str = "", photos: int = 1, conditions: Conditions | None = None
    ) -> None:
        """Adds the row of a series."""
        conditions = conditions or self.conditions
        self.rows.append(
            Row(
                bundle=self.bundle,
                target=self.target,
                group=group,
                name=name,
                at=at,
                photos=photos,
                conditions=conditions,
                samples_ms=tuple(round(value, 6) for value in series.samples_ms.tolist()),
                starts_s=tuple(round(value, 6) for value in series.starts_s.tolist()),
                summary=series.summary(),
                verdict=judge(series, conditions, self.machine),
                observations=series.observations,
            )
        )

    def ratio(self, group: str, found: Mapping[str, Series], name: str, over: str) -> None:
        """Adds the ratio of two candidates that were timed in turns."""
        ratios = found[name].samples_ms / found[over].samples_ms
        interval = bootstrap_median(ratios, min(BLOCK, max(1, len(ratios) // 8)))
        self.ratios.append(
            Ratio(
                bundle=self.bundle,
                target=self.target,
                group=group,
                name=name,
                over=over,
                ratio=interval.mean,
                low=interval.low,
                high=interval.high,
            )
        )

    def lacks(self, what: str, why: str) -> None:
        """Says what was not measured."""
        self.missing.append(Missing(what=f"{self.bundle} {self.target}: {what}", why=why))


class Table(Rows):
    """The rows of one subject.

    Attributes:
        subject: what is measured.
    """

    def __init__(
        self,
        subject: Target,
        machine: Machine,
        conditions: Conditions,
        watch: Callable[[], MachineMonitor] = MachineMonitor,
    ) -> None:
        super().__init__(subject.name, subject.target_name, machine, conditions, watch)
        self.subject = subject
