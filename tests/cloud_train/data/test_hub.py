"""Data sets of the Hugging Face Hub, from a cache as its library leaves it, without a network; Flower's partitioners."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from huggingface_hub import constants
from PIL import Image
from pyarrow import parquet

from refocus.cloud_train.data.flower import flower
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun
from refocus.cloud_train.settings import located

COMMIT, NAMES = "0123456789abcdef0123456789abcdef01234567", ["cat", "dog", "owl"]


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The folder of a data set in the cache of a machine that is offline: ``hf:some/pets``."""
    place = tmp_path / "hub" / "datasets--some--pets"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    folder = place / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder


def photo(colour):
    stream = io.BytesIO()
    Image.new("RGB", (12, 9), tuple(colour)).save(stream, "PNG")
    return stream.getvalue()


def write_shard(path, labels, people=(), first=0, group=4, names=NAMES):
    """As ``datasets`` writes one: photos as structures, classes as numbers, their names in the schema."""
    photos = [{"bytes": photo((first + row, 0, 0)), "path": None} for row in range(len(labels))]
    columns = {"image": photos, "kind": labels, **({"owner": people} if people else {})}
    table = pyarrow.table(columns)
    noted = {"image": {"_type": "Image"}, **({"kind": {"_type": "ClassLabel", "names": names}} if names else {})}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": noted}})})
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(table, path, row_group_size=group)


def colours(table):
    return [np.asarray(Image.open(io.BytesIO(table.read(name))))[0, 0, 0] for name in table.photo]


def test_photos_inside_parquet_files_are_read_with_names_of_classes_and_splits(cached):
    write_shard(cached / "data" / "train-00000-of-00002.parquet", [0, 1, 2, 0, 1, -1], list("aabbcc"))
    write_shard(cached / "data" / "train-00001-of-00002.parquet", [2, 2], list("dd"), first=10)
    write_shard(cached / "data" / "test-00000-of-00001.parquet", [1], ["a"], first=20)
    table = load_photos(Path("hf:some/pets"), "kind", "owner")
    assert table.classes == ("cat", "dog", "owl")
    assert [table.classes[label] for label in table.label] == ["dog", "cat", "dog", "owl", "cat", "dog", "owl", "owl"]
    assert table.split.tolist() == ["test", *["train"] * 7]
    assert table.client.tolist() == ["a", *"aabbc", *"dd"]
    assert colours(table) == [20, 0, 1, 2, 3, 4, 10, 11], "a row without a class moves no other photo"
    assert colours(table.rows(np.array([7, 5, 0]))) == [11, 4, 20]


def test_folders_of_photos_are_read_as_they_are_on_disk(cached):
    for name in ("cat", "dog"):
        (cached / name).mkdir()
        (cached / name / "1.png").write_bytes(photo((1, 2, 3)))
    assert load_photos(Path("hf:some/pets")).classes == ("cat", "dog")


def test_a_federation_is_made_of_a_hubs_data_set(cached, tmp_path):
    labels = [row % 3 for row in range(60)]
    write_shard(cached / "train.parquet", labels, [f"p{row % 2}" for row in range(60)])
    config = located(FederatedConfig(source="hf:some/pets", label_column="kind", client_column="owner", unseen=0.0))
    assert config.source == "hf:some/pets"
    clients = FederatedRun(tmp_path / "run", config).clients
    assert [client.name for client in clients.members] == ["p0", "p1"]
    assert clients.classes == ("cat", "dog", "owl")


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("hf:pets", "expected hf:OWNER/NAME"),
        ("hf:some/pets@", "expected hf:OWNER/NAME"),
        ("hf:some/others", "neither be downloaded nor found in the cache"),
        ("hf:some/pets@v2", "neither be downloaded nor found in the cache"),
    ],
)
def test_a_data_set_that_cannot_be_had_is_one_clear_error(source, what, cached):
    with pytest.raises(DataError, match=what):
        load_photos(Path(source))


def test_a_data_set_of_another_kind_is_refused(cached):
    write_shard(cached / "train.parquet", [0, 1])
    with pytest.raises(DataError, match="no column 'label', it has kind; name another as label_column"):
        load_photos(Path("hf:some/pets"))
    parquet.write_table(pyarrow.table({"text": ["a"], "label": [0]}), cached / "train.parquet")
    with pytest.raises(DataError, match="no column holds photos; it has text, label"):
        load_photos(Path("hf:some/pets"))
    (cached / "train.parquet").write_bytes(b"PAR1 damaged PAR1")
    with pytest.raises(DataError, match="cannot be read"):
        load_photos(Path("hf:some/pets"))


def test_numbers_of_classes_are_named_by_the_file_that_they_are_in(cached):
    write_shard(cached / "animals" / "train.parquet", [0, 1, 0], names=["cat", "dog"])
    write_shard(cached / "fruits" / "train.parquet", [0, 1, 2], names=["apple", "dog", "pear"])
    table = load_photos(Path("hf:some/pets"), "kind")
    assert [table.classes[label] for label in table.label] == ["cat", "dog", "cat", "apple", "dog", "pear"]


def test_a_file_that_lacks_what_another_one_has_is_named(cached):
    write_shard(cached / "test.parquet", [0, 1], list("ab"))
    write_shard(cached / "train.parquet", [0, 1])
    with pytest.raises(DataError, match=r"train.parquet has no column 'owner', which test.parquet has"):
        load_photos(Path("hf:some/pets"), "kind", "owner")
    parquet.write_table(pyarrow.table({"image": [{"bytes": photo((0, 0, 0))}]}), cached / "train.parquet")
    with pytest.raises(DataError, match=r"train.parquet has no column 'kind', which test.parquet has"):
        load_photos(Path("hf:some/pets"), "kind")
    write_shard(cached / "train.parquet", [0, 1], names=None)
    with pytest.raises(DataError, match=r"train.parquet does not name the classes of its column 'kind', and test"):
        load_photos(Path("hf:some/pets"), "kind")


def test_a_row_without_a_photo_is_said_when_it_is_read(cached):
    parquet.write_table(
        pyarrow.table({"image": [{"bytes": None, "path": "elsewhere.png"}, {"bytes": b"x", "path": None}],
                       "label": ["a", "b"]}), cached / "train.parquet")  # fmt: skip
    table = load_photos(Path("hf:some/pets"))
    with pytest.raises(DataError, match="row 0 of train.parquet has no photo inside"):
        table.read(table.photo[0])


# ---- Flower


def dealt():
    label = np.arange(40) % 4
    return PhotoTable.of([str(row) for row in range(40)], [f"class {one}" for one in label], lambda name: b"",
                         client=[f"p{row % 5}" for row in range(40)])  # fmt: skip


def test_without_flowers_library_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(UsageError, match="pip install flwr-datasets"):
        flower(dealt(), "DirichletPartitioner", {}, 0)


def test_flowers_partitioners_deal_every_photo_once():
    pytest.importorskip("flwr_datasets", reason="needs flwr-datasets: pip install flwr-datasets")
    table = dealt()
    even = flower(table, "IidPartitioner", {"num_partitions": 4}, 0)
    assert {name: int((even == name).sum()) for name in set(even)} == {f"client-000{n}": 10 for n in range(4)}
    own = flower(table, "NaturalIdPartitioner", {"partition_by": "client"}, 0)
    assert all(len(set(table.client[own == name])) == 1 for name in set(own))
    arguments = {"num_partitions": 4, "partition_by": "label", "alpha": 0.5, "min_partition_size": 1}
    skewed = [flower(table, "DirichletPartitioner", arguments, seed) for seed in (0, 0, 1)]
    assert (skewed[0] == skewed[1]).all()
    assert (skewed[0] != skewed[2]).any()
    with pytest.raises(UsageError, match="expected one of .*DirichletPartitioner"):
        flower(table, "Dirichlet", {}, 0)
    with pytest.raises(UsageError, match="partitioner_arguments of IidPartitioner"):
        flower(table, "IidPartitioner", {"partitions": 4}, 0)
    with pytest.raises(DataError, match="cannot deal 40 photos"):
        flower(table, "NaturalIdPartitioner", {"partition_by": "owner"}, 0)
