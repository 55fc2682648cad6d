"""A recogniser whose encoder is another one for each person, whichever way their weights travel."""

from __future__ import annotations

import hashlib
import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.bundle.personal_weights import NewWeights
from refocus.edge.errors import PersonalWeightsError
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.recognize.recognizer import Recognizer, profile_path
from tests.tiny import STORED


def shifted(model, shift):
    """The encoder with something added to its feature: an input, or a constant."""
    graph, old = model.graph, model.graph.output[0]
    for node in graph.node:
        node.output[:] = ["unshifted" if name == old.name else name for name in node.output]
    if shift is None:
        graph.input.append(helper.make_tensor_value_info("prompt", TensorProto.FLOAT, [1, STORED]))
    else:
        graph.initializer.append(numpy_helper.from_array(shift, "prompt"))
    graph.node.append(helper.make_node("Add", ["unshifted", "prompt"], [old.name]))
    return model


@pytest.fixture(scope="module")
def prompted(bundle, tmp_path_factory):
    """The tiny bundle with an encoder that adds a personal prompt to its feature."""
    folder = tmp_path_factory.mktemp("prompted") / "bundle"
    shutil.copytree(bundle.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    encoder = manifest["artifacts"][0]
    content = shifted(onnx.load(folder / encoder["file"]), None).SerializeToString()
    (folder / encoder["file"]).write_bytes(content)
    encoder.update(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    encoder["inputs"].append({"name": "prompt", "dtype": "float32", "shape": [1, STORED]})
    manifest["heads"][0]["personalisation"]["carrier"] = "inputs"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return load_bundle(folder)


def prompt_of(seed):
    return np.random.default_rng(seed).standard_normal((1, STORED)).astype(np.float32)


@pytest.fixture
def cache(tmp_path):
    return PersonalWeightStore(tmp_path / "weights")


def serve(bundle, cache, tmp_path, name, **options):
    return Recognizer(bundle, profile_path(tmp_path, name), threads=1, weights=cache, **options)


def test_each_person_gets_the_feature_of_their_own_prompt(prompted, bundle, cache, stream, tmp_path):
    plain = Recognizer(bundle, threads=1).encode(stream[0])
    model = prompted.artifact("encoder", "onnxruntime").sha256
    for seed, name in enumerate(("anna", "bert")):
        cache.put(name, model, NewWeights("inputs", "prompt", {"prompt": prompt_of(seed)}))
    with serve(prompted, cache, tmp_path, "anna") as recognizer:
        np.testing.assert_allclose(recognizer.encode(stream[0]), plain + prompt_of(0)[0], atol=1e-4)
        annas = recognizer.space
        recognizer.switch(profile_path(tmp_path, "bert"))
        np.testing.assert_allclose(recognizer.encode(stream[0]), plain + prompt_of(1)[0], atol=1e-4)
        assert recognizer.space != annas


def test_features_of_older_personal_weights_are_never_met_again(prompted, cache, stream, tmp_path):
    model = prompted.artifact("encoder", "onnxruntime").sha256
    cache.put("anna", model, NewWeights("inputs", "prompt", {"prompt": prompt_of(0)}))
    with serve(prompted, cache, tmp_path, "anna") as recognizer:
        for photo in stream[:3]:
            recognizer.recognize(photo)
    older = PersonalWeightStore(tmp_path / "weights")
    older.put("anna", model, NewWeights("inputs", "prompt", {"prompt": prompt_of(2)}))
    with serve(prompted, older, tmp_path, "anna") as recognizer:
        assert not recognizer.recognize(stream[3]).history_photos
    older.put("anna", model, NewWeights("inputs", "prompt", {"prompt": prompt_of(0)}))
    with serve(prompted, PersonalWeightStore(tmp_path / "weights"), tmp_path, "anna") as recognizer:
        assert len(recognizer.recognize(stream[4]).history_photos) == 3


def test_nothing_derived_from_one_persons_features_reaches_the_next(prompted, cache, stream, tmp_path):
    """The same photos, another encoder: traits that the head left behind for anna are not bert's."""
    model = prompted.artifact("encoder", "onnxruntime").sha256
    for seed, name in enumerate(("anna", "bert")):
        cache.put(name, model, NewWeights("inputs", "prompt", {"prompt": 3 * prompt_of(seed)}))
    with serve(prompted, cache, tmp_path, "bert") as alone:
        wanted = [alone.recognize(photo).logits for photo in stream[:6]]
    (tmp_path / "later").mkdir()
    with serve(prompted, cache, tmp_path, "anna") as recognizer:
        for photo in stream[:6]:
            recognizer.recognize(photo)
        recognizer.switch(profile_path(tmp_path / "later", "bert"))
        found = [recognizer.recognize(photo).logits for photo in stream[:6]]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_person_without_the_weights_that_the_program_needs_is_named(prompted, cache, tmp_path):
    with pytest.raises(PersonalWeightsError, match="takes prompt of each person, and there are none for 'carl'"):
        serve(prompted, cache, tmp_path, "carl")


def test_weights_that_do_not_fit_are_refused_before_a_photo(prompted, cache, tmp_path):
    model = prompted.artifact("encoder", "onnxruntime").sha256
    cache.put("anna", model, NewWeights("inputs", "prompt", {"prompt": prompt_of(0)[:, :7]}))
    with pytest.raises(PersonalWeightsError, match="do not fit"):
        serve(prompted, cache, tmp_path, "anna")


def test_a_person_with_a_model_of_their_own_is_served_beside_others(bundle, cache, stream, tmp_path):
    artifact = bundle.artifact("encoder", "onnxruntime")
    own = tmp_path / "own.onnx"
    onnx.save(shifted(onnx.load(bundle.folder / artifact.file), prompt_of(5)), own)
    cache.put("anna", artifact.sha256, NewWeights("whole", "condensed", file=own))
    with serve(bundle, cache, tmp_path, "bert") as recognizer:
        plain, program = recognizer.encode(stream[0]), recognizer.encoder
        recognizer.recognize(stream[0])
        recognizer.switch(profile_path(tmp_path, "anna"))
        np.testing.assert_allclose(recognizer.encode(stream[0]), plain + prompt_of(5)[0], atol=1e-4)
        annas = recognizer.encoder
        recognizer.switch(profile_path(tmp_path, "bert"))
        assert recognizer.encoder is program
        assert len(recognizer.recognize(stream[1]).history_photos) == 1
        recognizer.switch(profile_path(tmp_path, "anna"))
        assert recognizer.encoder is annas  # warm


def test_weights_without_a_history_answer_a_photo_that_is_not_remembered(prompted, refocus, stream, tmp_path):
    (tmp_path / "photo.png").write_bytes(stream[0])
    model = prompted.artifact("encoder", "onnxruntime").sha256
    prompt = NewWeights("inputs", "prompt", {"prompt": prompt_of(1)})
    PersonalWeightStore(tmp_path / "profiles" / "weights").put("anna", model, prompt)
    common = (
        "recognize",
        prompted.folder,
        tmp_path / "photo.png",
        "--profiles",
        tmp_path / "profiles",
        "--no-remember",
    )
    done = refocus(*common, "--profile", "anna")
    assert done.returncode == 0, done.stderr
    assert refocus(*common, "--profile", "ben").returncode == 1
