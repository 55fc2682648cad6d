"""Tables of photos with several labels: what is read, and what is refused before anything is trained."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image

from refocus.cloud_train.data import glyphs
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.runs.iciia import DataConfig, label_rates, load_table


def folder_of(path, labels, name="metadata.csv"):
    """One photo of each label; two people."""
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PNG")
    path.mkdir(exist_ok=True)
    for number in range(len(labels)):
        (path / f"{number}.png").write_bytes(stream.getvalue())
    rows = [{"file_name": f"{n}.png", "label": text, "client": f"c{n % 2}"} for n, text in enumerate(labels)]
    with (path / name).open("w", newline="") as file:
        if name.endswith("jsonl"):
            file.writelines(json.dumps(row) + "\n" for row in rows)
            return path
        writer = csv.DictWriter(file, ["file_name", "label", "client"])
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_labels_of_a_photo_are_separated_in_the_column(tmp_path):
    table = load_photos(folder_of(tmp_path / "d", ["old;smiles", "", "smiles", " hat ; old"]), several=True)
    assert table.several
    assert table.classes == ("hat", "old", "smiles")
    assert table.label.tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 1], [1, 1, 0]]
    assert [table.names(row) for row in range(3)] == [("old", "smiles"), (), ("smiles",)]
    assert label_rates(table) == pytest.approx([2 / 6, 3 / 6, 3 / 6])
    turned = table.rows(np.array([3, 0]))
    assert turned.label.tolist() == [[1, 1, 0], [0, 1, 1]]
    assert turned.fingerprint() != table.fingerprint()


def test_lists_of_labels_are_read_from_json_lines(tmp_path):
    source = folder_of(tmp_path / "d", [["old", "smiles"], ["hat"], []], "metadata.jsonl")
    assert load_photos(source, several=True).label.tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("labels", "several", "message"),
    [
        (["fox", "owl", "fox;owl"], False, "one label and several in one table.*--set data.labels=several"),
        (["a;b", "a;c"], False, "one label and several in one table"),
        (["fox", "owl", "fox"], True, "no photo has two labels.*leave data.labels = several out"),
        (["fox;;owl", "fox"], True, "'fox;;owl': expected different labels"),
        (["fox;fox", "fox;owl"], True, "'fox;fox': expected different labels"),
        ([";".join(f"l{n}" for n in range(257))], True, "257 labels, photos with several may have up to 256"),
        (["fox", ""], False, "has no label for"),
    ],
)
def test_mixed_or_malformed_labels_are_one_clear_error(labels, several, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load_photos(folder_of(tmp_path / "d", labels), several=several)


def test_a_semicolon_in_the_name_of_a_class_stays_a_class(tmp_path):
    table = load_photos(folder_of(tmp_path / "d", ["rock; paper", "fox", "rock; paper"]))
    assert table.classes == ("fox", "rock; paper")
    assert table.label.tolist() == [1, 0, 1]


def test_folders_of_classes_are_no_photos_with_several_labels(tmp_path):
    (folder_of(tmp_path / "fox", ["x"]) / "metadata.csv").unlink()
    with pytest.raises(DataError, match=r"data.labels = several needs a metadata.csv"):
        load_photos(tmp_path, several=True)


@pytest.mark.parametrize("clients", ["classes", "dirichlet", "disjoint"])
def test_photos_with_several_labels_are_dealt_to_nobody_by_class(clients, tmp_path):
    source = folder_of(tmp_path / "d", ["a;b", "a", "b", "a;b"])
    with pytest.raises(DataError, match="photos with several labels are dealt to pseudo-people by no class"):
        load_table(DataConfig(source=str(source), labels="several", clients=clients))


def test_labels_of_another_width_are_refused():
    with pytest.raises(DataError, match="expected 0 or 1 for each of 3 classes"):
        PhotoTable.of(["x"], np.zeros((1, 2), np.uint8), lambda name: b"", ("a", "b", "c"))


def test_attributes_of_glyphs_are_those_of_the_hand_and_the_letter():
    people = {"train": 30, "test": 5}
    letters, table = (glyphs.glyphs(0, people, 12, attributes) for attributes in (False, True))
    assert table.photo.tolist() == letters.photo.tolist()
    assert table.classes == glyphs.ATTRIBUTES
    rates = table.label.mean(axis=0)
    assert rates.min() > 0.05
    assert rates.max() < 0.95
    column = dict(zip(glyphs.ATTRIBUTES, table.label.T, strict=True))
    assert (column["latin"] + column["greek"] + column["cyrillic"] == 1).all()
    constant = [name for name in glyphs.ATTRIBUTES if name not in (*glyphs.SCRIPTS, "capital")]
    for person, rows in table.clients():
        hand = glyphs.hand_of(0, int(person[-4:]))
        assert all(len(set(column[name][rows].tolist())) == 1 for name in constant)
        assert column["bold"][rows[0]] == ("Bold" in hand.font)
        written = [letters.classes[number].split()[0] for number in letters.label[rows]]
        assert [bool(flag) for flag in column["greek"][rows]] == [name == "greek" for name in written]
