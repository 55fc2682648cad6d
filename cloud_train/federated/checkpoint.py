"""What a federation keeps on disk between rounds, so that a stop at any moment costs one round at most.

    FOLDER/clients/NAME/ROUND.safetensors    what a client keeps, as it was after that round
    FOLDER/server/ROUND.safetensors          what the server keeps, and the log, written last

A round counts once the server's file is there; what clients wrote for a later one is dropped. A client whose name no
folder can have has one named by a digest, and its name in the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.resume import write_tensors
from refocus.edge.personal import BY_DIGEST, file_name

SUFFIX = ".safetensors"


@dataclass
class RoundCheckpoint:
    """A federation between two rounds.

    Attributes:
        rounds: done so far.
        server: the server's tensors.
        clients: each client's own tensors, by name; those who never trained are not there.
        log: a record per round.
    """

    rounds: int = 0
    server: Tensors = field(default_factory=dict)
    clients: dict[str, Tensors] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)


class CheckpointStore:
    """The folder of one federation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> RoundCheckpoint:
        """The last whole round.

        Raises:
            DataError: its file is damaged.
        """
        server = by_round(self.folder / "server")
        if not server:
            return RoundCheckpoint()
        number, path = max(server.items())
        log = _log_of(path)
        try:
            checkpoint = RoundCheckpoint(number, {k: v for k, v in load_file(path).items() if k != _EMPTY}, {}, log)
            for place in sorted((self.folder / "clients").glob("*")):
                rounds = {n: file for n, file in by_round(place).items() if n <= number}
                if rounds:
                    path = rounds[max(rounds)]
                    checkpoint.clients[_client_of(path)] = load_file(path)
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise _damaged(path, error) from None
        return checkpoint

    def save(self, number: int, server: Tensors, changed: Mapping[str, Tensors], log: list[dict[str, Any]]) -> None:
        """Keeps a round: first the clients that trained in it, then the server, which makes it count."""
        for name, tensors in changed.items():
            write_tensors(self._place(name) / f"{number:06d}{SUFFIX}", tensors, {"client": name})
        write_tensors(
            self.folder / "server" / f"{number:06d}{SUFFIX}",
            server or {_EMPTY: torch.zeros(1)},
            {"log": json.dumps(log)},
        )
        for place in [self.folder / "server", *map(self._place, changed)]:
            for old, path in by_round(place).items():
                if old != number:
                    path.unlink()

    def _place(self, client: str) -> Path:
        return self.folder / "clients" / file_name(client, "")


def _client_of(path: Path) -> str:
    """The client's name: of its folder, or in the file where the folder is named by a digest."""
    if not path.parent.name.startswith(BY_DIGEST):
        return unquote(path.parent.name)
    with safe_open(path, "pt") as file:
        return str((file.metadata() or {})["client"])


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The log of a federation's folder, a record per round; empty before the first one.

    Raises:
        DataError: the file of the last round is damaged.
    """
    while server := by_round(folder / "server"):
        _, path = max(server.items())
        try:
            return _log_of(path)
        except DataError:
            if path.exists():  # else the next round is there already, and this one went
                raise
    return []


def _log_of(path: Path) -> list[dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            log: list[dict[str, Any]] = json.loads((file.metadata() or {})["log"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise _damaged(path, error) from None
    return log


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path.parent.parent} holds a damaged round ({error}); remove the folder to begin again")


_EMPTY = "nothing"  # a file of tensors holds at least one


def by_round(folder: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit()}
