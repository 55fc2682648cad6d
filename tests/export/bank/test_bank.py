"""A bank's programs, with anybody's numbers in their weight files, compute what PyTorch computes; else there is none."""

from __future__ import annotations

import json
import shutil

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from refocus.cloud_train.methods.taper.bank import Bases, MixerPredictor, Taper, layout_of
from refocus.cloud_train.methods.taper.program import taper_bank
from refocus.edge.bundle.load import load_bundle, write_manifest
from refocus.edge.errors import BundleError
from refocus.edge.photos.preprocess import preprocess
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.taper.bank import Bank
from refocus.edge.taper.weight_mixing import MixedNetwork
from refocus.export.bank.batchnorm_folding import find_folds, folded_structure, kept_norms
from refocus.export.bank.write import export_bank
from refocus.export.bundle.merge import merge_bundles
from refocus.export.bundle.write import Export
from refocus.export.errors import ExportError
from refocus.export.parity.photos import read_streams
from refocus.export.program.checkpoint import load_checkpoint, save_checkpoint
from refocus.export.targets.external_weights import externalise, fill_with_probes, found_in

TASK = ("red wolf", "coyote", "red fox", "lynx", "otter")


def taper_of(checkpoint) -> Taper:
    """The trained method itself, in PyTorch."""
    source, weights = taper_bank(checkpoint), checkpoint.weights
    layout = layout_of(source.network)
    predictor = MixerPredictor(weights["descriptions"].shape[2], layout.mixers, len(weights["rows"]))
    state = {name.removeprefix("predictor."): value for name, value in weights.items() if name.startswith("predictor.")}
    predictor.load_state_dict(state)
    return Taper(source.network, Bases(layout, weights["rows"]), predictor.eval())


def eager_logits(checkpoint, task, contents) -> np.ndarray:
    """(photos, classes of the task), by mixing in PyTorch and running the network in eval mode."""
    taper, table = taper_of(checkpoint), checkpoint.weights["descriptions"]
    mixers = taper.predictor(table[0, list(task.classes)].mean(0)[None])[0]
    np.testing.assert_allclose(task.mixers, mixers.detach().numpy(), atol=1e-5)
    preprocessing = taper_bank(checkpoint).preprocessing
    photos = torch.cat([torch.from_numpy(preprocess(content, preprocessing)) for content in contents])
    with torch.no_grad():
        logits = torch.cat([taper.answer(taper.personal(mixers), part) for part in photos.split(16)])
    return logits[:, list(task.classes)].numpy()


def assert_agrees(folder, target, wanted, task, contents, within=1e-3) -> None:
    bundle, classes = load_bundle(folder), list(task.classes)
    with Recognizer(bundle, None, *target, 1) as recognizer:
        answers = [recognizer.recognize(content) for content in contents]
    found = np.stack([answer.logits for answer in answers])
    np.testing.assert_allclose(found[:, classes], wanted, rtol=0, atol=within)
    top = [answer.labels[0] for answer in answers]
    assert top == [task.labels[number] for number in wanted.argmax(1)]
    assert len(set(top)) > 1, "photos that are all answered alike compare nothing"


@pytest.fixture(scope="module")
def streams(bank_checkpoint):
    return read_streams(bank_checkpoint.path.parent / "parity")


@pytest.fixture(scope="module")
def contents(streams):
    return [path.read_bytes() for photos in streams.values() for path in photos]


# What comes out


@pytest.mark.parametrize(("precision", "within"), [("fp32", 1e-4), ("fp16", 0.1)])
def test_condensed_onnx_answers_as_mixing_in_torch(bank_checkpoint, bank_bundle, contents, tmp_path, precision, within):
    bank = Bank.open(bank_bundle.folder)
    task = bank.task(TASK)
    bank.condense(task, tmp_path / "p", [f"onnxruntime:{precision}"])
    wanted = eager_logits(bank_checkpoint, task, contents)
    assert_agrees(tmp_path / "p", ("onnxruntime", precision), wanted, task, contents, within)


def test_condensed_int8_answers_as_rounding_the_mixed_and_folded_weights_in_torch(bank_checkpoint, bank_bundle,
                                                                                 contents, tmp_path):  # fmt: skip
    bank = Bank.open(bank_bundle.folder)
    task = bank.task(TASK)
    bank.condense(task, tmp_path / "p", ["onnxruntime:int8"])
    source = taper_bank(bank_checkpoint)
    network = folded_structure(source.network, find_folds(source.network))
    mixed = bank.network(task)
    state = {name: torch.from_numpy(mixed.tensor(name).copy()) for name in mixed.names}
    for name, value in state.items():
        if value.dim() > 1:
            scale = value.flatten(1).abs().amax(1).view(-1, *[1] * (value.dim() - 1)) / 127
            state[name] = (value / scale).round() * scale
    network.load_state_dict(state)
    photos = torch.cat([torch.from_numpy(preprocess(content, source.preprocessing)) for content in contents])
    with torch.no_grad():
        wanted = network(photos)[:, list(task.classes)].numpy()
    assert_agrees(tmp_path / "p", ("onnxruntime", "int8"), wanted, task, contents, 1e-4)


@pytest.mark.slow
def test_banks_of_two_targets_exported_apart_and_joined_are_one_bank_for_both(
    bank_checkpoint, bank_bundle, streams, contents, tmp_path
):
    targets = ("onnx:fp32", "onnx:fp16")
    parts = [
        export_bank(bank_checkpoint, tmp_path / target[5:], Export([target]), streams, "letters") for target in targets
    ]
    assert parts[0].manifest.name == "letters"
    merge_bundles(parts, tmp_path / "both", bank_checkpoint, streams)
    bank, together = Bank.open(tmp_path / "both"), Bank.open(bank_bundle.folder)
    assert len(bank.card.weight_files) == 4
    task = bank.task(TASK)
    wanted = eager_logits(bank_checkpoint, task, contents)
    for precision, within in (("fp32", 1e-4), ("fp16", 0.1)):
        bank.condense(task, tmp_path / precision / "p", [f"onnxruntime:{precision}"])
        assert_agrees(tmp_path / precision / "p", ("onnxruntime", precision), wanted, task, contents, within)
    assert bank.card.sha256 == together.card.sha256
    spoilt = msgspec.structs.replace(parts[1].manifest.bank, text_encoder="another")
    other = write_manifest(parts[1].folder, msgspec.structs.replace(parts[1].manifest, bank=spoilt))
    with pytest.raises(ExportError, match="different banks"):
        merge_bundles([parts[0], other], tmp_path / "never", bank_checkpoint, streams)
    assert not (tmp_path / "never").exists()


@pytest.mark.slow
def test_condensed_executorch_answers_as_mixing_in_torch(bank_checkpoint, streams, contents, tmp_path):
    pytest.importorskip("executorch.runtime")
    export_bank(bank_checkpoint, tmp_path / "bank", Export(["executorch:fp32"]), streams)
    bank = Bank.open(tmp_path / "bank")
    for names in (TASK, TASK[1:4]):
        task = bank.task(names)
        bank.condense(task, tmp_path / "p")
        wanted = eager_logits(bank_checkpoint, task, contents)
        assert_agrees(tmp_path / "p", ("executorch", "fp32"), wanted, task, contents, 1e-4)
    own, theirs = ((tmp_path / name / "encoder-executorch-fp32" / "weights.ptd").read_bytes() for name in ("bank", "p"))
    assert own != theirs
    assert len(own) == len(theirs)


def test_the_bank_itself_is_the_generic_model_with_its_parity(bank_checkpoint, bank_bundle, contents):
    assert all(artifact.parity.passed for artifact in bank_bundle.manifest.artifacts)
    source = taper_bank(bank_checkpoint)
    pixels = torch.from_numpy(preprocess(contents[0], source.preprocessing))
    with Recognizer(bank_bundle) as recognizer, torch.no_grad():
        np.testing.assert_allclose(recognizer.recognize(contents[0]).logits, source.network(pixels)[0], atol=1e-4)


def test_fp16_is_named_where_it_is_and_files_hold_nothing_else(bank_bundle):
    files = {file.artifact: file for file in bank_bundle.manifest.bank.weight_files}
    halves = files["encoder-onnx-fp16"].tensors
    assert all(tensor.dtype == "float16" for tensor in halves)
    assert {tensor.dtype for tensor in files["encoder-onnx-fp32"].tensors} == {"float32"}
    whole = {tensor.name: tensor for tensor in files["encoder-onnx-w8"].tensors}
    assert {name.rpartition(".")[2] for name, tensor in whole.items() if tensor.dtype == "int8"} == {"weight"}
    sizes = [(bank_bundle.folder / f"encoder-onnx-{p}" / "weights.bin").stat().st_size for p in ("fp32", "fp16", "w8")]
    assert 1.9 < sizes[0] / sizes[1] < 2.1
    assert 3.3 < sizes[0] / sizes[2] < 4


def test_the_weight_file_is_in_the_order_of_the_bank(bank_bundle):
    """So that condensing reads the bank from its start to its end."""
    card = bank_bundle.manifest.bank
    columns = {column.name: column.start for column in card.columns if len(column.shape) > 1}
    for file in card.weight_files:
        starts = [
            columns[tensor.name] for tensor in sorted(file.tensors, key=lambda t: t.offset) if tensor.name in columns
        ]
        assert starts == sorted(starts)


# Refusals


@pytest.mark.slow
@pytest.mark.parametrize(
    ("export", "message"),
    [
        (Export(["executorch:int8"]), "a bank offers .*ranges are those of one network's activations"),
        (Export(["tensorrt:fp32"]), "a bank offers"),
        (Export(["onnx:fp32"], head_only=True), "--head-only"),
    ],
)
def test_what_a_bank_cannot_be_exported_to_is_said_first(bank_checkpoint, streams, tmp_path, export, message):
    with pytest.raises(ExportError, match=message):
        export_bank(bank_checkpoint, tmp_path / "bank", export, streams)
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_is_no_bundle_stays(bank_checkpoint, streams, tmp_path):
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(BundleError, match="is not replaced: it is not a bundle"):
        export_bank(bank_checkpoint, tmp_path, Export(["onnx:fp32"]), streams)


def test_files_that_somebody_put_into_a_bundle_stay(bank_checkpoint, streams, bank_bundle, tmp_path):
    shutil.copytree(bank_bundle.folder, tmp_path / "bank")
    (tmp_path / "bank" / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match="holds notes.txt, which is no file of its bundle"):
        export_bank(bank_checkpoint, tmp_path / "bank", Export(["onnx:fp32"]), streams)
    assert (tmp_path / "bank" / "notes.txt").read_text() == "mine"


def test_a_checkpoint_of_another_kind_is_no_bank(bank_checkpoint, streams, tmp_path):
    import msgspec

    card = msgspec.structs.replace(bank_checkpoint.card, builder="timm_encoder")
    other = save_checkpoint(tmp_path / "o.safetensors", bank_checkpoint.weights, card)
    with pytest.raises(ExportError, match="holds no bank"):
        export_bank(other, tmp_path / "bank", Export(["onnx:fp32"]), streams)


def test_rows_of_another_network_are_refused(bank_checkpoint, tmp_path):
    from refocus.export.program.checkpoint import CheckpointError

    weights = {**bank_checkpoint.weights, "rows": bank_checkpoint.weights["rows"][:, 1:]}
    other = save_checkpoint(tmp_path / "o.safetensors", weights, bank_checkpoint.card)
    with pytest.raises(CheckpointError, match="are not of resnet10t"):
        taper_bank(load_checkpoint(other.path))


def test_a_network_with_norms_that_xnnpack_would_fold_is_refused_for_executorch(bank_checkpoint, monkeypatch, streams,
                                                                                tmp_path):  # fmt: skip
    pytest.importorskip("executorch.runtime")
    monkeypatch.setattr("refocus.export.bank.write.find_folds", lambda network: ())
    with pytest.raises(ExportError, match=r"batch norm network\.conv1\.1 is not behind a convolution"):
        export_bank(bank_checkpoint, tmp_path / "bank", Export(["executorch:fp32"]), streams)


@pytest.mark.slow
def test_a_network_whose_norms_the_exporter_folds_itself_is_refused_for_onnx(bank_checkpoint, monkeypatch, streams,
                                                                             tmp_path):  # fmt: skip
    """What it computed of several tensors at export could not be computed again for a task."""
    monkeypatch.setattr("refocus.export.bank.write.find_folds", lambda network: ())
    with pytest.raises(ExportError, match="the encoder for onnx:fp32: the weights .* exactly once"):
        export_bank(bank_checkpoint, tmp_path / "bank", Export(["onnx:fp32"]), streams)
    assert not [*tmp_path.iterdir()]


def test_weights_that_are_not_in_a_file_exactly_once_are_refused(tmp_path):
    value = np.random.default_rng(0).normal(size=(4, 3)).astype("f")
    content = b"12345678" + value.tobytes()
    assert next(found_in(content, {"a": value}, "x")).offset == 8
    assert next(found_in(value.T.tobytes(), {"a": value}, "x")).axes == (1, 0)
    for wrong in (content + value.tobytes(), content[:-4]):
        with pytest.raises(ExportError, match="x: the weights a are not in its weight file exactly once"):
            next(found_in(wrong, {"a": value}, "x"))


def test_weights_that_an_onnx_graph_shares_or_lost_are_refused(tmp_path):
    from onnx import helper, numpy_helper

    value = np.random.default_rng(0).normal(size=(4, 3)).astype("f")
    for count in (0, 2):
        stored = [numpy_helper.from_array(value, f"t{number}") for number in range(count)]
        model = helper.make_model(helper.make_graph([], "g", [], [], stored))
        with pytest.raises(ExportError, match="exactly once"):
            externalise(model, {"a": value}, tmp_path, "x")


# Folding


@pytest.mark.parametrize("name", ["resnet10t", "mobilenetv3_small_050", "efficientnet_b0", "convnext_atto", "densenet121",
                                  "vit_tiny_patch16_224"])  # fmt: skip
def test_folded_networks_of_every_kind_compute_the_same(name):
    """Mixing one network with itself, then folding: nothing but the layout may change."""
    import timm

    from refocus.cloud_train.methods.taper.program import columns_of

    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=5).train()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.uniform_(module.bias, -0.5, 0.5)
        size = 224 if name.startswith("vit") else 64
        photos = torch.randn(4, 3, size, size)
        network(photos)
        network.eval()
        folds = find_folds(network)
        folded = folded_structure(network, folds)
        assert len(kept_norms(network)) == len(kept_norms(folded)) + len(folds)
        layout = layout_of(network)
        card = _card(columns_of(layout), folds)
        mixed = MixedNetwork(card, layout.join(network.state_dict())[None].numpy(), np.ones((layout.mixers, 1)))
        fill_with_probes(folded)
        state = {
            name: torch.from_numpy(mixed.tensor(name).copy()) for name in mixed.names if name in folded.state_dict()
        }
        found = functional_call(folded, state, (photos,))
        torch.testing.assert_close(found, network(photos), rtol=1e-3, atol=1e-3)
    if name in ("resnet10t", "mobilenetv3_small_050", "efficientnet_b0"):
        assert not kept_norms(folded)


def _card(columns, folds):
    from refocus.edge.bundle.manifest import BankCard

    names = [column.name for column in columns if column.name.endswith(".weight") and column.shape[:1] == (5,)]
    return BankCard(file="b", sha256="0" * 64, size_bytes=1, bases=1, mixers=1 + max(c.mixer for c in columns),
                    columns=columns, folds=folds, classifier=names[-1].removesuffix(".weight"), domains=("",),
                    text_encoder="", prompts=(), weight_files=())  # fmt: skip


def test_a_norm_behind_a_convolution_that_others_read_too_stays():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.twice = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
            self.again = nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.conv(x)
            return self.again(self.twice(self.norm(y) + y)) + self.again(self.twice(y))

    assert find_folds(Shared()) == ()


def test_a_network_that_cannot_be_traced_keeps_its_norms():
    class Branching(nn.Sequential):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    assert find_folds(Branching(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))) == ()


# The command


@pytest.mark.slow
def test_the_command_knows_a_bank_by_its_card(refocus, bank_checkpoint, tmp_path):
    done = refocus("export", bank_checkpoint.path, "--out", tmp_path / "bank", "--to", "onnx:fp32", "--json")
    assert done.returncode == 0, done.stderr
    assert {row["role"] for row in json.loads(done.stdout)["artifacts"]} == {"encoder", "head"}
    Bank.open(tmp_path / "bank")
    twice = refocus("export", bank_checkpoint.path, bank_checkpoint.path, "--out", tmp_path / "b")
    assert twice.returncode == 1
    assert "export it alone" in twice.stderr
    bisected = refocus("export", bank_checkpoint.path, "--out", tmp_path / "b", "--bisect")
    assert bisected.returncode == 1
    assert "--bisect" in bisected.stderr


# At full size


@pytest.mark.slow
@pytest.mark.full
def test_ten_resnet18_condense_to_what_mixing_in_torch_answers_on_real_photos(make_bank, real_data, tmp_path):
    """Two hundred photos, both runtimes; and the benchmark runs on it, whose figures depend on the machine."""
    pytest.importorskip("executorch.runtime")
    from studies.bench.rows.condensing import measure

    photos = sorted((real_data / "photos").glob("*.JPEG"))
    contents = [path.read_bytes() for path in photos]
    labels = tuple(f"class {number}" for number in range(1000))
    checkpoint = make_bank(tmp_path / "big.safetensors", "resnet18", {}, labels, 224, 10, contents[::13])
    streams = {"anna": photos[:8], "bob": photos[8:16]}
    export_bank(checkpoint, tmp_path / "bank", Export(["onnx:fp32", "executorch:fp32"]), streams)
    bank = Bank.open(tmp_path / "bank")
    task = bank.task(labels[:200:10])
    bank.condense(task, tmp_path / "p")
    wanted = eager_logits(checkpoint, task, contents)
    for runtime in ("onnxruntime", "executorch"):
        assert_agrees(tmp_path / "p", (runtime, "fp32"), wanted, task, contents)
    found = measure(bank, task, "onnxruntime:fp32", tmp_path, repeats=3)
    assert found["bank_bytes"] == bank.card.bases * bank.card.size * 4
    assert found["read_ms"] > 0
    assert found["peak_extra_bytes"] < 2 * found["result_bytes"]
    assert load_bundle(tmp_path / "personal").manifest.task.classes == task.labels
