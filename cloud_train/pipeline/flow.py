"""The retraining as a Metaflow flow: order, retries, resuming and fan-out, and nothing else.

Steps hand on the folder of the run and yes or no; everything else is in files there (cloud_train/pipeline/state.py), so
that no model is ever pickled. Run by :mod:`refocus.cloud_train.pipeline.run`, or by hand as a script.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from metaflow import FlowSpec, Parameter, step

# Metaflow runs this file as a script for every step: this folder's modules must not stand for others of their names.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]


def done(work: str, name: str, where: str, *more: Any) -> Any:
    """Does one step, once: its beginning and end are noted, and an error that people can mend is kept for them.

    Metaflow repeats a step that a kill took between its end and Metaflow's record of it, or whose record it had not
    yet copied into the resumed run. Here it is not done again.

    Args:
        where: module and function of the step, imported only here: most steps need no PyTorch.
        more: arguments beside the run's folder.

    Returns:
        What the step returned: for a gate, whether it let the run through.
    """
    from refocus.cloud_train.pipeline.state import has_ended, note, read_state, write_state
    from refocus.edge.errors import RefocusError

    place = Path(work)
    if has_ended(place, name):
        return read_state(place, name).get("passed")
    note(place, f"{name} began")
    try:
        module, _, function = where.partition(":")
        found = getattr(importlib.import_module(f"refocus.cloud_train.pipeline.{module}"), function)(place, *more)
    except RefocusError as error:
        write_state(place, "error", {"step": name, "message": str(error)})
        note(place, f"{name} failed")
        raise
    note(place, f"{name} ended")
    return found


class RefocusFlow(FlowSpec):
    """New photos in, a gated release out."""

    work = Parameter("work", help="folder of the run", required=True, type=str)

    @step
    def start(self) -> None:
        """Which photos."""
        done(self.work, "ingest", "data:ingest")
        self.next(self.features)

    @step
    def features(self) -> None:
        """Photos to features."""
        done(self.work, "features", "model:features")
        self.next(self.train)

    @step
    def train(self) -> None:
        """Features to a head."""
        done(self.work, "train", "model:train")
        self.next(self.evaluate)

    @step
    def evaluate(self) -> None:
        """Person by person, beside the current release."""
        done(self.work, "evaluate", "model:evaluate")
        self.next(self.gate)

    @step
    def gate(self) -> None:
        """Judges what people get."""
        self.verdict = "go" if done(self.work, "gate", "gates:people_gate") else "stop"
        self.next({"go": self.plan, "stop": self.refuse_people}, condition="verdict")

    @step
    def refuse_people(self) -> None:
        """Nothing is exported."""
        self.next(self.end)

    @step
    def plan(self) -> None:
        """One branch per target."""
        from refocus.cloud_train.pipeline.state import read_state

        self.targets = read_state(Path(self.work), "pipeline")["targets"]
        self.next(self.export, foreach="targets")

    @step
    def export(self) -> None:
        """One target."""
        done(self.work, f"export {self.input}", "model:export", self.input)
        self.next(self.merge)

    @step
    def merge(self, inputs: Any) -> None:
        """One bundle of all targets."""
        done(self.work, "merge", "model:merge")
        self.next(self.parity)

    @step
    def parity(self) -> None:
        """Judges the programs against PyTorch."""
        self.verdict = "go" if done(self.work, "parity", "gates:parity_gate") else "stop"
        self.next({"go": self.benchmark, "stop": self.refuse_programs}, condition="verdict")

    @step
    def refuse_programs(self) -> None:
        """Nothing is measured."""
        self.next(self.end)

    @step
    def benchmark(self) -> None:
        """Judges size and time."""
        self.verdict = "go" if done(self.work, "benchmark", "gates:benchmark_gate") else "stop"
        self.next({"go": self.card, "stop": self.refuse_cost}, condition="verdict")

    @step
    def refuse_cost(self) -> None:
        """Nothing is released."""
        self.next(self.end)

    @step
    def card(self) -> None:
        """The model card."""
        done(self.work, "card", "finish:card")
        self.next(self.release)

    @step
    def release(self) -> None:
        """Signed, registered, current."""
        done(self.work, "release", "finish:release")
        self.next(self.end)

    @step
    def end(self) -> None:
        """Writes the report of a released or refused run."""
        done(self.work, "report", "finish:report")


if __name__ == "__main__":
    from refocus.edge.commands import show_news

    show_news()
    RefocusFlow()
