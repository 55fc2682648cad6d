"""A second process: it writes the targets whose lowering takes minutes of one core, then it measures parity too.

The process builds the program from its checkpoint again and captures it itself: the same bytes come out, and nothing
but names and calibration inputs travel between the two.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from refocus.edge.bundle import Tensor as TensorSpec
from refocus.export.bundle.artifacts import Captured, Job, write_program
from refocus.export.errors import ExportError
from refocus.export.program.capture import capture_freest
from refocus.export.program.checkpoint import load_checkpoint
from refocus.export.program.program import TorchProgram
from refocus.export.targets import Settings, Written

T = TypeVar("T")
Result = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], Written]


class WorkerProcess(AbstractContextManager["WorkerProcess"]):
    """One process, started when it is first needed and gone with the ``with`` block.

    While it is there, PyTorch has one thread in each of the two. Threads that wait for each other spin: photo by photo
    they take more processor time than they save.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._started: dict[Path, Future[Result]] = {}

    def start(self, job: Job, settings: Settings) -> None:
        """Starts writing one program."""
        if self._pool is None:
            # A fresh interpreter: torch's threads do not survive a fork.
            self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        rows = [[value.numpy() for value in row] for row in settings.calibration]
        about = job.checkpoint.path, job.checkpoint.form, job.checkpoint.window, job.program.role, job.name
        self._started[job.path] = self._pool.submit(_write, *about, replace(settings, calibration=()), rows, job.path)

    def __contains__(self, path: Path) -> bool:
        return path in self._started

    def take_back(self, path: Path) -> bool:
        """Whether a program was not begun; it is then the caller's to write."""
        taken = self._started[path].cancel()
        if taken:
            del self._started[path]
        return taken

    def finish(self, path: Path, program: TorchProgram) -> Written:
        """Waits for what was started.

        Raises:
            ExportError: as the target's own ``write``.
        """
        try:
            inputs, outputs, written = self._started[path].result()
        except BrokenExecutor:
            self._pool = None
            raise ExportError(
                f"the process that wrote {path.name} was killed, for want of memory perhaps; export fewer targets at"
                " once, or free memory"
            ) from None
        return replace(written, program=replace(program, inputs=inputs, outputs=outputs))

    def share(self, function: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> list[T]:
        """The results of all calls, in order: the second process begins at the first, this one at the last.

        Function and arguments travel by name and by pickle. Without a second process all is done here.
        """
        if self._pool is None:
            return [function(*call) for call in calls]
        there = [self._pool.submit(function, *call) for call in calls]
        here = {index: function(*calls[index]) for index in reversed(range(len(calls))) if there[index].cancel()}
        return [
            here[index] if index in here else self._shared(future, function, calls[index])
            for index, future in enumerate(there)
        ]

    def _shared(self, future: Future[T], function: Callable[..., T], call: tuple[Any, ...]) -> T:
        """What the second process found; it is done again here where that one was killed."""
        try:
            return future.result()
        except BrokenExecutor:
            self._pool = None
            return function(*call)

    def __exit__(self, *error: object) -> None:
        try:
            if self._pool is not None and error[0] is not None:  # no caller waits for its result
                for process in list((self._pool._processes or {}).values()):
                    process.terminate()
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
        finally:
            torch.set_num_threads(self._threads)


@functools.lru_cache(maxsize=1)
def _program(checkpoint: Path, form: str, window: int, role: str) -> TorchProgram:
    loaded = load_checkpoint(checkpoint, form, window)
    return loaded.required("encoder").program() if role == "encoder" else loaded.program()


@functools.lru_cache(maxsize=1)  # fp32 and w8a8 ask for it in a row
def _captured(checkpoint: Path, form: str, window: int, role: str, target: str) -> tuple[TorchProgram, Captured]:
    """The program in a target's layout, and its capture."""
    wanted = _program(checkpoint, form, window, role).laid_out_for(target)
    return wanted, capture_freest(wanted.probed or wanted)


def _write(
    checkpoint: Path,
    form: str,
    window: int,
    role: str,
    name: str,
    settings: Settings,
    rows: list[list[np.ndarray]],
    path: Path,
) -> Result:
    torch.set_num_threads(1)
    wanted, captured = _captured(checkpoint, form, window, role, name.partition(":")[0])
    settings = replace(settings, calibration=tuple(tuple(map(torch.from_numpy, row)) for row in rows))
    written = write_program(wanted, captured, name, settings, path)
    # The module itself stays here.
    light = replace(captured[0], module=torch.nn.Identity(), parts={}, personal={})
    return written.program.inputs, written.program.outputs, replace(written, program=light)
