"""Batch norms that can be folded into the convolution before them, found in any network that torch.fx can trace."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Tracer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from refocus.edge.bundle import Fold
from refocus.edge.taper import NORM, scale_and_shift


class _Layers(Tracer):
    """Sees whole layers, also those of timm that do more than torch's."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (_ConvNd, _BatchNorm)) or super().is_leaf_module(m, module_qualified_name)


def find_folds(network: nn.Module) -> tuple[Fold, ...]:
    """Pairs of a convolution and the batch norm that alone reads it; none where the network cannot be traced."""
    try:
        graph: Graph = _Layers().trace(network)
    except Exception:  # fx raises what the network's own code raises when it is given proxies; norms then stay
        return ()
    modules = dict(network.named_modules())
    called = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    found = []
    for node in graph.nodes:
        before = node.args[0] if node.args else None
        if not (node.op == "call_module" and isinstance(before, Node) and before.op == "call_module"):
            continue
        norm, layer = modules[str(node.target)], modules[str(before.target)]
        alone = len(before.users) == 1 and called.count(str(node.target)) == called.count(str(before.target)) == 1
        if alone and _has_statistics(norm) and isinstance(layer, _ConvNd) and not isinstance(layer, _ConvTransposeNd):
            found.append(Fold(layer=str(before.target), norm=str(node.target), eps=float(getattr(norm, "eps", 0.0))))
    return tuple(found)


def _has_statistics(norm: nn.Module) -> bool:
    return isinstance(norm, _BatchNorm) and norm.running_mean is not None


def folded_structure(network: nn.Module, folds: tuple[Fold, ...]) -> Any:
    """A copy whose convolutions have a bias and whose folded norms are gone; its weights mean nothing yet.

    What else a norm of timm's does, its activation above all, stays in its place.
    """
    network = copy.deepcopy(network)
    for fold in folds:
        layer, norm = network.get_submodule(fold.layer), network.get_submodule(fold.norm)
        channels = layer.weight.shape[0]  # type: ignore[index]
        layer.bias = nn.Parameter(torch.zeros(int(channels)))
        rest = [getattr(norm, name) for name in ("drop", "act") if isinstance(getattr(norm, name, None), nn.Module)]
        network.set_submodule(fold.norm, nn.Sequential(*rest) if rest else nn.Identity())
    return network


def fold(state: Mapping[str, Tensor], folds: Sequence[Fold]) -> dict[str, Tensor]:
    """A network's tensors as those of its folded structure."""
    folded = dict(state)
    for each in folds:
        gamma, beta, mean, variance = (folded.pop(f"{each.norm}.{name}", None) for name in NORM)
        assert mean is not None and variance is not None  # noqa: S101, PT018  # or it would not be folded
        folded.pop(f"{each.norm}.num_batches_tracked", None)
        gamma, beta = (
            torch.ones_like(mean) if gamma is None else gamma,
            torch.zeros_like(mean) if beta is None else beta,
        )
        weight, bias = f"{each.layer}.weight", f"{each.layer}.bias"
        before = folded.get(bias, torch.zeros_like(mean)).detach()
        of_norm = [value.detach().numpy() for value in (gamma, beta, mean, variance)]
        scale, shift = scale_and_shift(of_norm[0], of_norm[1], of_norm[2], of_norm[3], each.eps, before.numpy())
        folded[weight] = folded[weight] * torch.from_numpy(scale).view(-1, *[1] * (folded[weight].dim() - 1))
        folded[bias] = torch.from_numpy(shift)
    return folded


def kept_norms(module: nn.Module) -> list[str]:
    """Names of batch norms that are still there."""
    return [name for name, inner in module.named_modules() if isinstance(inner, _BatchNorm)]
