"""The state of a long training between two steps, on disk, so that a stop at any moment costs a minute or two at most.

    NAME.unfinished.safetensors    tensors of networks, optimisers and PyTorch's random generator; in its metadata,
                                   as JSON, the step, rates and NumPy's generators

Nothing is pickled. A file is written whole or not at all. On a CPU, a training that goes on from one is the same to the
bit as one that never stopped.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from refocus.cloud_train.progress import say, track
from refocus.edge.files import replaced

SUFFIX = ".unfinished.safetensors"
EVERY = 60.0  # seconds between two files,
SHARE = 0.05  # and at most this part of the time is spent on writing them
_STATE, _RANDOM = "state", "random"


class Unfinished:
    """One training's state, read if there is one.

    Args:
        path: of the file; None: the training begins at its first step and keeps nothing.
        networks: whose ``state_dict`` the training changes.
        optimisers, schedules: of these.
        generators: that the training draws from, besides PyTorch's own.

    Attributes:
        done: steps that need not be taken again.
        seconds: that they took.
    """

    def __init__(
        self,
        path: Path | None,
        networks: Sequence[nn.Module],
        optimisers: Sequence[torch.optim.Optimizer],
        schedules: Sequence[torch.optim.lr_scheduler.LRScheduler],
        generators: Sequence[np.random.Generator] = (),
    ) -> None:
        self.path, self.done, self.seconds = path, 0, 0.0
        self._networks, self._optimisers, self._schedules = networks, optimisers, schedules
        self._generators = generators
        if path is not None and path.exists():
            self._read(path)

    def steps(self, total: int, what: str) -> Iterator[int]:
        """Numbers of the steps that are left, from 0 to ``total``; the state is kept between them, and at the end."""
        written, pause = time.monotonic(), EVERY
        began = written - self.seconds
        for step in track(range(self.done, total), what, total - self.done):
            yield step
            self.done = step + 1
            if self.path is not None and (time.monotonic() - written >= pause or self.done == total):
                started = time.monotonic()
                self.seconds = started - began
                self._write(self.path)
                written = time.monotonic()
                pause = max(EVERY, (written - started) / SHARE)

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that changes and is a tensor, by name; the network's and the optimisers' own, not copies."""
        found: dict[str, Tensor] = {}
        for number, network in enumerate(self._networks):
            found |= {f"network.{number}.{name}": value for name, value in network.state_dict().items()}
        for number, optimiser in enumerate(self._optimisers):
            for row, values in optimiser.state_dict()["state"].items():
                for name, value in values.items():
                    if isinstance(value, Tensor):
                        found[f"optimiser.{number}.{row}.{name}"] = value
        return found

    def _write(self, path: Path) -> None:
        state = {
            "done": self.done,
            "seconds": self.seconds,
            "groups": [_plain(optimiser.state_dict()["param_groups"]) for optimiser in self._optimisers],
            "schedules": [_plain(schedule.state_dict()) for schedule in self._schedules],
            "generators": [generator.bit_generator.state for generator in self._generators],
        }
        write_tensors(path, self._tensors() | {_RANDOM: torch.get_rng_state()}, {_STATE: json.dumps(state)})

    def _read(self, path: Path) -> None:
        """Takes in a file; one that is damaged, or of another training, is said and not used."""
        try:
            state, tensors = _state_of(path), load_file(path)
            random = tensors.pop(_RANDOM)
            networks = {name: value for name, value in self._tensors().items() if name.startswith("network.")}
            there = {name: (value.shape, value.dtype) for name, value in tensors.items() if name in networks}
            if there != {name: (value.shape, value.dtype) for name, value in networks.items()}:
                raise ValueError("it is of another network")
            self._take(tensors, state)
            torch.set_rng_state(random)
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            say(f"{path} cannot be used ({error}); this part of the training begins again")
            return
        self.done, self.seconds = int(state["done"]), float(state["seconds"])
        say(f"{path.name.removesuffix(SUFFIX)} goes on after {self.done} steps")

    def _take(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        for number, optimiser in enumerate(self._optimisers):
            rows: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                if name.startswith(f"optimiser.{number}."):
                    _, _, row, key = name.split(".", 3)
                    rows.setdefault(int(row), {})[key] = value
            optimiser.load_state_dict({"state": rows, "param_groups": state["groups"][number]})
        for number, schedule in enumerate(self._schedules):
            schedule.load_state_dict(state["schedules"][number] | {"lr_lambdas": [None]})
        for number, generator in enumerate(self._generators):
            generator.bit_generator.state = state["generators"][number]
        for number, network in enumerate(self._networks):
            own = f"network.{number}."
            network.load_state_dict({n.removeprefix(own): v for n, v in tensors.items() if n.startswith(own)})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes a safetensors file whole or not at all; its folder is made.

    Raises:
        OSError: it cannot be written, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replaced(path) as temporary:
            save_file({name: value.detach().contiguous() for name, value in tensors.items()}, temporary, metadata)
    except SafetensorError as error:  # which has the system's error in its text alone
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def seconds_of(path: Path) -> float:
    """Training time, in seconds, of the steps in a state file; 0 where it cannot be read."""
    try:
        return float(_state_of(path)["seconds"])
    except (SafetensorError, KeyError, ValueError, OSError):
        return 0.0


def _state_of(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        state: dict[str, Any] = json.loads((file.metadata() or {})[_STATE])
    return state


def _plain(value: Any) -> Any:
    """Optimiser or schedule state without functions, as JSON can hold it."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if not callable(part) and name != "lr_lambdas"}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value
