"""Whatever is a client's own, and however it travels: their device gives the answers of their network."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from refocus.cloud_train.data import glyphs
from refocus.cloud_train.federated import local_training
from refocus.cloud_train.federated.client import answers
from refocus.cloud_train.federated.delivery.deliver import deliver, used
from refocus.cloud_train.federated.methods import METHODS
from refocus.cloud_train.federated.parameters import everything, head, peft_modules, personal_head
from refocus.cloud_train.federated.run import FederatedRun, Rates
from refocus.cloud_train.methods.peft.delegated_vit import DelegatedViT
from refocus.cloud_train.methods.peft.prefixes import insert_prefixes
from refocus.edge.bundle.load import Bundle
from refocus.edge.bundle.personal_weights import NewWeights, model_of
from refocus.edge.bundle.weight_patching import check_places, filled
from refocus.edge.errors import BundleError, PersonalWeightsError
from refocus.edge.personal.received_files import read_personal
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.recognize.recognizer import Recognizer, profile_path
from refocus.export.bundle.artifacts import Export, Job
from refocus.export.bundle.write import export_bundle
from refocus.export.errors import ExportError
from refocus.export.parity.photos import read_streams

RATES = Rates(0.1, 0.01)
BOTH = {"onnx:fp32": "onnxruntime", "executorch:fp32": "executorch"}
SHOWN = 6  # photos of each client


def rates_of(name: str) -> Rates:
    return RATES if METHODS[name].server != "mean" else Rates(0.1)


def eager(run: FederatedRun, name: str) -> dict[str, np.ndarray]:
    """Each client's logits (R, C), by the network that they are judged by."""
    people = {client.name: client for client in run.clients.members}
    found = used(run, *run.federated(name, 0, rates_of(name)))
    return {who: answers(network, people[who].test).numpy()[:SHOWN] for who, network in found}


def put_all(bundle: Bundle, folder: Path, cache: PersonalWeightStore) -> None:
    for path in sorted((folder / "clients").glob("*.safetensors")):
        found = read_personal(path, bundle)
        for model in found.models:
            cache.put(path.stem, model, found.weights)


def on_device(
    run: FederatedRun, bundle: Bundle, folder: Path, target: str, cache: PersonalWeightStore
) -> dict[str, Any]:
    """Each client's logits, one recogniser for all of them, in turns."""
    found: dict[str, Any] = {client.name: [] for client in run.clients.members}
    with Recognizer(bundle, None, target, weights=cache, threads=1) as recognizer:
        for number in range(SHOWN):
            for client in run.clients.members:
                recognizer.switch(profile_path(folder, client.name))
                pixels = client.test.batch(np.arange(number, number + 1)).contiguous().numpy()
                found[client.name].append(recognizer.recognize_pixels(pixels, str(number)).logits)
    return {name: np.array(rows) for name, rows in found.items()}


def parity(run: FederatedRun, name: str, targets: dict[str, str], tmp_path: Path) -> Bundle:
    """Delivers a method, exports it and compares every client on every runtime."""
    checkpoint = deliver(run, name, 0, rates_of(name))
    folder = checkpoint.path.parent
    bundle = export_bundle([checkpoint], tmp_path / "bundle", Export([*targets]), read_streams(folder / "parity"))
    cache = PersonalWeightStore(tmp_path / "weights", sync=False)
    put_all(bundle, folder, cache)
    wanted = eager(run, name)
    for runtime in targets.values():
        found = on_device(run, bundle, tmp_path / runtime, runtime, cache)
        for client in wanted:
            np.testing.assert_allclose(found[client], wanted[client], atol=1e-4, rtol=0, err_msg=f"{client} {runtime}")
    return bundle


@pytest.fixture(scope="module")
def run(federated_run):
    return federated_run


@pytest.fixture(scope="module")
def prefixes(run, tmp_path_factory):
    """The bundle of FedPerfix, whose every client was compared with their network in ONNX Runtime."""
    folder = tmp_path_factory.mktemp("prefixes")
    return parity(run, "fedperfix", {"onnx:fp32": "onnxruntime"}, folder)


@pytest.fixture(scope="module")
def files(run):
    """The clients' files of FedPerfix."""
    return sorted((run.place("fedperfix", 0, rates_of("fedperfix")) / "deliver" / "clients").glob("*.safetensors"))


# Parity


@pytest.mark.slow
def test_every_client_gets_the_answers_of_their_own_whole_network(run, tmp_path):
    bundle = parity(run, "local", {"onnx:fp32": "onnxruntime"}, tmp_path)
    assert bundle.manifest.head().personalisation.carrier == "whole"
    [path, *_] = sorted((run.place("local", 0, rates_of("local")) / "deliver" / "clients").iterdir())
    network = timm.create_model(run.config.backbone, num_classes=6, **run.config.arguments)
    assert sum(value.numel() for value in load_file(path).values()) == sum(p.numel() for p in network.parameters())


FAMILIES = {
    "adapters": "weights", "fedperfix": "weights", "fedperfix-concatenated": "weights", "vanilla-attention": "weights",
    "fedbn": "weights", "apfl": "whole", "fedrod": "inputs",
}  # fmt: skip
ONE_OF_EACH = ("adapters", "fedperfix", "apfl")  # carriers; inputs: FedCLIP's, below


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ONE_OF_EACH else [pytest.mark.full]) for name in FAMILIES]
)
def test_every_way_to_personalise_answers_as_in_training_on_both_runtimes(run, prefixes, name, tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "in_worker", False)  # a second process takes longer to start than these take to write
    seen = name == "fedperfix"  # in ONNX Runtime, by the fixture that half of this file stands on
    bundle = parity(run, name, {"executorch:fp32": "executorch"} if seen else BOTH, tmp_path)
    assert bundle.manifest.head().personalisation.carrier == FAMILIES[name]
    assert not any(a.placement.fallbacks for a in bundle.manifest.artifacts if a.runtime == "executorch")


@pytest.mark.slow
def test_in_half_precision_people_keep_prefixes_of_their_own(run, prefixes, files, tmp_path):
    checkpoint = deliver(run, "fedperfix", 0, rates_of("fedperfix"))
    streams = read_streams(checkpoint.path.parent / "parity")
    bundle = export_bundle([checkpoint], tmp_path / "bundle", Export(["onnx:fp16"]), streams)
    cache, wanted = PersonalWeightStore(tmp_path / "weights", sync=False), eager(run, "fedperfix")
    put_all(bundle, checkpoint.path.parent, cache)
    with Recognizer(bundle, None, precision="fp16", weights=cache, threads=1) as recognizer:
        for client in run.clients.members:
            recognizer.switch(profile_path(tmp_path, client.name))
            pixels = client.test.batch(np.arange(1)).contiguous().numpy()
            logits = recognizer.recognize_pixels(pixels, "photo").logits
            np.testing.assert_allclose(logits, wanted[client.name][0], atol=0.01)


@pytest.fixture
def towers(federated_run, tmp_path) -> FederatedRun:
    """The same clients, with a tower and sentences that were never trained: for FedCLIP's parity these are as good."""
    run = FederatedRun(tmp_path / "towers", replace(federated_run.config, checkpoint="", feature_rates=(0.1,)))
    torch.manual_seed(0)
    for file, width in (("body", len(glyphs.CLASSES)), ("tower", 8)):
        network = timm.create_model(run.config.backbone, num_classes=width, **run.config.arguments)
        save_file(network.state_dict(), run.folder / f"{file}.safetensors")
    for classes in (glyphs.CLASSES, run.clients.classes):
        name = hashlib.sha256("\n".join(classes).encode()).hexdigest()[:16]
        save_file({"table": torch.randn(len(classes), 8)}, run.folder / f"sentences-{name}.safetensors")
    return run


@pytest.mark.slow
def test_fedclips_attention_over_features_is_an_input_of_the_head(towers, tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "in_worker", False)
    bundle = parity(towers, "fedclip", BOTH, tmp_path)
    assert [tensor.name for tensor in bundle.artifact("encoder", "onnxruntime").inputs] == ["photo"]
    [path, *_] = sorted((towers.place("fedclip", 0, Rates(0.1)) / "deliver" / "clients").iterdir())
    assert sum(value.numel() for value in load_file(path).values()) == 2 * (8**2 + 8)


@pytest.mark.slow
def test_norms_of_a_convolutional_network_travel_inside_its_convolutions(federated_run, tmp_path, monkeypatch):
    monkeypatch.setattr(Job, "in_worker", False)
    about: dict[str, Any] = {"channels": [8, 16, 16, 16], "stem_width": 8}
    config = replace(
        federated_run.config, backbone="resnet10t", arguments=about, checkpoint=str(tmp_path / "r.safetensors")
    )
    network = timm.create_model("resnet10t", num_classes=len(glyphs.CLASSES), **about)
    save_file(network.state_dict(), tmp_path / "r.safetensors")
    bundle = parity(FederatedRun(tmp_path / "run", config), "fedbn", BOTH, tmp_path)
    assert bundle.manifest.head().personalisation.carrier == "whole"


@pytest.mark.parametrize("form", ["added", "concatenated"])
@pytest.mark.parametrize("source", ["adapter", "linear"])
def test_prefixes_laid_out_for_a_delegate_compute_the_same(form, source):
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=16, patch_size=8, embed_dim=16, depth=2,
                                num_heads=2).eval()  # fmt: skip
    network, photo = insert_prefixes(network, form, source, 4, 1.5), torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(DelegatedViT(network)(photo), network(photo), atol=1e-5, rtol=1e-5)


# What is whose


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_how_its_clients_part_travels(name):
    method = METHODS[name]
    if everything in method.own or method.before_use in (local_training.interpolate, local_training.one_epoch):
        assert method.carrier == "whole"
    elif not method.own and (method.text_adapter or method.full or not (method.tower and method.insert)):
        assert method.carrier == "none"
    else:
        tokens = not method.insert or "prompts" in method.insert.__name__ or method.tower
        light = {*method.own} <= {head, personal_head, *([peft_modules] if tokens else [])}
        assert method.carrier == ("inputs" if light else "weights")


def test_a_clients_file_holds_prefixes_and_a_classifier_alone(run, prefixes, files):
    found = load_file(files[0])
    assert {name.split(".")[0] for name in found} == {"blocks", "classifier_weight", "classifier_bias"}
    assert all(".prefix.layers." in name for name in found if name.startswith("blocks"))
    assert len(files) == len(run.clients.members)


def test_fedperfix_on_vit_small_is_14_megabytes_of_each_person():
    with torch.device("meta"):
        network = insert_prefixes(timm.create_model("vit_small_patch16_224", num_classes=0), inner=256)
    size = sum(4 * p.numel() for block in network.blocks for p in block.attn.qkv.prefix.parameters())
    assert size == 14_204_928


# Switching, and what is refused


def test_people_with_prefixes_take_turns_in_a_bounded_pool_of_sessions(run, prefixes, files, tmp_path):
    cache = PersonalWeightStore(tmp_path / "weights", sync=False)
    put_all(prefixes, files[0].parents[1], cache)
    names = [client.name for client in run.clients.members]
    with Recognizer(prefixes, None, weights=cache, threads=1) as recognizer:
        shared, served = recognizer.encoder, {}
        for name in [*names, *names]:
            recognizer.switch(profile_path(tmp_path, name))
            assert served.setdefault(name, recognizer.encoder) is recognizer.encoder  # warm the second time
        assert len({id(program) for program in (shared, *served.values())}) == len(names) + 1
        recognizer.switch(profile_path(tmp_path, "stranger"))
        assert recognizer.encoder is shared


def test_a_file_of_another_training_is_refused(run, prefixes):
    other = deliver(run, "fedperfix", 1, rates_of("fedperfix"))
    [path, *_] = sorted((other.path.parent / "clients").glob("*.safetensors"))
    with pytest.raises(PersonalWeightsError, match=r"was made for model .* fetch the person's file for this bundle"):
        read_personal(path, prefixes)


def test_half_of_a_person_is_refused_and_of_many_tensors_some_are_named(prefixes, files, tmp_path):
    checkpoint = prefixes.manifest.head().training["checkpoint_sha256"]
    tensors = {name: value for name, value in load_file(files[0]).items() if name.startswith("classifier")}
    save_file(tensors, tmp_path / "half.safetensors", {"method": "fedperfix", "checkpoint_sha256": checkpoint})
    with pytest.raises(
        PersonalWeightsError, match=r"holds nothing else; the programs of .* take blocks.0.* and 4 more"
    ):
        read_personal(tmp_path / "half.safetensors", prefixes)


@pytest.mark.parametrize("change", ["missing", "other shape", "unknown"])
def test_kept_tensors_that_do_not_fit_are_refused_before_a_photo(prefixes, files, tmp_path, change):
    tensors = {name: value.numpy() for name, value in load_file(files[0]).items()}
    first = min(name for name in tensors if name.startswith("blocks"))
    if change == "unknown":
        tensors["blocks.9"] = tensors[first]
    elif change == "missing":
        del tensors[first]
    else:
        tensors[first] = tensors[first][:1]
    cache = PersonalWeightStore(tmp_path / "weights", sync=False)
    model = model_of(*(prefixes.artifact(role, "onnxruntime") for role in ("encoder", "head")))
    cache.put("anna", model, NewWeights("weights", "fedperfix", tensors))
    with (
        Recognizer(prefixes, None, weights=cache, threads=1) as recognizer,
        pytest.raises(PersonalWeightsError, match="do not fit: blocks"),
    ):
        recognizer.switch(profile_path(tmp_path, "anna"))


def test_a_bundle_that_is_the_same_for_everybody_takes_no_ones_file(prefixes, files):
    [card] = prefixes.manifest.heads
    same = msgspec.structs.replace(card, personalisation=msgspec.structs.replace(card.personalisation, carrier="none"))
    bundle = Bundle(prefixes.folder, msgspec.structs.replace(prefixes.manifest, heads=(same,)))
    with pytest.raises(PersonalWeightsError, match="take nothing of each person"):
        read_personal(files[0], bundle)


@pytest.mark.parametrize("target", ["onnx:int8"])  # others import their libraries
def test_targets_without_a_place_for_tensors_of_each_person_are_refused(run, prefixes, tmp_path, target):
    checkpoint = deliver(run, "fedperfix", 0, rates_of("fedperfix"))
    streams = read_streams(checkpoint.path.parent / "parity")
    with pytest.raises(ExportError, match="offers onnx:fp32, onnx:fp16, executorch:fp32"):
        export_bundle([checkpoint], tmp_path / "bundle", Export([target]), streams)


def test_a_piece_that_lies_outside_its_file_is_refused(prefixes):
    artifact = prefixes.artifact("encoder", "onnxruntime")
    [tensor, *others] = artifact.personal.tensors
    [piece] = tensor.pieces
    beyond = msgspec.structs.replace(tensor, pieces=(msgspec.structs.replace(piece, offset=10**9),))
    file = msgspec.structs.replace(artifact.personal, tensors=(beyond, *others))
    values = {t.name: np.zeros(t.shape, np.float32) for t in file.tensors}
    with pytest.raises(BundleError, match=f"{tensor.name} would end at byte"):
        check_places(msgspec.structs.replace(artifact, personal=file), prefixes.folder)
    with pytest.raises(BundleError, match="would end at byte"):
        filled(b"x" * 100, file, values, "weights.bin")
    with pytest.raises(ValueError, match="is not made of its pieces"):
        msgspec.structs.replace(tensor, shape=(tensor.shape[0] + 1, *tensor.shape[1:]))


@pytest.mark.slow
def test_a_persons_prefixes_are_put_listed_and_used_by_commands(refocus, run, prefixes, files, tmp_path):
    where = ["--profiles", str(tmp_path)]
    photo = min((files[0].parents[1] / "parity").rglob("*.png"))
    asked = ["recognize", str(prefixes.folder), str(photo), "--profile", "anna", *where, "--json"]
    before = json.loads(refocus(*asked).stdout)
    put = ["personal", "put", str(prefixes.folder), str(files[0]), "--profile", "anna", *where]
    refused = refocus(*put)
    assert refused.returncode == 1
    assert f"was made for '{files[0].stem}', not for 'anna'" in refused.stderr
    assert json.loads(refocus(*asked).stdout) == before
    done = refocus(*put, "--person", files[0].stem)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(refocus("personal", "list", *where, "--json").stdout)
    assert (row["method"], row["carrier"]) == ("fedperfix", "weights")
    assert json.loads(refocus(*asked).stdout) != before
