"""From a federated run to devices: checkpoints of the two shared programs, and one small file per client."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from cloud_train.data import glyphs
from cloud_train.errors import UsageError
from cloud_train.federated.methods import METHODS
from cloud_train.federated.network import Tensors, names_in, plugins
from cloud_train.federated.programs import BIAS, PROMPTS, WEIGHT
from cloud_train.federated.run import FederatedRun, Rates
from cloud_train.methods.prompts import PromptedViT
from edge.personal_files import CHECKPOINT, METHOD
from export.checkpoint import Card, Checkpoint, load_checkpoint, save_checkpoint

PARITY_SEED, PARITY_PEOPLE, PARITY_PHOTOS = 2000, 4, 12
STRANGER = ""  # a client that the server never met


def delivered_methods() -> list[str]:
    """Methods whose clients are prompts and a classifier on a frozen body."""
    return [name for name, m in METHODS.items() if not m.full and not m.tower and m.insert is not None]


def deliver(run: FederatedRun, name: str, seed: int, rates: Rates) -> Checkpoint:
    """Writes ``NAME.safetensors`` and what it requires into ``deliver/`` of the method's folder, a file per client into
    ``deliver/clients``, and letters for parity; returns the checkpoint that ``refocus export`` takes.

    Raises:
        UsageError: a method whose clients have more than prompts and a classifier of their own.
    """
    if name not in delivered_methods():
        raise UsageError(f"{name} has no export yet; these have: {', '.join(delivered_methods())}")
    folder = run.place(name, seed, rates) / "deliver"
    if folder.exists():
        return load_checkpoint(folder / f"{name}.safetensors")
    participant, server, kept = run.federated(name, seed, rates)
    [prompts] = names_in(participant.network, [plugins])
    body = participant.network.body
    if not isinstance(body, PromptedViT):
        raise UsageError(f"{name} has no export yet: its network takes no prompts")

    def own(client: str) -> dict[str, Tensor]:
        """What a client's programs are given: what the server sends now and what the client kept."""
        network = participant.received(server.payload(client), kept.clients.get(client, {}))
        found = dict(network.named_parameters())
        return {key: found[source].detach().clone() for key, source in
                ((PROMPTS, prompts), (WEIGHT, "head.weight"), (BIAS, "head.bias"))}  # fmt: skip

    of_clients = {client.name: own(client.name) for client in run.clients.members}
    defaults = own(STRANGER)
    for key in (WEIGHT, BIAS, *((PROMPTS,) if prompts in participant.own else ())):
        defaults[key] = torch.stack([tensors[key] for tensors in of_clients.values()]).mean(0)
    unfinished = folder.with_name("deliver.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    _parity_photos(unfinished / "parity")
    checkpoint = _checkpoints(run, name, seed, rates, unfinished, body, defaults)
    for client, tensors in of_clients.items():
        path = unfinished / "clients" / f"{quote(client, safe='')}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, {METHOD: name, CHECKPOINT: checkpoint.card.sha256})
    unfinished.rename(folder)
    return load_checkpoint(folder / checkpoint.path.name)


def _checkpoints(run: FederatedRun, name: str, seed: int, rates: Rates, folder: Path, body: PromptedViT,
                 defaults: Tensors) -> Checkpoint:  # fmt: skip
    backbone, clients = run.backbone(), run.clients
    training = {"data": clients.fingerprint, "seed": seed, "rates": str(rates), "method": name}
    encoder = save_checkpoint(
        folder / "encoder.safetensors",
        {**body.network.state_dict(), PROMPTS: defaults[PROMPTS]},
        Card(
            builder="prompted_encoder",
            config={"name": backbone.name, "arguments": backbone.arguments,
                    "preprocessing": msgspec.to_builtins(backbone.preprocessing)},
            labels=clients.classes, training=training,
        ),
    )  # fmt: skip
    requires = {"encoder": {"file": encoder.path.name, "sha256": encoder.card.sha256}}
    return save_checkpoint(
        folder / f"{name}.safetensors", {key: defaults[key] for key in (WEIGHT, BIAS)},
        Card(builder="personal_classifier", config={}, labels=clients.classes, requires=requires, training=training),
    )  # fmt: skip


def _parity_photos(place: Path) -> None:
    """Embedded letters, a folder per writer: some of them travel in the bundle, and a client's photos never do."""
    table = glyphs.glyphs(PARITY_SEED, {"test": PARITY_PEOPLE}, PARITY_PHOTOS)
    for person, rows in table.clients():
        folder = place / person
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(table.photo[rows].tolist()):
            (folder / f"{number:03d}.png").write_bytes(table.read(name))
