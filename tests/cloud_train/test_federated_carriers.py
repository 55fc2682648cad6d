"""Whatever is a client's own, and however it travels: their device gives the answers of their network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cloud_train.federated.deliver import deliver, used
from cloud_train.federated.methods import METHODS
from cloud_train.federated.participant import answers
from cloud_train.federated.run import FederatedRun, Rates
from edge.bundle import Bundle
from edge.personal_files import read_personal
from edge.prompt_cache import PromptCache
from edge.recognizer import Recognizer, profile_path
from export.bundle import Export, export_bundle
from export.parity import read_streams

RATES = Rates(0.1, 0.01)
SHOWN = 6  # photos of each client


def rates_of(name: str) -> Rates:
    return RATES if METHODS[name].server != "mean" else Rates(0.1)


def eager(run: FederatedRun, name: str) -> dict[str, np.ndarray]:
    """Each client's logits (R, C), by the network that they are judged by."""
    people = {client.name: client for client in run.clients.members}
    found = used(run, *run.federated(name, 0, rates_of(name)))
    return {who: answers(network, people[who].test).numpy()[:SHOWN] for who, network in found}


def put_all(bundle: Bundle, folder: Path, cache: PromptCache) -> None:
    for path in sorted((folder / "clients").glob("*.safetensors")):
        found = read_personal(path, bundle)
        for model in found.models:
            cache.put(path.stem, model, found.weights)


def on_device(run: FederatedRun, bundle: Bundle, folder: Path, target: str, cache: PromptCache) -> dict[str, Any]:
    """Each client's logits, one recogniser for all of them, in turns."""
    found: dict[str, Any] = {client.name: [] for client in run.clients.members}
    with Recognizer(bundle, None, target, weights=cache, threads=1) as recognizer:
        for number in range(SHOWN):
            for client in run.clients.members:
                recognizer.switch(profile_path(folder, client.name))
                pixels = client.test.batch(np.arange(number, number + 1)).contiguous().numpy()
                found[client.name].append(recognizer.recognize_pixels(pixels, str(number)).logits)
    return {name: np.array(rows) for name, rows in found.items()}


def parity(run: FederatedRun, name: str, targets: dict[str, str], tmp_path: Path) -> Bundle:
    """Delivers a method, exports it and compares every client on every runtime."""
    checkpoint = deliver(run, name, 0, rates_of(name))
    folder = checkpoint.path.parent
    bundle = export_bundle([checkpoint], tmp_path / "bundle", Export([*targets]), read_streams(folder / "parity"))
    cache = PromptCache(tmp_path / "weights", sync=False)
    put_all(bundle, folder, cache)
    wanted = eager(run, name)
    for runtime in targets.values():
        found = on_device(run, bundle, tmp_path / runtime, runtime, cache)
        for client in wanted:
            np.testing.assert_allclose(found[client], wanted[client], atol=1e-4, rtol=0, err_msg=f"{client} {runtime}")
    return bundle
