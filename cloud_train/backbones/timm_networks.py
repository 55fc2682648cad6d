"""timm's networks for ``refocus export timm:NAME``: the entry point ``timm`` of the group ``refocus.networks``."""

from __future__ import annotations

import timm
from timm.data import ImageNetInfo, infer_imagenet_subset

from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.errors import UsageError
from refocus.export.errors import ExportError
from refocus.export.program import Found, NetworkSettings


def timm_network(name: str, settings: NetworkSettings) -> Found:
    """A timm network with its own classifier.

    Args:
        name: timm name, with a tag of pretrained weights or without, as ``mobilenetv3_large_100.ra_in1k``.

    Raises:
        ExportError: timm does not know the name or the arguments, or the weights cannot be downloaded.
    """
    arguments = dict(settings.arguments)
    classes = arguments.pop("num_classes", None)
    try:
        backbone = create_backbone(name, classes, pretrained=settings.pretrained, **arguments)
    except UsageError as error:
        raise ExportError(str(error).replace("--backbone ", "timm:")) from None
    except OSError as error:  # of huggingface_hub: no network, unknown file
        raise ExportError(
            f"timm:{name}: the pretrained weights cannot be downloaded ({type(error).__name__}); without a network give"
            " them as --checkpoint FILE.safetensors"
        ) from None
    return Found(backbone.network, backbone.preprocessing, _labels(backbone.network), {"timm": timm.__version__})


def _labels(network: object) -> tuple[str, ...] | None:
    """ImageNet's class names where timm says that the network's classifier is of ImageNet."""
    stated = getattr(network, "pretrained_cfg", {})
    subset = infer_imagenet_subset(stated)
    if subset is None or stated.get("num_classes") != getattr(network, "num_classes", None):
        return None
    info = ImageNetInfo(subset)
    names = [info.index_to_description(index) for index in range(info.num_classes())]
    twice = {name for name in names if names.count(name) > 1}
    return tuple(f"{name} ({info.index_to_label_name(i)})" if name in twice else name for i, name in enumerate(names))
