"""Golden vectors: what a second implementation is held against must hold the first, and notice what differs."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest
from golden import compare_golden, main, read_golden, write_golden
from PIL import Image

from refocus.edge.bundle.tensor_file import encode_tensors
from refocus.edge.errors import RefocusError

pytestmark = pytest.mark.slow  # golden vectors of all photos are written first


@pytest.fixture(scope="module")
def written(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden") / "golden"
    write_golden(bundle, folder)
    return folder


@pytest.fixture
def copied(written, tmp_path):
    return shutil.copytree(written, tmp_path / "copy")


def test_a_second_run_decides_the_same(bundle, written):
    found = compare_golden(bundle, written)
    assert (found.decisions, found.pixels) == (0, 0.0)
    assert max(found.features, found.logits, found.trust) < 1e-4


def test_sequences_hold_what_goes_wrong(bundle, written):
    golden, tensors = read_golden(written)
    (sequence,) = golden.sequences
    window = bundle.manifest.heads[0].personalisation.window
    lengths = [len(step.history) for step in sequence.steps]
    assert lengths[0] == 0
    assert max(lengths) == window
    assert any(step.restart for step in sequence.steps)
    assert not all(step.remember for step in sequence.steps)
    assert len({step.photo for step in sequence.steps}) < len(sequence.steps)  # some come again
    assert len(sequence.steps) > sequence.capacity  # so that the history evicts
    assert tensors["iciia_t.attention"].shape == (len(sequence.steps), window + 1)
    assert np.allclose(tensors["iciia_t.attention"].sum(axis=1), 1, atol=1e-5)


def test_an_album_holds_what_pages_show(bundle, written):
    golden, tensors = read_golden(written)
    (sequence,) = golden.sequences
    window = bundle.manifest.heads[0].personalisation.window
    assert [row.photo for row in sequence.album] == list(range(len(golden.photos)))
    middle = sequence.album[len(golden.photos) // 2]
    order = [photo.sha256 for photo in golden.photos]
    beside = [order.index(photo) for photo in middle.beside]
    assert len(beside) == window
    assert min(beside) < middle.photo < max(beside)
    assert tensors["iciia_t.album_logits"].shape == (len(order), len(bundle.manifest.heads[0].labels))


def test_another_answer_of_an_album_is_noticed(bundle, copied):
    path = copied / "golden.json"
    golden = json.loads(path.read_text())
    golden["sequences"][0]["album"][7]["beside"].reverse()
    path.write_text(json.dumps(golden))
    assert compare_golden(bundle, copied).decisions == 1


def test_decoders_that_differ_by_more_than_their_formats_bound_are_noticed(bundle, copied):
    """Of each format a file of which a decoder makes something brighter; but of the one that is slow to decode."""
    golden, _ = read_golden(copied)
    kinds = {photo.kind for photo in golden.formats}
    assert kinds >= {
        "jpeg-12-megapixels",
        "jpeg-cmyk",
        "jpeg-progressive",
        "png-grey-16-bit",
        "png-icc-narrow",
        "webp-turned",
    }
    assert {contract.crop for contract in golden.contracts} == {32, 96, 224}
    for photo in golden.formats:
        if photo.kind != "jpeg-12-megapixels":
            other = Image.open(copied / photo.decoded).point([min(255, value + 12) for value in range(256)] * 3)
            (copied / photo.file).write_bytes(encoded(other))
    assert compare_golden(bundle, copied).formats == len(kinds) - 1


def encoded(image):
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def test_another_decision_is_noticed(bundle, copied):
    path = copied / "golden.json"
    golden = json.loads(path.read_text())
    golden["sequences"][0]["steps"][3]["label"] = "something else"
    path.write_text(json.dumps(golden))
    assert compare_golden(bundle, copied).decisions == 1


def test_another_number_is_noticed(bundle, copied):
    _, tensors = read_golden(copied)
    changed = {name: value + (name == "iciia_t.features") * np.float32(0.01) for name, value in tensors.items()}
    (copied / "golden.safetensors").write_bytes(b"".join(encode_tensors(changed)))
    found = compare_golden(bundle, copied)
    assert 0.009 < found.features < 0.011
    assert found.logits < 1e-4


def test_golden_vectors_of_another_bundle_are_refused(bundle, copied):
    path = copied / "golden.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"manifest_sha256": 64 * "0"}))
    with pytest.raises(RefocusError, match="another bundle"):
        compare_golden(bundle, copied)


@pytest.mark.parametrize("file", ["golden.json", "golden.safetensors"])
def test_half_a_file_is_refused(bundle, copied, file):
    content = (copied / file).read_bytes()
    (copied / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(RefocusError, match="holds no golden vectors"):
        compare_golden(bundle, copied)


def test_nothing_is_written_over(bundle, written):
    with pytest.raises(RefocusError, match="not empty"):
        write_golden(bundle, written)


def test_the_tool_writes_and_compares(bundle, tmp_path, capsys):
    folder = tmp_path / "golden"
    assert main(["write", str(bundle.folder), str(folder)]) == 0
    assert "56 photos, 1 sequences of 58 steps" in capsys.readouterr().out
    assert main(["compare", str(bundle.folder), str(folder)]) == 0
    assert "58 of 58 decisions as written" in capsys.readouterr().out
    changed = json.loads((folder / "golden.json").read_text())
    changed["sequences"][0]["steps"][3]["label"] = "something else"
    (folder / "golden.json").write_text(json.dumps(changed))
    assert main(["compare", str(bundle.folder), str(folder)]) == 1
    assert "1 of 58 decisions differ" in capsys.readouterr().err
