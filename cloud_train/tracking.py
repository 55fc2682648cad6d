"""Curves of a training: losses and accuracies by step. Every run keeps them as ``RUN/curves.jsonl``; TensorBoard or
MLflow get them too where a command was given ``--track``.

Training calls :func:`log_metrics`, which does nothing outside :func:`tracked`. Both trackers write to local files, or
MLflow to the server that ``MLFLOW_TRACKING_URI`` names.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from refocus.cloud_train.progress import is_first

CURVES = "curves.jsonl"
_ALL_UNTIL = 100  # steps of which each is kept; of later ones one for every hundredth of its number


class Tracker(Protocol):
    """Takes the metrics of one run."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Notes metrics at a step, an epoch or a round."""

    def close(self, done: bool) -> None:
        """Writes what is not written yet, and whether the training came to its end."""


_current: ContextVar[Sequence[Tracker]] = ContextVar("trackers", default=())


def log_metrics(what: str, step: int, **metrics: float) -> None:
    """Notes metrics of a training in :func:`tracked`.

    Args:
        what: the part that is trained, as "iciia P=256 seed 0"; it stands before the metrics' names.
        step: number of the step, epoch or round.
        metrics: by name, as ``loss`` in nats or ``validation_accuracy`` in [0, 1].
    """
    for tracker in _current.get():
        tracker.log({f"{what}/{name}": float(value) for name, value in metrics.items()}, step)


@contextlib.contextmanager
def tracked(kind: str, folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Keeps what is logged in the block as ``FOLDER/curves.jsonl`` and sends it to a tracker, from the first process.

    Args:
        kind: "tensorboard" or "mlflow"; "": no tracker beside the file.
        folder: of the run. TensorBoard's files are in ``FOLDER/tensorboard``; MLflow's in ``FOLDER/mlflow.db`` unless
            ``MLFLOW_TRACKING_URI`` is set.
        settings: of the run by dotted name, noted as parameters of the tracker.

    Raises:
        ModuleNotFoundError: the tracker is not installed.
    """
    if not is_first():
        yield
        return
    makers: dict[str, type[_TensorBoard] | type[_Mlflow]] = {"tensorboard": _TensorBoard, "mlflow": _Mlflow}
    trackers: list[Tracker] = [_CurvesFile(folder)]
    if kind:
        trackers.append(makers[kind](folder, settings))
    token = _current.set(trackers)
    done = False
    try:
        yield
        done = True
    finally:
        _current.reset(token)
        for tracker in trackers:
            tracker.close(done)


class _CurvesFile:
    """Appends points as lines of JSON: ``name``, ``step``, and ``value``, the mean since the point before."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CURVES
        self._last: dict[str, int] = {}  # step of the newest point
        self._since: dict[str, list[float]] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        lines = []
        for name, value in metrics.items():
            if not math.isfinite(value):
                continue
            last, since = self._last.get(name, 0), self._since.setdefault(name, [])
            since.append(value)
            if step >= last + max(1, last // _ALL_UNTIL) or step <= last:
                lines.append(self._point(name, step))
        if lines:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(lines)

    def close(self, done: bool) -> None:
        """Nothing to do: the last point of a training is a hundredth of its steps from the end at most."""

    def _point(self, name: str, step: int) -> str:
        values, self._since[name], self._last[name] = self._since[name], [], step
        return json.dumps({"name": name, "step": step, "value": round(sum(values) / len(values), 6)}) + "\n"


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
