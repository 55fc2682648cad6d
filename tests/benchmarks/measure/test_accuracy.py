"""What a target costs each person, through the device's own recogniser."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import zipfile

import numpy as np
import pytest
from msgspec import structs

from refocus.benchmarks.commands.accuracy import _print
from refocus.benchmarks.measure.accuracy import (
    Evaluation,
    LabelledDataError,
    Photos,
    read_labelled,
    record,
    summarise,
    without_training_photos,
)
from refocus.edge.bundle import Defaults, encode_tensors, load_bundle, write_manifest
from refocus.edge.errors import BundleError
from studies.report.results_page import results_pages
from tests.tiny import taught


@pytest.fixture(scope="module")
def labelled(tiny_run, tmp_path_factory):
    """Six unseen people's photos as a folder with metadata.csv."""
    folder = tmp_path_factory.mktemp("labelled")
    test = tiny_run.table.of_split("test")
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "label", "client", "split"])
        for number, name in enumerate(test.photo.tolist()):
            (folder / f"{number}.png").write_bytes(test.read(name))
            writer.writerow([f"{number}.png", test.classes[test.label[number]], test.client[number],
                             "test" if number % 2 else "other"])  # fmt: skip
    return folder


def test_accuracy_is_measured_printed_and_recorded(refocus, bundle, labelled, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "b")
    done = refocus("accuracy", tmp_path / "b", "--data", labelled, "--split", "test", "--record", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (row,) = document["rows"]
    assert row["target"] == "onnxruntime:fp32"
    assert 0.02 < row["delivered"] <= 1  # far from the chance of one in 189
    assert row["worst_decile"] <= row["delivered"]
    recorded = load_bundle(tmp_path / "b").artifact("head", "onnxruntime").accuracy
    assert recorded.delivered == row["delivered"]
    assert recorded.photos == document["accuracy_of_targets"]["photos"] == 96
    assert recorded.people == 6


def test_photos_that_taught_the_bundle_are_left_out(refocus, bundle, labelled, tmp_path):
    photos = read_labelled(labelled, "client", "label", "", 64)
    files = sorted(file for rows in photos.people.values() for file, _ in rows)
    half = taught(bundle, tmp_path / "half", [photos.read(file) for file in files[::2]])
    left, line = without_training_photos(photos, half)
    assert sorted(file for rows in left.people.values() for file, _ in rows) == files[1::2]
    assert f"{len(files[::2])} of {len(files)} photos taught the bundle and are left out" in line
    done = refocus("accuracy", half.folder, "--data", labelled, "--json")
    about = json.loads(done.stdout)["accuracy_of_targets"]
    assert (about["photos"], about["judged"]) == (len(files[1::2]), line)
    assert f"{line}; --with-training-photos keeps them" in done.stderr
    everything = json.loads(
        refocus("accuracy", half.folder, "--data", labelled, "--with-training-photos", "--json").stdout
    )["accuracy_of_targets"]
    assert (everything["photos"], "judged" in everything) == (len(files), False)


def test_figures_of_training_photos_alone_are_named_as_such(bundle, labelled, tmp_path):
    photos = read_labelled(labelled, "client", "label", "", 64)
    contents = [photos.read(file) for rows in photos.people.values() for file, _ in rows]
    same, line = without_training_photos(photos, taught(bundle, tmp_path / "all", contents))
    assert same is photos
    assert "these figures are not those of people it has not met" in line
    assert "does not say which photos taught it" in without_training_photos(photos, bundle)[1]


def test_hashes_of_another_form_are_refused(bundle, tmp_path):
    made = taught(bundle, tmp_path / "b", [b"x"])
    content = b"".join(encode_tensors({"photos": np.zeros((3, 5), np.int8)}))
    (made.folder / "taught.safetensors").write_bytes(content)
    head = structs.replace(
        made.manifest.heads[0],
        taught_by=Defaults(
            file="taught.safetensors", sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content)
        ),
    )
    other = write_manifest(made.folder, structs.replace(made.manifest, heads=(head, *made.manifest.heads[1:])))
    with pytest.raises(BundleError, match=r"has no photos \(n, 4\), int8; export again"):
        other.taught_by()


def test_labels_that_were_shuffled_are_not_recognised(refocus, bundle, labelled, tmp_path):
    """The control: the same photos with labels of others."""
    with (labelled / "metadata.csv").open() as file:
        rows = list(csv.DictReader(file))
    labels = [row["label"] for row in rows]
    np.random.default_rng(0).shuffle(labels)
    for row, label in zip(rows, labels, strict=True):
        row["label"] = label
    folder = tmp_path / "shuffled"
    folder.mkdir()
    for path in labelled.glob("*.png"):
        (folder / path.name).write_bytes(path.read_bytes())
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    right, wrong = (
        json.loads(refocus("accuracy", bundle.folder, "--data", data, "--json").stdout)["rows"][0]["delivered"]
        for data in (labelled, folder)
    )
    assert wrong < right / 2


def test_a_mean_that_stays_does_not_hide_who_got_worse():
    people = {name: [("", "")] * 10 for name in "abcdefghij"}
    photos = Photos("x", "f", people, lambda name: b"")

    def right(shares):
        return {n: np.repeat(np.arange(10)[:, None] < 10 * s, 2, axis=1) for n, s in zip(people, shares, strict=True)}

    before, after = [0.8] * 10, [0.2, *([0.8] * 3), *([0.9] * 6)]
    document = summarise([Evaluation("fp32", right(before)), Evaluation("w8a8", right(after))], photos)
    row = document["rows"][1]
    assert row["change"]["mean"] == pytest.approx(0)
    assert row["worst_decile"] == pytest.approx(0.2)
    assert (row["made_worse"], row["made_better"]) == (0.1, 0.6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("owner", "label", ""), "has no column 'owner'.* name the column that says whose photo it is as --person"),
        (("client", "class", ""), "has no column 'class'.* name the column of the label as --label"),
        (("client", "label", "night"), "no photo has split 'night'"),
    ],
)
def test_columns_and_splits_that_are_not_there_are_named(labelled, arguments, message):
    with pytest.raises(LabelledDataError, match=message):
        read_labelled(labelled, *arguments, 64)


def test_a_folder_without_metadata_is_refused(tmp_path):
    with pytest.raises(LabelledDataError, match=r"expected a folder or zip with metadata\.csv"):
        read_labelled(tmp_path, "client", "label", "", 64)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_photo_that_is_missing_or_damaged_is_named(kind, tmp_path):
    (tmp_path / "metadata.csv").write_text("file_name,label,client\ngone.png,a,anna\nbroken.png,b,anna\n")
    source = tmp_path
    if kind == "zip":
        source = tmp_path / "photos.zip"
        with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(tmp_path / "metadata.csv", "metadata.csv")
            archive.writestr("broken.png", bytes(range(256)))
            member = archive.getinfo("broken.png")
        content = bytearray(source.read_bytes())
        start = member.header_offset + 30 + len(member.filename)
        content[start : start + member.compress_size] = b"\xff" * member.compress_size
        source.write_bytes(content)
    photos = read_labelled(source, "client", "label", "", 64)
    for name in ("gone.png", "broken.png"):
        with pytest.raises(LabelledDataError, match=rf"{name}, which metadata\.csv names, cannot be read \(.+\); rest"):
            photos.read(name)


def test_someone_with_many_photos_has_several_streams_and_is_one_person(labelled):
    one, many = (read_labelled(labelled, "client", "label", "", size) for size in (64, 10))
    assert len(one.people) == 6
    assert len(many.people) == 6 * 4
    assert one.fingerprint != many.fingerprint
    assert list(one.streams_of_people()) == list(many.streams_of_people())
    assert {len(streams) for streams in many.streams_of_people().values()} == {4}


# ---- streams of one person


def people_with_streams(people, streams, photos=20):
    """Photos of so many people, each with as many streams."""
    owners = {f"{person} {number}": str(person) for person in range(people) for number in range(streams)}
    rows = {stream: [("", "")] * photos for stream in owners}
    return Photos("x", "f", rows, lambda name: b"", owners)


def judged_twice(photos, rng):
    """A reference, and a target whose answers change as each person, not each stream, is served by it: 0 on average."""
    effect = {person: rng.normal(0, 0.15) for person in photos.streams_of_people()}
    before, after = {}, {}
    for stream, rows in photos.people.items():
        before[stream] = np.repeat(rng.random((len(rows), 1)) < 0.5, 2, axis=1)
        after[stream] = np.repeat(rng.random((len(rows), 1)) < 0.5 + effect[photos.owners[stream]], 2, axis=1)
    return [Evaluation("fp32", before), Evaluation("w8a8", after)]


def test_an_interval_over_people_holds_the_truth_however_many_streams_they_have():
    rng, photos = np.random.default_rng(0), people_with_streams(people=30, streams=10)
    found = [summarise(judged_twice(photos, rng), photos)["rows"][1] for _ in range(100)]
    for name in ("change", "plain_change"):
        covered = np.mean([row[name]["low"] <= 0 <= row[name]["high"] for row in found])
        assert covered > 0.85, f"{name}: {covered:.0%} of the 95 % intervals hold the truth"


def test_a_share_of_people_and_their_worst_tenth_do_not_count_streams():
    photos = people_with_streams(people=20, streams=3)
    right = {stream: np.ones((20, 2), bool) for stream in photos.people}
    worse = {**right, "7 0": np.zeros((20, 2), bool)}
    document = summarise([Evaluation("fp32", right), Evaluation("w8a8", worse)], photos)
    about, row = document["accuracy_of_targets"], document["rows"][1]
    assert (about["people"], about["streams"], about["photos"]) == (20, 60, 1200)
    assert (row["made_worse"], row["made_better"]) == (1 / 20, 0)
    assert row["worst_decile"] == pytest.approx((2 / 3 + 1) / 2)


def test_what_the_history_costs_some_people_is_not_hidden_by_its_mean_gain(capsys):
    photos = people_with_streams(people=20, streams=2)
    alone = np.zeros((20, 2), bool)
    alone[:10, 1] = True  # half are right alone
    served = np.where(np.arange(20)[:, None] < 15, [[True, False]], False) | alone
    right = dict.fromkeys(photos.people, served)
    for stream in ("7 0", "7 1"):
        right[stream] = alone
    document = summarise([Evaluation("fp32", right)], photos)
    (row,) = document["rows"]
    assert row["gain"]["mean"] == pytest.approx((19 * 0.25 - 0.5) / 20)
    assert row["gain"]["low"] < row["gain"]["mean"] < row["gain"]["high"]
    assert (row["worse_than_alone"], row["better_than_alone"]) == (1 / 20, 19 / 20)
    assert (row["worst_decile"], row["plain_worst_decile"]) == (0.375, 0.5)
    _print(document)
    shown = capsys.readouterr().out
    for part in ("+21.25 (", "5% / 95%", "37.50% / 50.00%"):
        assert part in shown


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_replayed(
    refocus, assert_one_clear_line, bundle, labelled, tmp_path
):
    (tmp_path / "file").write_text("")
    nobody = tmp_path / "file" / "accuracy.json"
    done = refocus("accuracy", bundle.folder, "--data", labelled, "--out", nobody)  # it says more once photos are read
    assert_one_clear_line(done, f"--out {nobody} cannot be written")
    assert done.stdout == ""


def test_a_document_is_written_into_a_new_folder(refocus, bundle, labelled, tmp_path):
    out = tmp_path / "new" / "folder" / "accuracy.json"
    done = refocus("accuracy", bundle.folder, "--data", labelled, "--split", "test", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text()) == json.loads(done.stdout)


def page_of(document, folder):
    (folder / "results").mkdir(parents=True)
    (folder / "results" / "one.json").write_text(json.dumps({**document, "command": "refocus accuracy BUNDLE"}))
    return results_pages(folder / "results").text


def test_a_page_of_an_older_document_has_no_table_of_what_it_does_not_hold(tmp_path):
    photos = people_with_streams(people=5, streams=2)
    document = summarise(judged_twice(photos, np.random.default_rng(0)), photos)
    rows = [line for line in page_of(document, tmp_path / "new").splitlines() if line.startswith("| w8a8")]
    assert [row.count("|") - 1 for row in rows] == [7, 4]
    for row in document["rows"]:
        for name in ("gain", "worse_than_alone", "better_than_alone", "plain_worst_decile"):
            del row[name]
    page = page_of(document, tmp_path / "old")
    assert page.count("| w8a8") == 1
    assert "by the history" not in page


def test_the_photos_of_one_person_give_no_interval(bundle, tmp_path, capsys):
    photos = people_with_streams(people=1, streams=10)
    both = judged_twice(photos, np.random.default_rng(0))
    document = summarise(
        [Evaluation("executorch:fp32", both[0].right), Evaluation("onnxruntime:fp32", both[1].right)], photos
    )
    row = document["rows"][1]
    assert "change" not in row
    assert "gain" not in row
    assert "plain_change" not in row
    _print(document)
    assert "no interval over people" in capsys.readouterr().out
    shutil.copytree(bundle.folder, tmp_path / "b")
    kept = record(load_bundle(tmp_path / "b"), document).artifact("head", "onnxruntime").accuracy
    assert (kept.people, kept.reference, kept.change) == (1, "executorch:fp32", None)


# ---- tables that training reads


def written(folder, text, encoding="utf-8"):
    """A folder with this metadata.csv, and a zip of it."""
    folder.mkdir()
    (folder / "metadata.csv").write_bytes(text.encode(encoding))
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w") as archive:
        archive.write(folder / "metadata.csv", "metadata.csv")
    return folder, folder.with_suffix(".zip")


ROWS = "file_name,label,client\r\na.png,cat,anna\r\nb.png,dog,ben\r\n"


def test_a_byte_order_mark_as_excel_writes_it_is_no_part_of_the_first_column(tmp_path):
    plain, _ = written(tmp_path / "plain", ROWS)
    for source in written(tmp_path / "excel", ROWS, "utf-8-sig"):
        found = read_labelled(source, "client", "label", "", 64)
        assert found.people == read_labelled(plain, "client", "label", "", 64).people


@pytest.mark.parametrize(
    ("cells", "column"), [("c.png,cat", "client"), ("c.png", "client"), ("c.png,cat,anna", "split")]
)
def test_a_row_that_ends_early_is_named_by_its_number(tmp_path, cells, column):
    folder, _ = written(tmp_path / "a", f"file_name,label,client,split\na.png,cat,anna,test\n{cells}\n")
    with pytest.raises(LabelledDataError, match=f"row 2 ends before the column '{column}'; give it as many cells"):
        read_labelled(folder, "client", "label", "test", 64)


def test_rows_that_name_nobody_are_not_one_person(tmp_path, caplog):
    folder, _ = written(tmp_path / "a", ROWS + "c.png,cat,\r\nd.png,dog,\r\n")
    caplog.set_level("WARNING", logger="refocus")
    found = read_labelled(folder, "client", "label", "", 64)
    assert list(found.streams_of_people()) == ["anna", "ben"]
    assert "2 of 4 photos are left out: their row names nobody in the column client" in caplog.text


def test_a_table_that_names_nobody_at_all_is_refused(tmp_path):
    folder, _ = written(tmp_path / "a", "file_name,label,client\na.png,cat,\n")
    with pytest.raises(LabelledDataError, match="the column 'client' names nobody; name the column that says whose"):
        read_labelled(folder, "client", "label", "", 64)


def test_a_cell_that_no_table_can_hold_is_one_clear_error(tmp_path):
    folder, _ = written(tmp_path / "a", ROWS + "c.png,cat," + "x" * (csv.field_size_limit() + 1) + "\n")
    with pytest.raises(LabelledDataError, match=r"expected a folder or zip with metadata\.csv \(field larger"):
        read_labelled(folder, "client", "label", "", 64)
