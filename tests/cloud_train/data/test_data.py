"""Photos, clients and splits: nobody stands on two sides of a study."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from refocus.cloud_train.data import glyphs
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.partitions import by_parent, dirichlet, disjoint_classes, natural, random_classes
from refocus.cloud_train.data.sources import load_source
from refocus.cloud_train.data.table import PhotoTable, assert_clients_never_meet, copies_across_splits, split_clients
from refocus.cloud_train.data.windows import streams, windows
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.runs.folder import numbered
from refocus.cloud_train.runs.iciia import DataConfig, load_table

SHARES = {"train": 0.5, "validation": 0.2, "gate": 0.1, "test": 0.2}


def table_of(clients: list[str], labels: list[int] | None = None) -> PhotoTable:
    count = len(clients)
    labels = labels or [0] * count
    return PhotoTable(
        photo=np.array([f"{i}.png" for i in range(count)]),
        label=np.array(labels, dtype=np.int64),
        client=np.array(clients),
        domain=np.array([""] * count),
        split=np.array([""] * count, dtype="<U10"),
        classes=tuple("abcdefgh"),
        read=lambda name: b"",
    )


def test_a_table_without_photos_has_no_clients():
    assert [*table_of([]).clients()] == []


def test_long_names_in_letters_of_several_bytes_are_names_of_folders(tmp_path):
    people = ["\u5ba2" * 99, "\u5ba2" * 100, "\u043a" * 300, "x" * 300]
    stems = [stem for stem, _ in numbered((name, np.array([0])) for name in people)]
    for stem in stems:
        (tmp_path / stem).mkdir(parents=True)
    assert len({stem.partition("/")[0] for stem in stems}) == len(people)
    assert stems[-1] == f"{'x' * 100}/000"


# --- the table -------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("pqrstuvwxyz"), min_size=12, max_size=60), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_clients_never_meet_however_they_are_split(clients, seed):
    if len(set(clients)) < 4:
        return
    table = split_clients(table_of(clients), SHARES, seed)
    assert set(table.split.tolist()) == set(SHARES)
    for name in set(clients):
        assert len(set(table.split[table.client == name].tolist())) == 1


@given(st.integers(0, 30), st.integers(12, 40))
@settings(max_examples=40, deadline=None)
def test_pseudo_clients_have_few_classes_and_share_no_photo(seed, size):
    label = np.random.default_rng(seed).integers(0, 30, 2000)
    client = random_classes(label, size, (5, 10), seed)
    assert (client == random_classes(label, size, (5, 10), seed)).all()
    assert (client != "").mean() > 0.85
    for name in set(client.tolist()) - {""}:
        assert (client == name).sum() == size
        assert len(set(label[client == name].tolist())) <= 10


def test_too_few_photos_for_one_person_are_refused():
    with pytest.raises(DataError, match="10 photos of 2 classes cannot be dealt to people with 24 photos each"):
        random_classes(np.array([0, 1] * 5), 24)
    with pytest.raises(DataError, match="30 photos of 1 classes"):
        random_classes(np.zeros(30, int), 24)


def test_photos_without_a_client_column_are_dealt_to_pseudo_people(tmp_path, caplog):
    for number in range(400):
        path = tmp_path / f"class-{number % 20:02d}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (2, 2)).save(path)
    with caplog.at_level("INFO", logger="refocus"):
        table = load_table(DataConfig(source=str(tmp_path)))
    assert "16 pseudo-people with 24 photos and 5 to 10 random classes each are dealt" in caplog.text
    assert set(table.split.tolist()) == {"train", "validation", "gate", "test"}
    assert_clients_never_meet(table)
    assert len(set(table.photo.tolist())) == len(table)


def test_a_client_in_two_splits_is_found():
    table = table_of(["anna", "anna"])
    table.split[:] = ["train", "test"]
    with pytest.raises(DataError, match="client 'anna' is in more than one split"):
        assert_clients_never_meet(table)


def test_a_photo_in_two_splits_is_found():
    table = table_of(["anna", "ben"])
    table.split[:] = ["train", "test"]
    table.photo[:] = "0.png"
    with pytest.raises(DataError, match="photo '0.png'"):
        assert_clients_never_meet(table)


def test_too_few_clients_to_split_is_an_error():
    with pytest.raises(DataError, match="3 clients cannot be split into 4"):
        split_clients(table_of(["a", "b", "c"]), SHARES, 0)


@pytest.mark.parametrize("shares", [{"train": 0.5}, {"train": 0.5, "exam": 0.5}, {"train": 1.5, "test": -0.5}])
def test_shares_that_are_no_partition_are_refused(shares):
    with pytest.raises(DataError, match="shares"):
        split_clients(table_of(["a", "b", "c", "d"]), shares, 0)


def test_a_label_without_a_class_is_refused():
    with pytest.raises(DataError, match=r"labels must lie in \[0, 8\)"):
        table_of(["a"], [8])


def test_the_fingerprint_changes_with_any_column():
    table = split_clients(table_of(list("aabbccdd")), SHARES, 0)
    other = table.rows(np.arange(8))
    assert other.fingerprint() == table.fingerprint()
    for column in ("label", "client", "split", "photo", "domain"):
        changed = table.rows(np.arange(8))
        getattr(changed, column)[0] = 1 if column == "label" else "x"
        assert changed.fingerprint() != table.fingerprint(), column


# --- partitions ------------------------------------------------------------------------------------------------

PARENT = np.repeat(["bird", "dog", "fish"], 100)
LABEL = np.tile(np.arange(10), 30)


def parents_of(client: np.ndarray) -> dict[str, set[str]]:
    return {str(c): set(PARENT[client == c].tolist()) for c in np.unique(client[client != ""])}


def test_heterogeneity_one_gives_clients_of_one_parent():
    client = by_parent(PARENT, 20, ratio=1.0)
    assert all(len(parents) == 1 for parents in parents_of(client).values())
    assert np.unique(client).size == 15


def test_heterogeneity_zero_gives_clients_of_every_parent():
    parents = parents_of(by_parent(PARENT, 20, ratio=0.0))
    assert all(name.startswith("mixed/") for name in parents)
    assert np.mean([len(found) for found in parents.values()]) > 2.5


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
def test_heterogeneity_in_between_keeps_that_share_pure(ratio):
    client = by_parent(PARENT, 5, ratio=ratio)
    pure = np.mean([not str(c).startswith("mixed/") for c in client])
    assert pure == pytest.approx(ratio, abs=0.05)


def test_no_photo_goes_to_two_clients_and_none_is_invented():
    client = by_parent(PARENT, 30, ratio=0.5, seed=3)
    names, counts = np.unique(client[client != ""], return_counts=True)
    assert (counts == 30).all()
    assert len(names) * 30 <= len(PARENT)


def test_a_ratio_outside_zero_to_one_is_refused():
    with pytest.raises(UsageError, match="ratio 1.5"):
        by_parent(PARENT, 10, ratio=1.5)


def test_dirichlet_deals_every_photo_and_small_alpha_concentrates():
    def classes_per_client(alpha: float) -> float:
        client = dirichlet(LABEL, 10, alpha, seed=1)
        assert (client != "").all()
        return float(np.mean([len(np.unique(LABEL[client == c])) for c in np.unique(client)]))

    assert classes_per_client(0.05) < 5 < classes_per_client(100)


def test_disjoint_clients_share_no_class():
    client = disjoint_classes(LABEL, 4, seed=2)
    owners = [np.unique(client[value == LABEL]) for value in np.unique(LABEL)]
    assert all(len(owner) == 1 for owner in owners)
    assert len(np.unique(client)) == 4


def test_impossible_partitions_name_their_flag():
    with pytest.raises(UsageError, match="number_of_clients 11"):
        disjoint_classes(LABEL, 11)
    with pytest.raises(UsageError, match="alpha 0"):
        dirichlet(LABEL, 4, 0)


def test_people_with_too_few_photos_are_left_out():
    assert natural(np.array(["a", "a", "b", ""]), smallest=2).tolist() == ["a", "a", "", ""]
    with pytest.raises(DataError, match="no client has 3 photos"):
        natural(np.array(["a", "a"]), smallest=3)


@pytest.mark.parametrize(
    "deal", [lambda s: by_parent(PARENT, 20, 0.5, s), lambda s: dirichlet(LABEL, 5, 0.3, s),
             lambda s: disjoint_classes(LABEL, 3, s)],
)  # fmt: skip
def test_partitions_are_a_pure_function_of_the_seed(deal):
    np.testing.assert_array_equal(deal(4), deal(4))
    assert (deal(4) != deal(5)).any()


# --- windows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_window_never_crosses_from_one_client_to_another(shuffled):
    table = table_of([c for c in "abc" for _ in range(10)])
    cut = windows(table, 4, np.random.default_rng(0) if shuffled else None)
    assert cut.shape == (6, 4)
    assert all(len(set(table.client[row].tolist())) == 1 for row in cut)
    assert len(np.unique(cut)) == cut.size


def test_a_window_longer_than_any_client_is_refused():
    with pytest.raises(DataError, match="no client has 11 photos"):
        windows(table_of(["a"] * 10), 11)


def test_streams_keep_the_order_of_the_photos():
    table = table_of(["b", "a", "b", "a", "b"])
    assert [(name, rows.tolist()) for name, rows in streams(table, 2)] == [("a", [1, 3]), ("b", [0, 2])]


# --- glyphs ----------------------------------------------------------------------------------------------------


def test_a_photo_is_a_pure_function_of_its_name():
    name = "glyphs/3/14/15.png"
    assert glyphs.read(name) == glyphs.read(name)
    assert glyphs.read(name) != glyphs.read("glyphs/4/14/15.png")


def test_letters_are_the_same_photos_on_every_machine():
    names = [f"glyphs/3/{person}/{index}.png" for person in range(8) for index in range(4)]
    pixels = b"".join(np.asarray(Image.open(io.BytesIO(glyphs.read(name)))).tobytes() for name in names)
    assert hashlib.sha256(pixels).hexdigest() == "f5fdafa01f574cba25fa45b53bb86b7e41aec4e5ab6ea856b878a18c63eb2002"


def test_a_name_that_is_no_glyph_is_refused():
    with pytest.raises(DataError, match="is not a glyph photo"):
        glyphs.read("holiday.png")


def test_about_a_third_of_the_letters_are_pixel_identical_to_one_of_another_script():
    scripts = [script for script, letters in glyphs.SCRIPTS.items() for _ in letters]
    masks = {letter: glyphs.letter_mask(letter, "DejaVuSans", 0).tobytes() for letter in glyphs.LETTERS}
    twins = [
        any(masks[a] == masks[b] and s != t for b, t in zip(glyphs.LETTERS, scripts, strict=True))
        for a, s in zip(glyphs.LETTERS, scripts, strict=True)
    ]
    assert 170 <= len(glyphs.LETTERS) <= 200
    assert len(set(glyphs.LETTERS)) == len(glyphs.LETTERS)
    assert 0.3 < np.mean(twins) < 0.4


def test_writers_write_mostly_one_script_and_all_scripts_occur():
    table = glyphs.glyphs(0, {"train": 30, "test": 10}, 40)
    home = np.array(
        [next(s for s in glyphs.SCRIPTS if name.startswith(s)) for name in np.array(glyphs.CLASSES)[table.label]]
    )
    assert set(table.domain.tolist()) == set(glyphs.SCRIPTS)
    assert 0.88 < (home == table.domain).mean() < 0.96


def test_more_photos_per_person_keep_the_first_ones():
    few, many = (glyphs.glyphs(0, {"train": 3}, count) for count in (4, 9))
    assert set(few.photo.tolist()) < set(many.photo.tolist())
    labels = dict(zip(many.photo.tolist(), many.label.tolist(), strict=True))
    assert [labels[name] for name in few.photo.tolist()] == few.label.tolist()


# --- folders ---------------------------------------------------------------------------------------------------


def png() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "PNG")
    return stream.getvalue()


ROWS = [
    {"file_name": "a/1.png", "label": "cat", "client": "anna", "domain": "photo"},
    {"file_name": "a/2.png", "label": "dog", "client": "ben", "domain": "sketch"},
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("1", "2"):
        (tmp_path / "a" / f"{name}.png").write_bytes(png())
    return tmp_path


def write_metadata(folder, kind: str, rows=None) -> None:
    rows = rows or ROWS
    if kind == "csv":
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
        (folder / "metadata.csv").write_text("\n".join(lines))
    elif kind == "jsonl":
        (folder / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    else:
        parquet.write_table(arrow.Table.from_pylist(rows), folder / "metadata.parquet")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_every_metadata_format_gives_the_same_table(folder, kind):
    write_metadata(folder, kind)
    table = load_photos(folder)
    assert table.classes == ("cat", "dog")
    assert table.client.tolist() == ["anna", "ben"]
    assert table.domain.tolist() == ["photo", "sketch"]
    assert table.read(table.photo[1]) == png()


def test_a_zip_file_reads_like_its_folder(folder, tmp_path_factory):
    write_metadata(folder, "csv")
    path = tmp_path_factory.mktemp("zips") / "photos.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*.*"):
            archive.write(file, file.relative_to(folder))
    table = load_photos(path)
    assert table.fingerprint() == load_photos(folder).fingerprint()
    assert table.read(table.photo[0]) == png()


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("damage", [b"\xff", b"\0"])
def test_a_damaged_photo_in_a_zip_file_is_named(kind, damage, tmp_path):
    """However it is packed: each decompressor has an error of its own."""
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name in ("a/1.png", "b/2.png"):
            archive.writestr(name, png() + bytes(range(256)))
        member = archive.infolist()[1]
    content = bytearray(path.read_bytes())
    start = member.header_offset + 30 + len(member.filename)
    content[start : start + member.compress_size] = damage * member.compress_size
    path.write_bytes(content)
    table = load_photos(path)
    assert table.read("a/1.png")
    with pytest.raises(DataError, match=r"photos\.zip: b/2\.png cannot be read \(.+\); restore it"):
        table.read("b/2.png")


def test_without_metadata_every_folder_is_a_class(folder):
    (folder / "b").mkdir()
    (folder / "b" / "3.JPG").write_bytes(png())
    (folder / "b" / "notes.txt").write_text("not a photo")
    table = load_photos(folder)
    assert table.classes == ("a", "b")
    assert table.label.tolist() == [0, 0, 1]


def test_photos_beside_each_other_have_no_labels(tmp_path):
    (tmp_path / "1.png").write_bytes(png())
    with pytest.raises(DataError, match="has no labels.*found 1 photos beside each other"):
        load_photos(tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"file_name": "a/9.png", "label": "cat"}], "1 photos that are missing, such as a/9.png"),
        ([{"file_name": "../secret.png", "label": "cat"}], "missing, such as ../secret.png"),
        ([{"file_name": "a/1.png", "klass": "cat"}], "no column 'label'.*as label_column"),
        ([{"name": "a/1.png", "label": "cat"}], "row 1 has no column 'file_name'"),
        ([{"file_name": "a/1.png", "label": ""}], "no label for a/1.png"),
    ],
)
def test_metadata_that_does_not_fit_its_photos_is_refused(folder, rows, message):
    write_metadata(folder, "csv", rows)
    with pytest.raises(DataError, match=message):
        load_photos(folder)


@pytest.mark.parametrize("line", ["[1, 2]", "7", '{"label": "x"}'])
def test_a_jsonl_row_that_is_no_record_is_refused(folder, line):
    (folder / "metadata.jsonl").write_text(json.dumps(ROWS[0]) + "\n" + line)
    with pytest.raises(DataError, match="row 2 has no column 'file_name'"):
        load_photos(folder)


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
def test_metadata_that_is_not_what_its_name_says_is_refused(folder, name):
    (folder / name).write_bytes(b"\xff\xfe\x00\x81{{{")
    with pytest.raises(DataError, match="cannot be read as its name says|has no column"):
        load_photos(folder)


def test_two_metadata_files_in_one_folder_are_refused(folder):
    write_metadata(folder, "csv")
    write_metadata(folder, "jsonl")
    with pytest.raises(DataError, match="holds 2 metadata files"):
        load_photos(folder)


def people(folder, splits: dict[str, str]) -> DataConfig:
    rows = []
    for person in splits:
        (folder / f"{person}.png").write_bytes(png())
        rows.append({"file_name": f"{person}.png", "label": "x", "client": person, "split": splits[person]})
    write_metadata(folder, "csv", rows)
    return DataConfig(source=str(folder))


def test_a_split_of_the_users_own_is_kept(tmp_path):
    splits = {"anna": "train", "ben": "validation", "carl": "test", "dora": "gate", "emil": "train"}
    table = load_table(people(tmp_path, splits))
    assert dict(zip(table.client.tolist(), table.split.tolist(), strict=True)) == splits


def test_splits_are_known_by_the_names_that_other_data_sets_give_them(tmp_path):
    stated = {"anna": "Train", "ben": "val", "carl": "TEST", "dora": "valid", "emil": "training"}
    table = load_table(people(tmp_path, stated))
    assert dict(zip(table.client.tolist(), table.split.tolist(), strict=True)) == {
        "anna": "train", "ben": "validation", "carl": "test", "dora": "validation", "emil": "train"
    }  # fmt: skip


def test_a_split_that_nobody_knows_is_refused_and_not_dropped(tmp_path):
    config = people(tmp_path, {"anna": "train", "ben": "validation", "carl": "holdout"})
    with pytest.raises(DataError, match="metadata.csv, row 3 has the split 'holdout'; expected train, validation"):
        load_table(config)


def test_folders_above_classes_that_are_called_as_splits_are_splits(tmp_path):
    for place in ("train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "test/dog/4.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(png())
    table = load_photos(tmp_path)
    found = dict(zip(table.photo.tolist(), table.split.tolist(), strict=True))
    assert {Path(name).parts[0]: split for name, split in found.items()} == {
        "train": "train", "val": "validation", "test": "test"
    }  # fmt: skip
    assert set(table.domain.tolist()) == {""}


def test_a_person_in_two_of_the_users_own_splits_is_refused(tmp_path):
    config = people(tmp_path, {"anna": "train", "ben": "validation", "carl": "test"})
    path = tmp_path / "metadata.csv"
    path.write_text(path.read_text().replace("ben.png,x,ben", "ben.png,x,anna"))
    with pytest.raises(DataError, match="client 'anna' is in more than one split"):
        load_table(config)


def test_a_metadata_file_per_split_folder_gives_one_table(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "1.png").write_bytes(png())
        write_metadata(tmp_path / split, "csv", [{"file_name": "1.png", "label": split, "client": split}])
    table = load_photos(tmp_path)
    assert sorted(zip(table.photo.tolist(), table.split.tolist(), strict=True)) == [
        ("test/1.png", "test"),
        ("train/1.png", "train"),
    ]


def test_what_macos_puts_into_zips_is_no_photo(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr("cat/1.png", png())
        archive.writestr("__MACOSX/cat/._1.png", b"resource fork")
    assert load_photos(tmp_path / "p.zip").photo.tolist() == ["cat/1.png"]


def test_a_file_that_is_neither_folder_nor_zip_is_refused(tmp_path):
    (tmp_path / "photos.zip").write_text("no zip")
    with pytest.raises(DataError, match="neither a folder nor a zip"):
        load_photos(tmp_path / "photos.zip")
    with pytest.raises(DataError, match="no such folder or file"):
        load_photos(tmp_path / "nowhere")


def test_other_column_names_can_be_given(folder):
    write_metadata(folder, "csv", [{"file_name": "a/1.png", "what": "cat", "who": "anna", "parent": "animal"}])
    table = load_photos(folder, "what", "who", "", "parent")
    assert (table.classes, table.client[0], table.parent[0]) == (("cat",), "anna", "animal")


def test_a_domain_and_a_parent_stand_in_columns_of_their_own(folder):
    rows = [{"file_name": f"a/{n}.png", "label": "cat", "domain": "sketch", "parent": "animal"} for n in (1, 2)]
    write_metadata(folder, "csv", rows)
    table = load_photos(folder, parent_column="parent").rows(np.array([1]))
    assert (table.domain[0], table.parent[0], table.group[0], table.home(np.array([0]))) == ("sketch", *["animal"] * 3)
    alone = load_photos(folder)
    assert (set(alone.parent), alone.home(np.array([0, 1]))) == ({""}, "sketch")


def test_fingerprints_of_results_before_parents_had_a_column_still_match(folder):
    """Of tables with one of the two, wherever it stands; the values are those that 0.1.0 computed."""
    write_metadata(folder, "csv", [{"file_name": "a/1.png", "label": "cat", "domain": "sketch", "parent": "animal"}])
    both = load_photos(folder, parent_column="parent")
    domain, parent = load_photos(folder), load_photos(folder, domain_column="", parent_column="parent")
    neither = load_photos(folder, domain_column="")

    def before(kind):
        columns = "".join(f"{value}\1" for value in ("a/1.png", "", kind, ""))
        return hashlib.sha256(columns.encode() + bytes(8) + b"cat").hexdigest()

    found = [table.fingerprint() for table in (domain, parent, neither)]
    assert found == [before("sketch"), before("animal"), before("")]
    assert both.fingerprint() not in found


def test_clients_by_parent_are_made_of_the_column_that_is_named(folder):
    rows = [
        {"file_name": f"a/{n}.png", "label": "x", "domain": "sketch", "kind": ("cat", "dog")[n % 2]} for n in (1, 2)
    ]
    write_metadata(folder, "csv", rows)
    with pytest.raises(DataError, match="data.clients = parent needs a column 'knid'"):
        load_table(DataConfig(str(folder), "parent", parent_column="knid"))


def test_real_photos_come_with_their_parents(real_data):
    table = load_photos(real_data / "tiny-imagenet-subset.zip", domain_column="parent")
    assert len(table.classes) == 200
    assert len(table) == 200 * 150
    assert table.read(table.photo[0])[:2] == b"\xff\xd8"
    clients = by_parent(table.domain, 60)
    assert all(len(set(table.domain[clients == c].tolist())) == 1 for c in np.unique(clients[clients != ""])[:20])


@pytest.mark.parametrize(
    ("folders", "domains"),
    [
        (["art/cat", "art/dog", "photo/cat", "photo/dog"], {"art", "photo"}),
        (["sets/art/cat", "sets/photo/cat", "sets/photo/dog"], {"art", "photo"}),
        (["animals/cat", "things/mug"], {""}),  # no class in two of them
        (["train/cat", "test/cat"], {""}),  # splits
        (["cat", "dog"], {""}),
    ],
)
def test_folders_above_classes_name_domains(folders, domains, tmp_path):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.png").write_bytes(b"x")
    table = load_photos(tmp_path)
    assert set(table.domain) == domains
    assert set(table.classes) <= {"cat", "dog", "mug"}


def test_a_run_reads_domains_and_parents_from_columns_of_any_name(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = ["file_name,label,client,style,kind"]
    for number in range(24):
        name = f"{number:02}.png"
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name)
        rows.append(f"{name},{'ab'[number % 2]},p{number % 12},{'xy'[number % 2]},{'mn'[number // 12]}")
    (folder / "metadata.csv").write_text("\n".join(rows))
    table = load_table(DataConfig(str(folder), domain_column="style", parent_column="kind"))
    assert set(zip(table.label.tolist(), table.domain.tolist(), strict=True)) == {(0, "x"), (1, "y")}
    assert {str(parent) for parent in table.parent} == {"m", "n"}


def test_photos_with_splits_and_without_people_are_dealt_to_pseudo_people(tmp_path, caplog):
    rows = [("file_name", "label", "split")]
    for number in range(1200):
        Image.new("RGB", (2, 2), (number % 256, number // 256, 0)).save(tmp_path / f"{number}.png")
        rows.append((f"{number}.png", f"class {number % 12}", ("train", "val", "test")[number % 3]))
    (tmp_path / "metadata.csv").write_text("\n".join(map(",".join, rows)))
    with caplog.at_level("INFO"):
        table = load_table(DataConfig(str(tmp_path)))
    assert "pseudo-people" in caplog.text
    assert all(table.client[table.split != ""])


def test_photos_whose_row_names_nobody_are_left_out_and_counted(tmp_path, caplog):
    rows = [("file_name", "label", "client", "split")]
    for number in range(60):
        Image.new("RGB", (2, 2), (number, 0, 0)).save(tmp_path / f"{number}.png")
        split = ("train", "validation", "test")[number // 20]
        rows.append(
            (f"{number}.png", f"class {number % 3}", "" if number % 20 == 7 else f"{split} {number % 4}", split)
        )
    (tmp_path / "metadata.csv").write_text("\n".join(map(",".join, rows)))
    with caplog.at_level("INFO"):
        table = load_table(DataConfig(str(tmp_path)))
    assert len(table) == 57
    assert "3 of 60 photos are left out" in caplog.text
    assert "" not in table.client


# Arrays, and numbers for names


ARRAYS = {"x": np.zeros((6, 4, 4), np.uint8), "y": np.arange(6), "client": np.arange(6) % 2}


def test_an_archive_of_arrays_is_read_and_its_pixels_are_stamped(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    before = load_source(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", **ARRAYS | {"x": ARRAYS["x"] + 1})
    after = load_source(tmp_path / "a.npz")
    assert before.classes == tuple("012345")
    assert before.stamp("3") == before.stamp("4") != after.stamp("3")


@pytest.mark.parametrize(
    "wrong",
    [{"x": np.zeros((5, 4, 4), np.uint8)}, {"x": np.zeros((12, 4, 4), np.uint8)}, {"x": np.zeros((6, 3, 4, 4), np.uint8)},
     {"y": np.arange(6) + 0.7}, {"client": np.array(list("aabbcc"))}, {"client": np.arange(6) / 2}],
)  # fmt: skip
def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path, wrong):
    np.savez(tmp_path / "a.npz", **ARRAYS | wrong)
    with pytest.raises(DataError, match=r"all but x of whole numbers, R rows each"):
        load_source(tmp_path / "a.npz")


def test_numbers_that_are_no_class_indices_do_not_become_millions_of_classes(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS | {"y": np.array([7, 7, 7, 3_000_000, 7, 7])})
    with pytest.raises(DataError, match="y goes up to 3000000; expected class indices below"):
        load_source(tmp_path / "a.npz")


def test_copies_of_a_photo_in_two_splits_are_found_whatever_they_are_called(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split / "cat").mkdir(parents=True)
        for number in range(3):
            pixels = np.random.default_rng([number, split == "test"]).integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / split / "cat" / f"{number}.png")
    assert copies_across_splits(load_photos(tmp_path)) == []
    first = tmp_path / "train" / "cat" / "0.png"
    (tmp_path / "train" / "cat" / "again.png").write_bytes(first.read_bytes())  # of the same split
    (tmp_path / "test" / "cat" / "other.png").write_bytes(first.read_bytes())
    [(one, other)] = copies_across_splits(load_photos(tmp_path))
    assert one in ("train/cat/0.png", "train/cat/again.png")
    assert other == "test/cat/other.png"


def test_zero_is_a_name_of_classes_and_people(tmp_path):
    rows = [{"file_name": f"{n}.png", "label": n % 2, "client": n % 3} for n in range(6)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for row in rows:
        Image.new("L", (4, 4)).save(tmp_path / row["file_name"])
    table = load_photos(tmp_path, "label", "client")
    assert (table.classes, sorted(set(table.client))) == (("0", "1"), ["0", "1", "2"])


def test_a_name_that_is_no_text_is_shown(tmp_path):
    (tmp_path / "cat").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "cat") + b"/\xff.png")).write_bytes(b"")
    with pytest.raises(DataError, match=r"the name cat/\\udcff\.png is not UTF-8; rename the file"):
        load_photos(tmp_path)
