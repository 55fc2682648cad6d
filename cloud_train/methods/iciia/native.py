"""ICIIA heads as the native runtime computes them: their settings as whole numbers, their weights by name."""

from __future__ import annotations

from torch import Tensor, nn

from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaLayer, IntraClientAttention
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, WarmUpGate
from refocus.cloud_train.methods.iciia.lean_gate import LeanGate
from refocus.edge.runtimes import (
    CAUSAL,
    NATIVE_CLASSIFIERS,
    NATIVE_FORMS,
    NATIVE_VERSION,
    SEVERAL,
    SHUFFLE,
    NativeConfig,
)
from refocus.export.program import SIGNATURE, NativeHead


def native_head(
    plain: nn.Linear, personal: IciiaClassifier, gate: StatisticsGate | WarmUpGate, form: str, several: bool = False
) -> NativeHead | None:
    """Configuration and tensors of a head for the native runtime; None where its block is an ablation.

    Args:
        form: "window" or "streaming".
        several: photos have several labels.
    """
    block = personal.iciia.config
    if block.attention in ("none", "alone"):
        return None
    traits = hidden = warm_up = 0
    if isinstance(gate, StatisticsGate):
        traits, hidden = gate.directions.shape[1], gate.expand.out_features
    else:
        warm_up = gate.count
    config = NativeConfig(
        version=NATIVE_VERSION,
        form=NATIVE_FORMS.index(form),
        signature=SIGNATURE,
        **{name: getattr(block, name) for name in ("width", "partitions", "layers", "heads", "window")},
        rows=block.receptive_field - 1,
        classes=plain.out_features,
        traits=traits,
        hidden=hidden,
        classifier=NATIVE_CLASSIFIERS.index(block.classifier),
        flags=SHUFFLE * block.shuffle + CAUSAL * (block.attention == "causal") + SEVERAL * several,
        precision=0,
        warm_up=warm_up,
    )
    tensors = _linear("plain", plain)
    if block.classifier != "shared":
        tensors |= _linear("own", personal.classifier)
    for number, layer in enumerate(personal.iciia.layers):
        assert isinstance(layer, IciiaLayer)  # noqa: S101
        tensors |= _layer(str(number), layer)
    if isinstance(gate, StatisticsGate):
        tensors |= _gate(gate)
    return NativeHead(config, {name: value.detach().float() for name, value in tensors.items()})


def _layer(name: str, layer: IciiaLayer) -> dict[str, Tensor]:
    attention = layer.attention
    assert isinstance(attention, IntraClientAttention)  # noqa: S101
    parts = {"qkv": attention.qkv, "out": attention.out, "expand": layer.expand, "contract": layer.contract}
    norms = {"attention_norm": layer.norm_attention, "feed_forward_norm": layer.norm_feed_forward}
    modules = {**parts, **norms}
    return {f"{name}.{part}.{which}": getattr(module, which) for part, module in modules.items() for which in _BOTH}


def _gate(trained: StatisticsGate) -> dict[str, Tensor]:
    """The gate as a device computes it, its statistics normalised by its first layer."""
    gate = LeanGate(trained)
    constants = {f"gate.{name}": getattr(gate, name) for name in ("between", "inside", "log_inside")}
    layers = {**_linear("trait", gate.trait), **_linear("gate.expand", gate.expand)}
    return constants | layers | _linear("gate.decide", gate.decide)


_BOTH = ("weight", "bias")


def _linear(name: str, layer: nn.Linear) -> dict[str, Tensor]:
    return {f"{name}.{which}": getattr(layer, which) for which in _BOTH}
