"""From a federated run to devices: checkpoints of the two shared programs, and one file per client.

A client's file holds what their network has of its own, as it is when the method uses it: the classifier always, and
what the method's carrier says (:mod:`refocus.cloud_train.federated.methods`): prompts; adapters, prefixes, attention or
norms; all tensors of the network. It names no runtime: the bundle knows where each runtime has them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from refocus.cloud_train.data import glyphs
from refocus.cloud_train.federated.checkpoint import RoundCheckpoint
from refocus.cloud_train.federated.client import Participant
from refocus.cloud_train.federated.methods import Carrier, Method, find_method
from refocus.cloud_train.federated.parameters import ClientNetwork, Tensors, tensors_of
from refocus.cloud_train.federated.programs import ATTAI, BIAS, PROMPTS, TEXTS, WEIGHT, delivered_form
from refocus.cloud_train.federated.run import SCALE, FederatedRun, Rates
from refocus.cloud_train.federated.server import Server
from refocus.cloud_train.federated.towers import classes_of_map
from refocus.cloud_train.locks import one_at_a_time
from refocus.cloud_train.methods.peft.prompts import PromptedViT
from refocus.edge.personal import CHECKPOINT, FORMAT, FORMAT_VERSION, METHOD, PERSON, file_name
from refocus.export.program import Card, Checkpoint, load_checkpoint, save_checkpoint

PARITY_SEED, PARITY_PEOPLE, PARITY_PHOTOS = 2000, 4, 12
STRANGER = ""  # a client that the server never met
_BODY, _HEAD = "body.", "head."


def deliver(run: FederatedRun, name: str, seed: int, rates: Rates) -> Checkpoint:
    """Writes ``NAME.safetensors`` and what it requires into ``deliver/`` of the method's folder, a file per client into
    ``deliver/clients`` where clients have something of their own, and letters for parity.

    Returns:
        The checkpoint that ``refocus export`` takes.

    Raises:
        UsageError: there is no such method.
    """
    find_method(name)
    folder = run.place(name, seed, rates) / "deliver"
    with one_at_a_time(folder.with_name(".deliver.lock")):
        if not folder.exists():
            _write(run, name, seed, rates, folder.with_name("deliver.unfinished")).rename(folder)
    return load_checkpoint(folder / f"{name}.safetensors")


def _write(run: FederatedRun, name: str, seed: int, rates: Rates, unfinished: Path) -> Path:
    """What :func:`deliver` writes, in a folder that does not count yet."""
    participant, server, checkpoint = run.federated(name, seed, rates)
    parts = Parts(participant.method, participant)
    network = participant.received(server.payload(STRANGER), {})
    body, defaults = parts.body(network), parts.of(network)
    if parts.method.tower:
        defaults[TEXTS] = network.head.texts.detach().cpu().clone()  # type: ignore[operator, union-attr]
    clients = used(run, participant, server, checkpoint) if parts.any else ()
    of_clients = {client: parts.of(own) for client, own in clients}
    for key in parts.averaged if of_clients else ():
        defaults[key] = torch.stack([tensors[key] for tensors in of_clients.values()]).mean(0)
    shutil.rmtree(unfinished, ignore_errors=True)
    _parity_photos(unfinished / "parity")
    training = {"data": run.clients.fingerprint, "seed": seed, "rates": str(rates), "method": name}
    written = _checkpoints(run, parts, training, unfinished, body, defaults)
    for client, tensors in of_clients.items():
        path = unfinished / "clients" / file_name(client)
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {METHOD: name, CHECKPOINT: written.card.sha256, PERSON: client, FORMAT: FORMAT_VERSION}
        save_file(tensors, path, header)
    return unfinished


def used(
    run: FederatedRun, participant: Participant, server: Server, checkpoint: RoundCheckpoint
) -> Iterator[tuple[str, ClientNetwork]]:
    """Each client with the network they use, as it is evaluated; valid until the next one.

    What FedCLIP trains is everybody's; a client's own AttAI is what one more local round makes of it.
    """
    after = run.config.recipe.rounds + 1
    for client in run.clients.members:
        payload, state = server.payload(client.name), checkpoint.clients.get(client.name, {})
        if not participant.own and participant.method.carrier == "inputs":
            reply, state = participant.local_update(client.name, after, payload, state, client.train)
            payload = reply.tensors
        yield client.name, participant.personal(client.name, after, payload, state, client.train)


class Parts:
    """What of a method's network is a client's own, by the names that programs and files have for it.

    Attributes:
        carrier: that of the method; a body with batch norms of a client's own is theirs as a whole, because a norm
            reaches a device as part of the convolution before it.
        inside: names of tensors inside the encoder that are each client's own, of its delivered form.
        averaged: names of which somebody who has nothing gets the mean; of others they get the server's.
    """

    def __init__(self, method: Method, participant: Participant) -> None:
        self.method, network = method, participant.network
        own = set(participant.own)
        normed = any(
            isinstance(module, _BatchNorm) and own & {f"{name}.{n}" for n, _ in module.named_parameters()}
            for name, module in network.named_modules()
        )
        self.carrier: Carrier = "whole" if normed and method.carrier == "weights" else method.carrier
        everything = tensors_of(delivered_form(bare(network.body)))
        in_body = {name.removeprefix(_BODY) for name in own if name.startswith(_BODY)}
        kinds = {"whole": [*everything], "weights": [name for name in everything if name in in_body]}
        self.inside = tuple(kinds.get(self.carrier, ()))
        of_head = (WEIGHT, BIAS) if any(name.startswith(_HEAD) for name in own) else ()
        prompts = (PROMPTS,) if in_body and isinstance(network.body, PromptedViT) else ()
        self.averaged = (*of_head, *prompts, *(self.inside if in_body else ()))

    @property
    def any(self) -> bool:
        """Whether clients have anything of their own."""
        return self.carrier != "none"

    def of(self, network: ClientNetwork) -> Tensors:
        """Copies of what a network gives its programs."""
        found: Tensors = {}
        if self.method.tower:
            if self.method.insert is not None:
                found = dict(zip(ATTAI, network.body[1].parameters(), strict=True))  # type: ignore[index]
        else:
            heads: list[Any] = [layer for layer in (network.head, network.personal) if layer is not None]
            # Two linear layers on one feature whose logits are added are one (FedRoD).
            found = {WEIGHT: sum(layer.weight for layer in heads), BIAS: sum(layer.bias for layer in heads)}
        if isinstance(network.body, PromptedViT):
            found[PROMPTS] = network.body.prompts.tokens
        if self.inside:
            body = self.body(network)
            found |= {name: body[name] for name in self.inside}
        return {name: value.detach().cpu().clone().contiguous() for name, value in found.items()}

    def body(self, network: ClientNetwork) -> Tensors:
        """Copies of the tensors of the encoder, but for prompts."""
        state = delivered_form(bare(network.body)).state_dict()
        return {name: value.detach().cpu().clone() for name, value in state.items()}


def bare(body: nn.Module) -> nn.Module:
    """The body without what programs take as inputs: prompts in front of it, AttAI behind it."""
    if isinstance(body, PromptedViT):
        return body.network
    return body[0] if isinstance(body, nn.Sequential) else body


def _checkpoints(
    run: FederatedRun, parts: Parts, training: dict[str, Any], folder: Path, body: Tensors, defaults: Tensors
) -> Checkpoint:
    backbone, labels, method = run.backbone(), run.clients.classes, parts.method
    about = backbone.card_config()
    tensors = body | {name: defaults[name] for name in (*parts.inside, PROMPTS) if name in defaults}
    builder, name = "prompted_encoder", training["method"]
    if PROMPTS not in defaults:
        builder, width = "client_encoder", run.sentence_width() if method.tower else backbone.width
        about |= {
            "method": name,
            "sizes": asdict(run.config.recipe.sizes),
            "personal": list(parts.inside),
            "outputs": width if method.tower else 0,
            "map": classes_of_map(backbone.network, body) if method.tower else 0,
            "width": width,
        }
    card = Card(builder=builder, config=about, labels=labels, training=training)
    encoder = save_checkpoint(folder / "encoder.safetensors", tensors, card)
    requires = {"encoder": {"file": encoder.path.name, "sha256": encoder.card.sha256}}
    config: dict[str, Any] = {"carrier": parts.carrier}
    of_head = {key: defaults[key] for key in (WEIGHT, BIAS, *ATTAI) if key in defaults}
    if method.tower:
        of_head, config = of_head | {TEXTS: defaults[TEXTS]}, config | {"scale": SCALE}
    builder = "sentence_classifier" if method.tower else "personal_classifier"
    card = Card(builder=builder, config=config, labels=labels, requires=requires, training=training)
    return save_checkpoint(folder / f"{name}.safetensors", of_head, card)


def _parity_photos(place: Path) -> None:
    """Embedded letters, a folder per writer: some of them travel in the bundle, and a client's photos never do."""
    table = glyphs.glyphs(PARITY_SEED, {"test": PARITY_PEOPLE}, PARITY_PHOTOS)
    for person, rows in table.clients():
        folder = place / person
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(table.photo[rows].tolist()):
            (folder / f"{number:03d}.png").write_bytes(table.read(name))
