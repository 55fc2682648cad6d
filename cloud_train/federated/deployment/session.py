"""A session: those clients that are connected, from the last round that is kept to the end, or until somebody returns.

NVFlare starts a process for a job on every machine, and a client that loses its own cannot come back to that job. So a
training is a row of jobs, each of which goes on from the rounds on disk, as after a restart of the server.

    RUN/deployment.json                    what is trained, by whom
    RUN/seed-S/METHOD-RATE/server/         rounds (:mod:`refocus.cloud_train.federated.checkpoint`)
    RUN/seed-S/METHOD-RATE/session.json    who takes part now, who is late or lost
    RUN/seed-S/METHOD-RATE/regroup         asks the session to end after the round that it is at
    RUN/seed-S/METHOD-RATE/result.json     how each client is served in the end
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.federated.checkpoint import CheckpointStore, RoundCheckpoint
from refocus.cloud_train.federated.deployment.plan import plan_of
from refocus.cloud_train.federated.deployment.replies import Limits
from refocus.cloud_train.federated.deployment.wire import Ask, Stalled, Wire
from refocus.cloud_train.federated.evaluate import base_of
from refocus.cloud_train.federated.rounds import run_rounds
from refocus.cloud_train.federated.run import FederatedRun, Rates
from refocus.cloud_train.runs.folder import read_settings, save_settings, settings_of
from refocus.edge.files import write_file

SETTINGS = "deployment.json"


@dataclass(frozen=True)
class Deployment:
    """What ``deployment.json`` holds.

    Attributes:
        clients: everybody who has a kit, in the order in which the server knows them.
        deadline: seconds a client has for a round.
        fewest: clients that have to answer for a round to count.
        training: drawn when the training begins (:class:`refocus.cloud_train.federated.deployment.plan.Plan`).
        limits: of what one client's reply may weigh and change.
    """

    method: str
    seed: int
    rates: Rates
    clients: tuple[str, ...]
    deadline: float = 600.0
    fewest: int = 1
    training: str = ""
    limits: Limits = field(default_factory=Limits)


def save_deployment(folder: Path, asked: Deployment) -> Deployment:
    """Keeps what is asked for. A training has the clients that it began with: who gets a kit later takes part in the
    next one.

    Raises:
        UsageError: the folder holds another training.
    """
    path = folder / SETTINGS
    if not path.exists():
        save_settings(path, replace(asked, training=secrets.token_hex(8)))
    begun = read_settings(path, Deployment)
    asked = replace(asked, training=begun.training, clients=begun.clients)
    return settings_of(path, asked, Deployment, "a deployed run")


def place_of(folder: Path) -> Path:
    """Where the rounds of a deployed run lie."""
    asked = read_settings(folder / SETTINGS, Deployment)
    return FederatedRun(folder).place(asked.method, asked.seed, asked.rates)


def run_session(folder: Path, present: Sequence[str], ask: Ask) -> None:
    """Trains all rounds that are not done yet with those who are here; in the end everybody is judged.

    Ends early when it is asked to regroup, or when too few clients answer.

    Raises:
        OSError: a round cannot be kept, as on a full disk; ``session.json`` says so, if it can be kept itself.
    """
    asked, run = read_settings(folder / SETTINGS, Deployment), FederatedRun(folder)
    place, recipe = run.place(asked.method, asked.seed, asked.rates), run.recipe(asked.rates)
    participant = run.participant(asked.method, asked.seed, asked.rates)
    plan, files = plan_of(run, asked.method, asked.seed, asked.rates, asked.training)
    server, store = participant.server(list(asked.clients), recipe), CheckpointStore(place)
    checkpoint, wire = store.load(), Wire(ask, present, asked.deadline, asked.fewest, limits=asked.limits)

    def todo() -> Iterator[int]:
        for number in range(checkpoint.rounds + 1, recipe.rounds + 1):
            yield number
            _note(place, wire)
            if (place / "regroup").exists():
                return

    place.mkdir(parents=True, exist_ok=True)
    (place / "regroup").unlink(missing_ok=True)
    try:
        _note(place, wire)
        wire.begin(plan.encoded, files)
        _note(place, wire)
        run_rounds(todo(), server, checkpoint, store, wire, asked.clients, recipe, asked.seed)
        if checkpoint.rounds == recipe.rounds:
            members = wire.judged(recipe.rounds + 1, server.payload, base_of(server))
            flops = participant.training_flops(_blank(run))
            write_result(place, members, checkpoint, flops)
        _note(place, wire, over=True)
    except Stalled as error:
        _note(place, wire, str(error), over=True)
    except (ConnectionError, TimeoutError):  # of the network, which another session may get over
        raise
    except OSError as error:  # NVFlare says that a job failed, not why
        with suppress(OSError):
            (place / "session.json").unlink(missing_ok=True)  # on a full disk its room is all that there is
            _note(place, wire, over=True, failed=f"{error.filename or place}: {error.strerror or error}")
        raise


def write_result(place: Path, members: list[dict[str, Any]], checkpoint: RoundCheckpoint, flops: float) -> None:
    """How each client is served in the end."""
    result = {
        "members": members,
        "unseen": [],
        "log": checkpoint.log,
        "kept_round": checkpoint.rounds,
        "flops_per_photo": flops,
    }
    write_file(place / "result.json", json.dumps(result) + "\n")


def _blank(run: FederatedRun) -> Photos:
    """Two photos of nothing: operations do not depend on what is seen."""
    contract = run.preprocessing
    pixels = torch.zeros(2, 3, contract.crop, contract.crop, dtype=torch.uint8)
    return Photos(pixels, torch.zeros(2, dtype=torch.int64), np.zeros(2, int), contract.mean, contract.std)


def _note(place: Path, wire: Wire, stalled: str = "", over: bool = False, failed: str = "") -> None:
    session = {
        "present": list(wire.present),
        "late": wire.late,
        "lost": wire.lost,
        "photos": wire.joined or {},
        "stalled": stalled,
        "failed": failed,
        "over": over,
    }
    write_file(place / "session.json", json.dumps(session) + "\n")
