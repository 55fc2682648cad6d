"""Curves of a training for TensorBoard or MLflow: losses and accuracies, step by step, beside the settings.

Training calls :func:`log_metrics`; it does nothing unless a command was given ``--track``. Both trackers write to local
files, or MLflow to the server that ``MLFLOW_TRACKING_URI`` names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from refocus.cloud_train.progress import is_first


class Tracker(Protocol):
    """Takes the metrics of one run."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Notes metrics at a step, an epoch or a round."""

    def close(self, done: bool) -> None:
        """Writes what is not written yet, and whether the training came to its end."""


_current: ContextVar[Tracker | None] = ContextVar("tracker", default=None)


def log_metrics(what: str, step: int, **metrics: float) -> None:
    """Notes metrics of a training that is tracked.

    Args:
        what: the part that is trained, as "iciia P=256 seed 0"; it stands before the metrics' names.
        step: number of the step, epoch or round.
        metrics: by name, as ``loss`` in nats or ``validation_accuracy`` in [0, 1].
    """
    tracker = _current.get()
    if tracker is not None:
        tracker.log({f"{what}/{name}": float(value) for name, value in metrics.items()}, step)


@contextlib.contextmanager
def tracked(kind: str, folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Sends what is logged in the block to a tracker, from the first process alone.

    Args:
        kind: "tensorboard" or "mlflow"; "" tracks nothing.
        folder: of the run. TensorBoard's files are in ``FOLDER/tensorboard``; MLflow's in ``FOLDER/mlflow.db`` unless
            ``MLFLOW_TRACKING_URI`` is set.
        settings: of the run by dotted name, noted as parameters.

    Raises:
        ModuleNotFoundError: the tracker is not installed.
    """
    if not kind or not is_first():
        yield
        return
    tracker: Tracker = _TensorBoard(folder, settings) if kind == "tensorboard" else _Mlflow(folder, settings)
    token = _current.set(tracker)
    done = False
    try:
        yield
        done = True
    finally:
        _current.reset(token)
        tracker.close(done)


class _TensorBoard:
    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import tensorboard  # noqa: F401 - torch's own error for a missing one does not name the package
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        table = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{table}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, done: bool) -> None:
        self._writer.close()


class _Mlflow:
    _LONGEST = 6000  # characters of a parameter

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name("refocus")
        experiment = found.experiment_id if found else self._client.create_experiment("refocus")
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        parameters = [Param(name, str(value)[: self._LONGEST]) for name, value in settings.items()]
        for first in range(0, len(parameters), 100):
            self._client.log_batch(self._run, params=parameters[first : first + 100])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run, name.replace("=", " "), value, step=step)

    def close(self, done: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if done else "FAILED")
