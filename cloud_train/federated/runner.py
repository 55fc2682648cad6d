"""The embedded engine: all clients in one process, one after the other, as many as the disk holds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save

from cloud_train.federated.clients import Client
from cloud_train.federated.network import Tensors
from cloud_train.federated.participant import Participant, Recipe, right
from cloud_train.federated.server import Reply, Server
from cloud_train.federated.store import Kept, Store
from cloud_train.progress import track


def sampled(names: Sequence[str], participation: float, seed: int, number: int) -> list[str]:
    """Who trains in a round: a function of the seed and the round's number alone."""
    count = max(1, round(participation * len(names)))
    chosen = np.random.default_rng((seed, number)).permutation(len(names))[:count]
    return [names[place] for place in sorted(chosen.tolist())]


def size(tensors: Tensors) -> int:
    """Bytes of a message with these tensors; a client that is told nothing is sent none."""
    return len(save(tensors)) if tensors else 0


def federate(participant: Participant, clients: Sequence[Client], recipe: Recipe, folder: Path, what: str,
             watch_every: int = 5) -> tuple[Server, Kept]:  # fmt: skip
    """Trains all rounds that are not done yet.

    Args:
        folder: of the rounds that are.
        watch_every: rounds after which the validation photos are looked at, for curves; nothing is chosen by them.
    """
    names, store = [client.name for client in clients], Store(folder)
    people = dict(zip(names, clients, strict=True))
    server, kept = participant.server(names, recipe), store.load()
    if kept.rounds:
        server.restore(kept.server)
    for number in track(range(kept.rounds + 1, recipe.rounds + 1), what, recipe.rounds - kept.rounds):
        started = time.monotonic()
        chosen = sampled(names, recipe.participation, participant.seed, number)
        replies: dict[str, Reply] = {}
        changed: dict[str, Tensors] = {}
        down = up = 0
        for name in chosen:
            payload = server.payload(name)
            reply, state = participant.local_update(
                name, number, payload, kept.clients.get(name, {}), people[name].train
            )
            replies[name] = reply
            if state:
                kept.clients[name] = changed[name] = state
            down, up = down + size(payload), up + size(reply.tensors)
        server.aggregate(replies)
        record: dict[str, Any] = {
            "round": number, "clients": len(chosen), "bytes_down": down // len(chosen), "bytes_up": up // len(chosen),
            "numbers": sum(value.numel() for value in replies[chosen[0]].tensors.values()),
            "seconds": time.monotonic() - started,
        }  # fmt: skip
        if number % watch_every == 0 or number == recipe.rounds:
            record["validation"] = _validation(participant, server, people, kept.clients, number)
        kept.log.append(record)
        kept.rounds, kept.server = number, server.state()
        store.save(number, kept.server, changed, kept.log)
    return server, kept


def _validation(participant: Participant, server: Server, people: Mapping[str, Client], states: Mapping[str, Tensors],
                number: int) -> float:  # fmt: skip
    """Mean over clients of the share of validation photos that the network they would use recognises."""
    shares = []
    for name, client in people.items():
        network = participant.personal(name, number, server.payload(name), states.get(name, {}), client.train)
        shares.append(right(network, client.validation) / len(client.validation))
    return float(np.mean(shares))
