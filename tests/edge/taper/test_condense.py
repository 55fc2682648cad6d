"""Condensing gives the network that the mixers say, whole or not at all, and refuses tasks with one clear line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from refocus.edge.bundle.load import MANIFEST, load_bundle, write_manifest
from refocus.edge.bundle.manifest import SCHEMA_VERSION, PlacedTensor, WeightFile, decode_manifest
from refocus.edge.commands import words
from refocus.edge.errors import BundleError, RefocusError, TaskError
from refocus.edge.files import working_folder
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.taper.bank import MAX_TEXT, Bank
from refocus.edge.taper.description import choose, describe_task
from refocus.edge.taper.weight_mixing import MASKED, MixedNetwork, write_weights

FOXES = ["grey fox", "red fox", "kit fox"]


@pytest.fixture(scope="module")
def bank(bank_bundle):
    return Bank.open(bank_bundle.folder)


@pytest.fixture(scope="module")
def personal(bank, tmp_path_factory):
    task = bank.task(FOXES)
    out = tmp_path_factory.mktemp("personal") / "foxes"
    bank.condense(task, out)
    return load_bundle(out)


@pytest.fixture
def photo(bank_bundle):
    return (bank_bundle.folder / bank_bundle.manifest.self_test_photos[0].file).read_bytes()


def changed_card(bank_bundle, folder, **changes):
    """A copy of the bank whose card says something else."""
    shutil.copytree(bank_bundle.folder, folder)
    card = msgspec.structs.replace(bank_bundle.manifest.bank, **changes)
    return write_manifest(folder, msgspec.structs.replace(bank_bundle.manifest, bank=card)).folder


# What comes out


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_generic_network_is_condensed_as_it_is_with_the_task_s_classes_alone(bank, photo, tmp_path, precision):
    task = bank.task(FOXES)
    bank.condense(replace(task, mixers=task.mixers[:0]), tmp_path / "foxes")
    with Recognizer(load_bundle(bank.folder), precision=precision) as generic:
        plain = generic.recognize(photo).logits
    with Recognizer(load_bundle(tmp_path / "foxes"), precision=precision) as recognizer:
        answer = recognizer.recognize(photo)
    np.testing.assert_allclose(answer.logits[list(task.classes)], plain[list(task.classes)], atol=1e-4)
    assert set(answer.labels[:3]) == set(FOXES)
    assert answer.probabilities[3:].max() == 0
    with pytest.raises(TaskError, match="give it mixers"):
        bank.network(replace(task, mixers=task.mixers[:0]))


@pytest.mark.parametrize("words", [" ", "\n\t"])
def test_an_empty_description_is_refused(bank, words):
    with pytest.raises(TaskError, match="the description is empty"):
        describe_task(words, "", bank.card)


@pytest.mark.parametrize(("version", "what_to_do"), [(1, "export it again"), (SCHEMA_VERSION + 1, "update refocus")])
def test_a_bank_of_another_version_says_what_to_do(version, what_to_do, bank_bundle, tmp_path):
    shutil.copytree(bank_bundle.folder, tmp_path / "bank")
    manifest = json.loads((tmp_path / "bank" / MANIFEST).read_text())
    (tmp_path / "bank" / MANIFEST).write_text(json.dumps({**manifest, "schema_version": version}))
    with pytest.raises(BundleError, match=rf"schema version {version}\b.*{what_to_do}"):
        Bank.open(tmp_path / "bank")


def test_a_bank_that_places_no_classifier_s_bias_is_refused(bank_bundle, tmp_path):
    files = tuple(
        msgspec.structs.replace(file, tensors=tuple(t for t in file.tensors if not t.name.endswith("fc.bias")))
        for file in bank_bundle.manifest.bank.weight_files
    )
    with pytest.raises(BundleError, match="does not place fc.bias"):
        Bank.open(changed_card(bank_bundle, tmp_path / "bank", weight_files=files))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_personal_bundle_recognises_the_classes_of_its_task_alone(personal, photo, tmp_path, precision):
    profile = tmp_path / "anna.history.sqlite3"
    with Recognizer(personal, profile, precision=precision) as recognizer:
        answers = [recognizer.recognize(photo) for _ in range(2)]
    assert set(answers[0].labels[:3]) == set(FOXES)
    assert answers[0].probabilities[3:].max() == 0
    assert not answers[0].personalised
    assert len(answers[0].attention) == 1
    np.testing.assert_array_equal(answers[0].logits, answers[1].logits)


def test_the_manifest_says_task_mixers_and_bank(bank, personal):
    told, task = personal.manifest.task, bank.task(FOXES)
    assert (told.classes, told.bank) == (tuple(FOXES), bank.card.sha256)
    np.testing.assert_array_equal(np.array(told.mixers, dtype=np.float32), task.mixers)
    assert personal.manifest.bank is None
    assert personal.manifest.head().self_test is None
    assert all(a.parity is None and "generic" in a.parity_note for a in personal.manifest.artifacts)


def test_features_of_two_mixtures_never_meet(bank, bank_bundle, personal, tmp_path):
    bank.condense(bank.task(["lion", "lynx"]), tmp_path / "cats")
    bank.condense(bank.task(FOXES), tmp_path / "again")
    bundles = bank_bundle, personal, load_bundle(tmp_path / "cats")
    spaces = {
        b.artifact("encoder", "onnxruntime", precision).feature_space for b in bundles for precision in ("fp32", "fp16")
    }
    assert len(spaces) == 6
    again = load_bundle(tmp_path / "again")
    assert again.manifest.artifacts == personal.manifest.artifacts, "the same task is the same model"


def test_a_profile_still_stores_features_and_answers_do_not_depend_on_them(bank_bundle, photo, tmp_path):
    with Recognizer(bank_bundle, tmp_path / "p.history.sqlite3") as recognizer:
        first = recognizer.recognize(photo)
        for other in bank_bundle.manifest.self_test_photos[1:]:
            recognizer.recognize((bank_bundle.folder / other.file).read_bytes())
        assert recognizer.history.count(recognizer.space) == len(bank_bundle.manifest.self_test_photos)
        np.testing.assert_array_equal(recognizer.recognize(photo).logits, first.logits)
    with pytest.raises(BundleError, match="reads no history; use it without --memory similar"):
        Recognizer(bank_bundle, tmp_path / "p.history.sqlite3", memory="similar")


def test_graph_files_are_those_of_the_bank_and_weights_are_not(bank_bundle, personal):
    for artifact in personal.manifest.artifacts:
        ours, theirs = personal.folder / artifact.file, bank_bundle.folder / artifact.file
        assert (ours / "program.onnx").read_bytes() == (theirs / "program.onnx").read_bytes()
        assert (ours / "weights.bin").read_bytes() != (theirs / "weights.bin").read_bytes()


def test_one_target_can_be_condensed_alone(bank, tmp_path):
    bank.condense(bank.task(FOXES), tmp_path / "one", ["onnxruntime:fp16"])
    assert load_bundle(tmp_path / "one").targets() == [("onnxruntime", "fp16")]
    with pytest.raises(BundleError, match="no programs for executorch:int8; it has onnxruntime:fp32, onnxruntime:fp16"):
        bank.condense(bank.task(FOXES), tmp_path / "two", ["executorch:int8"])


def test_a_tensor_of_many_blocks_with_its_axes_turned_is_written_as_if_at_once(bank, tmp_path, monkeypatch):
    network = bank.network(bank.task(FOXES))
    kernel, bias = "layer2.0.conv1.weight", "layer2.0.conv1.bias"
    whole = network.tensor(kernel).copy()
    for number, axes in enumerate([(0, 1, 2, 3), (0, 2, 3, 1), (1, 2, 3, 0)]):
        monkeypatch.setattr("refocus.edge.taper.weight_mixing.BLOCK", 100)
        offset = 8 + network.shape(bias)[0] * 2
        places = (PlacedTensor(name=bias, offset=8, dtype="float16", axes=(0,)),
                  PlacedTensor(name=kernel, offset=offset, dtype="float32", axes=axes))  # fmt: skip
        file, out = WeightFile(artifact="a", file="b", tensors=places[::-1]), tmp_path / str(number)
        template = b"in front" + bytes(offset - 8 + whole.nbytes) + b"behind"
        write_weights(network, file, memoryview(template), out)
        content = out.read_bytes()
        assert len(content) == len(template)
        assert content[:8] == b"in front"
        assert content.endswith(b"behind")
        assert content[8:offset] == network.tensor(bias).astype(np.float16).tobytes()
        assert content[offset:-6] == whole.transpose(axes).tobytes()


def test_folding_after_mixing_is_not_mixing_after_folding(bank):
    """The reason why a bank holds networks as they were trained."""
    mixers = np.full((bank.card.mixers, bank.card.bases), 1 / bank.card.bases, np.float32)
    name = "layer1.0.conv1.weight"
    right = MixedNetwork(bank.card, bank.rows, mixers).tensor(name)
    ones = np.ones((bank.card.mixers, 1))
    wrong = np.mean([MixedNetwork(bank.card, row[None], ones).tensor(name).copy() for row in bank.rows], axis=0)
    assert np.abs(right - wrong).max() > 1e-2


def test_the_bias_of_a_class_outside_the_task_is_the_mask_and_no_other_is(bank):
    task = bank.task(FOXES)
    bias = bank.network(task).tensor("fc.bias")
    assert [number for number, value in enumerate(bias) if value != np.float32(MASKED)] == sorted(task.classes)
    assert np.isfinite(np.float16(MASKED))


# Tasks


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "names no class"),
        (["", "  "], "names no class"),
        (["gray fox"], r"'gray fox' \(did you mean grey fox"),
        (["wolf", "lion"], r"'wolf' \(did you mean red wolf\?\)"),
        (["grey fox", "xyzzy"], r"not these: 'xyzzy'; refocus inspect"),
        (["x" * 10_000], r"'x{60}…'; refocus inspect"),
        ([f"nobody {n}" for n in range(10_000)], "'nobody 4'; and 9995 more"),
    ],
)
def test_names_that_are_no_classes_give_one_line_with_suggestions(bank, names, message):
    with pytest.raises(TaskError, match=message) as error:
        bank.task(names)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_case_and_spaces_do_not_matter_and_duplicates_are_merged_and_said(bank):
    task = bank.task(["Red  WOLF", "coyote", " red wolf ", "red wolf"])
    assert task.labels == ("red wolf", "coyote")
    assert task.merged == ("red wolf",)


def test_labels_that_differ_in_case_alone_are_each_found_by_their_own_name():
    labels = ["Crane", "crane", "boxer"]
    assert choose(["crane", "Crane"], labels).classes == (1, 0)
    assert choose(["CRANE"], labels).classes == (0,)


def test_commas_separate_names_on_the_command_line_alone(bank, tmp_path):
    from refocus.edge.commands.taper import read_names

    file = tmp_path / "names.txt"
    file.write_text("tabby, tabby cat\n\n lion \n", encoding="utf-8")
    assert read_names("", file, False) == ["tabby, tabby cat", "lion"]
    assert bank.task(read_names("", file, False)).labels == ("tabby, tabby cat", "lion")
    assert words(" lion,, lynx ,") == ["lion", "lynx"]


@pytest.mark.parametrize("count", [1, 12])
def test_one_class_and_all_classes_are_tasks(bank, photo, tmp_path, count):
    bank.condense(bank.task(bank.labels[:count]), tmp_path / "b", ["onnxruntime:fp32"])
    with Recognizer(load_bundle(tmp_path / "b")) as recognizer:
        answer = recognizer.recognize(photo)
    assert answer.labels[0] in bank.labels[:count]
    assert np.isfinite(answer.probabilities).all()
    assert (answer.probabilities > 0).sum() <= count


def test_a_domain_changes_the_mixers_and_an_unknown_one_is_refused(bank):
    plain, sketch = bank.task(FOXES), bank.task(FOXES, "sketch")
    assert np.abs(plain.mixers - sketch.mixers).max() > 1e-3
    with pytest.raises(TaskError, match="--domain oil: the bank was trained for the domains sketch"):
        bank.task(FOXES, "oil")


def test_a_description_brings_its_mixers_and_the_nearest_classes(bank):
    vector = bank.descriptions()[[3, 7]].mean(0)
    assert set(bank.nearest_classes(vector, 2)) == {3, 7}
    task = bank.task(vector, text="w" * 10_000)
    assert task.classes[0] in (3, 7)
    assert len(task.description) == MAX_TEXT
    named = bank.task(vector, classes=["lion"])
    assert named.labels == ("lion",)
    np.testing.assert_array_equal(named.mixers, task.mixers)


@pytest.mark.parametrize("vector", [np.zeros(3, np.float32), np.full(16, np.nan, np.float32)])
def test_a_vector_of_another_encoder_is_refused(bank, vector):
    with pytest.raises(TaskError, match=r"the bank takes \(16,\) of its text encoder none"):
        bank.task(vector)


# Files


def test_a_folder_that_is_no_bundle_or_is_a_bank_is_never_replaced(bank, bank_bundle, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").touch()
    with pytest.raises(RefocusError, match="photos is not replaced: it is not a bundle"):
        bank.condense(bank.task(FOXES), tmp_path / "photos")
    with pytest.raises(RefocusError, match="is a bank; choose another folder"):
        bank.condense(bank.task(FOXES), bank_bundle.folder)


@pytest.mark.parametrize("manifest", [b'{"name": "My web app", "start_url": "/"}', b"\xff", b""])
def test_a_folder_whose_manifest_is_somebody_elses_is_never_replaced(manifest, bank, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "manifest.json").write_bytes(manifest)
    with pytest.raises(RefocusError, match="site is not replaced: .*; move it elsewhere, or choose another folder"):
        bank.condense(bank.task(FOXES), site)
    assert (site / "manifest.json").read_bytes() == manifest


def test_a_bundle_with_other_files_in_it_is_never_replaced(bank, tmp_path):
    bank.condense(bank.task(FOXES), tmp_path / "mine")
    (tmp_path / "mine" / "notes").mkdir()
    (tmp_path / "mine" / "notes" / "thesis.txt").write_text("months of work")
    with pytest.raises(RefocusError, match=r"holds notes/thesis\.txt, which is no file of its bundle"):
        bank.condense(bank.task(["lion"]), tmp_path / "mine")
    assert (tmp_path / "mine" / "notes" / "thesis.txt").read_text() == "months of work"


def test_a_link_leads_to_the_new_bundle_and_stays_a_link(bank, tmp_path):
    out = tmp_path / "now"
    out.symlink_to(tmp_path / "foxes")
    bank.condense(bank.task(FOXES), out)
    bank.condense(bank.task(FOXES[:2]), out)
    assert out.is_symlink()
    assert load_bundle(tmp_path / "foxes").manifest.task.classes == load_bundle(out).manifest.task.classes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foxes", "now"]


def test_an_earlier_personal_bundle_is_replaced_and_nothing_else_stays(bank, tmp_path):
    for names in (FOXES, ["lion"]):
        bank.condense(bank.task(names), tmp_path / "mine")
    assert load_bundle(tmp_path / "mine").manifest.task.classes == ("lion",)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_ordinary_bundle_is_no_bank(personal):
    with pytest.raises(BundleError, match="is not a bank"):
        Bank.open(personal.folder)


def test_a_changed_bank_is_refused(bank_bundle, tmp_path):
    shutil.copytree(bank_bundle.folder, tmp_path / "bank")
    with (tmp_path / "bank" / "bank" / "rows.bin").open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"\1\2\3\4")
    with pytest.raises(BundleError, match="was changed"):
        Bank.open(tmp_path / "bank")


def test_a_card_that_does_not_fit_its_files_is_refused(bank_bundle, tmp_path):
    card = bank_bundle.manifest.bank
    file = card.weight_files[0]
    far = msgspec.structs.replace(file.tensors[-1], offset=10**9)
    twice = msgspec.structs.replace(file.tensors[1], offset=file.tensors[0].offset)
    stranger = msgspec.structs.replace(file.tensors[0], name="stranger")
    int8 = next(file for file in card.weight_files if file.artifact == "encoder-onnx-w8")
    weight = next(tensor for tensor in int8.tensors if tensor.dtype == "int8")
    scaleless = msgspec.structs.replace(weight, scales=None)
    wrong = {
        f"the scales of {weight.name} are misplaced": {
            "weight_files": (msgspec.structs.replace(int8, tensors=(scaleless,)),)
        },
        "does not hold 4 x": {"bases": 4},
        "ends before its last tensor": {"weight_files": (msgspec.structs.replace(file, tensors=(far,)),)},
        "is misplaced": {"weight_files": (msgspec.structs.replace(file, tensors=(file.tensors[0], twice)),)},
        "is not there": {"weight_files": (msgspec.structs.replace(file, tensors=(stranger,)),)},
        "predictor": {"folds": (msgspec.structs.replace(card.folds[0], norm="fc"),)},
        "one per domain": {"domains": ("",)},
        "one encoder and one head of each target": {"weight_files": (file,)},
    }
    for number, (message, change) in enumerate(wrong.items()):
        folder = changed_card(bank_bundle, tmp_path / str(number), **change)
        with pytest.raises(BundleError, match=re.escape(message)):
            Bank.open(folder)


def test_a_card_whose_parts_contradict_each_other_is_no_manifest(bank_bundle):
    def broken(edit):
        manifest = msgspec.to_builtins(bank_bundle.manifest)
        edit(manifest["bank"])
        with pytest.raises(BundleError) as error:
            decode_manifest(msgspec.json.encode(manifest), "manifest.json")
        return str(error.value)

    assert "do not follow one another" in broken(lambda card: card.update(columns=card["columns"][1:]))
    assert "mixer beyond" in broken(lambda card: card.update(mixers=1))
    assert "does not hold the shape" in broken(lambda card: card["columns"][0].update(shape=[3, 3]))
    assert "domains are empty" in broken(lambda card: card.update(domains=[]))
    assert "must stay inside" in broken(lambda card: card["weight_files"][0].update(file="../../x"))
    assert "not there" in broken(lambda card: card["weight_files"][0].update(artifact="elsewhere"))


def test_the_bank_checks_itself_and_a_personal_bundle_says_why_it_cannot(bank_bundle, personal):
    from refocus.edge.recognize.check import check

    assert [row.failures for row in check(bank_bundle)] == [(), (), ()]  # fp32, fp16 and w8
    with pytest.raises(BundleError, match="condensed for a task and has no self-test"):
        check(personal)


KILLED = """
import sys, time
from pathlib import Path
import refocus.edge.taper.bank
from refocus.edge.taper.bank import Bank
bank = Bank.open(Path(sys.argv[1]))
real = refocus.edge.taper.bank.write_weights
def slow(*arguments):
    done = real(*arguments)
    print("writing", flush=True)
    time.sleep(60)
    return done
refocus.edge.taper.bank.write_weights = slow
bank.condense(bank.task(["lion"]), Path(sys.argv[2]))
"""


def test_a_kill_in_the_middle_leaves_the_earlier_bundle(bank, bank_bundle, tmp_path):
    bank.condense(bank.task(FOXES), tmp_path / "mine")
    command = [sys.executable, "-c", KILLED, str(bank_bundle.folder), str(tmp_path / "mine")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    assert load_bundle(tmp_path / "mine").manifest.task.classes == tuple(FOXES)
    assert len([*tmp_path.iterdir()]) == 2  # what was killed left its unfinished bundle
    bank.condense(bank.task(["lion"]), tmp_path / "mine")
    assert load_bundle(tmp_path / "mine").manifest.task.classes == ("lion",)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_unfinished_bundle_of_another_process_stays(bank, tmp_path):
    bank.condense(bank.task(FOXES), tmp_path / "mine")
    with working_folder(tmp_path / "mine") as another:
        bank.condense(bank.task(["lion"]), tmp_path / "mine")
        assert another.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_what_a_kill_left_is_kept_where_it_may_hold_the_only_bundle(bank, tmp_path):
    with working_folder(tmp_path / "mine") as another:
        shutil.copytree(another, another.with_name(another.name.replace("-", "-0", 1)))
    (left,) = tmp_path.iterdir()
    bank.condense(bank.task(FOXES), tmp_path / "mine")
    assert left.is_dir()


def test_a_full_disk_leaves_the_earlier_bundle(bank, tmp_path, monkeypatch):
    bank.condense(bank.task(FOXES), tmp_path / "mine")
    real, left = os.write, [20_000]

    def write(stream, content):
        left[0] -= len(content)
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(stream, content)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space"):
        bank.condense(bank.task(["lion"]), tmp_path / "mine")
    assert load_bundle(tmp_path / "mine").manifest.task.classes == tuple(FOXES)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# The command


def test_the_command_makes_a_bundle_that_recognizes(refocus, bank_bundle, photo, tmp_path):
    import json

    done = refocus(
        "condense", bank_bundle.folder, "--task", "Grey fox, red wolf,grey fox", "--out", tmp_path / "b", "--json"
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["classes"] == ["grey fox", "red wolf"]
    assert told["merged"] == ["grey fox"]
    (tmp_path / "photo.png").write_bytes(photo)
    done = refocus("recognize", tmp_path / "b", tmp_path / "photo.png", "--profiles", tmp_path / "profiles", "--json")
    assert json.loads(done.stdout)[0]["answer"][0]["label"] in told["classes"]


def test_the_command_explains_what_it_cannot_do(refocus, assert_one_clear_line, bank_bundle, tmp_path):
    def run(*flags):
        return refocus("condense", bank_bundle.folder, "--out", tmp_path / "b", *flags)

    assert_one_clear_line(run(), "the task is empty", "--task-file")
    assert_one_clear_line(run("--task", ", ,"), "the task is empty")
    assert_one_clear_line(run("--task", "lino"), "did you mean lion?")
    assert_one_clear_line(run("--task-file", tmp_path / "none.txt"), "none.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert_one_clear_line(run("--task-file", tmp_path / "binary"), "expected text in UTF-8")
    assert not (tmp_path / "b").exists()


def test_free_words_need_a_sentence_encoder(bank, monkeypatch):
    from refocus.edge.errors import RuntimeUnavailable
    from refocus.edge.taper import description

    monkeypatch.setattr(description, "entry_points", lambda group: [])
    with pytest.raises(RuntimeUnavailable, match="needs a sentence encoder"):
        description.describe_task("dogs of the far north", "", bank.card)


def test_free_words_reach_the_encoder_that_the_bank_names(bank, monkeypatch):
    from refocus.edge.taper import description

    class Entry:
        name = "default"

        def load(self):
            return lambda text, encoder, prompts: [float(len(text)), encoder == "none", prompts == ["{}"]]

    monkeypatch.setattr(description, "entry_points", lambda group: [Entry()])
    assert description.describe_task("dogs", "sketch", bank.card).tolist() == [11, 1, 1]


def test_words_that_mean_none_of_the_classes_are_refused(bank):
    like = bank.descriptions()[3]
    bank.check_description(like, "a fox with red fur")
    rng = np.random.default_rng(0)
    for _ in range(200):  # a direction that is far from every class
        away = rng.standard_normal(len(like)).astype(np.float32)
        cosines = bank.descriptions() @ away / np.linalg.norm(bank.descriptions(), axis=1) / np.linalg.norm(away)
        if cosines.max() < 0.3:
            break
    with pytest.raises(TaskError, match="'asdf qwer' is like none of the 12 classes .* name the classes with --task"):
        bank.check_description(away, "asdf qwer")
