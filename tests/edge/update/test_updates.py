"""A device takes releases: whole, proved and with everybody's history, or not at all; and finds the way back."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from refocus.edge.bundle.load import write_manifest
from refocus.edge.bundle.personal_weights import NewWeights
from refocus.edge.errors import HistoryError, PersonalWeightsError, PhotoError, UpdateError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.migration.migration import AbsentModel, Migration
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.update.agent import UpdateAgent, adopt
from refocus.edge.update.canary import Limits
from refocus.edge.update.device_state import files_of
from refocus.edge.update.repository import RepositoryClient
from refocus.edge.update.rules import Channel, Device, File, Program, Release, bucket, misfit, wanted
from refocus.edge.update.serving import Serving
from refocus.edge.update.transitions import ATTEMPTS
from tests.tiny import STORED

SEEN = 10


@pytest.fixture
def files(stream, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(24)]
    for path, content in zip(paths, stream, strict=False):
        path.write_bytes(content)
    return paths


@pytest.fixture
def device(fleet):
    return fleet.device()


@pytest.fixture
def anna(device, files):
    """The file of a person whom the first release has served."""
    path = device.settings.profiles / "anna.history.sqlite3"
    path.unlink(missing_ok=True)
    with Serving(device.slots, device.settings, path) as serving:
        recognise(serving, files[:SEEN])
    return path


def recognise(serving, paths):
    return [serving.recognize(path.read_bytes(), str(path)) for path in paths]


def update(device):
    device.look()
    return device.run()


def serves(device, profile):
    """Name of the bundle whose head answers somebody."""
    with Serving(device.slots, device.settings, profile) as serving:
        return serving.recognizer.manifest.name


def alone(bundle, paths, folder):
    """The answers of a recogniser that never heard of another model."""
    with Recognizer(bundle, folder / f"{bundle.manifest.name}.sqlite3", threads=1) as recognizer:
        return recognise(recognizer, paths)


def assert_same(answers, wanted):
    for answer, other in zip(answers, wanted, strict=True):
        np.testing.assert_allclose(answer.logits, other.logits, atol=1e-5)
        assert answer.history_photos == other.history_photos


# ---- what goes well


def test_a_new_head_costs_only_the_head_and_serves_with_the_next_photo(fleet, device, anna, files, other_head):
    size = other_head.artifact("head", "onnxruntime").size_bytes + (other_head.folder / "manifest.json").stat().st_size
    with Serving(device.slots, device.settings, anna) as serving:
        published = fleet.publish(other_head)
        assert published.new_bytes == size < published.release.size_bytes / 2
        record = update(device)
        asked = [path for path, _ in fleet.server.asked if path.startswith("targets/files/")]
        assert len(asked) == 2, "the manifest and the head"
        recognise(serving, files[:1])
        assert serving.recognizer.manifest.name == "other head"
    assert [o.outcome for o in record.outcomes] == ["committed", "committed"]
    assert device.shadow.photos == SEEN
    assert device.slots.read().stage == "settled"


def test_another_encoder_takes_the_history_along_and_brings_it_back(fleet, device, anna, files, bundle, other_encoder,
                                                                   tmp_path):  # fmt: skip
    fleet.publish(other_encoder)
    record = update(device)
    assert (record.stage, record.active.number, record.previous.number) == ("trial", 2, 1)
    with Serving(device.slots, device.settings, anna) as serving:
        answers = recognise(serving, files[SEEN : SEEN + 3])
    assert_same(answers, alone(other_encoder, files[: SEEN + 3], tmp_path)[SEEN:])
    device.back("it hurts")
    assert device.run().active.number == 1
    with Serving(device.slots, device.settings, anna) as serving:
        answers = recognise(serving, files[SEEN + 3 : SEEN + 5])
    assert_same(answers, alone(bundle, files[: SEEN + 5], tmp_path)[SEEN + 3 :])
    assert device.look() == "up to date", "what it returned from is not taken again"


def test_a_person_whose_originals_are_gone_is_served_by_the_older_release_until_warm(fleet, device, anna, files,
                                                                                   other_encoder):  # fmt: skip
    for path in files[2:SEEN]:
        path.unlink()
    fleet.publish(other_encoder)
    assert update(device).stage == "moving"
    assert serves(device, anna) == "iciia_t"
    device.switch()
    assert device.run().stage == "trial"
    assert serves(device, anna) == "other encoder"


@pytest.mark.slow
def test_a_release_before_the_first_is_a_bundle_that_came_with_the_device(fleet, bundle, other_head):
    slots = fleet.slots("fresh")
    settings = fleet.settings("fresh")
    with pytest.raises(UpdateError, match="no release is installed yet"):
        Serving(slots, settings, settings.profiles / "bob.history.sqlite3")
    adopt(slots, bundle.folder, settings)
    fresh = fleet.device("fresh")
    assert fresh.look() == "up to date", "the first release is the very bundle that is there"
    fleet.publish(other_head)
    assert update(fresh).active.number == 2
    with pytest.raises(UpdateError, match="installed already"):
        adopt(slots, bundle.folder, settings)


# ---- what must not be taken


def hand_made(fleet, folder, **changes):
    """Signs a folder as the next release, as a publisher might who checks nothing."""
    repository, channel = fleet.repository, fleet.repository.channel("phone")
    first = channel.releases[0]
    rows = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        from refocus.edge.files import file_sha256

        rows.append(File(path=path.relative_to(folder).as_posix(), sha256=file_sha256(path),
                         size_bytes=path.stat().st_size))  # fmt: skip
        repository.put_file(path, rows[-1].sha256)
    release = msgspec.structs.replace(first, number=len(channel.releases) + 1, name="hand made", files=tuple(rows))
    release = msgspec.structs.replace(release, **changes)
    changed = msgspec.structs.replace(channel, releases=(*channel.releases, release), serial=channel.serial + 1)
    repository.put_channel(changed)
    return release


def refused(device, *words):
    record = update(device)
    assert (record.stage, record.active.number) == ("settled", 1)
    assert record.outcomes[-1].outcome == "refused"
    for word in words:
        assert word in record.outcomes[-1].why
    assert device.look() == "up to date", "it is not tried again"


def test_the_encoder_of_one_release_never_meets_the_head_of_the_next(fleet, device, anna, bundle, other_encoder,
                                                                    tmp_path):  # fmt: skip
    folder = tmp_path / "mixed"
    shutil.copytree(other_encoder.folder, folder)
    old = bundle.artifact("encoder", "onnxruntime")
    shutil.copy(bundle.folder / old.file, folder / old.file)
    artifacts = tuple(old if a.role == "encoder" else a for a in other_encoder.manifest.artifacts)
    manifest = msgspec.structs.replace(other_encoder.manifest, artifacts=artifacts)
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    hand_made(fleet, folder)
    refused(device, "features of one model must not meet the head of another")
    assert serves(device, anna) == "iciia_t"


def test_a_release_that_fails_its_own_self_test_is_refused(fleet, device, other_head, tmp_path):
    shutil.copytree(other_head.folder, tmp_path / "wrong")
    head = other_head.manifest.heads[0]
    rows = tuple(msgspec.structs.replace(row, logit=row.logit + 9) for row in head.self_test.answers["eager"])
    test = msgspec.structs.replace(head.self_test, answers={"eager": rows})
    wrong = msgspec.structs.replace(other_head.manifest, heads=(msgspec.structs.replace(head, self_test=test),))
    fleet.publish(write_manifest(tmp_path / "wrong", wrong))
    refused(device, "fails its self-test")


def test_a_release_that_answers_otherwise_on_the_owners_photos_is_refused(fleet, device, anna, bundle, updating,
                                                                         tmp_path):  # fmt: skip
    """It passes its self-test, on every machine: it only hurts here."""
    fleet.publish(updating.variant(bundle, tmp_path / "noise", "encoder", "noise", noise=0.4))
    refused(device, "recent photos it agrees with the release that serves on")
    assert serves(device, anna) == "iciia_t"


@pytest.mark.slow
def test_a_release_that_loses_what_the_owner_has_labelled_is_refused(fleet, anna, files, other_encoder):
    with FeatureHistory(anna) as history:
        for path in files[:SEEN]:
            history.set_label(hashlib.sha256(path.read_bytes()).hexdigest(), "a letter")
    fleet.publish(other_encoder)
    limits = Limits(agreement=0.0, labelled_lost=-1.0)  # not even a draw is enough
    refused(fleet.device(limits=limits), "that the owner has labelled it has")


def test_a_release_that_is_slow_on_this_device_is_refused(fleet, anna, other_head):
    fleet.publish(other_head)
    refused(fleet.device(limits=Limits(latency_ratio=0.0)), "times as long as with the release that serves")


def test_a_release_that_kills_the_process_that_serves_gives_way_to_the_one_before(fleet, device, anna, other_head):
    fleet.publish(other_head)
    assert update(device).stage == "trial"
    device.slots.change(lambda record: msgspec.structs.replace(record, attempts=ATTEMPTS))
    assert serves(device, anna) == "iciia_t"
    assert device.run().active.number == 1


@pytest.mark.slow
def test_a_release_that_was_damaged_on_the_device_gives_way_to_the_one_before(fleet, device, anna, other_head):
    fleet.publish(other_head)
    update(device)
    assert serves(device, anna) == "other head"
    file = device.slots.path(device.slots.read().active) / other_head.artifact("head", "onnxruntime").file
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert serves(device, anna) == "iciia_t"
    record = device.run()
    assert record.refused == {}, "damage on the device is not the release's fault"
    assert "does not load" in next(iter(record.postponed.values())).why


@pytest.mark.slow
def test_a_history_restored_from_an_old_copy_is_moved_again(fleet, device, anna, files, other_encoder):
    copy = shutil.copy(anna, anna.with_suffix(".copy"))
    fleet.publish(other_encoder)
    update(device)
    assert serves(device, anna) == "other encoder"
    for name in (anna, *anna.parent.glob(anna.name + "-*")):
        name.unlink()
    shutil.copy(copy, anna)
    with Serving(device.slots, device.settings, anna) as serving:
        assert isinstance(serving._serving, DualWriteRecognizer)
        recognise(serving, files[SEEN : SEEN + 1])
        assert serving.recognizer.manifest.name == "iciia_t", "its history serves until the new one is warm"
        device.run()
        recognise(serving, files[SEEN : SEEN + 1])
        assert serving.recognizer.manifest.name == "other encoder"


# ---- withdrawn


def test_a_withdrawn_release_is_taken_back_and_one_on_its_way_dropped(fleet, device, anna, other_head, other_encoder):
    from refocus.cloud_train.release.stages import withdraw

    fleet.publish(other_head)
    update(device)
    withdraw(fleet.repository, "phone", 2, "wrong labels")
    assert device.look() == "release 2 was withdrawn"
    assert device.run().active.number == 1
    assert serves(device, anna) == "iciia_t"
    fleet.publish(other_encoder)
    assert device.look() == "release 3 is to be fetched"
    withdraw(fleet.repository, "phone", 3, "wrong labels again")
    assert device.look() == "release 3 was withdrawn"
    record = device.run()
    assert (record.stage, record.outcomes[-1].why) == ("settled", "withdrawn: wrong labels again")
    assert [path.name for path in (device.slots.folder / "slots").iterdir()] == [record.active.folder]


@pytest.mark.slow
def test_a_release_withdrawn_in_the_middle_of_a_move_brings_everybody_back(fleet, device, anna, files, other_encoder):
    from refocus.cloud_train.release.stages import withdraw

    for path in files[2:SEEN]:
        path.unlink()
    fleet.publish(other_encoder)
    assert update(device).stage == "moving"
    withdraw(fleet.repository, "phone", 2, "slow")
    device.look()
    assert device.slots.read().stage == "returning"
    assert serves(device, anna) == "iciia_t"
    assert device.run().stage == "settled"
    with FeatureHistory(anna) as history:
        assert [space.count for space in history.spaces().values()] == [SEEN]


def test_nobody_waits_with_a_withdrawn_release_for_a_history_that_is_warm(fleet, device, anna, files, other_encoder):
    from refocus.cloud_train.release.stages import withdraw

    for path in files[2:SEEN]:
        path.unlink()
    fleet.publish(other_encoder)
    assert update(device).stage == "moving"
    assert serves(device, anna) == "iciia_t", "its history serves until the new one is warm"
    first = device.slots.read().active.number
    withdraw(fleet.repository, "phone", first, "wrong labels")
    assert device.look() == f"release {first} was withdrawn; release 2 serves everybody"
    assert serves(device, anna) == "other encoder"
    assert device.run().active.number == 2


def test_a_withdrawn_release_does_not_serve_while_the_next_one_is_fetched(
    fleet, device, anna, other_head, other_encoder
):
    from refocus.cloud_train.release.stages import withdraw

    fleet.publish(other_head)
    update(device)
    assert serves(device, anna) == "other head"
    fleet.publish(other_encoder)
    assert device.look() == "release 3 is to be fetched"
    withdraw(fleet.repository, "phone", 2, "wrong labels")
    assert device.look() == "release 2 was withdrawn"
    assert serves(device, anna) == "iciia_t"
    assert device.run().active.number == 1
    assert device.look() == "release 3 is to be fetched"


# ---- what is in the way


def test_a_download_cut_at_every_tenth_goes_on_where_it_was(fleet, device, other_head):
    fleet.publish(other_head)
    device.look()
    size = other_head.artifact("head", "onnxruntime").size_bytes
    fleet.server.cut, cuts = size // 10 + 1, 0
    while device.slots.read().stage == "staging":
        try:
            device.run()
        except UpdateError as error:
            assert "resumes there" in str(error)  # noqa: PT017
            cuts += 1
    assert device.slots.read().active.number == 2
    assert cuts >= 9
    starts = [int(where[6:-1]) for path, where in fleet.server.asked if where]
    assert sum(later > 0 for later in starts) >= 9, "it began again"


def test_a_server_that_trickles_is_given_up_and_the_next_try_goes_on_where_it_was(fleet, device, other_head):
    fleet.publish(other_head)
    device.look()
    fleet.server.trickle = 0.01  # a hundred bytes a second: never half a second without one
    slots = device.slots
    slow = UpdateAgent(
        slots, device.settings, RepositoryClient(slots.folder / "metadata", fleet.server.url, slots.root, "phone", 0.5)
    )
    with pytest.raises(UpdateError, match=r"sent \d+ bytes in 1 s; the next attempt resumes there"):
        slow.run()
    with pytest.raises(UpdateError, match="cannot be reached"):
        slow.look()
    fleet.server.trickle, fleet.server.asked = 0.0, []
    assert fleet.device().run().active.number == 2
    assert any(where and int(where[6:-1]) > 0 for _, where in fleet.server.asked), "it began again"


@pytest.mark.slow
def test_a_server_without_ranges_is_as_good(fleet, device, other_head, updating):
    fleet.publish(other_head)
    device.look()
    fleet.server.cut = 100_000
    with pytest.raises(UpdateError):
        device.run()
    folder = fleet.server.folder
    fleet.server.close()
    fleet.server = updating.Server(folder, ranges=False)
    device = fleet.device()
    device.slots.change(lambda record: msgspec.structs.replace(record, url=fleet.server.url))
    assert fleet.device().run().active.number == 2


def test_a_file_that_was_changed_on_its_way_is_never_put_in_a_slot(fleet, device, other_head):
    fleet.publish(other_head)
    device.look()
    fleet.server.spoil = lambda path, content: content[:-1] + b"!" if "targets/files/" in path else content
    for _ in range(2):
        with pytest.raises(UpdateError, match="is not the file that was signed"):
            device.run()
    fleet.server.spoil = lambda path, content: content + b"more" if "targets/files/" in path else content
    assert device.run().active.number == 2, "what is sent beyond the size that was signed is not even read"


@pytest.mark.slow
def test_a_file_that_was_changed_in_staging_is_fetched_again(fleet, device, other_head):
    fleet.publish(other_head)
    device.look()
    for _ in range(8):
        device.step()
        changed = list(device.slots.folder.rglob("*.staging/manifest.json"))
        if changed:
            changed[0].write_bytes(b" " * changed[0].stat().st_size)
            break
    with pytest.raises(UpdateError, match="was changed on this device"):
        device.run()
    assert device.run().active.number == 2


def test_a_filled_disk_stops_the_update_and_not_the_device(fleet, device, anna, files, other_head, monkeypatch):
    fleet.publish(other_head)
    device.look()
    monkeypatch.setattr("refocus.edge.update.install._SPARE_BYTES", 1 << 60)
    with pytest.raises(UpdateError, match="make room"):
        device.run()
    monkeypatch.undo()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # writes beyond the limit fail as those to a full disk do
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        with pytest.raises(UpdateError, match="large.*make room"):
            device.run()
        with Serving(device.slots, device.settings, anna) as serving:
            recognise(serving, files[SEEN : SEEN + 1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert device.run().active.number == 2


def test_a_second_worker_leaves_the_work_to_the_first(fleet, device):
    with device.slots.working(), pytest.raises(UpdateError, match="another process works"):
        device.run()


# ---- who takes what, and when


def release(number, percent=100.0, withdrawn="", **changes):
    file = File(path="manifest.json", sha256=f"{number:064x}", size_bytes=1)
    what = {"programs": (Program(target="onnxruntime:fp32", min_version="1.20", feature_space="a" * 64),),
            "manifest_schema": 5, "min_refocus": "0.1.0", "published": "2026-11-22T00:00:00Z", **changes}  # fmt: skip
    given = {"number": number, "name": "x", "files": (file,), "percent": percent, "withdrawn": withdrawn, **what}
    return msgspec.convert(msgspec.to_builtins(given), Release)


def channel(*releases):
    return Channel(device_class="phone", serial=1, releases=releases)


def test_a_staged_release_reaches_its_share_of_devices_and_never_takes_one_back():
    devices = [f"device {number}" for number in range(2000)]
    taken = [{d for d in devices if wanted(channel(release(1), release(2, percent)), d, 1, False, ())}
             for percent in (1, 10, 50, 100)]  # fmt: skip
    assert taken[0] < taken[1] < taken[2] < taken[3]
    assert [len(t) for t in taken] == pytest.approx([20, 200, 1000, 2000], abs=60)
    first = {d for d in devices if bucket(d, release(3)) < 10}
    assert len(first & taken[1]) < 60, "not always the same people go first"


def test_a_device_goes_to_an_older_release_only_if_its_own_is_withdrawn():
    offered = channel(release(1), release(2), release(3, withdrawn="bad"))
    assert wanted(offered, "d", 3, False, ()) is None
    assert wanted(offered, "d", 3, True, ()).number == 2
    assert wanted(offered, "d", 3, True, {release(2).identity}).number == 1
    assert wanted(offered, "d", 0, False, ()).number == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"min_refocus": "9.0"}, "needs refocus 9.0, this is 0.1.0"),
        ({"manifest_schema": 7}, "schema 7, this refocus reads 5 to 6"),
        ({"manifest_schema": 4}, "schema 4, this refocus reads 5 to 6"),
        ({"programs": (Program(target="coreml:fp16", min_version="9", feature_space="a" * 64),)}, "no programs for"),
        ({"programs": (Program(target="onnxruntime:fp32", min_version="1.28.5", feature_space="a" * 64),)}, "1.28.5"),
    ],
)
def test_a_release_that_does_not_fit_the_device_is_not_even_fetched(changes, words):
    device = Device("d", "phone", "onnxruntime", "fp32", "1.28.0", "0.1.0")
    assert words in misfit(release(1, **changes), channel(), device)
    assert misfit(release(1), channel(), device) == ""
    assert "class" in misfit(release(1), msgspec.structs.replace(channel(), device_class="tv"), device)


def test_serving_needs_no_client_of_repositories():
    code = """
import sys
sys.modules.update(dict.fromkeys(["tuf", "urllib3", "securesystemslib"]))
from refocus.edge.update import Serving
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ---- the command


def test_the_command_updates_says_how_and_goes_back(fleet, device, anna, other_head):
    from refocus.edge.commands.update import app

    def command(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    fleet.publish(other_head)
    folder, where = device.slots.folder, ("--profiles", device.settings.profiles)
    said = command("run", folder, *where).stdout
    assert "release 2 is to be fetched" in said
    assert "trial: release 2 (other head) serves; release 1 is kept" in said
    assert "recent photos it agreed" in said
    assert json.loads(command("counts", folder).stdout)[-1]["committed"] == 1
    fleet.server.close()
    assert "cannot be reached" in str(command("run", folder, *where).exception)
    assert "release 1 (iciia_t) serves" in command("back", folder, *where).stdout
    assert "returned, the owner asked for it" in command("status", folder).stdout
    assert "no previous release" in str(command("back", folder, *where).exception)
    assert "is not set up" in str(command("status", folder / "else").exception)
    root = device.slots.folder / "root.json"
    new = ("init", folder / "new", "--root", root, "--device-class", "phone", "--url")
    assert "expected https://HOST/PATH" in str(command(*new, "file:///x").exception)
    assert command(*new, fleet.server.url).exit_code == 0
    assert "no release is installed" in command("status", folder / "new").stdout


def test_the_commands_alone_take_one_release_after_the_other(fleet, files, other_head):
    from refocus.edge.bundle.load import load_bundle
    from refocus.edge.commands.update import app

    def command(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exception is None, done.exception
        return done.stdout

    folder, profiles = fleet.slots("fresh").folder, fleet.folder / "profiles"
    of_ben = ("--profile", "ben", "--profiles", profiles)
    on_trial = "the trial ends when the release first serves: refocus update recognize, or a program that opens Serving"
    assert on_trial in command("run", folder, "--profiles", profiles)
    said = command("status", folder)
    assert on_trial in said
    (serves,) = [line.removeprefix("its bundle: ") for line in said.splitlines() if line.startswith("its bundle: ")]
    assert load_bundle(Path(serves)).manifest.name == "iciia_t"
    assert json.loads(command("status", folder, "--json"))["bundle"] == serves
    fleet.publish(other_head)
    assert "release 1 is on trial until somebody is served" in command("run", folder, "--profiles", profiles)
    rows = json.loads(command("recognize", folder, *files[:2], *of_ben, "--json"))
    assert [(row["photo"], row["release"]) for row in rows] == [(str(file), 1) for file in files[:2]]
    assert on_trial not in command("status", folder)
    assert "release 2 is to be fetched" in command("run", folder, "--profiles", profiles)
    assert command("recognize", folder, files[2], *of_ben, "--top", 1).startswith(f"{files[2]}: ")
    with FeatureHistory(profiles / "ben.history.sqlite3") as history:
        assert sum(space.count for space in history.spaces().values()) == 3


def test_a_photo_that_the_serving_release_cannot_read_is_listed_and_the_others_are_answered(device, anna, files):
    from refocus.edge.commands.update import app

    files[1].write_bytes(b"no photo")
    where = ("--profiles", device.settings.profiles, "--profile", "anna", "--json")
    done = CliRunner().invoke(app, [str(word) for word in ("recognize", device.slots.folder, *files[:3], *where)])
    rows = json.loads(done.stdout)
    assert done.exit_code == 3
    assert [(row["release"], bool(row["answer"]), row["error"] is None) for row in rows] == [
        (1, True, True),
        (None, False, False),
        (1, True, True),
    ]
    assert "1 of 3 photos could not be used" in done.stderr
    alone = CliRunner().invoke(app, [str(word) for word in ("recognize", device.slots.folder, files[1], *where)])
    assert isinstance(alone.exception, PhotoError)


ON_A_READ_ONLY_DISK = """
import sys
from pathlib import Path
from refocus.edge.update.device_state import Slots
from refocus.edge.update.loaded_releases import Settings
from refocus.edge.update.serving import Serving
folder, profile, *photos = map(Path, sys.argv[1:])
with Serving(Slots(folder), Settings(profile.parent), profile) as serving:
    print(serving.recognizer.manifest.name)
    for photo in photos:
        answer = serving.recognize(photo)
        print(len(answer.history_photos), *answer.notices)
"""


def test_a_person_who_moved_between_encoders_is_served_with_their_history_on_a_read_only_disk(
    fleet, device, anna, files, other_encoder
):
    fleet.publish(other_encoder)
    update(device)
    with Serving(device.slots, device.settings, anna) as serving:
        recognise(serving, files[SEEN : SEEN + 1])
    mount = f"mount --bind {anna.parent} {anna.parent} && mount -o remount,ro,bind {anna.parent}"
    options = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*options, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a folder")
    words = [sys.executable, "-c", ON_A_READ_ONLY_DISK, device.slots.folder, anna, *files[SEEN + 1 : SEEN + 3]]
    done = subprocess.run(
        [*options, "sh", "-c", f'{mount} && exec "$@"', "sh", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    name, *answers = done.stdout.splitlines()
    assert name == "other encoder"
    for line in answers:
        assert line.startswith(f"{SEEN + 1} the photo was not stored: "), "read, though it takes no photo"


def test_the_program_of_the_page_serves(fleet, device, anna, files, monkeypatch, tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "commands" / "update.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "device").symlink_to(device.slots.folder)
    (tmp_path / "photo.png").write_bytes(files[0].read_bytes())
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("release 1: "), done.stderr


def test_a_releases_files_are_those_of_its_bundle_alone(bundle, tmp_path):
    from refocus.edge.bundle.load import load_bundle

    shutil.copytree(bundle.folder, tmp_path / "b")
    (tmp_path / "b" / "notes.txt").write_text("mine")
    assert {file.path for file in files_of(load_bundle(tmp_path / "b"))} == {file.path for file in files_of(bundle)}


# ---- what was damaged, lost or away


def damage(device, bundle, slot):
    """One bit of the encoder of a release on this device."""
    file = device.slots.path(slot) / bundle.artifact("encoder", "onnxruntime").file
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_going_back_to_a_damaged_release_is_refused_and_it_is_fetched_again(fleet, device, anna, bundle, other_encoder):
    from refocus.cloud_train.release.stages import withdraw

    fleet.publish(other_encoder)
    update(device)
    assert serves(device, anna) == "other encoder"
    damage(device, bundle, device.slots.read().previous)
    with pytest.raises(UpdateError, match="release 1 cannot serve again: .*; the next look fetches it again"):
        device.back("it hurts")
    withdraw(fleet.repository, "phone", 2, "it hurts")
    assert device.look() == "release 1 is to be fetched"
    assert device.run().active.number == 1
    assert serves(device, anna) == "iciia_t"


def test_a_release_that_is_damaged_on_the_way_back_to_it_does_not_stop_the_device(fleet, device, anna, bundle,
                                                                                  other_encoder):  # fmt: skip
    fleet.publish(other_encoder)
    update(device)
    assert serves(device, anna) == "other encoder"
    device.back("it hurts")
    damage(device, bundle, device.slots.read().active)
    assert device.run().stage == "settled"


def test_a_kill_while_older_histories_are_erased_leaves_no_way_back_to_nothing(fleet, device, anna, other_encoder,
                                                                               updating, bundle, tmp_path, monkeypatch):  # fmt: skip
    fleet.publish(other_encoder)
    update(device)
    assert serves(device, anna) == "other encoder"
    device.run()
    fleet.publish(updating.variant(bundle, tmp_path / "third", "encoder", "third", seed=7))
    device.look()
    while device.slots.read().previous is not None:
        device.step()
    with FeatureHistory(anna) as history:
        before = history.spaces()
    device.back("killed here")
    record = device.run()
    assert (record.stage, record.active.number) == ("settled", 2)
    with FeatureHistory(anna) as history:
        assert history.count(record.active.space) == before[record.active.space].count > 0


def test_who_moved_once_and_was_away_since_moves_later_too(fleet, device, anna, other_encoder, updating, bundle,
                                                           tmp_path):  # fmt: skip
    fleet.publish(other_encoder)
    update(device)
    assert serves(device, anna) == "other encoder"
    device.run()
    anna.rename(tmp_path / "away")
    fleet.publish(updating.variant(bundle, tmp_path / "third", "encoder", "third", seed=7))
    update(device)
    device.run()
    (tmp_path / "away").rename(anna)
    serves(device, anna)  # which ends the trial
    device.run()
    record = device.slots.read()
    assert (record.active.number, device.left_out) == (3, {})
    with FeatureHistory(anna) as history:
        assert history.count(record.active.space) >= SEEN


def test_a_photo_that_the_serving_release_cannot_read_refuses_no_other(fleet, device, anna, other_head, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a photo")
    with FeatureHistory(anna) as history:
        (space,) = history.spaces()
        history.append(space, hashlib.sha256(b"not a photo").hexdigest(), np.ones(STORED, np.float32), str(broken))
    fleet.publish(other_head)
    record = update(device)
    assert (record.refused, record.active.number) == ({}, 2)


def test_links_in_a_circle_among_the_profiles_refuse_no_release(fleet, device, anna, other_head):
    loop = anna.with_name("loop.history.sqlite3")
    loop.symlink_to(loop.name)
    fleet.publish(other_head)
    record = update(device)
    assert (record.refused, record.active.number) == ({}, 2)
    with pytest.raises(HistoryError, match="check what it links to"):
        FeatureHistory(loop)


def test_a_record_with_a_flipped_bit_is_one_clear_error(device):
    path = device.slots.folder / "record.json"
    content = path.read_bytes()
    path.write_bytes(content[:30] + b"\xff" + content[31:])
    with pytest.raises(UpdateError, match=r"record\.json cannot be read"):
        device.slots.read()


def test_back_while_people_move_gives_the_coming_release_up(fleet, device, anna, other_encoder):
    fleet.publish(other_encoder)
    device.look()
    while device.slots.read().stage != "moving":
        device.step()
    device.back("it hurts")
    record = device.run()
    assert (record.stage, record.active.number, list(record.refused.values())) == ("settled", 1, ["it hurts"])


def newcomer(device, paths, name="bob"):
    """The file of a person whom the release that serves now is the first to see."""
    path = device.settings.profiles / f"{name}.history.sqlite3"
    with Serving(device.slots, device.settings, path) as serving:
        recognise(serving, paths)
    return path


def counts(profile):
    with FeatureHistory(profile) as history:
        return {space: found.count for space, found in history.spaces().items()}


@pytest.mark.parametrize("served_meanwhile", [False, True])
def test_back_takes_those_along_whom_the_newer_release_alone_has_seen(served_meanwhile, fleet, device, anna, files,
                                                                      other_encoder):  # fmt: skip
    fleet.publish(other_encoder)
    update(device)
    bob = newcomer(device, files[:3])
    device.back("it hurts")
    if served_meanwhile:
        newcomer(device, files[3:4])
        assert sorted(counts(bob).values()) == [1, 4], "it is stored for both"
    active = device.run().active
    assert (counts(bob), device.left_out) == ({active.space: 3 + served_meanwhile}, {})


def test_who_was_away_for_two_updates_of_the_encoder_is_taken_in(fleet, device, anna, files, other_encoder, updating,
                                                                 bundle, tmp_path):  # fmt: skip
    first = device.slots.read().active
    fleet.publish(other_encoder)
    update(device)
    assert serves(device, anna) == "other encoder"
    second = device.run().active
    anna.rename(tmp_path / "away")
    for seed in (7, 8):
        name = f"variant {seed}"
        fleet.publish(updating.variant(bundle, tmp_path / name, "encoder", name, seed=seed))
        update(device)
        newcomer(device, files[seed : seed + 1])
        device.run()
    (tmp_path / "away").rename(anna)
    with Serving(device.slots, device.settings, anna) as serving:
        recognise(serving, files[SEEN : SEEN + 1])
    record = device.run()
    assert (record.active.number, device.left_out) == (4, {})
    assert counts(anna) == {second.space: SEEN, record.active.space: SEEN + 1}, "an earlier history makes place"
    assert first.space not in counts(anna)
    with Serving(device.slots, device.settings, anna) as serving:
        (answer,) = recognise(serving, files[SEEN + 1 : SEEN + 2])
    assert len(answer.history_photos) == SEEN + 1
    device.back("it hurts")
    active = device.run().active
    assert (active.number, counts(anna), device.left_out) == (3, {active.space: SEEN + 2}, {})


def test_nothing_is_erased_of_a_move_of_other_bundles_whose_histories_differ(fleet, device, anna, files, other_encoder):
    first = device.slots.read().active
    fleet.publish(other_encoder)
    update(device)
    with FeatureHistory(anna) as history:  # a move of the owner's own, between models that no update brought
        (width,) = {entry.size // 4 for entry in history.entries() if entry.space == first.space}
        old = history.recall(first.space, 8, width)
        history.erase()
        for space, rows in (("mine", slice(0, 5)), ("mine too", slice(3, 8))):
            for photo, feature in zip(old.photos[rows], old.features[rows], strict=True):
                history.append(space, photo, feature)
        Migration(history, AbsentModel("mine"), AbsentModel("mine too")).adopt()
    device.run()
    assert "they stay as they are" in device.left_out[anna.name]
    assert counts(anna) == {"mine": 5, "mine too": 5}


def test_a_person_with_weights_of_their_own_is_served_and_moved_with_them(fleet, device, files, bundle, other_encoder,
                                                                          tmp_path):  # fmt: skip
    store = PersonalWeightStore(device.settings.profiles / "weights")
    own = [one.artifact("encoder", "onnxruntime") for one in (bundle, other_encoder)]
    store.put("bob", own[0].sha256, NewWeights("whole", "test", file=other_encoder.folder / own[1].file))
    for other in device.settings.profiles.glob("anna*"):
        other.unlink()  # whose originals are gone, so that the device waits for her
    device = fleet.device()
    bob = newcomer(device, files[:SEEN])
    with Recognizer(bundle, tmp_path / "bob.history.sqlite3", weights=store, threads=1) as recognizer:
        wanted, (space,) = recognise(recognizer, files[:SEEN]), [recognizer.space]
    assert counts(bob) == {space: SEEN}
    with Serving(device.slots, device.settings, bob) as serving:
        np.testing.assert_allclose(recognise(serving, files[:1])[0].logits, wanted[0].logits, atol=1e-5)
    fleet.publish(other_encoder)
    assert update(device).active.number == 2
    newcomer(device, files[SEEN : SEEN + 1])
    active = device.run().active
    assert (counts(bob), device.left_out) == ({space: SEEN, active.space: SEEN + 1}, {})
    device.back("it hurts")
    device.run()
    assert counts(bob) == {space: SEEN + 1}


def test_weights_that_are_damaged_blame_no_release(fleet, device, anna, bundle, other_head):
    store = PersonalWeightStore(device.settings.profiles / "weights")
    encoder = bundle.artifact("encoder", "onnxruntime")
    fleet.publish(other_head)
    assert update(device).stage == "trial"
    entry = store.put("anna", encoder.sha256, NewWeights("whole", "test", file=bundle.folder / encoder.file))
    entry.path.write_bytes(entry.path.read_bytes()[:-1])
    with pytest.raises(PersonalWeightsError, match="it was set aside"):
        Serving(device.slots, device.settings, anna)
    assert device.slots.read().active.number == 2
    assert serves(device, anna) == "other head"


def test_damage_that_serving_or_an_update_finds_is_told(fleet, device, anna, files, other_encoder):
    from refocus.edge.commands.update import app

    def damage_one():
        with FeatureHistory(anna) as history:
            space = device.slots.read().active.space
            feature = history.recall(space, 1, STORED).features[-1]
        content = bytearray(anna.read_bytes())
        content[content.find(feature.tobytes()) + 3] ^= 1
        anna.write_bytes(content)

    damage_one()
    fleet.publish(other_encoder)
    update(device)
    assert "the file was damaged" in device.recovered[anna.name], "the tests of a release open it first"
    damage_one()
    with Serving(device.slots, device.settings, anna) as serving:
        first, second = recognise(serving, files[SEEN : SEEN + 2])
    assert "the file was damaged" in " ".join(first.notices)
    assert second.notices == ()
    damage_one()
    words = ["run", str(device.slots.folder), "--profiles", str(device.settings.profiles), "--switch", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exception is None, done.exception
    assert "the file was damaged" in json.loads(done.stdout)["recovered"][anna.name]


def test_the_release_that_answers_is_named_while_people_move(fleet, device, anna, files, other_encoder):
    from refocus.edge.commands.update import app

    for path in files[2:SEEN]:
        path.unlink()
    fleet.publish(other_encoder)
    assert update(device).stage == "moving"
    with Serving(device.slots, device.settings, anna) as serving:
        assert (serving.release.number, serving.answering.number) == (1, 1)
        device.switch()
        assert (serving.release.number, serving.answering.number) == (1, 2)
    where = ["--profile", "anna", "--profiles", str(device.settings.profiles), "--json"]
    done = CliRunner().invoke(app, ["recognize", str(device.slots.folder), str(files[0]), *where])
    assert json.loads(done.stdout)[0]["release"] == 2


def test_a_switch_with_nobody_to_switch_is_no_error(fleet, device, anna):
    from refocus.edge.commands.update import app

    words = ["run", str(device.slots.folder), "--profiles", str(device.settings.profiles), "--switch"]
    done = CliRunner().invoke(app, words)
    assert (done.exception, done.exit_code) == (None, 0)
    assert "settled: release 1" in done.stdout
