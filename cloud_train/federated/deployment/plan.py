"""What the server tells every client before the first round: which method, which network, which settings; and how
tensors become bytes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save

from refocus.cloud_train.data import glyphs
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.federated.client import Participant
from refocus.cloud_train.federated.methods import Method, find_method
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.federated.run import RATES, FederatedConfig, FederatedRun, Rates

CHECKPOINT = "checkpoint.safetensors"

# A server may name files of the run's own folder alone, and a network that is made here, not fetched or read elsewhere.
# PLACES are settings that name files or data sets of whoever reads them; they are empty in every plan.
_FILE, _SHA256 = re.compile(r"[a-z]+(-[0-9a-f]{16})?\.safetensors"), re.compile(r"[0-9a-f]{64}")
PLACES = ("source", "checkpoint", "tower_data", "tower_classes")
_REACHING = ("pretrained", "checkpoint", "cache_dir")


def packed(tensors: Tensors) -> bytes:
    """A message with these tensors, as safetensors; nothing for none."""
    return save({name: value.detach().contiguous() for name, value in tensors.items()}) if tensors else b""


def unpacked(message: bytes) -> Tensors:
    """The tensors of a message.

    Raises:
        DataError: it is not a safetensors file.
    """
    try:
        return load(message) if message else {}
    except (SafetensorError, ValueError) as error:
        raise DataError(f"a message of {len(message)} bytes holds no tensors ({error})") from None


@dataclass(frozen=True)
class Plan:
    """One training, as all have to know it. No path of the server and nobody's photo is in it.

    Attributes:
        config: of the run; ``classes`` are named in it.
        training: one of a kind for every training, so that nobody goes on from what was left by another one.
        files: SHA-256 of what the network is made from, by name in the folder of the run.
    """

    method: str
    seed: int
    rates: Rates
    config: FederatedConfig
    training: str = ""
    files: dict[str, str] = field(default_factory=dict)

    @cached_property
    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @cached_property
    def identity(self) -> str:
        """Names the training: everybody's rounds of another one lie elsewhere."""
        return hashlib.sha256(self.encoded).hexdigest()[:16]

    def opened(self, folder: Path) -> tuple[FederatedRun, Participant]:
        """The client's side of the training, in a folder that holds its files."""
        checkpoint = str(folder / CHECKPOINT) if CHECKPOINT in self.files else ""
        run = FederatedRun(folder, replace(self.config, checkpoint=checkpoint))
        return run, run.participant(self.method, self.seed, self.rates)


def decode_plan(content: bytes) -> Plan:
    """The plan of a message.

    Raises:
        DataError: it is none; it asks for what this version does not know; or for what a server has no business with.
    """
    try:
        plan = msgspec.json.decode(content, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"the server's plan is not understood ({error}); install the same version of refocus on both"
        ) from None
    strange = [file for file, sha in plan.files.items() if not (_FILE.fullmatch(file) and _SHA256.fullmatch(sha))]
    reaching = sorted(name for name in plan.config.arguments if name.startswith(_REACHING))
    reaching += [f"{name} = {place!r}" for name in PLACES if (place := getattr(plan.config, name))]
    if strange or reaching or ":" in plan.config.backbone:
        what = ", ".join([*strange, *reaching]) or plan.config.backbone
        raise DataError(f"the server's plan is refused: {what} would reach beyond what was sent")
    if not plan.config.classes:  # they would be looked for in photos
        raise DataError("the server's plan is refused: it names no classes; expected those of the server's --classes")
    return plan


def plan_of(run: FederatedRun, name: str, seed: int, rates: Rates, training: str) -> tuple[Plan, dict[str, Path]]:
    """The plan of a run whose network is made, and where the files lie that it names, by SHA-256."""
    paths = _files(run, find_method(name))
    hashes = {file: hashlib.sha256(path.read_bytes()).hexdigest() for file, path in paths.items()}
    unknown: dict[str, Any] = {**dict.fromkeys(PLACES, ""), **dict.fromkeys(RATES, ())}  # to the clients
    config = replace(run.config, **unknown)
    plan = Plan(name, seed, rates, config, training, hashes)
    return plan, {hashes[file]: path for file, path in paths.items()}


def _files(run: FederatedRun, method: Method) -> dict[str, Path]:
    """What a network of this method is made from."""
    given = {CHECKPOINT: Path(run.config.checkpoint)} if run.config.checkpoint else {}
    paths = [] if given or run.config.scratch else [run.folder / "body.safetensors"]
    if method.tower:
        paths = [run.folder / "tower.safetensors", *map(run.sentences_path, (glyphs.CLASSES, run.classes))]
    return given | {path.name: path for path in paths}
