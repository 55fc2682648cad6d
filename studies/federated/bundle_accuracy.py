"""Evaluate the clients of a federated run through an exported bundle.

Each client's test photos are recognised by :class:`refocus.edge.recognize.Recognizer` on every target, three times:
with the client's own file of the delivery, with the next client's (a control that should lose accuracy) and without a
file, as on a new device. The document also has the accuracy in PyTorch with the network of the training.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.client_data import Client
from refocus.cloud_train.federated.delivery.deliver import deliver, used
from refocus.cloud_train.federated.methods import find_method, title_of
from refocus.cloud_train.federated.run import FederatedRun, Rates
from refocus.cloud_train.progress import track
from refocus.edge.bundle import Bundle
from refocus.edge.personal import PersonalWeightStore, file_name, read_personal
from refocus.edge.recognize import Recognizer, profile_path
from refocus.export.bundle import Export, export_bundle
from refocus.export.parity import read_streams
from refocus.export.program import Checkpoint

SCHEMA = 1
WHOSE = ("own", "other", "none")


def bundle_accuracy(
    run: FederatedRun, method: str, seed: int, rates: Rates, targets: Sequence[str], command: str
) -> dict[str, Any]:
    """Export a trained method to each target and evaluate all clients.

    Missing rounds are trained. Each target gets a separate bundle in the method's folder.

    Args:
        run: clients and settings.
        method: name of the method.
        seed: seed of the training.
        rates: learning rates of the method.
        targets: such as ``onnx:fp32`` and ``executorch:fp32``.
        command: command line, stored in the document.

    Returns:
        The results document (``docs/results-format.md``).

    Raises:
        UsageError: the method has no personal parameters.
    """
    if find_method(method).carrier == "none":
        raise UsageError(f"{method} has one network for all clients; choose a method with parameters of their own")
    checkpoint = deliver(run, method, seed, rates)
    participant, server, rounds = run.federated(method, seed, rates)
    members, found = run.clients.members, {}
    for client, (_, network) in zip(members, used(run, participant, server, rounds), strict=True):
        found[client.name] = {"pytorch": _answers_of(participant.logits(network, client.test), client)}
    for target in targets:
        bundle = _exported(checkpoint, target)
        with tempfile.TemporaryDirectory() as scratch:
            _through(bundle, target, members, checkpoint, Path(scratch), found)
    return {
        "schema_version": SCHEMA,
        "bundle_clients": {
            "method": title_of(method),
            "source": Path(run.config.source).name,
            "fingerprint": run.clients.fingerprint,
            "classes": len(run.clients.classes),
            "partition": run.config.partition,
            "backbone": run.config.backbone,
            "arguments": run.config.arguments,
            "checkpoint": Path(run.config.checkpoint).name,
            "rounds": run.config.recipe.rounds,
            "steps": run.config.recipe.steps,
            "seed": seed,
            "rates": str(rates),
        },
        "rows": [*_rows(members, targets, found)],
        "command": command,
    }


def _exported(checkpoint: Checkpoint, target: str) -> Bundle:
    folder = checkpoint.path.parent
    out = folder.parent / "bundles" / target.replace(":", "-")
    return export_bundle([checkpoint], out, Export([target]), read_streams(folder / "parity"))


def _through(
    bundle: Bundle,
    target: str,
    members: Sequence[Client],
    checkpoint: Checkpoint,
    scratch: Path,
    found: dict[str, dict[str, Any]],
) -> None:
    """Add a bundle's answers to each client's photos."""
    store = PersonalWeightStore(scratch / "weights", max_bytes=sys.maxsize, sync=False)  # no file is evicted
    for number, client in enumerate(members):
        received = read_personal(checkpoint.path.parent / "clients" / file_name(client.name), bundle)
        for model in received.models:
            store.put(f"own-{number}", model, received.weights)
            store.put(f"other-{(number - 1) % len(members)}", model, received.weights)
    runtime = bundle.manifest.artifacts[0].runtime
    for number, client in enumerate(track(members, f"recognising through {target}", len(members))):
        photos = client.test.batch(np.arange(len(client.test))).contiguous().numpy()
        for whose in WHOSE:
            profile = profile_path(scratch / whose, f"{whose}-{number}")
            with Recognizer(bundle, profile, runtime, weights=None if whose == "none" else store, threads=1) as device:
                logits = np.array(
                    [device.recognize_pixels(photo[None], str(row)).logits for row, photo in enumerate(photos)]
                )
            found[client.name][f"{target} {whose}"] = _answers_of(logits, client)


def _answers_of(logits: np.ndarray, client: Client) -> np.ndarray:
    """Return the class of each test photo (R,); logits (R, C) or (R, 1, C)."""
    return logits.reshape(len(client.test), -1).argmax(1)


def _rows(
    members: Sequence[Client], targets: Sequence[str], found: dict[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the number of correct predictions of each client."""
    for client in members:
        answers, label = found[client.name], client.test.label.numpy()
        right = {name: int((answer == label).sum()) for name, answer in answers.items()}
        yield {
            "client": client.name,
            "photos": len(label),
            "pytorch": right.pop("pytorch"),
            "targets": {
                target: {
                    **{whose: right[f"{target} {whose}"] for whose in WHOSE},
                    "as_pytorch": int((answers[f"{target} own"] == answers["pytorch"]).sum()),
                }
                for target in targets
            },
        }
