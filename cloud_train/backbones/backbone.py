"""Any timm network as a frozen encoder: pixels in, the feature before its classifier out.

timm is imported where a network is built: that takes seconds, which a mistake in a setting should not wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.progress import say
from refocus.edge.bundle import Preprocessing
from refocus.export.program import SIGNATURE, SignedEncoder, misfit, signature

_FILTERS = {"bilinear", "bicubic", "lanczos"}
_SOURCES = ("hf-hub", "local-dir")  # before a colon: networks that timm saved elsewhere


@dataclass(frozen=True)
class Backbone:
    """A timm network with what must be known to use it.

    Attributes:
        name: timm name.
        network: the network, in eval mode, with its classifier.
        preprocessing: what its input expects.
        arguments: keyword arguments that make the same network again.
    """

    name: str
    network: Any  # a timm network; nn.Module hides what timm adds
    preprocessing: Preprocessing
    arguments: dict[str, Any]

    @property
    def width(self) -> int:
        """D, the width of the feature."""
        return int(self.network.head_hidden_size)

    @property
    def row(self) -> int:
        """D + S, the width of what the encoder gives and a history stores."""
        return self.width + SIGNATURE

    @property
    def encoder(self) -> Encoder:
        return Encoder(self.network)

    def card_config(self, **more: Any) -> dict[str, Any]:
        """What a checkpoint's card must know to make the network again; ``more`` as its builder asks for."""
        stated = msgspec.to_builtins(self.preprocessing)
        return {"name": self.name, "arguments": self.arguments, "preprocessing": stated, **more}

    def classifier(self) -> nn.Linear | None:
        """The network's own classifier, or None if it is not one linear layer."""
        layer = self.network.get_classifier()
        return layer if isinstance(layer, nn.Linear) else None


class Encoder(SignedEncoder):
    """The same of a timm network, whose feature is the pooled input of its classifier; of clips, over their frames."""

    network: Any

    def forward(self, photo: Tensor) -> Tensor:
        features: Tensor = self.network.forward_head(self.network.forward_features(photo), pre_logits=True)
        return torch.cat([features, signature(photo)], dim=1)


def source_of(name: str) -> str:
    """``hf-hub:timm/resnet18.a1_in1k`` -> "hf-hub"; "" of a name in timm's own registry."""
    source = name.partition(":")[0]
    return source if source in _SOURCES else ""


def stated_side(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Preprocessing of a network that was made for a side of its own (``img_size``): timm states that of the published
    weights. Empty without one."""
    side = arguments.get("img_size")
    return {"resize_shorter": side, "crop": side} if side else {}


def create_backbone(
    name: str,
    classes: int | None,
    preprocessing: Preprocessing | None = None,
    /,
    *,
    pretrained: bool = False,
    **arguments: Any,
) -> Backbone:
    """Builds a timm network with fresh weights.

    Args:
        name: any timm name; or ``hf-hub:OWNER/NAME`` or ``local-dir:FOLDER``.
        classes: width of its classifier; None: as timm has it.
        preprocessing: default: the one timm states for the name, with its centre crop share.
        pretrained: take the weights that timm publishes, by its own download.
        arguments: passed to ``timm.create_model``.

    Raises:
        UsageError: timm does not know the name or the arguments; or weights, or the configuration of a network that
            timm saved elsewhere, cannot be fetched or read.
    """
    if not source_of(name):
        _require_known(name)
    import timm

    own: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if pretrained:
        own["pretrained"] = True
    try:
        network = timm.create_model(name, **own, **arguments).eval()
    except (TypeError, ValueError, RuntimeError) as error:
        told = f" with {arguments}" if arguments else ""
        raise UsageError(f"network {name}: timm cannot build it{told} ({error})") from None
    except OSError as error:  # of huggingface_hub too: no network, unknown repository
        raise UsageError(f"network {name}: {_unreachable(name, error)}") from None
    return Backbone(name, network, preprocessing or _stated_preprocessing(network), arguments)


def _require_known(name: str) -> None:
    """Raises UsageError for a name, or a tag of pretrained weights behind it, that timm does not have."""
    import timm

    here = f"network {name}: timm {timm.__version__} has no such network"
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), 5, 0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "see timm.list_models()"
        raise UsageError(f"{here}; {hint}")
    architecture, _, tag = name.partition(".")
    tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        hint = (
            f"its weights are {', '.join(f'{architecture}.{each}' for each in tags[:8])}"
            if tags
            else "it has no weights"
        )
        raise UsageError(f"network {name}: timm {timm.__version__} has no weights of that name; {hint}")


def _unreachable(name: str, error: OSError) -> str:
    """Why weights or their configuration could not be had, and what to do on a machine without a network."""
    import timm

    source, _, place = name.rpartition(":")
    if source == "local-dir":
        return f"expected a folder with config.json that timm saved ({error})"
    if not source:
        stated = timm.models.get_pretrained_cfg(name)
        place = (stated.hf_hub_id if stated is not None else None) or name
    return (
        f"its pretrained weights cannot be downloaded ({type(error).__name__}); without a network, fetch"
        f" model.safetensors of {place} from the Hugging Face hub on another machine and give it as --checkpoint"
        " FILE.safetensors"
    )


def feature_width(name: str, arguments: dict[str, Any]) -> int:
    """D of a network, without its weights: settings can be checked before hours of feature extraction."""
    with torch.device("meta"):
        return create_backbone(name, 1, **arguments).width


def load_weights(backbone: Backbone, checkpoint: Path, classifier: bool = True) -> None:
    """Loads safetensors weights into a backbone.

    Args:
        classifier: False: the network's classifier stays as it is, whatever classes that of the file has.

    Raises:
        UsageError: not safetensors (pickles are never opened), or made for another network.
    """
    try:
        weights = _resized(load_file(_checked(checkpoint)), backbone.network)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"--checkpoint {checkpoint} is not a safetensors file ({error})") from None
    own = backbone.network.state_dict()
    if not classifier:
        prefix = f"{classifier_name(backbone.network)}."
        weights = {name: value for name, value in weights.items() if not name.startswith(prefix)}
        weights |= {name: value for name, value in own.items() if name.startswith(prefix)}
    wrong = misfit(own, weights)
    if wrong:
        raise UsageError(f"--checkpoint {checkpoint} does not fit network {backbone.name}: {wrong}")
    backbone.network.load_state_dict(weights)


def _resized(weights: dict[str, Tensor], network: Any) -> dict[str, Tensor]:
    """Weights with the position embedding of a vision transformer at the resolution of this network, bicubically."""
    from timm.layers import resample_abs_pos_embed
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(network, VisionTransformer) or "pos_embed" not in weights or network.pos_embed is None:
        return weights
    stored, own = weights["pos_embed"], network.pos_embed
    if stored.shape == own.shape or stored.shape[-1] != own.shape[-1]:
        return weights
    prefix = 0 if network.no_embed_class else network.num_prefix_tokens
    grid = network.patch_embed.grid_size
    return {**weights, "pos_embed": resample_abs_pos_embed(stored, list(grid), num_prefix_tokens=prefix)}


def classifier_name(network: Any) -> str:
    """Name of a timm network's classifier among its modules; "" if it has none."""
    own = network.get_classifier()
    return next((name for name, module in network.named_modules() if module is own), "")


def classes_in(checkpoint: Path, network: Any) -> int:
    """Number of classes of the classifier stored in a checkpoint of this network; 0 if it stores none.

    Raises:
        UsageError: not a readable safetensors file (pickles are never opened).
    """
    name = classifier_name(network)
    try:
        with safe_open(_checked(checkpoint), "pt") as file:
            keys = set(file.keys())
            first = next(iter(keys), "").partition(".")[0] + "."  # of all, where they were saved from a wrapper
            wrapped = first if all(key.startswith(first) for key in keys) else ""
            stored = next((key for key in (f"{name}.weight", f"{wrapped}{name}.weight") if key in keys), "")
            return int(file.get_slice(stored).get_shape()[0]) if stored else 0
    except (SafetensorError, OSError) as error:
        raise UsageError(f"--checkpoint {checkpoint} is not a safetensors file ({error})") from None


def _checked(checkpoint: Path) -> Path:
    if checkpoint.suffix != ".safetensors":
        raise UsageError(f"--checkpoint {checkpoint}: only .safetensors is read; a pickle from outside is never opened")
    if not checkpoint.is_file():
        raise UsageError(f"--checkpoint {checkpoint}: no such file")
    return checkpoint


def preprocessing_of(config: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing in a checkpoint card's config, where JSON has made lists of its tuples."""
    return msgspec.convert(config["preprocessing"], Preprocessing)


def _stated_preprocessing(network: nn.Module) -> Preprocessing:
    """The evaluation preprocessing timm states for a network, in the terms of the manifest."""
    from timm.data.config import resolve_model_data_config

    stated = resolve_model_data_config(network)
    side, share = stated["input_size"][-1], stated["crop_pct"]
    if stated.get("crop_mode", "center") != "center":
        say(f"timm evaluates this backbone with crop mode '{stated['crop_mode']}'; here it gets a centre crop")
    return Preprocessing(
        resize_shorter=max(side, int(np.floor(side / share))),
        crop=side,
        mean=_rgb(stated["mean"]),
        std=_rgb(stated["std"]),
        resize_filter=stated["interpolation"] if stated["interpolation"] in _FILTERS else "bicubic",
        decoder="pillow-scaled",
    )


def _rgb(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue
