"""What a newer Refocus wrote is used where that is safe, and refused with a message that says so elsewhere."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3

import msgspec
import pytest
from golden import read_golden

from refocus.edge.bundle.load import MANIFEST, load_bundle
from refocus.edge.errors import BundleError, HistoryError, PersonalWeightsError, RefocusError, UpdateError
from refocus.edge.history import schema
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.personal.received_files import read_personal
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.update.device_state import Slots, encode_record
from refocus.edge.update.rules import Channel, Device, decode_channel, encode_channel, misfit

IDENTITY = hashlib.sha256(b"").hexdigest()


def rewritten(path, change):
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def channel(**of_release):
    """A channel of today with one release, as a document."""
    release = {"number": 1, "name": "a", "manifest_schema": 6, "min_refocus": "0.2.0", "percent": 100,
               "published": "2090-01-01T00:00:00Z", "files": [{"path": MANIFEST, "sha256": IDENTITY, "size_bytes": 0}],
               "programs": [{"target": "onnxruntime:fp32", "min_version": "1", "feature_space": IDENTITY}]}  # fmt: skip
    return {"device_class": "phone", "serial": 1, "schema_version": 2, "releases": [{**release, **of_release}]}


def decoded(document):
    return decode_channel(json.dumps(document).encode(), "the channel")


PHONE = Device("d", "phone", "onnxruntime", "fp32", "1.28.0", "0.2.0.dev0")


@pytest.mark.parametrize("number", [4, 7])
def test_a_manifest_of_another_number_names_the_numbers_that_are_read(old, number):
    folder = old / "bundles" / "window"
    rewritten(folder / MANIFEST, lambda manifest: manifest.update(schema_version=number))
    with pytest.raises(BundleError, match=rf"has schema version {number}, this refocus reads 5 to 6"):
        load_bundle(folder)


def test_an_unknown_field_of_a_bundle_says_that_a_newer_refocus_may_have_written_it(old):
    folder = old / "bundles" / "window"
    rewritten(folder / MANIFEST, lambda manifest: manifest["artifacts"][0].update(voltage=3))
    with pytest.raises(
        BundleError, match=r"unknown field `voltage`.*a newer Refocus may have written it: update refocus"
    ):
        load_bundle(folder)


def test_a_profile_of_a_newer_number_is_left_as_it_is(old):
    profile = old / "profiles" / "bob.history.sqlite3"
    with contextlib.closing(sqlite3.connect(profile)) as database:
        database.execute("pragma user_version=5")
        database.execute(schema.ABOUT)
        row = ("schema", "5", schema.pair_seal("about", "schema", "5"))
        database.execute("insert into about values (?, ?, ?)", row)
        database.commit()
        database.execute("pragma wal_checkpoint(truncate)")
    before = profile.read_bytes()
    with pytest.raises(HistoryError, match="has schema 5, this refocus reads 1 to 4; update refocus"):
        FeatureHistory(profile)
    assert profile.read_bytes() == before


def test_a_new_profile_has_the_newest_number(old, tmp_path):
    profile = tmp_path / "new.history.sqlite3"
    with Recognizer(load_bundle(old / "bundles" / "window"), profile, threads=1) as recognizer:
        recognizer.recognize((old / "photos" / "0.png").read_bytes())
    with contextlib.closing(sqlite3.connect(profile)) as database:
        assert database.execute("pragma user_version").fetchone()[0] == 4


def test_a_persons_file_of_a_newer_format_is_refused(old):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    path = old / "anna.safetensors"
    with safe_open(path, "numpy") as file:
        about = file.metadata()
    save_file(load_file(path), path, {**about, "format": "2"})
    assert read_personal(path, load_bundle(old / "bundles" / "personal")).weights.method == "pfedpg"
    save_file(load_file(path), path, {**about, "format": "3"})
    with pytest.raises(PersonalWeightsError, match="has format 3, this refocus reads 1 and 2; update refocus"):
        read_personal(path, load_bundle(old / "bundles" / "personal"))


def test_golden_vectors_of_a_newer_number_are_refused(old):
    rewritten(old / "golden" / "golden.json", lambda golden: golden.update(schema=3))
    with pytest.raises(RefocusError, match="has schema 3, this refocus reads 1 and 2"):
        read_golden(old / "golden")


# ---- channels


def test_a_withdrawal_is_heard_from_a_channel_with_fields_that_are_not_known():
    document = channel(withdrawn="it hurts", notes="https://example.org/", languages=["en"])
    document |= {"contact": "somebody@example.org"}
    document["releases"][0]["programs"][0] |= {"memory_bytes": 1}
    document["releases"][0]["files"][0] |= {"compressed_bytes": 1}
    found = decoded(document)
    assert found.releases[0].withdrawn == "it hurts"
    assert misfit(found.releases[0], found, PHONE) == ""


@pytest.mark.parametrize("name", ["only_regions", "programs.memory_bytes", "files.compressed_bytes"])
def test_a_release_with_a_critical_field_that_is_not_known_is_not_taken(name):
    found = decoded(channel(critical=["percent", "programs.target", name]))
    assert (
        misfit(found.releases[0], found, PHONE)
        == f"its field '{name}' must be understood, and this refocus does not know it"
    )


def test_a_release_whose_critical_fields_are_known_is_taken():
    found = decoded(channel(critical=["percent", "programs.target"]))
    assert misfit(found.releases[0], found, PHONE) == ""
    assert decode_channel(encode_channel(found), "the channel") == found


def test_a_channel_with_a_critical_field_that_is_not_known_is_refused():
    with pytest.raises(UpdateError, match=r"its field 'only_after' must be understood.*update refocus"):
        decoded({**channel(), "critical": ["serial", "only_after"]})


@pytest.mark.parametrize("number", [0, 3, "2"])
def test_a_channel_of_another_number_is_refused(number):
    with pytest.raises(UpdateError, match="update refocus"):
        decoded({**channel(), "schema_version": number})


def test_a_channel_of_number_1_cannot_have_fields_of_number_2():
    with pytest.raises(UpdateError, match="number 1 has no field 'critical'"):
        decoded({**channel(critical=["percent"]), "schema_version": 1})


def test_a_new_channel_has_the_newest_number():
    assert json.loads(encode_channel(Channel(device_class="phone", serial=1))) == {
        "device_class": "phone", "serial": 1, "schema_version": 2, "releases": []}  # fmt: skip


def test_a_publisher_does_not_lose_fields_that_it_does_not_know(old):
    from refocus.cloud_train.release.keys import KeyRing
    from refocus.cloud_train.release.repository import Repository
    from refocus.cloud_train.release.stages import withdraw

    repository = Repository(old / "repository", KeyRing(old / "keys"))
    newest = repository._channel_file("phone")
    rewritten(newest, lambda channel: channel["releases"][1].update(languages=["en"]))
    with pytest.raises(UpdateError, match=r"releases.languages.*update refocus before you publish"):
        withdraw(repository, "phone", 2, "it hurts")


# ---- the record of a device


def test_a_record_of_number_1_gets_the_newest_number_once_it_holds_more(old):
    record = Slots(old / "device").read()
    later = channel(critical=["percent"])["releases"][0]
    release = msgspec.convert(later, type=type(decoded(channel()).releases[0]))
    raised = json.loads(encode_record(msgspec.structs.replace(record, release=release)))
    assert (record.schema_version, json.loads(encode_record(record))["schema_version"]) == (1, 1)
    assert (raised["schema_version"], raised["release"]["critical"]) == (2, ["percent"])


def test_a_new_device_has_a_record_of_the_newest_number(tmp_path):
    slots = Slots.create(tmp_path / "device", "phone", "http://127.0.0.1:1", b"{}")
    assert slots.read().schema_version == 2


def test_a_record_of_a_newer_refocus_is_left_as_it_is(old):
    path = old / "device" / "record.json"
    rewritten(path, lambda record: record.update(schema_version=3))
    before = path.read_bytes()
    with pytest.raises(UpdateError, match="a newer refocus may have written it"):
        Slots(old / "device")
    assert path.read_bytes() == before


# ---- documents of measurements


@pytest.mark.parametrize("name", ["condense", "glyphs", "glyphs-streaming", "overhead", "service", "switching"])
def test_a_result_of_0_1_0_stands_on_the_page(name, tmp_path):
    from pathlib import Path

    from refocus.cloud_train.errors import DataError
    from studies.report.sections import read_document

    document = json.loads((Path(__file__).parents[2] / "docs" / "results" / f"{name}.json").read_bytes())
    newest = 3 if name == "glyphs" else 2
    for number in (newest - 2, newest - 1, newest, newest + 1):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({**document, "schema_version": number}))
        if number in (newest - 1, newest):
            assert read_document(path)["schema_version"] == number
        else:
            with pytest.raises(DataError, match=f"has schema {number}, this refocus reads {newest - 1} and {newest}"):
                read_document(path)
