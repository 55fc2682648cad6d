"""Every file that release 0.1.0 wrote is read and used by the current code, and stays readable for 0.1.0 where it is
changed in place."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import shutil
import sqlite3
import threading

import msgspec
import numpy as np
import pytest
from golden import compare_golden, read_golden

from refocus.edge.bundle.load import load_bundle, upgrade
from refocus.edge.bundle.manifest import SCHEMA_VERSION
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.migration.stages import read_record
from refocus.edge.personal.received_files import read_personal
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.recognize.check import check
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.taper.bank import Bank
from refocus.edge.update.agent import UpdateAgent
from refocus.edge.update.device_state import Slots
from refocus.edge.update.loaded_releases import Settings
from refocus.edge.update.serving import Serving

BUNDLES = ("window", "streaming", "personal", "bank")


def number_of(profile):
    with contextlib.closing(sqlite3.connect(profile)) as database:
        return database.execute("pragma user_version").fetchone()[0]


def photo(old, number=0):
    return (old / "photos" / f"{number}.png").read_bytes()


# ---- bundles, banks and people's files


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_of_0_1_0_passes_its_self_test(old, name):
    bundle = load_bundle(old / "bundles" / name)
    assert bundle.manifest.schema_version == 5
    (row,) = check(bundle)
    assert not row.failures, row


def test_a_head_of_0_1_0_is_installed_beside_an_encoder_of_0_1_0(old):
    installed = upgrade(load_bundle(old / "bundles" / "window"), load_bundle(old / "bundles" / "streaming"))
    assert {head.name for head in installed.manifest.heads} == {"window", "streaming"}
    assert installed.manifest.schema_version == SCHEMA_VERSION, "a bundle that is written has the newest number"


def test_a_bank_of_0_1_0_is_condensed(old, tmp_path):
    bank = Bank.open(old / "bundles" / "bank")
    bank.condense(bank.task(["fox", "otter"]), tmp_path / "foxes")
    made = load_bundle(tmp_path / "foxes")
    assert made.manifest.schema_version == SCHEMA_VERSION, "a bundle that is written has the newest number"
    with Recognizer(made, None, threads=1) as recognizer:
        assert set(recognizer.recognize(photo(old)).labels[:2]) == {"fox", "otter"}


def test_a_signed_bundle_of_0_1_0_is_unpacked(old, tmp_path):
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    from refocus.edge.bundle.signed import unpack

    key = load_pem_public_key((old / "signed" / "service.pub.pem").read_bytes())
    signature = (old / "signed" / "bundle.sig").read_text().strip()
    bundle = unpack(old / "signed" / "bundle.tar", signature, key, tmp_path / "foxes")
    assert bundle.manifest.task.classes == ("fox", "otter")


def test_a_file_of_a_person_of_0_1_0_changes_the_answers(old, tmp_path):
    bundle = load_bundle(old / "bundles" / "personal")
    found = read_personal(old / "anna.safetensors", bundle)
    cache = PersonalWeightStore(tmp_path / "weights")
    cache.put("anna", found.models[0], found.weights)
    with Recognizer(bundle, None, threads=1) as stranger:
        plain = stranger.recognize(photo(old)).logits
    for weights in (cache, PersonalWeightStore(old / "weights")):  # brought now, and kept by 0.1.0
        with Recognizer(bundle, tmp_path / "anna.history.sqlite3", threads=1, weights=weights) as recognizer:
            assert np.abs(recognizer.recognize(photo(old), remember=False).logits - plain).max() > 0.01


def test_golden_vectors_of_0_1_0_are_compared(old):
    golden, _ = read_golden(old / "golden")
    found = compare_golden(load_bundle(old / "bundles" / "window"), old / "golden")
    assert golden.schema == 1
    assert (found.steps > 0, found.decisions) == (True, 0)


# ---- profiles


def test_a_profile_of_0_1_0_serves_with_all_that_a_kill_left_in_its_log(old):
    expected = json.loads((old / "profiles" / "expected.json").read_text())
    bundle = load_bundle(old / "bundles" / "window")
    with Recognizer(bundle, old / "profiles" / "anna.history.sqlite3", threads=1) as recognizer:
        answer = recognizer.recognize(photo(old), remember=False)
        history = recognizer.history
        assert (list(answer.labels), list(answer.history_photos)) == (expected["labels"], expected["history"])
        np.testing.assert_allclose(answer.logits, expected["logits"], atol=1e-3)
        assert (history.count(recognizer.space), history.damaged, history.recovered) == (5, 0, None)
        assert sorted(history.labels().values()) == ["fox", "otter"]
        assert history.settings() == {"theme": "dunkel, mit Umlauten: äöü"}
        assert [entry.name for entry in history.entries()] == [f"photos/{number}.png" for number in range(3, 8)]
        assert all(entry.stored is not None for entry in history.entries())


def test_a_profile_of_0_1_0_that_grew_can_still_be_opened_by_0_1_0(old):
    """0.1.0 refuses numbers above 3; the tables of 3 and 4 are the same."""
    profile = old / "profiles" / "anna.history.sqlite3"
    bundle = load_bundle(old / "bundles" / "window")
    with Recognizer(bundle, profile, threads=1) as recognizer:
        recognizer.recognize(photo(old, 0))
        recognizer.history.set_label("a" * 64, "badger")
        recognizer.history.erase(photo=hashlib.sha256(photo(old, 7)).hexdigest())
    assert number_of(profile) == 3


def test_a_takeout_of_0_1_0_holds_what_a_takeout_of_today_holds(old, tmp_path):
    """Nothing reads it back; a tool of its owner that reads the one should read the other."""
    import zipfile

    def of(path):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    with FeatureHistory(old / "profiles" / "anna.history.sqlite3") as history:
        history.export(tmp_path / "today.zip")
    before, after = of(old / "profiles" / "anna.zip"), of(tmp_path / "today.zip")
    about = json.loads(before.pop("entries.json")), json.loads(after.pop("entries.json"))
    assert before == after
    assert about[0].pop("format") == 1
    del about[1]["format"]
    assert about[0].items() <= about[1].items()


def test_a_profile_that_0_1_0_left_on_its_way_arrives(old):
    profile = old / "profiles" / "bob.history.sqlite3"
    recognizers = [Recognizer(load_bundle(old / "bundles" / name), None, threads=1) for name in ("window", "personal")]
    with DualWriteRecognizer(*recognizers, profile) as moving:
        assert moving.migration.status().stage == "warming"
        for number in range(5):
            moving.recognize(photo(old, number))
        moving.migration.step()
        while moving.migration.step():
            pass
        assert moving.migration.status().stage == "switched"
        moving.migration.finish()
        assert moving.migration.status().stage == "finished"
    assert number_of(profile) == 3


# ---- devices and repositories


@pytest.fixture
def device(old):
    """The device and its slots, whose files are those of the bundles."""
    folder = old / "device"
    for slot in (Slots(folder).read().active, Slots(folder).read().previous):
        shutil.copytree(old / "bundles" / slot.name, folder / "slots" / slot.folder)
    (folder / "profiles").mkdir()
    shutil.copy(old / "profiles" / "anna.history.sqlite3", folder / "profiles")
    return Slots(folder)


@pytest.fixture
def settings(device):
    return Settings(profiles=device.folder / "profiles", threads=1)


@pytest.fixture
def repository(old):
    """The repository, whose files are those of the bundles."""
    from refocus.cloud_train.release.keys import KeyRing
    from refocus.cloud_train.release.repository import Repository
    from refocus.edge.files import file_sha256
    from refocus.edge.update.rules import blob_path

    found = Repository(old / "repository", KeyRing(old / "keys"))
    for file in (file for name in BUNDLES[:2] for file in (old / "bundles" / name).rglob("*") if file.is_file()):
        path = old / "repository" / "targets" / blob_path(file_sha256(file))
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, path)
    return found


@pytest.fixture
def url(old):
    """Where a web server offers the repository."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *given):
            pass

        def __init__(self, *given):
            super().__init__(*given, directory=str(old / "repository"))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def updates(device, settings, url):
    from refocus.edge.update.repository import RepositoryClient

    return UpdateAgent(
        device, settings, RepositoryClient(device.folder / "metadata", url, device.root, "phone", seconds=5)
    )


def test_a_device_of_0_1_0_is_served_by_its_release_and_by_the_one_before(device, settings, old):
    profile = settings.profiles / "anna.history.sqlite3"
    with Serving(device, settings, profile) as serving:
        assert (serving.release.number, serving.release.name) == (2, "streaming")
        serving.recognize(photo(old, 1))
        UpdateAgent(device, settings).back("the owner wants it")
        serving.recognize(photo(old, 2))
        assert (serving.release.number, serving.release.name) == (0, "window")
    UpdateAgent(device, settings).run()
    with Serving(device, settings, profile) as serving:
        assert serving.recognize(photo(old, 3)).labels
        assert device.read().stage == "settled"


def test_a_device_of_0_1_0_is_up_to_date_with_a_repository_of_0_1_0(device, settings, repository, url):
    assert updates(device, settings, url).look() == "up to date"


def test_a_release_of_today_reaches_a_device_of_0_1_0(device, settings, repository, url, old):
    from refocus.cloud_train.release.stages import publish
    from refocus.edge.bundle.load import write_manifest

    bundle = load_bundle(old / "bundles" / "streaming")
    manifest = msgspec.structs.replace(bundle.manifest, schema_version=SCHEMA_VERSION, name="today")
    publish(repository, write_manifest(bundle.folder, manifest).folder, "phone", 100)
    working = updates(device, settings, url)
    assert working.look() == "release 3 is to be fetched"
    assert working.run().stage == "trial"
    with Serving(device, settings, settings.profiles / "anna.history.sqlite3") as serving:
        assert (serving.recognize(photo(old)).labels, serving.release.name) == (
            serving.recognize(photo(old)).labels,
            "today",
        )


def test_a_device_that_goes_back_to_0_1_0_finds_a_record_that_it_can_read(device, settings, repository, url):
    updates(device, settings, url).look()
    device.change(lambda record: msgspec.structs.replace(record, attempts=1))
    written = json.loads((device.folder / "record.json").read_bytes())
    assert written["schema_version"] == 1
    assert set(written) == {"device", "device_class", "url", "schema_version", "stage", "active", "previous",
                            "candidate", "release", "attempts", "refused", "outcomes", "seen"}  # fmt: skip


def test_a_repository_of_0_1_0_goes_on_speaking_to_devices_of_0_1_0(repository, old):
    """They must hear of a withdrawal, whoever publishes it."""
    from refocus.cloud_train.release.stages import withdraw

    withdraw(repository, "phone", 2, "it hurts")
    metadata = json.loads((old / "repository" / "metadata" / "5.phone.json").read_bytes())
    digest = metadata["signed"]["targets"]["phone/channel.json"]["hashes"]["sha256"]
    channel = json.loads((old / "repository" / "targets" / "phone" / f"{digest}.channel.json").read_bytes())
    assert channel["schema_version"] == 1
    assert set(channel) == {"device_class", "serial", "schema_version", "releases"}
    assert set(channel["releases"][1]) == {"number", "name", "files", "programs", "manifest_schema", "min_refocus",
                                           "percent", "published", "withdrawn"}  # fmt: skip
    assert channel["releases"][1]["withdrawn"] == "it hurts"


# ---- training


def test_checkpoints_of_a_run_of_0_1_0_are_programs(old):
    from refocus.cloud_train.runs.folder import read_settings
    from refocus.cloud_train.runs.iciia import RunConfig
    from refocus.export.program.checkpoint import load_checkpoint

    assert read_settings(old / "run" / "run.json", RunConfig).backbone == "resnet10t"
    for name in ("window", "streaming"):
        head = load_checkpoint(old / "run" / "seed-0" / f"{name}.safetensors")
        assert head.program().personalisation["form"] == name
        assert head.required("encoder").program().preprocessing.crop == 24


def test_settings_and_plans_of_a_federation_of_0_1_0_are_read(old):
    from refocus.cloud_train.federated.deployment.kits import Project
    from refocus.cloud_train.federated.deployment.plan import decode_plan
    from refocus.cloud_train.federated.deployment.session import Deployment
    from refocus.cloud_train.federated.deployment.sites import SiteConfig
    from refocus.cloud_train.federated.run import FederatedConfig
    from refocus.cloud_train.runs.folder import read_settings

    folder = old / "federation"
    kinds = {"federated": FederatedConfig, "project": Project, "refocus": SiteConfig, "deployment": Deployment}
    found = {name: read_settings(folder / f"{name}.json", kind) for name, kind in kinds.items()}
    assert found["project"].clients == found["deployment"].clients == ("anna", "bob")
    plan = decode_plan((folder / "plan.json").read_bytes())
    assert (plan.method, plan.config.classes) == ("fedavg", ("fox", "badger", "otter"))


def test_settings_of_a_move_are_those_of_0_1_0(old):
    with FeatureHistory(old / "profiles" / "bob.history.sqlite3") as history:
        assert read_record(history)[1].stage == "warming"
