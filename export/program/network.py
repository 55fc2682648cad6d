"""Any network that classifies photos, as two programs: the encoder, and the network's own classifier as the head."""

from __future__ import annotations

import copy
import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from refocus.edge.bundle import Preprocessing
from refocus.export.errors import ExportError
from refocus.export.program.call_trace import trace_digest
from refocus.export.program.checkpoint import Card, Checkpoint
from refocus.export.program.photo_signature import SIGNATURE, SignedEncoder
from refocus.export.program.program import TorchProgram, head_without_history, photo_encoder

HEAD = "plain"  # name of the head that is a network's own classifier
_LINEAR = torch.ops.aten.linear.default
_PLACES = re.compile(" at 0x[0-9a-fA-F]+")  # in memory, of a function that a module prints; others in every process


@dataclass(frozen=True)
class Network:
    """A PyTorch network to export, from timm, a function or an exported program.

    Attributes:
        name: for messages and for the bundle.
        module: normalised pixels (B, 3, side, side) -> logits (B, C), in eval mode.
        preprocessing: what its input expects.
        labels: C class names in the order of the logits.
        source: where it came from: what was asked for, SHA-256 of the weights, versions of libraries.
    """

    name: str
    module: nn.Module
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    source: Mapping[str, Any]

    @functools.cached_property
    def identity(self) -> str:
        """SHA-256 over the architecture's text, every parameter and buffer, and what is computed with them."""
        computed = trace_digest(self.module, example_photo(self.preprocessing.crop))
        named = self.source.get("network", self.name)
        asked = "" if named.endswith(".pt2") else named  # a file is the same network in every folder
        architecture = _PLACES.sub("", str(self.module))
        text = f"{asked}\n{architecture}\n{weights_hash(self.module)}\n{computed}"
        return hashlib.sha256(text.encode()).hexdigest()


def weights_hash(network: nn.Module) -> str:
    """SHA-256 over names, types, shapes and values of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class LogOfProbabilities(nn.Module):
    """A network that gives probabilities, with their logarithms for logits: softmax gives the probabilities again."""

    LEAST = 1e-7  # the logarithm of 0 would be none

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, photo: Tensor) -> Tensor:
        """photo (B, 3, side, side) -> logits (B, C)."""
        return torch.log(torch.clamp_min(self.network(photo), self.LEAST))


def gives_probabilities(module: nn.Module, side: int, name: str) -> bool:
    """Whether outputs are probabilities that sum to 1, as of a network that ends in a softmax.

    Raises:
        ExportError: as of :func:`logits_of`.
    """
    outputs = (logits_of(module, photo, name) for photo in _probes(side))  # most networks fail at the first
    return all(bool(one.min() >= 0) and abs(float(one.sum()) - 1) < 1e-3 for one in outputs)


@dataclass(frozen=True)
class Split:
    """A network cut before its last linear layer.

    Attributes:
        features: photo (B, 3, side, side) -> feature (B, D).
        weight, bias: (C, D) and (C,) of the classifier. Where the network does not end in one linear layer the feature
            is the logits themselves (D = C), and these are the identity.
        layer: name of the classifier in the network; "" where there is no such layer.
    """

    features: nn.Module
    weight: Tensor
    bias: Tensor
    layer: str


@dataclass(frozen=True)
class InMemory(Checkpoint):
    """A program that was made here, where a checkpoint is expected.

    Attributes:
        made: the program.
        encoder: of a head, the encoder that it reads.
    """

    made: TorchProgram | None = None
    encoder: InMemory | None = None

    @property
    def on_disk(self) -> bool:
        return False

    def required(self, role: str) -> Checkpoint:
        return self.encoder or super().required(role)

    def program(self) -> TorchProgram:
        return self.made or super().program()


class OwnClassifier(nn.Module):
    """A network's last layer alone, with the outputs that every head gives."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, feature: Tensor) -> tuple[Tensor, ...]:
        """feature (1, D + S) -> three times the logits (1, C), attention (1, 1) to the photo itself, trust (1,): 0."""
        return answers_without_history(self.layer(feature[:, : self.layer.in_features]), feature)


def answers_without_history(logits: Tensor, feature: Tensor) -> tuple[Tensor, ...]:
    """What every head gives, of logits (1, C) of the photo alone."""
    # Over one score, so always 1. Converters and delegates take neither outputs that are constants nor one value as
    # several outputs, so each is computed.
    attention = feature[:, :1].softmax(dim=1)
    nothing = 1.0 - attention
    return logits, logits + nothing, logits * attention, attention, nothing.reshape(-1)


def programs_of(network: Network) -> tuple[TorchProgram, TorchProgram, Split]:
    """The encoder, photo (B, 3, side, side) -> feature with signature (B, D + S), and the head behind it.

    Raises:
        ExportError: the network does not map photos to one row of logits each, or not always to the same.
    """
    side = network.preprocessing.crop
    _require_same_answers(network.module, side, network.name)
    cut = split(network.module, side, network.name)  # says what is wrong with a network that cannot run
    identity = network.identity
    classes, width = cut.weight.shape
    if len(network.labels) != classes:
        raise ExportError(
            f"{network.name} gives {classes} logits, {len(network.labels)} labels were given; give one label per line"
            " with --labels FILE, in the order of the logits"
        )
    row, module = width + SIGNATURE, SignedEncoder(cut.features)
    encoder = photo_encoder(module, network.preprocessing, row, identity, quantisable=("network",), signed=True)
    if _mixes_photos(cut.features, side):
        encoder = encoder.fixed()
    layer = nn.Linear(width, classes)
    layer.load_state_dict({"weight": cut.weight, "bias": cut.bias})
    own = hashlib.sha256(f"own classifier\n{identity}".encode()).hexdigest()
    quantisable = ("layer",) if cut.layer else ()
    head = head_without_history(OwnClassifier(layer), classes, row, own, {"method": HEAD}, quantisable=quantisable)
    return encoder, head, cut


def checkpoint_of(network: Network) -> Checkpoint:
    """A network as ``export_bundle`` takes it: its own classifier as the head, on its own encoder.

    Raises:
        ExportError: as :func:`programs_of`.
    """
    encoder, head, cut = programs_of(network)
    source = dict(network.source) | {"classifier": cut.layer or "none: the feature is the logits"}
    card = Card(builder="", config={}, labels=network.labels, training=source, sha256=network.identity)
    below = InMemory(Path("encoder"), card, {}, made=encoder)
    own = {"weight": cut.weight.detach(), "bias": cut.bias.detach()}
    return InMemory(Path(HEAD), card, own, made=head, encoder=below)


def split(module: nn.Module, side: int, name: str = "the network") -> Split:
    """Cuts a network before the linear layer whose output it returns.

    Args:
        side: pixels of its input, each way.
        name: for messages.

    Raises:
        ExportError: it does not take (B, 3, side, side), or does not return (B, C).
    """
    photo, *others = _probes(side)
    logits = logits_of(module, photo, name)
    cut = _split_graph(module) if isinstance(module, torch.fx.GraphModule) else _split_modules(module, photo, name)
    # One photo cannot tell: a ReLU behind the linear layer changes nothing where all its outputs are positive.
    if (
        cut is not None
        and _agrees(cut, photo, logits)
        and all(_agrees(cut, other, logits_of(module, other, name)) for other in others)
    ):
        return cut
    classes = logits.shape[1]
    return Split(module, torch.eye(classes), torch.zeros(classes), "")


def _require_same_answers(module: nn.Module, side: int, name: str) -> None:
    """Raises ExportError for a network whose logits of one photo are others each time."""
    first, second = (logits_of(module, example_photo(side), name) for _ in range(2))
    apart = float((first - second).abs().max())
    if apart > 1e-3 * float(first.abs().max()):
        raise ExportError(
            f"{name}: answers differ by {apart:.3g} between two runs on one photo, expected the same; is there dropout"
            " that is always on? F.dropout is off where it is given training=self.training and the network is in eval"
            " mode"
        )


def _mixes_photos(features: nn.Module, side: int) -> bool:
    """Whether a photo's feature is another one where other photos come with it, as by statistics of the batch."""
    photos = [scale * example_photo(side) for scale in (1.0, -0.5)]
    with torch.no_grad():
        alone = torch.cat([features(photo) for photo in photos])
        try:
            together = features(torch.cat(photos))
        except Exception:  # a network of one photo at a time raises anything
            return False
    limit = 1e-3 * float(alone.abs().max())
    return together.shape != alone.shape or not torch.allclose(together, alone, rtol=1e-3, atol=limit)


def _agrees(cut: Split, photo: Tensor, logits: Tensor) -> bool:
    """Whether encoder and classifier give a photo the logits of the network."""
    try:
        with torch.no_grad():
            again = torch.nn.functional.linear(cut.features(photo), cut.weight, cut.bias)
    except Exception:  # a network that cannot do without its classifier raises anything
        return False
    return torch.allclose(again, logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))


def example_photo(side: int) -> Tensor:
    """(1, 3, side, side) of noise, always the same."""
    return torch.randn((1, 3, side, side), generator=torch.Generator().manual_seed(0))


def _probes(side: int) -> list[Tensor]:
    """Photos that a network is tried on, each (1, 3, side, side), the first of them :func:`example_photo`.

    None is without any contrast: a network that divides by it has no finite logits there.
    """
    return [scale * example_photo(side) for scale in (1.0, -1.0, 2.0, 0.1)]


def logits_of(module: nn.Module, photo: Tensor, name: str) -> Tensor:
    """Logits (1, C) of a photo (1, 3, side, side).

    Raises:
        ExportError: the network does not take the photo, or does not return finite (1, C).
    """
    try:
        with torch.no_grad():
            found = module(photo)
    except Exception as error:  # a network's own code raises anything
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        kinds = sorted({str(p.dtype) for p in module.parameters() if p.is_floating_point()} - {"torch.float32"})
        advice = (
            f"its weights are {' and '.join(kinds)}, expected torch.float32: call .float()"
            if kinds
            else "expected a network of RGB photos (B, 3, side, side); another side is given with --side"
        )
        raise ExportError(f"{name} cannot run on a photo {tuple(photo.shape)} ({first}); {advice}") from error
    if not isinstance(found, Tensor):
        raise ExportError(f"{name} returns {type(found).__name__}, expected one tensor of logits (B, C); wrap it")
    if found.dim() != 2 or found.shape[0] != 1 or found.shape[1] < 2:
        shape = tuple(found.shape)
        raise ExportError(f"{name} returns {shape} for one photo, expected logits (1, C) with C of 2 or more")
    if not torch.isfinite(found).all():
        raise ExportError(f"{name} gives logits that are not finite; check that the weights are those of this network")
    return found


class _PassesOn(nn.Module):
    """In the place of a linear layer: gives what it is given, and has the layer's attributes, which networks read.

    The layer's weights are none of its own.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        vars(self)["layer"] = layer  # not registered as a part

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self).get("layer"), name)

    def forward(self, feature: Tensor) -> Tensor:
        return feature


def _split_modules(module: nn.Module, photo: Tensor, name: str) -> Split | None:
    """Finds the classifier by what passes through it; None where no linear layer gives the logits."""
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def note(layer: str, inputs: Any, output: Tensor) -> None:
        calls.setdefault(layer, []).append((inputs[0], output))

    hooks = [
        layer.register_forward_hook(lambda _, inputs, output, path=path: note(path, inputs, output))
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        logits = logits_of(module, photo, name)
    finally:
        for hook in hooks:
            hook.remove()
    for path, passed in calls.items():
        given, output = passed[-1]
        if path and len(passed) == 1 and given.dim() == 2 and (output is logits or torch.equal(output, logits)):
            layer: Any = module.get_submodule(path)
            features = copy.deepcopy(module, {id(layer): _PassesOn(layer)})  # under every name that the layer has
            bias = layer.bias if layer.bias is not None else torch.zeros(layer.out_features)
            return Split(features.eval(), layer.weight, bias, path)
    return None


def _split_graph(module: torch.fx.GraphModule) -> Split | None:
    """The same for a captured graph, by its last operator."""
    graph = copy.deepcopy(module)
    output = next(node for node in graph.graph.nodes if node.op == "output")
    results: Any = output.args[0]
    several = isinstance(results, tuple | list)
    last: Any = results[0] if several and len(results) == 1 else results
    if not isinstance(last, torch.fx.Node) or last.target is not _LINEAR:
        return None
    given, *numbers = last.args
    weight, bias = (*(_constant(graph, node) for node in numbers), None)[:2]
    if weight is None:
        return None
    name: Any = numbers[0]
    layer = str(name.target).removesuffix(".weight")
    output.args = ((given,),) if several else (given,)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return Split(graph, weight, torch.zeros(len(weight)) if bias is None else bias, layer)


def _constant(graph: torch.fx.GraphModule, node: Any) -> Tensor | None:
    if not isinstance(node, torch.fx.Node) or node.op != "get_attr":
        return None
    found: Any = functools.reduce(getattr, str(node.target).split("."), graph)
    return found.detach() if isinstance(found, Tensor) else None
