"""The client's side in a deployment, free of any engine: it holds one client's photos, and keeps its part on its disk.

    FOLDER/files/SHA256                       what networks are made from, as the server sent it
    FOLDER/PLAN/                              the folder of a run that holds those files
    FOLDER/PLAN/rounds/ROUND.safetensors      what the client keeps, as it was after that round: never sent

A round that the server asks for again, because it was stopped before it could count it, starts from where the round
before ended; so the files of the last two rounds are kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.federated.checkpoint import SUFFIX, by_round
from refocus.cloud_train.federated.client import Participant
from refocus.cloud_train.federated.client_data import Client
from refocus.cloud_train.federated.deployment.plan import Plan, decode_plan, packed, unpacked
from refocus.cloud_train.federated.evaluate import evaluate_client
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.federated.rounds import validated
from refocus.cloud_train.federated.run import FederatedRun
from refocus.cloud_train.progress import say
from refocus.cloud_train.resume import write_tensors
from refocus.edge.files import write_file

GetClient = Callable[[FederatedRun], Client]


@dataclass
class _Opened:
    participant: Participant
    client: Client


class Site:
    """One client.

    Args:
        name: the client's, as in its certificate.
        folder: its own; it may be removed when nobody trains: the client then starts again.
        photos: reads the client's photos for the network of a run.
    """

    def __init__(self, name: str, folder: Path, photos: GetClient) -> None:
        self.name, self.folder, self._photos = name, folder, photos
        self._current: Plan | None = None
        self._opened: _Opened | None = None

    def begin(self, plan: bytes) -> list[str]:
        """Takes up a training, and says which of its files are not here yet."""
        self._current, self._opened = decode_plan(plan), None
        return sorted({sha for sha in self._plan.files.values() if not (self.folder / "files" / sha).exists()})

    def take(self, content: bytes) -> str:
        """Keeps a file under its SHA-256, and returns that: what the plan does not name is never opened."""
        sha = hashlib.sha256(content).hexdigest()
        path = self.folder / "files" / sha
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
        return sha

    def join(self) -> int:
        """On how many photos the client trains; the server lets it count for no more."""
        return len(self._open().client.train)

    def train(self, number: int, payload: bytes) -> tuple[bytes, int]:
        """A round: what is sent back, and on how many photos the client trained."""
        here = self._open()
        reply, state = here.participant.local_update(
            self.name, number, unpacked(payload), self._state(number - 1), here.client.train
        )
        if state:
            self._keep(number, state)
        return packed(reply.tensors), reply.photos

    def validation(self, number: int, payload: bytes) -> float:
        """Share of the validation photos that are recognised after a round."""
        here = self._open()
        return validated(here.participant, here.client, number, unpacked(payload), self._state(number))

    def judged(self, after: int, payload: bytes, base: bytes) -> dict[str, Any]:
        """How many test photos are recognised at each moment
        (:func:`refocus.cloud_train.federated.evaluate.evaluate_client`).
        """
        here, given = self._open(), unpacked(payload)
        return evaluate_client(here.participant, here.client, after, given, unpacked(base), self._state(after))

    def _open(self) -> _Opened:
        if self._opened is None:
            folder, plan = self._place(), self._plan
            folder.mkdir(parents=True, exist_ok=True)
            for file, sha in plan.files.items():
                _linked(self.folder / "files" / sha, folder / file)
            run, participant = plan.opened(folder)
            self._opened = _Opened(participant, self._photos(run))
        return self._opened

    @property
    def _plan(self) -> Plan:
        if self._current is None:
            raise UsageError("no training plan was received; the server must send one first")
        return self._current

    def _place(self) -> Path:
        return self.folder / self._plan.identity

    def _state(self, until: int) -> Tensors:
        """Tensors that the client kept in its last round up to that one; where that file is damaged, in the one before.

        Raises:
            DataError: none of its files can be read.
        """
        rounds = {number: path for number, path in by_round(self._place() / "rounds").items() if number <= until}
        for _, path in sorted(rounds.items(), reverse=True):
            try:
                return load_file(path)
            except (SafetensorError, OSError) as error:
                say(f"{path} is damaged ({error}); the client goes on from what it kept before")
        if rounds:
            raise DataError(f"{path.parent}: no file can be read; remove the folder, and the client begins again")
        return {}

    def _keep(self, number: int, state: Tensors) -> None:
        folder = self._place() / "rounds"
        write_tensors(folder / f"{number:06d}{SUFFIX}", state, {})
        before = sorted(other for other in by_round(folder) if other < number)
        for old, path in by_round(folder).items():
            if old > number or old in before[:-1]:
                path.unlink()


def _linked(source: Path, place: Path) -> None:
    """Puts a file where a run looks for it.

    Raises:
        DataError: it was never received.
    """
    if not source.exists():
        raise DataError(f"{place.name} was not received from the server; begin again")
    place.unlink(missing_ok=True)
    try:
        os.link(source, place)
    except OSError:  # a file system without links
        shutil.copyfile(source, place)
