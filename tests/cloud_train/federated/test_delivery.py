"""A federated client on a device: shared programs, a small file of their own, the same answers as in training."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from refocus.cloud_train.documents import write_results
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.federated.client import answers
from refocus.cloud_train.federated.delivery.deliver import deliver
from refocus.cloud_train.federated.run import FederatedRun, Rates
from refocus.edge.bundle.load import load_bundle
from refocus.edge.bundle.personal_weights import NewWeights, model_of
from refocus.edge.errors import BundleError, PersonalWeightsError, RefocusError
from refocus.edge.personal.received_files import read_personal
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.photos.preprocess import decode_photo, resize_and_crop
from refocus.edge.recognize.recognizer import Recognizer, profile_path
from refocus.export.bundle.write import Export, export_bundle
from refocus.export.parity.photos import read_streams
from studies.federated.bundle_accuracy import bundle_accuracy
from studies.report.results_page import results_pages

RATES, OTHER = Rates(0.1, 0.01), Rates(0.1)


@pytest.fixture(scope="module")
def run(federated_run):
    return federated_run


@pytest.fixture(scope="module")
def checkpoint(run):
    return deliver(run, "pfedpg", 0, RATES)


@pytest.fixture(scope="module")
def bundle(checkpoint, tmp_path_factory):
    folder = checkpoint.path.parent
    out = tmp_path_factory.mktemp("bundle") / "shared"
    return export_bundle([checkpoint], out, Export(["onnx:fp32"]), read_streams(folder / "parity"))


def eager(run: FederatedRun, client, method: str = "pfedpg") -> np.ndarray:
    participant, server, kept = run.federated(method, 0, RATES)
    state = kept.clients.get(client.name, {})
    return answers(participant.received(server.payload(client.name), state), client.test).numpy()


def on_device(
    bundle, client, cache: PersonalWeightStore | None, folder: Path, target: str = "onnxruntime"
) -> np.ndarray:
    photos = client.test.batch(np.arange(len(client.test))).contiguous().numpy()
    with Recognizer(bundle, profile_path(folder, client.name), target, weights=cache, threads=1) as recognizer:
        return np.array([recognizer.recognize_pixels(photo[None], str(n)).logits for n, photo in enumerate(photos)])


def put_all(bundle, checkpoint, folder: Path) -> PersonalWeightStore:
    cache = PersonalWeightStore(folder / "weights", sync=False)
    for path in sorted((checkpoint.path.parent / "clients").glob("*.safetensors")):
        found = read_personal(path, bundle)
        for model in found.models:
            cache.put(path.stem, model, found.weights)
    return cache


def test_every_client_gets_the_answers_of_training(run, checkpoint, bundle, tmp_path):
    cache = put_all(bundle, checkpoint, tmp_path)
    found = {client.name: on_device(bundle, client, cache, tmp_path) for client in run.clients.members}
    for client in run.clients.members:
        wanted = eager(run, client)
        np.testing.assert_allclose(found[client.name], wanted, atol=1e-4)
    first, second = run.clients.members[:2]
    swapped = on_device(
        bundle, type(first)(second.name, first.train, first.validation, first.test), cache, tmp_path / "x"
    )
    assert np.abs(swapped - found[first.name]).max() > 0.05  # somebody else's prompts and classifier answer otherwise


def test_a_stranger_gets_the_servers_prompts_and_the_mean_classifier(run, checkpoint, bundle, tmp_path):
    client = run.clients.members[0]
    found = on_device(bundle, client, None, tmp_path)
    participant, server, _ = run.federated("pfedpg", 0, RATES)
    network = participant.received(server.payload("nobody"), {})
    files = sorted((checkpoint.path.parent / "clients").glob("*.safetensors"))
    with torch.no_grad():
        network.head.weight.copy_(torch.stack([load_file(f)["classifier_weight"] for f in files]).mean(0))
        network.head.bias.copy_(torch.stack([load_file(f)["classifier_bias"] for f in files]).mean(0))
    np.testing.assert_allclose(found, answers(network, client.test).numpy(), atol=1e-4)


def test_a_clients_file_is_prompts_and_a_classifier(checkpoint, bundle):
    [path, *_] = sorted((checkpoint.path.parent / "clients").glob("*.safetensors"))
    found = read_personal(path, bundle)
    assert {name: value.shape for name, value in found.weights.tensors.items()} == {
        "prompts": (1, 10, 16), "classifier_weight": (6, 16), "classifier_bias": (6,),
    }  # fmt: skip
    assert path.stat().st_size < 4 * (160 + 96 + 6) + 600


def test_two_commands_on_one_run_wait_for_each_other(run, checkpoint, tmp_path, caplog):
    caplog.set_level("INFO", "refocus")
    shutil.copytree(run.folder, tmp_path / "run")
    copied = FederatedRun(tmp_path / "run")
    place = copied.place("pfedpg", 0, RATES)
    shutil.rmtree(place / "deliver")
    before = sorted(path.name for path in (checkpoint.path.parent / "clients").iterdir())
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(lambda opened: deliver(opened, "pfedpg", 0, RATES), (copied, FederatedRun(copied.folder)))
        )
    assert found[0].card.sha256 == found[1].card.sha256
    assert sorted(path.name for path in (place / "deliver/clients").iterdir()) == before
    assert not (place / "deliver.unfinished").exists()
    assert f"another command works on {place}; waiting for it" in caplog.messages


def test_switching_loads_no_program(run, checkpoint, bundle, tmp_path):
    cache = put_all(bundle, checkpoint, tmp_path)
    names = [client.name for client in run.clients.members]
    with Recognizer(bundle, profile_path(tmp_path, names[0]), weights=cache, threads=1) as recognizer:
        encoder, spaces = recognizer.encoder, set()
        for name in names:
            recognizer.switch(profile_path(tmp_path, name))
            assert recognizer.encoder is encoder
            spaces.add(recognizer.space)
        assert len(spaces) == len(names)  # features under different prompts never meet


def test_a_file_of_another_training_is_refused(run, checkpoint, bundle, tmp_path):
    other = deliver(run, "fedvpt", 0, OTHER)
    [path, *_] = sorted((other.path.parent / "clients").glob("*.safetensors"))
    with pytest.raises(PersonalWeightsError, match=r"was made for model .* fetch the person's file for this bundle"):
        read_personal(path, bundle)


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        ({"prompts": torch.zeros(1, 9, 16)}, r"holds prompts float32 \(1, 9, 16\); the programs of .* take"),
        ({"photo": torch.zeros(1)}, "holds photo"),
        ({"prompts": torch.zeros(1, 10, 16)}, "classifier_bias"),  # half of a person
    ],
)
def test_a_file_of_other_shapes_is_refused(checkpoint, bundle, tmp_path, tensors, what):
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, {"method": "pfedpg", "checkpoint_sha256": checkpoint.card.sha256})
    with pytest.raises(PersonalWeightsError, match=what):
        read_personal(path, bundle)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(PersonalWeightsError, match="no file of tensors"):
        read_personal(path, bundle)


@pytest.mark.slow
def test_a_file_put_for_one_training_never_serves_another_of_the_same_body(run, checkpoint, bundle, tmp_path):
    """The encoder's program is the same to the byte: prompts are its input."""
    other = deliver(run, "fedvpt", 0, OTHER)
    second = export_bundle(
        [other], tmp_path / "second", Export(["onnx:fp32"]), read_streams(other.path.parent / "parity")
    )
    assert second.artifact("encoder", "onnxruntime").sha256 == bundle.artifact("encoder", "onnxruntime").sha256
    client, cache = run.clients.members[0], put_all(bundle, checkpoint, tmp_path)
    np.testing.assert_array_equal(
        on_device(second, client, cache, tmp_path), on_device(second, client, None, tmp_path / "stranger")
    )


def test_after_a_switch_that_failed_nobody_is_served_as_somebody_else(run, checkpoint, bundle, tmp_path):
    cache, client = put_all(bundle, checkpoint, tmp_path), run.clients.members[0]
    model = model_of(*(bundle.artifact(role, "onnxruntime") for role in ("encoder", "head")))
    cache.put("bob", model, NewWeights("inputs", "m", {"prompts": np.zeros((1, 3, 16), np.float32)}))
    photo = client.test.batch(np.arange(1)).contiguous().numpy()
    with Recognizer(bundle, None, weights=cache, threads=1) as recognizer:
        stranger = recognizer.recognize_pixels(photo, "p", remember=False).logits
        recognizer.switch(profile_path(tmp_path, client.name))
        assert not np.array_equal(recognizer.recognize_pixels(photo, "p", remember=False).logits, stranger)
        with pytest.raises(PersonalWeightsError, match="do not fit"):
            recognizer.switch(profile_path(tmp_path, "bob"))
        with pytest.raises(RefocusError, match="call switch first"):
            recognizer.recognize_pixels(photo, "p", remember=False)
        recognizer.switch(None)
        np.testing.assert_array_equal(recognizer.recognize_pixels(photo, "p", remember=False).logits, stranger)


def test_no_clients_photo_is_in_what_is_delivered(run, checkpoint, bundle):
    own = {photo.numpy().tobytes() for c in run.clients.members for part in (c.train, c.validation, c.test)
           for photo in part.pixels}  # fmt: skip
    shown = [*(checkpoint.path.parent / "parity").rglob("*.png"), *(bundle.folder / "self-test").iterdir()]
    assert shown
    assert not own & {resize_and_crop(decode_photo(p.read_bytes(), ""), bundle.manifest.preprocessing)
                      .transpose(2, 0, 1).tobytes() for p in shown}  # fmt: skip


def test_a_run_on_other_photos_at_the_same_place_is_refused(run, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(run.folder, folder)
    (folder / "data.sha256").write_text("other\n")
    with pytest.raises(DataError, match="was started on other photos"):
        _ = FederatedRun(folder).clients


def test_defaults_that_fit_no_input_are_refused(bundle, tmp_path):
    import hashlib

    import msgspec

    from refocus.edge.bundle.load import write_manifest
    from refocus.edge.bundle.manifest import Defaults

    folder = tmp_path / "copy"
    shutil.copytree(bundle.folder, folder)
    save_file({"prompts": torch.zeros(1, 2, 16)}, folder / "wrong.safetensors")
    content = (folder / "wrong.safetensors").read_bytes()
    wrong = Defaults(file="wrong.safetensors", sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    changed = [
        msgspec.structs.replace(a, defaults=wrong) if a.role == "encoder" else a for a in bundle.manifest.artifacts
    ]
    with pytest.raises(BundleError, match="is not an input of encoder-fp32.onnx"):
        write_manifest(folder, msgspec.structs.replace(bundle.manifest, artifacts=tuple(changed)))
    shutil.rmtree(folder)
    shutil.copytree(bundle.folder, folder)
    (folder / "encoder.defaults.safetensors").write_bytes(b"changed")
    with pytest.raises(BundleError):
        load_bundle(folder)


def test_a_method_that_does_not_exist_is_not_delivered(run):
    with pytest.raises(UsageError, match="pfedgp: there is none of that name; did you mean pfedpg"):
        deliver(run, "pfedgp", 0, OTHER)


@pytest.mark.slow
def test_a_persons_file_is_put_listed_used_and_dropped_by_commands(refocus, run, checkpoint, bundle, tmp_path):
    client = run.clients.members[0]
    photo = min((checkpoint.path.parent / "parity").rglob("*.png"))
    where = ["--profiles", str(tmp_path)]
    file = checkpoint.path.parent / "clients" / f"{client.name}.safetensors"
    asked = ["recognize", str(bundle.folder), str(photo), "--profile", client.name, *where, "--json"]
    before = json.loads(refocus(*asked).stdout)
    done = refocus("personal", "put", str(bundle.folder), str(file), "--profile", client.name, *where)
    assert done.returncode == 0, done.stderr
    assert "of pfedpg" in done.stdout
    [row] = json.loads(refocus("personal", "list", *where, "--json").stdout)
    assert (row["profile"], row["method"], row["carrier"]) == (client.name, "pfedpg", "inputs")
    own = json.loads(refocus(*asked).stdout)
    assert own != before
    assert "1 personal files" in refocus("history", "erase", "--yes", "--profile", client.name, *where).stdout
    assert json.loads(refocus("personal", "list", *where, "--json").stdout) == []
    refocus("personal", "put", str(bundle.folder), str(file), "--profile", client.name, *where)
    assert "1 files removed" in refocus("personal", "drop", "--profile", client.name, *where).stdout
    again = json.loads(refocus(*asked).stdout)
    assert again == before
    wrong = refocus("personal", "put", str(bundle.folder), str(photo), *where)
    assert wrong.returncode == 1
    assert "no file of tensors" in wrong.stderr


# Attacks with a person's file


@pytest.fixture
def attacked(run, checkpoint, bundle, tmp_path):
    """Takes a file as ``refocus personal put`` does; whatever it was, the person is served as before."""
    client, *_ = run.clients.members
    cache = put_all(bundle, checkpoint, tmp_path)
    before = on_device(bundle, client, cache, tmp_path / "before")

    def put(file: Path, words: str, other=bundle, person: str = client.name) -> None:
        with pytest.raises(PersonalWeightsError, match=words):
            read_personal(file, other, person)

    yield put
    again = PersonalWeightStore(tmp_path / "weights", sync=False)
    np.testing.assert_array_equal(on_device(bundle, client, again, tmp_path / "after"), before)


def files_of(checkpoint) -> list[Path]:
    return sorted((checkpoint.path.parent / "clients").glob("*.safetensors"))


def altered(file: Path, out: Path, change=lambda tensors: tensors, **about: str) -> Path:
    """A copy of a person's file with other tensors or another header."""
    with safe_open(file, "pt") as opened:
        header = {**opened.metadata(), **about}
    save_file(change(load_file(file)), out, header)
    return out


def test_a_file_of_another_person_is_refused_and_the_person_is_served_as_before(attacked, run, checkpoint, tmp_path):
    own, others, *_ = files_of(checkpoint)
    attacked(others, f"was made for '{others.stem}', not for '{own.stem}'; .* --person")
    renamed = tmp_path / own.name
    renamed.write_bytes(others.read_bytes())
    attacked(renamed, f"was made for '{others.stem}', not for '{own.stem}'")
    attacked(altered(own, tmp_path / "x", person="x" * 5000 + "\n"), "was made for 'x{80}', not for")


def test_a_file_of_another_model_is_refused_and_the_person_is_served_as_before(attacked, run, checkpoint, tmp_path):
    own, *_ = files_of(checkpoint)
    attacked(files_of(deliver(run, "fedvpt", 0, OTHER))[0], "was made for model .* fetch the person's file for this")
    for model in ("0" * 64, "", "None", "x"):
        attacked(altered(own, tmp_path / "x", checkpoint_sha256=model), "was made for model")


def test_a_file_for_the_bundle_of_a_bank_is_refused_and_the_person_is_served_as_before(
    attacked, bank_bundle, checkpoint, tmp_path
):
    own, *_ = files_of(checkpoint)
    attacked(own, "was made for model", bank_bundle)
    model = str(bank_bundle.manifest.head().training.get("checkpoint_sha256"))
    attacked(altered(own, tmp_path / "x", checkpoint_sha256=model), "nothing else of each person",
             bank_bundle)  # fmt: skip


def test_a_head_that_names_no_model_takes_no_file_that_names_none(attacked, bundle, checkpoint, tmp_path):
    own, *_ = files_of(checkpoint)
    heads = [msgspec.structs.replace(head, training={}) for head in bundle.manifest.heads]
    nameless = replace(bundle, manifest=msgspec.structs.replace(bundle.manifest, heads=tuple(heads)))
    for model in ("None", ""):
        attacked(altered(own, tmp_path / "x", checkpoint_sha256=model), "is of an unknown one", nameless)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_file_with_numbers_that_are_not_finite_is_refused(number, attacked, checkpoint, tmp_path):
    own, *_ = files_of(checkpoint)

    def spoilt(tensors):
        tensors["prompts"][0, 3, 5] = number
        return tensors

    attacked(altered(own, tmp_path / "x", spoilt), "prompts has numbers that are not finite")


def test_a_persons_file_that_is_no_regular_file_is_refused_at_once(attacked, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for file in (tmp_path / "fifo", tmp_path, Path("/dev/zero"), tmp_path / "none"):
        attacked(file, "is not a file; give the path|cannot be read")


def test_a_file_of_release_0_1_0_which_names_nobody_is_taken(bundle, checkpoint, tmp_path):
    own, *_ = files_of(checkpoint)
    with safe_open(own, "pt") as opened:
        header = {name: value for name, value in opened.metadata().items() if name != "person"}
    save_file(load_file(own), tmp_path / "old.safetensors", header)
    assert read_personal(tmp_path / "old.safetensors", bundle, "anybody").models


@pytest.mark.slow
def test_executorch_serves_every_client_too_and_leaves_nothing_to_the_processor(run, checkpoint, tmp_path):
    streams = read_streams(checkpoint.path.parent / "parity")
    bundle = export_bundle([checkpoint], tmp_path / "bundle", Export(["executorch:fp32"]), streams)
    assert all(artifact.placement and not artifact.placement.fallbacks for artifact in bundle.manifest.artifacts)
    cache = put_all(bundle, checkpoint, tmp_path)
    for client in run.clients.members:
        np.testing.assert_allclose(
            on_device(bundle, client, cache, tmp_path, "executorch"), eager(run, client), atol=1e-4
        )


@pytest.mark.slow
def test_a_thousand_people_share_one_encoder(run, checkpoint, bundle, tmp_path):
    """Each of them is answered by their own prompts and classifier, whoever was served in between."""
    model = model_of(*(bundle.artifact(role, "onnxruntime") for role in ("encoder", "head")))
    cache, rng = PersonalWeightStore(tmp_path / "weights", sync=False), np.random.default_rng(0)
    shapes = {"prompts": (1, 10, 16), "classifier_weight": (6, 16), "classifier_bias": (6,)}
    for number in range(1000):
        tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        cache.put(f"p{number}", model, NewWeights("inputs", "pfedpg", tensors))
    photo = run.clients.members[0].test.batch(np.arange(1)).contiguous().numpy()
    first: dict[int, np.ndarray] = {}
    with Recognizer(bundle, None, weights=cache, threads=1) as recognizer:
        program = recognizer.encoder
        for number in [*range(1000), *reversed(range(0, 1000, 37))]:
            recognizer.switch(tmp_path / f"p{number}.history.sqlite3")
            logits = recognizer.recognize_pixels(photo, "photo", remember=False).logits
            np.testing.assert_array_equal(logits, first.setdefault(number, logits))
        assert recognizer.encoder is program
    assert len({found.tobytes() for found in first.values()}) == 1000


def test_swapping_a_prompt_is_timed(bundle, tmp_path):
    """`refocus bench` on a bundle whose programs take personal inputs."""
    from refocus.benchmarks.document.schema import Conditions
    from refocus.benchmarks.run import Plan
    from refocus.benchmarks.run import run as bench

    few = Conditions(min_queries=4, min_seconds=0.0, warm_up=1)
    found = bench([bundle.folder], Plan(conditions=few, mode="custom", only=("prompt swap", "overhead")), tmp_path, "x")
    assert [row.name for row in found.rows if row.group == "prompt swap"] == [
        "next photo", "swap of prompts, then a photo"]  # fmt: skip
    assert [row.name for row in found.rows if row.group == "overhead"] == ["bare encoder", "recogniser", "whole"]


@pytest.mark.slow
def test_the_accuracy_of_each_client_through_a_bundle_is_that_of_training(run, tmp_path):
    document = bundle_accuracy(run, "pfedpg", 0, RATES, ["onnx:fp32"], "a command")
    assert [row["client"] for row in document["rows"]] == [client.name for client in run.clients.members]
    for row in document["rows"]:
        found = row["targets"]["onnx:fp32"]
        assert (found["own"], found["as_pytorch"]) == (row["pytorch"], row["photos"])
        assert all(0 <= found[whose] <= row["photos"] for whose in ("other", "none"))
    write_results(document, tmp_path / "results" / "bundles.json")
    assert "## bundles: federated clients served by bundles" in results_pages(tmp_path / "results").text
    with pytest.raises(UsageError, match="one network for all"):
        bundle_accuracy(run, "fedavg", 0, OTHER, ["onnx:fp32"], "")
