"""Checkpoints: weights as safetensors, and beside them a JSON card that says what they are.

``NAME.safetensors`` + ``NAME.json``. The card names the builder of the model, found through the entry-point group
``refocus.models``; nothing in a checkpoint is ever executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from refocus.edge.errors import RefocusError
from refocus.edge.files import file_sha256, replaced, write_file
from refocus.export.program.program import TorchProgram

MODELS_GROUP = "refocus.models"
PLAIN_FORM = "plain"  # of a head that is exported as its plain classifier alone
TAUGHT_BY = "taught_by"  # role of the checkpoint that holds hashes of photos
LONGEST_WINDOW = 1024  # photos; parity fills a history and evicts from it


class CheckpointError(RefocusError):
    """The checkpoint cannot be used: train again, or give another one."""


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a checkpoint is.

    Attributes:
        builder: name in the group ``refocus.models`` of the function that rebuilds the program from this checkpoint.
        config: that function's own settings.
        labels: C class names in the order of the logits.
        requires: other checkpoints this one was trained on, by role: file name beside this one, and SHA-256.
        training: how it came to be: data fingerprint, seed, recipe, figures.
        sha256: of the weights file.
    """

    builder: str
    config: dict[str, Any]
    labels: tuple[str, ...]
    requires: dict[str, dict[str, str]] = {}
    training: dict[str, Any] = {}
    sha256: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """A card and its weights, both read and checked against each other.

    Attributes:
        form: of the program that is made of it, where its builder knows several; "" leaves it to the builder.
        window: photos that its attention spans, the one that is answered among them; 0: as many as in training.
    """

    path: Path
    card: Card
    weights: dict[str, Tensor]
    form: str = ""
    window: int = 0

    @property
    def on_disk(self) -> bool:
        """Whether another process can load it by its path."""
        return True

    @property
    def identity(self) -> str:
        """SHA-256 of what its program computes: the same weights in another architecture are another program."""
        config = msgspec.json.encode(self.card.config, order="deterministic").decode()
        return hashlib.sha256(f"{self.card.builder}\n{config}\n{self.card.sha256}".encode()).hexdigest()

    def required(self, role: str) -> Checkpoint:
        """The checkpoint this one was trained on.

        Raises:
            CheckpointError: it is missing or is not the one named by the card.
        """
        if role not in self.card.requires:
            raise CheckpointError(f"{self.path} is not a head: it names no {role} that it was trained on; give a head")
        wanted = self.card.requires[role]
        other = load_checkpoint(self.path.parent / wanted["file"])
        if other.card.sha256 != wanted["sha256"]:
            raise CheckpointError(
                f"{other.path} is not the {role} that {self.path.name} was trained on; give that {role}, or train again"
            )
        return other

    def taught_by(self) -> dict[str, Tensor]:
        """``photos`` (n, 4), int8: hashes of the photos that training has seen; empty where that was not noted.

        Raises:
            CheckpointError: as :meth:`required`.
        """
        return self.required(TAUGHT_BY).weights if TAUGHT_BY in self.card.requires else {}

    def program(self) -> TorchProgram:
        """The program this checkpoint describes.

        Raises:
            CheckpointError: no installed package offers its builder.
        """
        found = [entry for entry in entry_points(group=MODELS_GROUP) if entry.name == self.card.builder]
        if not found:
            raise CheckpointError(
                f"{self.path}: no installed package builds '{self.card.builder}': pip install 'refocus-edge[cloud]'"
            )
        build: Callable[[Checkpoint], TorchProgram] = found[0].load()
        return build(self)


def save_checkpoint(path: Path, weights: Mapping[str, Tensor], card: Card) -> Checkpoint:
    """Writes both files, the card last, each by rename: a killed save leaves the previous checkpoint or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    with replaced(path) as temporary:
        save_file(tensors, temporary)
        card = msgspec.structs.replace(card, sha256=file_sha256(temporary))
    text = json.dumps(msgspec.to_builtins(card), ensure_ascii=False, indent=2, sort_keys=True)
    write_file(path.with_suffix(".json"), text + "\n")
    return Checkpoint(path, card, tensors)


def load_checkpoint(path: Path, form: str = "", window: int = 0) -> Checkpoint:
    """Reads a checkpoint.

    Args:
        form: of the program that is made of it, where its builder knows several.
        window: photos that attention spans, in the place of those of training.

    Raises:
        CheckpointError: missing, damaged, not safetensors, card and weights do not belong together, or a window for
            what has none.
    """
    if path.suffix != ".safetensors":
        raise CheckpointError(f"{path}: expected a .safetensors checkpoint written by refocus train")
    card_path = path.with_suffix(".json")
    if path.is_file() and not card_path.exists():
        raise CheckpointError(
            f"{path} has no card {card_path.name} beside it, so refocus train did not write it; weights of a network"
            f" are exported by: refocus export timm:NAME --checkpoint {path}"
        )
    try:
        content, text = path.read_bytes(), card_path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read ({error.strerror}); give a checkpoint") from None
    try:
        card = msgspec.json.decode(text, type=Card)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{card_path} is not a checkpoint card ({error}); train again") from None
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise CheckpointError(f"{path} and its card do not belong together, or the file was changed; train again")
    try:
        return Checkpoint(path, _with_window(path, card, window), load_file(path), form, window)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a safetensors file ({error}); train again") from None


def _with_window(path: Path, card: Card, window: int) -> Card:
    """The card with another attention window; 0 leaves it."""
    if not window:
        return card
    if "iciia" not in card.config:
        raise CheckpointError(f"{path}: {card.builder} has no attention window; leave --window out")
    if not 2 <= window <= LONGEST_WINDOW:
        raise CheckpointError(f"--window {window}: expected 2 to {LONGEST_WINDOW} photos, the answered one among them")
    return msgspec.structs.replace(card, config={**card.config, "iciia": {**card.config["iciia"], "window": window}})
