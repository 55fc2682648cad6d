"""A comparison that proves little must not pass: too few people, situations that never occur, limits that bound nothing."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from refocus.export.bundle.write import Export, export_bundle
from refocus.export.errors import ExportError, ParityError
from refocus.export.parity.parity import Deviation, _units, evaluate, steps
from refocus.export.parity.photos import contents, labels_of, read_streams, write_labels
from refocus.export.program import signature
from refocus.export.program.sources import IMAGENET

CLOSE = np.full(100, 1e-5)
PERFECT = Deviation(
    largest={"feature": CLOSE, "logits": CLOSE, "attention": CLOSE, "trust": CLOSE},
    values={"encoder": CLOSE, "head": CLOSE},
    typical_logits=CLOSE,
    feature_cosine=np.ones(100),
    head_cosine=np.ones(100),
    same_top1=np.ones(100, bool),
    same_top5=np.ones(100, bool),
    right=np.ones((100, 2), bool),
    situations={"empty": 4},
    profiles=4,
    longest_history=15,
)


def photos(folder, people, each):
    """Photos of noise; each content once."""
    rng = np.random.default_rng(0)
    for person in people:
        (folder / person).mkdir(parents=True)
        for number in range(each):
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(buffer, "PNG")
            (folder / person / f"{number}.png").write_bytes(buffer.getvalue())
    return read_streams(folder)


@pytest.mark.parametrize(
    ("mean", "std"), [(IMAGENET.mean, IMAGENET.std), ((0.5,) * 3, (0.5,) * 3), ((0,) * 3, (1,) * 3)]
)
def test_the_limits_of_a_feature_hold_for_the_signature_of_usual_pixels_too(mean, std):
    """Whatever is on the photo: black, white, both, and in one channel alone."""
    scale = [torch.tensor(values).reshape(1, 3, 1, 1) for values in (mean, std)]
    pixels = torch.zeros(5, 3, 32, 32)
    pixels[1], pixels[2, ..., :16], pixels[3, 0], pixels[4, 0, :16] = 1, 1, 1, 1
    for signed in signature((pixels - scale[0]) / scale[1]).numpy():
        assert (_units(np.concatenate([[100.0], signed]), signed=True) == 1).all()
    raw = signature(255 * pixels[2:3])[0].numpy()
    units = _units(np.concatenate([[1e6], raw]), signed=True)
    assert units[0] == 1  # of the feature itself, however large
    assert units[7:10] == pytest.approx(raw[6:9] / 10, rel=1e-3)
    assert (_units(raw, signed=False) == 1).all()


def with_largest(kind: str, value: float) -> Deviation:
    return replace(PERFECT, largest=PERFECT.largest | {kind: np.array([*CLOSE[1:], value])})


@pytest.mark.parametrize(("people", "each"), [(("anna",), 40), (("anna", "ben"), 7)])
def test_too_few_people_or_photos_are_refused(head, tmp_path, people, each):
    with pytest.raises(ExportError, match=r"parity would compare \d+ photos of . people.*add photos"):
        streams = photos(tmp_path / "photos", people, each)
        export_bundle([head], tmp_path / "bundle", Export(["onnx:fp32"]), streams)
    assert not (tmp_path / "bundle").exists()


def test_files_that_are_no_photos_are_not_compared_on(tmp_path):
    found = photos(tmp_path, ("anna", "ben"), 3)
    table = "file_name,label\n" + "".join(f"{number}.png,cat\n" for number in range(3))
    (tmp_path / "anna" / "metadata.csv").write_text(table)
    for name in ("anna/.DS_Store", "anna/._0.png", "ben/Thumbs.db", "ben/notes.txt"):
        (tmp_path / name).write_bytes(b"no photo")
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / ".thumbnails" / "0.png").write_bytes(b"no photo")
    assert read_streams(tmp_path) == found
    assert labels_of(read_streams(tmp_path)) == dict.fromkeys(found["anna"], "cat")
    (tmp_path / "carl").mkdir()
    (tmp_path / "carl" / "notes.txt").touch()
    assert read_streams(tmp_path).keys() == {"anna", "ben"}


def test_photos_whose_names_do_not_end_as_photos_do_are_those_that_a_table_lists(tmp_path):
    """As runs keep photos that came as arrays, which have numbers for names."""
    found = {}
    for person in ("anna", "ben"):
        (tmp_path / person).mkdir()
        found[person] = [tmp_path / person / name for name in ("000", "001.ppm")]
        for path in [*found[person], tmp_path / person / "Thumbs.db"]:
            path.touch()
    write_labels(tmp_path, [(path, "cat") for paths in found.values() for path in paths])
    assert read_streams(tmp_path) == found


@pytest.mark.parametrize("window", [1, 5, 6, 12, 15, 30, 45])
def test_every_situation_occurs_with_short_streams_too(tmp_path, window):
    met = {s for step in steps(photos(tmp_path, ("anna", "ben"), 8), window) for s in step.situations}
    assert {"empty", "full", "evicted", "restarted", "switched"} <= met


def test_continued_streams_never_repeat_a_photo(tmp_path):
    found = contents(photos(tmp_path, ("anna", "ben", "carl"), 8), 47)
    assert [len(photos) for photos in found.values()] == [47, 47, 8]
    assert all(len({content for _, content in photos}) == len(photos) for photos in found.values())


@pytest.mark.parametrize("precision", ["w8a8", "w8", "palette6"])
def test_a_quantised_head_whose_logits_are_off_by_most_of_their_range_is_refused(precision):
    """The best class and the cosine may survive an error of 16 where logits span 20."""
    with pytest.raises(ParityError, match="90th percentile of the difference of logits over their range 0.8"):
        evaluate("head", replace(PERFECT, typical_logits=np.full(100, 0.8)), precision, "head")


@pytest.mark.parametrize(("kind", "off", "precision"), [("attention", 0.1, "fp16"), ("trust", 0.4, "fp16"),
                                                        ("attention", 5e-4, "fp32"), ("attention", 0.5, "w8a8")])  # fmt: skip
def test_attention_and_trust_have_limits_of_their_own(kind, off, precision):
    with pytest.raises(ParityError, match=f"largest difference of {kind}"):
        evaluate("head", with_largest(kind, off), precision, "head")
    assert evaluate("head", with_largest(kind, 1e-5), precision, "head").largest[kind] == pytest.approx(1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "w8a8", "w8", "palette6"])
def test_lost_right_answers_are_refused_though_most_decisions_agree(precision):
    """Eight of a hundred answers turn, all of them from right to wrong: agreement is 92 %."""
    right = np.ones((100, 2), bool)
    right[:8, 1] = False
    with pytest.raises(ParityError, match="net loss of right answers 0.08"):
        evaluate("head", replace(PERFECT, right=right), precision, "head")
    evened = right.copy()
    evened[8:16, 0] = False
    assert evaluate("head", replace(PERFECT, right=evened), precision, "head").accuracy_loss == 0


@pytest.mark.parametrize("kind", ["logits", "attention", "trust"])
def test_a_value_that_is_not_a_number_fails_at_every_precision(kind):
    for precision in ("fp32", "fp16", "w8a8", "w8", "palette6"):
        assert not evaluate("head", with_largest(kind, np.nan), precision, "head", allow_mismatch=True).passed


def test_the_labels_of_parity_photos_come_from_the_table_beside_them(tiny_run, tmp_path):
    streams = read_streams(tiny_run.parity_photos())
    labels = labels_of(streams)
    assert labels.keys() == {photo for photos in streams.values() for photo in photos}
    assert set(labels.values()) <= set(tiny_run.table.classes)
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "1.png").touch()
    (tmp_path / "metadata.csv").write_text("photo,class\n")
    with pytest.raises(ExportError, match="expected the columns file_name and label"):
        labels_of({"anna": [tmp_path / "anna" / "1.png"]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"file_name,label\n1.png\n", "row 1 has other cells than the header"),
        (b"file_name,label\n1.png,player, CD\n", "put values with commas in quotes"),
        (b"file_name,label\n1.png,caf\xe9\n", "cannot be read as CSV in UTF-8"),
    ],
)
def test_a_table_of_labels_that_is_not_what_it_should_be_is_one_clear_error(content, message, tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "metadata.csv").write_bytes(content)
    with pytest.raises(ExportError, match=message):
        labels_of({"anna": [tmp_path / "anna" / "1.png"]})


def test_a_table_of_labels_from_windows_is_read(tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna" / "metadata.csv").write_text("file_name,label\n1.png,cat\n", encoding="utf-8-sig")
    assert labels_of({"anna": [tmp_path / "anna" / "1.png"]}) == {tmp_path / "anna" / "1.png": "cat"}
