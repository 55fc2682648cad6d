"""timm's networks for ``refocus export timm:NAME``: the entry point ``timm`` of the group ``refocus.networks``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
from timm.data import ImageNetInfo, infer_imagenet_subset

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone, source_of
from refocus.cloud_train.errors import UsageError
from refocus.export.errors import ExportError
from refocus.export.program import RANDOM, Found, NetworkSettings, weights_hash

# Arguments of timm.create_model that an option of ours sets.
_OPTIONS = {"pretrained": "--pretrained", "checkpoint_path": "--checkpoint FILE.safetensors", "model_name": "timm:NAME"}


def timm_network(name: str, settings: NetworkSettings) -> Found:
    """A timm network with its own classifier.

    Args:
        name: timm name, with a tag of pretrained weights or without, as ``mobilenetv3_large_100.ra_in1k``; or
            ``hf-hub:OWNER/NAME`` or ``local-dir:FOLDER``, a network that timm saved with its configuration.

    Raises:
        ExportError: timm does not know the name or the arguments, the weights cannot be downloaded, or their classes
            are not those that are asked for.
    """
    arguments, asked = dict(settings.arguments), f"timm:{name}"
    for argument in arguments.keys() & _OPTIONS.keys():
        raise ExportError(f"--backbone-arguments {argument}: use {_OPTIONS[argument]} in its place")
    classes = arguments.pop("num_classes", None)
    if classes == 0:
        raise ExportError(
            f"{asked}: num_classes=0 leaves the network without a classifier, and a bundle answers with class names;"
            " leave num_classes out, or give the number of classes of --checkpoint"
        )
    download = settings.pretrained and settings.checkpoint is None
    folder = Path(name.partition(":")[2])
    if download and source_of(name) == "local-dir" and folder.is_dir() and not [*folder.glob("*.safetensors")]:
        raise ExportError(f"{asked}: {folder} holds no .safetensors; a pickle from outside is never opened")
    try:
        backbone = create_backbone(name, classes, pretrained=download, **arguments)
    except UsageError as error:
        raise ExportError(str(error).replace("network ", "timm:", 1)) from None
    versions = {"timm": timm.__version__}
    if download:
        _require_own_classifier(backbone, asked)
        versions |= {"weights": _published(backbone.network), "weights_hash": weights_hash(backbone.network)}
    elif settings.checkpoint is None:
        versions["weights"] = RANDOM
    return Found(backbone.network, backbone.preprocessing, imagenet_labels(backbone.network), versions)


def _require_own_classifier(backbone: Backbone, asked: str) -> None:
    """Raises ExportError where timm has put an untrained classifier in the place of the published one."""
    published, own = _config(backbone.network).get("num_classes"), getattr(backbone.network, "num_classes", None)
    if published is not None and published != own:
        raise ExportError(
            f"{asked} --pretrained: the published weights have {published} classes, num_classes={own} would leave the"
            " classifier untrained; leave num_classes out, and train a classifier on your photos from the bundle:"
            " refocus train iciia RUN --from BUNDLE --set classifier=fit"
        )


def _config(network: Any) -> dict[str, Any]:
    return dict(getattr(network, "pretrained_cfg", None) or {})


def _published(network: Any) -> str:
    """Where timm has the weights from, in words for the bundle's manifest."""
    stated = _config(network)
    return str(stated.get("hf_hub_id") or stated.get("url") or stated.get("file") or "of timm")


def imagenet_labels(network: Any) -> tuple[str, ...] | None:
    """Return the class names that timm states for the weights; None if it states none."""
    stated = _config(network)
    if stated.get("num_classes") != getattr(network, "num_classes", None):
        return None
    names = [str(name) for name in stated.get("label_names") or ()]
    if len(names) == stated["num_classes"] and len(set(names)) == len(names):
        return tuple(names)
    subset = infer_imagenet_subset(stated)
    if subset is None:
        return None
    info = ImageNetInfo(subset)
    names = [info.index_to_description(index) for index in range(info.num_classes())]
    twice = {name for name in names if names.count(name) > 1}
    return tuple(f"{name} ({info.index_to_label_name(i)})" if name in twice else name for i, name in enumerate(names))
