"""How every client is served in the end: test photos that are recognised, at three moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from refocus.cloud_train.federated.checkpoint import RoundCheckpoint
from refocus.cloud_train.federated.client import Participant, Recipe
from refocus.cloud_train.federated.client_data import Client, Clients
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.federated.server import PromptServer, Server


def evaluate(
    clients: Clients, participant: Participant, server: Server, checkpoint: RoundCheckpoint, recipe: Recipe
) -> dict[str, Any]:
    """Test photos that each client's network recognises, at three moments.

    "received": what the server gives and the client kept, as it is. "used": after what the method itself does before
    use. "base": with pFedPG's base prompts in the place of those generated for the client. "adapted": after one more
    round of the client's own training, whatever the method: a common footing. Unseen clients have kept nothing; for
    them "adapted" is after their first round.
    """
    after = recipe.rounds + 1

    def moments(client: Client, state: Tensors) -> dict[str, np.ndarray]:
        return recognised(participant, client, after, server.payload(client.name), base_of(server), state)

    of_members = [moments(client, checkpoint.clients.get(client.name, {})) for client in clients.members]
    of_unseen = [moments(client, {}) for client in clients.unseen]
    both = (("members", clients.members, of_members), ("unseen", clients.unseen, of_unseen))
    return {
        **{who: [counts(*one) for one in zip(people, found, strict=True)] for who, people, found in both},
        "right": {
            who: [{moment: packed_bits(bits) for moment, bits in one.items()} for one in found]
            for who, _, found in both
        },
        "log": checkpoint.log,
        "kept_round": checkpoint.rounds,
        "storage": participant.storage(checkpoint.clients.get(clients.members[0].name, {})),
        "trained": sum(value.numel() for value in participant.trained().values()),
        "flops_per_photo": participant.training_flops(clients.members[0].train),
    }


def base_of(server: Server) -> Tensors:
    """The base prompts of a server that has some to be evaluated by."""
    return server.base() if isinstance(server, PromptServer) and server.kind != "mlp" else {}


def evaluate_client(
    participant: Participant, client: Client, after: int, payload: Tensors, base: Tensors, state: Tensors
) -> dict[str, Any]:
    """One client's test photos, and how many its network recognises at each moment."""
    return counts(client, recognised(participant, client, after, payload, base, state))


def recognised(
    participant: Participant, client: Client, after: int, payload: Tensors, base: Tensors, state: Tensors
) -> dict[str, np.ndarray]:
    """(R,) which of a client's test photos its network recognises, at each moment."""
    found = {
        "received": participant.right(participant.received(payload, state), client.test),
        "used": participant.right(participant.personal(client.name, after, payload, state, client.train), client.test),
    }
    if base:
        found["base"] = participant.right(participant.received(base, state), client.test)
    reply, trained = participant.local_update(client.name, after, payload, state, client.train)
    own = participant.personal(client.name, after, reply.tensors, trained, client.train)
    return {**found, "adapted": participant.right(own, client.test)}


def counts(client: Client, found: dict[str, np.ndarray]) -> dict[str, Any]:
    """How many photos a client has, and how many of its test photos were recognised at each moment."""
    numbers = {moment: int(bits.sum()) for moment, bits in found.items()}
    return {"name": client.name, "test": len(client.test), "train": len(client.train), **numbers}


def packed_bits(bits: np.ndarray) -> str:
    """(R,) booleans as hexadecimal digits, four photos in each, the first photo in the highest bit."""
    return np.packbits(bits).tobytes().hex()
