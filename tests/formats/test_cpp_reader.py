"""The reader in C++, which was written from docs/formats alone, reads what Python reads and refuses what it refuses."""

from __future__ import annotations

import base64
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from refocus.edge.bundle import load_bundle
from refocus.edge.bundle.tensor_file import decode_tensors

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUNDLES, TENSORS = (
    json.loads((HERE / "vectors" / f"{name}.json").read_text(encoding="utf-8")) for name in ("bundles", "tensors")
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    with tarfile.open(ROOT / "tests" / "fixtures" / "0.1.0" / "files.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "bundles"


def put(folder, vector):
    for name, content in {**BUNDLES["files"], **vector["files"]}.items():
        if content is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(base64.b64decode(content))
    about = vector["manifest"]
    manifest = base64.b64decode(about["base64"]) if "base64" in about else None
    if manifest is None:
        base, at = BUNDLES["bases"][about["base"]], about["at"]
        manifest = (base[:at] + about["text"] + base[at + about["cut"] :]).encode()
    (folder / "manifest.json").write_bytes(manifest)


def expected(bundle):
    """What the reader prints, by the Python reader."""
    manifest = bundle.manifest

    def of_tensors(file):
        for name, array in sorted(decode_tensors(memoryview((bundle.folder / file).read_bytes()), file).items()):
            types = {"float32": "F32", "float16": "F16", "int64": "I64", "int8": "I8"}
            yield f"  tensor {name} {types[str(array.dtype)]} ({', '.join(map(str, array.shape))})"

    about = manifest.preprocessing
    yield f"bundle {manifest.name}, manifest number {manifest.schema_version}, every file verified"
    yield f"preprocessing shorter {about.resize_shorter} crop {about.crop} {about.resize_filter} {about.decoder}"
    for artifact in manifest.artifacts:
        names = " ".join(filter(None, (artifact.role, artifact.head)))
        yield f"artifact {names} {artifact.runtime}:{artifact.precision} {artifact.file} {artifact.size_bytes} bytes"
        for kind, tensors in (("input", artifact.inputs), ("output", artifact.outputs)):
            for tensor in tensors:
                yield f"  {kind} {tensor.name} {tensor.dtype} ({', '.join(map(str, tensor.shape))})"
        if artifact.defaults is not None:
            yield f"  defaults {artifact.defaults.file}"
            yield from of_tensors(artifact.defaults.file)
    for head in manifest.heads:
        personal = head.personalisation
        yield f"head {head.name} {personal.form} window {personal.window} carrier {personal.carrier}"
        for state in head.state:
            yield f"  state {state.name} from {state.source} ({', '.join(map(str, state.shape))}) {state.update}"
        yield from (f"  label {label}" for label in head.labels)
        for file in filter(None, (head.classifier, head.taught_by)):
            yield f"  file {file.file}"
            yield from of_tensors(file.file)
    for photo in manifest.self_test_photos:
        yield f"photo {photo.file} {photo.size_bytes} bytes"
    if manifest.bank is not None:
        yield f"bank {manifest.bank.file} {manifest.bank.size_bytes} bytes"


@pytest.mark.parametrize("name", ["window", "streaming", "personal", "bank"])
def test_a_bundle_is_listed_as_python_lists_it(name, files, bundle_reader):
    done = bundle_reader(files / name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines() == list(expected(load_bundle(files / name)))


def test_the_numbers_of_a_tensor_are_those_that_python_reads(files, bundle_reader):
    bundle = load_bundle(files / "personal")
    artifact = next(artifact for artifact in bundle.manifest.artifacts if artifact.defaults is not None)
    content = (bundle.folder / artifact.defaults.file).read_bytes()
    for name, array in decode_tensors(memoryview(content), "file").items():
        done = bundle_reader(files / "personal", "--numbers", artifact.defaults.file, name)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.array(done.stdout.split(), np.float32), array.ravel())
    done = bundle_reader(files / "personal", "--numbers", artifact.defaults.file, "another")
    assert done.returncode == 1
    assert b"has no tensor 'another'" in done.stderr


@pytest.mark.parametrize("name", ["window", "bank", "personal"])
def test_a_changed_byte_of_any_file_is_refused(name, files, bundle_reader, tmp_path):
    bundle = load_bundle(files / name)
    for number, path in enumerate(sorted(path for path in bundle.folder.rglob("*") if path.is_file())):
        if path.name == "manifest.json":
            continue
        copy = tmp_path / str(number)
        shutil.copytree(bundle.folder, copy)
        changed = copy / path.relative_to(bundle.folder)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        changed.write_bytes(content)
        done = bundle_reader(copy)
        assert done.returncode == 1, path
        assert len(done.stderr.splitlines()) == 1
        assert b"was changed" in done.stderr


def test_a_link_in_a_bundle_is_refused(files, bundle_reader, tmp_path):
    shutil.copytree(files / "window", tmp_path / "bundle")
    program = next((tmp_path / "bundle").glob("*.onnx"))
    program.rename(tmp_path / "elsewhere.onnx")
    program.symlink_to(tmp_path / "elsewhere.onnx")
    done = bundle_reader(tmp_path / "bundle")
    assert done.returncode == 1
    assert b"is a link" in done.stderr


def test_all_vectors_of_bundles_are_read_as_the_page_says(bundle_reader, tmp_path):
    """Parts that the reader does not look into are accepted whatever they hold."""
    wrong = []
    for number, vector in enumerate(BUNDLES["vectors"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        put(folder, vector)
        done = bundle_reader(folder)
        if done.returncode not in (0, 1) or len(done.stderr.splitlines()) != done.returncode:
            wrong.append((vector["name"], done))
        elif vector["valid"] != (done.returncode == 0) and (vector["valid"] or vector["part"] == "core"):
            wrong.append((vector["name"], done.stderr))
        shutil.rmtree(folder)
    assert wrong == []


def test_all_vectors_of_tensor_files_are_read_as_the_page_says(bundle_reader, tmp_path):
    wrong = []
    for vector in TENSORS["vectors"]:
        (tmp_path / "file").write_bytes(base64.b64decode(vector["base64"]))
        done = bundle_reader("--tensors", tmp_path / "file")
        if vector["valid"] != (done.returncode == 0):
            wrong.append((vector["name"], done.stderr))
    assert wrong == []
