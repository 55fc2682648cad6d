"""Rounds as they come: a bar and a table on a terminal, a line per round elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from refocus.cloud_train.federated.checkpoint import read_log
from refocus.cloud_train.progress import say
from refocus.edge.commands import shows_progress

SHOWN = 8  # rounds in the table
_COLUMNS = ("round", "clients", "absent", "bytes down", "bytes up", "validation", "seconds")


class Watch:
    """Shows what the folder of a training says.

    Args:
        place: of the rounds.
        rounds: of the whole training.
    """

    def __init__(self, place: Path, rounds: int) -> None:
        console = Console(file=sys.stderr)
        self._place, self._terminal, self._told = place, shows_progress(), len(read_log(place))
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console)
        self._task = self._bar.add_task(place.name, total=rounds)
        self._live = Live(self._bar, console=console, auto_refresh=self._terminal, transient=not self._terminal)

    def __enter__(self) -> Watch:
        if self._terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            self._live.stop()

    def look(self) -> int:
        """Shows what is new, and returns the last round that is done."""
        log = read_log(self._place)
        if self._terminal:
            self._bar.update(self._task, completed=len(log))
            self._live.update(Group(_table(log[-SHOWN:]), self._bar))
        else:
            for record in log[self._told :]:
                say("  ".join(f"{name} {text}" for name, text in _cells(record).items()))
        self._told = len(log)
        return len(log)


def _table(log: list[dict[str, Any]]) -> Table:
    table = Table(*(Column(name, justify="right") for name in _COLUMNS), box=None)
    for record in log:
        table.add_row(*_cells(record).values())
    return table


def _cells(record: dict[str, Any]) -> dict[str, str]:
    validation = f"{100 * record['validation']:.1f} %" if "validation" in record else "-"
    absent, moved = ",".join(record.get("absent", [])) or "-", (record["bytes_down"], record["bytes_up"])
    done, seconds = (str(record[name]) for name in ("round", "clients")), f"{record['seconds']:.1f}"
    cells = *done, absent, *map("{:,}".format, moved), validation, seconds
    return dict(zip(_COLUMNS, cells, strict=True))
