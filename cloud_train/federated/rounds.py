"""The loop of rounds, the same for every engine, and the embedded engine: all clients in one process, one after the
other, as many as the disk holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors.torch import save

from refocus.cloud_train.federated.checkpoint import CheckpointStore, RoundCheckpoint
from refocus.cloud_train.federated.client import Participant, Recipe
from refocus.cloud_train.federated.client_data import Client
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.federated.server import PromptServer, Reply, Server
from refocus.cloud_train.progress import track
from refocus.cloud_train.tracking import log_metrics


def sampled(names: Sequence[str], participation: float, seed: int, number: int) -> list[str]:
    """Who trains in a round: a function of the seed and the round's number alone."""
    count = max(1, round(participation * len(names)))
    chosen = np.random.default_rng((seed, number)).permutation(len(names))[:count]
    return [names[place] for place in sorted(chosen.tolist())]


def size(tensors: Tensors) -> int:
    """Bytes of a message with these tensors; a client that is told nothing is sent none."""
    return len(save(tensors)) if tensors else 0


@dataclass
class Trained:
    """What came of asking clients to train.

    Attributes:
        replies: of those that answered, in the order in which they were asked.
        changed: what clients keep after it, where the engine keeps that for them.
        bytes_down, bytes_up: of all messages together.
        asked: how many were sent one.
        absent: who was chosen and did not answer, or whose answer was refused.
        refused: of these, why.
    """

    replies: dict[str, Reply] = field(default_factory=dict)
    changed: dict[str, Tensors] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    asked: int = 0
    absent: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """How clients are reached; methods know nothing of it."""

    def train(self, number: int, chosen: Sequence[str], payload: Callable[[str], Tensors]) -> Trained:
        """Lets clients train in a round, each on what the server gives it; at least one answers."""

    def validation(self, number: int, payload: Callable[[str], Tensors]) -> float:
        """Mean over clients of the share of validation photos that the network they would use recognises."""


def federate(
    participant: Participant, clients: Sequence[Client], recipe: Recipe, folder: Path, what: str
) -> tuple[Server, RoundCheckpoint]:
    """Trains all rounds that are not done yet, in this process.

    Args:
        folder: of the rounds that are.

    Returns:
        Server and clients as they were after the round that the recipe keeps, with the log of all rounds.
    """
    names, store = [client.name for client in clients], CheckpointStore(folder)
    server, checkpoint = participant.server(names, recipe), store.load()
    engine = InProcess(participant, {client.name: client for client in clients}, checkpoint.clients)
    todo = track(range(checkpoint.rounds + 1, recipe.rounds + 1), what, recipe.rounds - checkpoint.rounds)
    run_rounds(todo, server, checkpoint, store, engine, names, recipe, participant.seed, what)
    if recipe.keep == "last":
        if checkpoint.rounds:
            server.restore(checkpoint.server)
        return server, checkpoint
    best = _best_store(store).load()
    server.restore(best.server)
    return server, replace(best, log=checkpoint.log)


def _best_store(store: CheckpointStore) -> CheckpointStore:
    return CheckpointStore(store.folder / "best")


def run_rounds(
    todo: Iterable[int],
    server: Server,
    checkpoint: RoundCheckpoint,
    store: CheckpointStore,
    engine: Engine,
    names: Sequence[str],
    recipe: Recipe,
    seed: int,
    what: str = "federated",
) -> None:
    """Runs rounds on any engine, and keeps each.

    Args:
        todo: numbers of the rounds, one after the other; it may end before the last one.
        server, checkpoint: as they were after the last round that is done; both are brought up to date.
        names: of all clients, in the order in which the server knows them.
        what: is trained, for curves.
    """
    if checkpoint.rounds:
        server.restore(checkpoint.server)
    for number in todo:
        started = time.monotonic()
        chosen = sampled(names, recipe.participation, seed, number)
        found = engine.train(number, chosen, server.payload)
        server.aggregate(found.replies)
        first = next(iter(found.replies.values()))
        record: dict[str, Any] = {
            "round": number,
            "clients": len(found.replies),
            "bytes_down": found.bytes_down // found.asked,
            "bytes_up": found.bytes_up // len(found.replies),
            "numbers": sum(value.numel() for value in first.tensors.values()),
            "seconds": time.monotonic() - started,
        }
        if found.absent:
            record["absent"] = found.absent
        if found.refused:
            record["refused"] = found.refused
        record |= _progress(found.replies)
        if isinstance(server, PromptServer):
            record["prompt_difference"] = server.difference()
        if number % recipe.watch == 0 or number == recipe.rounds:
            record["validation"] = engine.validation(number, server.payload)
        log_metrics(what, number, **{name: value for name, value in record.items() if isinstance(value, int | float)})
        better = is_best(record, checkpoint.log)
        checkpoint.log.append(record)
        checkpoint.rounds, checkpoint.server = number, server.state()
        if better and recipe.keep == "best":
            _best_store(store).save(number, checkpoint.server, checkpoint.clients, checkpoint.log)
        store.save(number, checkpoint.server, found.changed, checkpoint.log)


def _progress(replies: Mapping[str, Reply]) -> dict[str, float]:
    """Steps of a client, and loss and accuracy of the photos that clients trained on, where the engine says them."""
    known = [reply.progress for reply in replies.values() if reply.progress is not None]
    photos = sum(one.photos for one in known)
    if not photos:
        return {"steps": 0.0} if known else {}
    return {
        "steps": float(np.mean([one.steps for one in known])),
        "loss": sum(one.loss for one in known) / photos,
        "accuracy": sum(one.right for one in known) / photos,
    }


def is_best(record: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> bool:
    """Whether validation photos were recognised better after a round than after all before it."""
    before = [one["validation"] for one in log if "validation" in one]
    return "validation" in record and (not before or record["validation"] > max(before))


class InProcess:
    """The embedded engine.

    Args:
        people: clients by name.
        states: what each keeps; brought up to date.
    """

    def __init__(self, participant: Participant, people: Mapping[str, Client], states: dict[str, Tensors]) -> None:
        self._participant, self._people, self._states = participant, people, states

    def train(self, number: int, chosen: Sequence[str], payload: Callable[[str], Tensors]) -> Trained:
        found = Trained(asked=len(chosen))
        for name in chosen:
            given = payload(name)
            reply, state = self._participant.local_update(
                name, number, given, self._states.get(name, {}), self._people[name].train
            )
            found.replies[name] = reply
            if state:
                self._states[name] = found.changed[name] = state
            found.bytes_down, found.bytes_up = found.bytes_down + size(given), found.bytes_up + size(reply.tensors)
        return found

    def validation(self, number: int, payload: Callable[[str], Tensors]) -> float:
        shares = [
            validated(self._participant, client, number, payload(name), self._states.get(name, {}))
            for name, client in self._people.items()
        ]
        return float(np.mean(shares))


def validated(participant: Participant, client: Client, number: int, payload: Tensors, state: Tensors) -> float:
    """Share of a client's validation photos that the network it would use recognises."""
    network = participant.personal(client.name, number, payload, state, client.train)
    return float(participant.right(network, client.validation).mean())
