"""How every client is served in the end: test photos that are recognised, at three moments."""

from __future__ import annotations

from typing import Any

from refocus.cloud_train.federated.checkpoint import RoundCheckpoint
from refocus.cloud_train.federated.client import Participant, Recipe, right
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

    def moments(client: Client, state: Tensors) -> dict[str, Any]:
        return evaluate_client(participant, client, after, server.payload(client.name), base_of(server), state)

    return {
        "members": [moments(client, checkpoint.clients.get(client.name, {})) for client in clients.members],
        "unseen": [moments(client, {}) for client in clients.unseen],
        "log": checkpoint.log,
        "flops_per_photo": participant.training_flops(clients.members[0].train),
    }


def base_of(server: Server) -> Tensors:
    """The base prompts of a server that has some to be evaluated by."""
    return server.base() if isinstance(server, PromptServer) and server.kind != "mlp" else {}


def evaluate_client(
    participant: Participant, client: Client, after: int, payload: Tensors, base: Tensors, state: Tensors
) -> dict[str, Any]:
    """One client's test photos, and how many its network recognises at each moment."""
    received = right(participant.received(payload, state), client.test)
    used = right(participant.personal(client.name, after, payload, state, client.train), client.test)
    of_base = {"base": right(participant.received(base, state), client.test)} if base else {}
    reply, trained = participant.local_update(client.name, after, payload, state, client.train)
    own = participant.personal(client.name, after, reply.tensors, trained, client.train)
    return {
        "name": client.name,
        "test": len(client.test),
        "train": len(client.train),
        "received": received,
        "used": used,
        "adapted": right(own, client.test),
        **of_base,
    }
