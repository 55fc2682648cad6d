"""Networks from outside Refocus.

They are ``timm:NAME``, ``package:NAME``, ``module:function``, or a program that ``torch.export`` saved (.pt2).

A name before the colon that an installed package offers in the entry-point group ``refocus.networks`` is looked up
there; timm is one. Anything else is imported. A function is code of the caller's own: it runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from refocus.edge.bundle import Preprocessing
from refocus.edge.files import file_sha256, read_file
from refocus.export.errors import ExportError, told
from refocus.export.program.network import LogOfProbabilities, Network, example_photo, gives_probabilities, logits_of
from refocus.export.program.saved_program import checked_copy

PROBABILITIES = "probabilities, of which the logarithm is taken"  # as ``source["outputs"]`` of such a network
RANDOM = "random"  # as ``versions["weights"]`` of a network that came without weights
NETWORKS_GROUP = "refocus.networks"
IMAGENET = Preprocessing(
    resize_shorter=256,
    crop=224,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    decoder="pillow-scaled",
)
_MAX_LABELS_BYTES = 16 << 20


@dataclass(frozen=True)
class NetworkSettings:
    """What is said about a network besides its name.

    Attributes:
        pretrained: take the published weights of a timm network, by timm's own download; with a checkpoint, none.
        checkpoint: weights, as .safetensors.
        arguments: keyword arguments of ``timm.create_model`` or of the function.
        labels: file with one class name per line, in the order of the logits; None: those that the source states, or
            numbers.
        preprocessing: fields of the manifest's ``preprocessing`` that differ from what the source states.
        side: pixels of its square input, of photos resized so that the crop keeps the share of them that the source
            states; 0: as it states.
    """

    pretrained: bool = False
    checkpoint: Path | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    labels: Path | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    side: int = 0


@dataclass(frozen=True)
class Found:
    """What a source of networks gives.

    Attributes:
        module: in eval mode, with its weights unless ``settings.checkpoint`` brings them.
        preprocessing: that its input expects, if the source states it.
        labels: class names, if the source states them.
        versions: of libraries that decide what it computes, and what else the bundle says about its training.
    """

    module: nn.Module
    preprocessing: Preprocessing | None = None
    labels: tuple[str, ...] | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)


def open_network(text: str, settings: NetworkSettings) -> Network:
    """The network that ``text`` names, with its weights.

    Raises:
        ExportError: there is none, it cannot be built with these arguments, or the weights are of another network.
    """
    if text.endswith(".pt2"):
        found, name = _saved_program(Path(text), settings), Path(text).stem
    else:
        kind, _, name = text.partition(":")
        offered = [entry for entry in entry_points(group=NETWORKS_GROUP) if entry.name == kind]
        found = offered[0].load()(name, settings) if offered else _from_function(kind, name, settings)
    module = found.module
    if settings.checkpoint is not None:
        load_weights(module, settings.checkpoint, text)
    source = {"network": text, **found.versions, "torch": torch.__version__.partition("+")[0]}
    if settings.arguments:
        source["arguments"] = json.dumps(dict(settings.arguments), sort_keys=True)
    if settings.checkpoint is not None:
        source["checkpoint_sha256"] = file_sha256(settings.checkpoint)
    stated = found.preprocessing or IMAGENET
    preprocessing = _changed(stated, {**_of_side(stated, settings.side), **settings.preprocessing})
    if gives_probabilities(module, preprocessing.crop, text):
        module, source["outputs"] = LogOfProbabilities(module).eval(), PROBABILITIES
    labels = read_labels(settings.labels) if settings.labels is not None else found.labels
    if labels is None:
        classes = logits_of(module, example_photo(preprocessing.crop), text).shape[1]
        labels = tuple(f"class {number}" for number in range(classes))
    return Network(name.rstrip("/").rpartition("/")[2], module, preprocessing, labels, source)


def read_labels(path: Path) -> tuple[str, ...]:
    """One class name per line.

    Raises:
        ExportError: it cannot be read, is not UTF-8, or names a class twice.
    """
    content = read_file(path, _MAX_LABELS_BYTES, "a file of labels", ExportError)
    try:
        names = tuple(line.strip() for line in content.decode("utf-8-sig").splitlines() if line.strip())
    except UnicodeDecodeError:
        raise ExportError(f"--labels {path}: expected text in UTF-8, one class name per line") from None
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None or not names:
        problem = f"names '{twice}' twice" if twice else "is empty"
        raise ExportError(f"--labels {path} {problem}; expected one class name per line, in the order of the logits")
    return names


def load_weights(module: nn.Module, checkpoint: Path, network: str) -> None:
    """Loads .safetensors weights.

    Raises:
        ExportError: not safetensors (pickles are never opened), or of another network; the message names the first
            tensors that differ.
    """
    if checkpoint.suffix != ".safetensors":
        raise ExportError(f"--checkpoint {checkpoint}: only .safetensors is read; convert it with safetensors.torch")
    if not checkpoint.is_file():
        raise ExportError(f"--checkpoint {checkpoint}: no such file")
    try:
        weights = load_file(checkpoint)
    except (SafetensorError, OSError) as error:
        raise ExportError(f"--checkpoint {checkpoint} is not a safetensors file ({error})") from None
    wrong = misfit(module.state_dict(), weights)
    if wrong:
        raise ExportError(f"--checkpoint {checkpoint} holds weights of another network than {network}: {wrong}")
    module.load_state_dict(weights)


def misfit(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """The first tensors in which weights differ from a network's own, and what would make them fit; "" if they do."""
    missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    both = sorted(own.keys() & weights.keys())
    shapes = [
        f"{name} is {tuple(weights[name].shape)}, the network's {tuple(own[name].shape)}"
        for name in both
        if own[name].shape != weights[name].shape
    ]
    kinds = [
        f"{name} holds {weights[name].dtype}, the network's {own[name].dtype}"
        for name in both
        if own[name].is_floating_point() != weights[name].is_floating_point()
    ]
    wrong = (
        shapes
        or kinds
        or [f"{name} is missing" for name in missing]
        or [f"{name} is not the network's" for name in unknown]
    )
    more = f" and {len(wrong) - 2} more" if len(wrong) > 2 else ""
    return f"{'; '.join(wrong[:2])}{more}; {_how_to_fit(own, weights)}" if wrong else ""


def _how_to_fit(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """What would make the network and the weights the same, where that can be told from their tensors."""
    first = next(iter(weights), "").partition(".")[0]
    if len(weights) > 1 and {name.removeprefix(f"{first}.") for name in weights} == set(own):
        return f"every name in the file begins with '{first}.': save it without"
    shaped = [name for name in own.keys() & weights.keys() if own[name].shape != weights[name].shape]
    rows = {tuple(tensors[name].shape[0] for name in shaped) for tensors in (own, weights)}
    alike = all(own[name].shape[1:] == weights[name].shape[1:] for name in shaped)
    if own.keys() == weights.keys() and alike and shaped and all(len(set(counts)) == 1 for counts in rows):
        classes = int(weights[shaped[0]].shape[0])
        return f"the file's classifier has {classes} classes: set num_classes={classes} (--backbone-arguments)"
    return "check the name, and the arguments such as num_classes"


def _of_side(stated: Preprocessing, side: int) -> dict[str, int]:
    """Another side, of which the crop keeps its share of the resized photo; {} for 0."""
    if not side:
        return {}
    usual, share = IMAGENET.resize_shorter / IMAGENET.crop, stated.resize_shorter / stated.crop
    if abs(share - usual) * stated.crop < 1:  # the usual share, rounded to whole pixels of another side
        share = usual
    return {"crop": side, "resize_shorter": max(side, round(side * share))}


def _changed(stated: Preprocessing, changes: Mapping[str, Any]) -> Preprocessing:
    try:
        return msgspec.convert(msgspec.to_builtins(stated) | dict(changes), Preprocessing)
    except msgspec.ValidationError as error:
        raise ExportError(f"the preprocessing {dict(changes)} cannot be used ({error})") from None


def _from_function(module: str, function: str, settings: NetworkSettings) -> Found:
    """Calls ``function`` of an importable module; the working folder is looked in first, as by ``python -m``."""
    asked, here = f"{module}:{function}", str(Path.cwd())
    sys.path.insert(0, here)
    try:
        home = importlib.import_module(module)
    except ImportError as error:
        near = get_close_matches(module, [entry.name for entry in entry_points(group=NETWORKS_GROUP)], 1)
        kinds = "timm:NAME, package:NAME, module:function or FILE.pt2"
        hint = f"; did you mean {near[0]}:{function}?" if near else f"; expected {kinds}"
        raise ExportError(f"{asked}: {module} cannot be imported ({error}){hint}") from None
    except Exception as error:  # the caller's own code raises anything
        why = f"{type(error).__name__}: {error}"
        raise ExportError(f"{asked}: {module or 'no module'} cannot be imported ({why})") from error
    finally:
        sys.path.remove(here)
    build: Callable[..., Any] | None = getattr(home, function, None)
    if build is None:
        near = get_close_matches(function, dir(home), 1)
        raise ExportError(f"{asked}: {module} has no {function}" + (f"; did you mean {near[0]}?" if near else ""))
    try:
        built = build(**settings.arguments)
    except Exception as error:  # the caller's own code raises anything
        why = f"{type(error).__name__}: {error}"
        raise ExportError(f"{asked} failed with {dict(settings.arguments)} ({why})") from error
    if isinstance(built, torch.jit.ScriptModule):
        raise ExportError(f"{asked} returns a module of TorchScript, which cannot be captured; return the nn.Module")
    if not isinstance(built, nn.Module):
        raise ExportError(f"{asked} returns {type(built).__name__}, expected a torch.nn.Module")
    if settings.pretrained:
        raise ExportError(f"--pretrained is for timm:NAME; {asked} has its own weights, or give --checkpoint")
    return Found(built.eval())


def _saved_program(path: Path, settings: NetworkSettings) -> Found:
    """A program of ``torch.export.save``. Files with pickled objects are refused before anything of them is loaded."""
    if settings.pretrained or settings.checkpoint or settings.arguments:
        raise ExportError(f"{path} has its own weights; leave out --pretrained, --checkpoint and --backbone-arguments")
    if not path.is_file():
        raise ExportError(f"{path}: no such file; expected a program of torch.export.save")
    content = read_file(path, path.stat().st_size, "a program of torch.export.save", ExportError)
    digest = hashlib.sha256(content).hexdigest()
    checked, saved_by = checked_copy(content, path)
    del content
    try:
        program = torch.export.load(checked)
    except Exception as error:  # of any type where the file is of another version of torch
        here, why = torch.__version__.partition("+")[0], told(error.__cause__ or error)
        raise ExportError(
            f"{path} was saved by torch {saved_by} and cannot be read by torch {here} ({why})"
            f"; save it again with torch.export.save of torch {here}"
        ) from None
    inputs = set(program.graph_signature.user_inputs)
    shapes = [tuple(node.meta["val"].shape) for node in program.graph.nodes if node.name in inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] != 3 or shapes[0][2] != shapes[0][3]:
        raise ExportError(f"{path} takes {shapes}, expected one input of photos (B, 3, side, side)")
    if isinstance(shapes[0][0], int) and shapes[0][0] != 1:
        raise ExportError(
            f"{path} takes {shapes[0][0]} photos at once, expected one, or any number: save it again with an example of"
            " one photo, or with a free first dimension (dynamic_shapes)"
        )
    side = int(shapes[0][2])
    stated = msgspec.structs.replace(IMAGENET, **_of_side(IMAGENET, side))
    module = program.module()
    for name in ("train", "eval"):  # the program's own refuse every call; a module's, behind them, change nothing
        vars(module).pop(name, None)
    return Found(module, stated, versions={"program_sha256": digest})
