"""Releases are signed, offered in stages, stopped and withdrawn; a publisher that is killed leaves the state before."""

from __future__ import annotations

import math
import shutil
from datetime import datetime, timedelta, timezone

import msgspec
import numpy as np
import pytest
from tuf.api.metadata import Metadata
from typer.testing import CliRunner

from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.release import repository as repository_module
from refocus.cloud_train.release.keys import KeyRing
from refocus.cloud_train.release.repository import EXPIRES, Repository
from refocus.cloud_train.release.stages import (
    StopRule,
    evaluate_reports,
    least_share,
    promote,
    publish,
    read_reports,
    wilson,
    withdraw,
)
from refocus.edge.bundle.load import write_manifest
from refocus.edge.errors import UpdateError
from refocus.edge.update.device_state import TrustedVersions
from refocus.edge.update.repository import RepositoryClient
from refocus.edge.update.rules import Report


@pytest.fixture(scope="module")
def made(bundle, tmp_path_factory):
    """A repository with one release for a tenth of the devices."""
    folder = tmp_path_factory.mktemp("release")
    created = Repository.create(folder / "repository", KeyRing(folder / "keys"), ["phone"])
    publish(created, bundle.folder, "phone", 10)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "made")


@pytest.fixture
def repository(folder):
    return Repository(folder / "repository", KeyRing(folder / "keys"))


def first(repository):
    return repository.channel("phone").releases[0]


def seen_by_a_device(repository, updating, tmp_path, name="device"):
    """What a device that starts from the first root is shown over HTTP."""
    server = updating.Server(repository.folder)
    try:
        return RepositoryClient(tmp_path / name, server.url, repository.first_root, "phone").refresh(TrustedVersions())[
            0
        ]
    finally:
        server.close()


def test_keys_are_for_their_owner_alone_and_never_overwritten(folder):
    keys = folder / "keys"
    assert {path.stat().st_mode & 0o777 for path in keys.glob("*.pem")} == {0o600}
    names = {path.stem for path in keys.glob("*.pem")}
    assert names == {"root-1", "root-2", "root-3", "targets-1", "snapshot-1", "timestamp-1", "phone-1"}
    with pytest.raises(ReleaseError, match="already has root-1"):
        KeyRing(keys).make("root-1")


def test_publishing_needs_neither_the_root_keys_nor_that_of_targets(folder, repository):
    for name in ("root-1", "root-2", "root-3", "targets-1"):
        (folder / "keys" / f"{name}.pem").unlink()
    assert promote(repository, "phone", 1, 50).verdict == "go"
    with pytest.raises(ReleaseError, match="root must be signed by 2 of its keys, 0 are here"):
        repository.rotate("timestamp")
    (folder / "keys" / "phone-1.pem").unlink()
    with pytest.raises(ReleaseError, match="no key of the class phone"):
        promote(repository, "phone", 1, 60)


def test_an_oldest_version_that_is_none_is_refused(bundle, repository):
    for word in ("", "newest", "v1", "1.2.3.4", "1."):
        with pytest.raises(ReleaseError, match=rf"--min-refocus {word}: expected a version"):
            publish(repository, bundle.folder, "phone", 1, word)


def test_a_lost_root_key_is_replaced_by_the_other_two(folder, repository, updating, tmp_path):
    (folder / "keys" / "root-2.pem").unlink()
    assert repository.rotate("root") == "root-2"
    assert seen_by_a_device(repository, updating, tmp_path).serial == 2
    for name in ("root-1", "root-3"):
        (folder / "keys" / f"{name}.pem").unlink()
    with pytest.raises(ReleaseError, match="1 are here"):
        repository.rotate("root")


def test_a_bundle_that_failed_parity_or_was_made_for_one_person_is_not_released(repository, bundle, tmp_path):
    shutil.copytree(bundle.folder, tmp_path / "b")
    bad = [msgspec.structs.replace(a, parity=msgspec.structs.replace(a.parity, passed=False))
           for a in bundle.manifest.artifacts]  # fmt: skip
    write_manifest(tmp_path / "b", msgspec.structs.replace(bundle.manifest, artifacts=tuple(bad)))
    with pytest.raises(ReleaseError, match="only what passed parity is released"):
        publish(repository, tmp_path / "b", "phone")
    with pytest.raises(ReleaseError, match="is release 1 of phone already"):
        publish(repository, bundle.folder, "phone")
    with pytest.raises(ReleaseError, match="has no device class tv; it has phone"):
        publish(repository, bundle.folder, "tv")


def test_a_release_is_offered_to_more_devices_never_to_fewer(repository):
    assert promote(repository, "phone", 1, 50).verdict == "go"
    with pytest.raises(ReleaseError, match="offered to 50.0 % already"):
        promote(repository, "phone", 1, 20)
    with pytest.raises(ReleaseError, match="has releases 1"):
        promote(repository, "phone", 7, 60)
    withdraw(repository, "phone", 1, "wrong labels")
    with pytest.raises(ReleaseError, match=r"is withdrawn \(wrong labels\)"):
        promote(repository, "phone", 1, 60)
    with pytest.raises(ReleaseError, match="--why is empty"):
        withdraw(repository, "phone", 1, " ")


@pytest.mark.parametrize(
    ("committed", "lost", "verdict"),
    [(0, 0, "wait"), (10, 0, "wait"), (400, 1, "go"), (100, 2, "wait"), (100, 20, "stop"), (3, 3, "stop")],
)
def test_the_stop_rule_goes_waits_or_stops(committed, lost, verdict, repository):
    rows = [Report(identity=first(repository).identity, committed=committed, returned=lost),
            Report(identity="f" * 64, returned=10**6)]  # fmt: skip
    assert evaluate_reports(first(repository), rows, StopRule()).verdict == verdict


def test_a_release_at_the_limit_is_seldom_stopped_however_often_the_rule_is_asked(repository):
    """Asked at each report of 200: the fewest bad reports that stop are looked up once for each number of reports."""
    release, rule, reports = first(repository), StopRule(), 200

    def stops(bad, total):
        rows = [Report(identity=release.identity, committed=total - bad, returned=bad)]
        return evaluate_reports(release, rows, rule).verdict == "stop"

    fewest = [next((bad for bad in range(n + 1) if stops(bad, n)), n + 1) for n in range(1, reports + 1)]
    rng = np.random.default_rng(0)

    def stopped(share, by):
        bad = np.cumsum(rng.random((4000, by)) < share, axis=1)
        return (bad >= fewest[:by]).any(axis=1).mean()

    assert stopped(rule.returned, reports) < 0.025
    assert stopped(rule.returned / 2, reports) < 0.005
    assert stopped(0.2, 24) > 0.5
    assert stopped(0.2, 48) > 0.9


@pytest.mark.parametrize(("bad", "total"), [(1, 4), (3, 8), (20, 128), (16, 16), (110, 4096)])
def test_the_least_share_is_the_exact_one_of_its_level(bad, total):
    """Under it, so many bad reports or more are as likely as the level of their doubling says."""
    rule = StopRule()
    share = least_share(bad, total, rule)
    fewer = sum(
        math.exp(math.log(math.comb(total, k)) + k * math.log(share) + (total - k) * math.log1p(-share))
        for k in range(bad)
    )
    level = rule.false_stops * (total / (total + rule.devices) - total / (total + 2 * rule.devices))
    assert 1 - fewer == pytest.approx(level, rel=1e-4)
    if bad < total:
        assert least_share(bad, total - 1, rule) == share, "the report that is to come counts as kept"


def test_the_stop_rule_says_what_it_waits_for(repository):
    def why(committed):
        return evaluate_reports(
            first(repository), [Report(identity=first(repository).identity, committed=committed)], StopRule()
        ).why

    assert "at least 50 reports are wanted" in why(49)
    assert "more reports are needed" in why(60)


def test_a_release_that_must_stop_is_withdrawn_by_whoever_wanted_to_promote_it(repository):
    rows = [Report(identity=first(repository).identity, committed=100, refused=20)]
    verdict = promote(repository, "phone", 1, 50, rows, StopRule())
    assert verdict.verdict == "stop"
    assert "20 of 120 devices did not keep release 1" in first(repository).withdrawn
    assert wilson(0, 0, 1.96) == (0.0, 1.0)


def test_reports_that_are_none_are_refused(tmp_path):
    (tmp_path / "r.json").write_text('[{"identity": "x", "photos": 3}]')
    with pytest.raises(ReleaseError, match="expected a JSON list of counts"):
        read_reports(tmp_path / "r.json")


def test_a_publisher_killed_at_any_write_leaves_the_state_before(folder, repository, updating, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    write, moments = repository_module.write_durably, 0
    while True:
        left = [moments]

        def dying(path, content, left=left):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            write(path, content)

        monkeypatch.setattr(repository_module, "write_durably", dying)
        try:
            withdraw(repository, "phone", 1, "wrong labels")
        except Killed:
            monkeypatch.setattr(repository_module, "write_durably", write)
            assert seen_by_a_device(repository, updating, tmp_path, f"device {moments}").releases[0].withdrawn == ""
            moments += 1
        else:
            break
    assert moments == 4, "the list, its role, snapshot, timestamp"
    assert seen_by_a_device(repository, updating, tmp_path).releases[0].withdrawn == "wrong labels"


def test_a_key_is_not_rotated_where_others_that_must_sign_are_missing(folder, repository, updating, tmp_path):
    (folder / "keys" / "snapshot-1.pem").rename(folder / "snapshot-1.pem")
    before = {path.name for path in [*repository.folder.rglob("*"), *(folder / "keys").iterdir()]}
    for role in ("targets", "timestamp", "root", "phone"):
        with pytest.raises(ReleaseError, match="snapshot must be signed by 1 of its keys, 0 are here"):
            repository.rotate(role)
    assert {path.name for path in [*repository.folder.rglob("*"), *(folder / "keys").iterdir()]} == before
    assert repository.rotate("snapshot") == "snapshot-1", "the one that is missing is replaced"
    assert seen_by_a_device(repository, updating, tmp_path).serial == 2


@pytest.mark.parametrize("role", ["targets", "snapshot", "timestamp", "root"])
def test_a_rotation_killed_behind_the_new_root_is_ended_by_the_next_renewal(role, repository, updating, tmp_path,
                                                                         monkeypatch):  # fmt: skip
    write = repository_module.write_durably

    def dying(path, content):
        write(path, content)
        if path.name.endswith(".root.json"):
            raise KeyboardInterrupt

    monkeypatch.setattr(repository_module, "write_durably", dying)
    with pytest.raises(KeyboardInterrupt):
        repository.rotate(role)
    monkeypatch.undo()
    assert repository.renew() == []
    assert seen_by_a_device(repository, updating, tmp_path).serial == 2


def test_what_expires_is_signed_again_in_time(folder, repository):
    before = repository.expiries()
    later = Repository(repository.folder, repository.keys, lambda: datetime.now(timezone.utc) + timedelta(days=60))
    assert later.renew() == []
    after = later.expiries()
    assert after["phone"] > before["phone"]
    assert after["timestamp"] - before["timestamp"] >= timedelta(days=59)
    assert after["root"] == before["root"]
    much_later = Repository(repository.folder, KeyRing(folder / "none"), later._now)
    with pytest.raises(ReleaseError, match="snapshot must be signed by 1 of its keys, 0 are here"):
        much_later.renew()
    for name in ("root-1", "root-2", "targets-1"):
        (folder / "keys" / f"{name}.pem").unlink()
    far = Repository(repository.folder, repository.keys, lambda: datetime.now(timezone.utc) + timedelta(days=300))
    assert far.renew() == ["targets", "root"]
    assert EXPIRES["timestamp"] < EXPIRES["snapshot"] < EXPIRES["class"]


def test_a_repository_without_sense_is_refused(tmp_path, folder):
    with pytest.raises(ReleaseError, match="is not a repository; run refocus release init first"):
        Repository(tmp_path, KeyRing(tmp_path))
    with pytest.raises(ReleaseError, match="expected at least 2 keys"):
        Repository.create(tmp_path / "r", KeyRing(tmp_path / "k"), ["phone"], root_keys=1)
    with pytest.raises(ReleaseError, match="already is a repository"):
        Repository.create(folder / "repository", KeyRing(tmp_path / "k"), ["phone"])


@pytest.mark.parametrize(
    "name", ["Phone 7", "pho*", "a/b", "", "-a", "a" * 33, "phone\n", "root", "targets", "snapshot", "timestamp"]
)
def test_a_class_that_no_device_could_read_is_refused_before_anything_is_made(name, tmp_path):
    with pytest.raises(ReleaseError, match="--device-class"):
        Repository.create(tmp_path / "r", KeyRing(tmp_path / "k"), ["phone", name])
    assert list(tmp_path.iterdir()) == []


def test_a_list_that_no_device_could_read_is_never_signed(tmp_path):
    repository = Repository.create(tmp_path / "r", KeyRing(tmp_path / "k"), ["phone"])
    before = {path: path.read_bytes() for path in repository.folder.rglob("*.json")}
    with pytest.raises(UpdateError, match="the new phone/channel.json holds no releases that this refocus can read"):
        repository.put_channel(msgspec.structs.replace(repository.channel("phone"), serial=0))
    with pytest.raises(ReleaseError, match="--device-class 'Phone 7': expected 1 to 32 lower-case letters"):
        repository.put_channel(msgspec.structs.replace(repository.channel("phone"), device_class="Phone 7"))
    assert {path: path.read_bytes() for path in repository.folder.rglob("*.json")} == before


def test_a_repository_that_could_not_be_made_is_made_by_the_next_call(tmp_path, monkeypatch):
    """Whichever write failed, of keys or of metadata; keys that were there before stay."""
    folder, keys = tmp_path / "r", KeyRing(tmp_path / "k")
    KeyRing(keys.folder).make("tv-1")
    with pytest.raises(ReleaseError, match="already has tv-1; choose an empty folder"):
        Repository.create(folder, keys, ["phone", "tv"])
    assert [path.name for path in keys.folder.iterdir()] == ["tv-1.pem"]
    write, moments = repository_module.write_durably, 0
    while True:
        left = [moments]

        def failing(path, content, left=left):
            if left[0] == 0:
                raise OSError("the disk is full")
            left[0] -= 1
            write(path, content)

        monkeypatch.setattr(repository_module, "write_durably", failing)
        try:
            Repository.create(folder, keys, ["phone"])
        except OSError:
            moments += 1
        else:
            break
    monkeypatch.undo()
    assert moments == 5, "root, targets, class, snapshot, timestamp"
    assert Repository(folder, keys).classes() == ["phone"]
    with pytest.raises(ReleaseError, match="already is a repository"):
        Repository.create(folder, KeyRing(tmp_path / "others"), ["phone"])
    (folder / "metadata" / "timestamp.json").unlink()
    Repository.create(folder, KeyRing(tmp_path / "others"), ["phone"])  # as after a call that was killed


def test_a_repository_in_use_is_not_made_again_where_its_timestamp_is_gone(tmp_path):
    Repository.create(tmp_path / "r", KeyRing(tmp_path / "k"), ["phone"]).renew()
    (tmp_path / "r" / "metadata" / "timestamp.json").unlink()
    with pytest.raises(ReleaseError, match="already is a repository"):
        Repository.create(tmp_path / "r", KeyRing(tmp_path / "others"), ["phone"])


def test_a_key_that_could_not_be_written_is_not_there(tmp_path, monkeypatch):
    from refocus.cloud_train.release import keys as keys_module

    def failing(descriptor):
        raise OSError("the disk is full")

    monkeypatch.setattr(keys_module.os, "fsync", failing)
    with pytest.raises(OSError, match="the disk is full"):
        KeyRing(tmp_path).make("root-1")
    monkeypatch.undo()
    KeyRing(tmp_path).make("root-1")


def test_the_commands_make_offer_and_take_back(bundle, tmp_path):
    from refocus.cloud_train.commands.release import app

    def command(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    place, keys = tmp_path / "r", ("--keys", tmp_path / "k")
    assert command("init", place, *keys, "--device-class", "phone").exit_code == 0
    said = command("publish", place, bundle.folder, *keys, "--device-class", "phone", "--percent", "5")
    assert "release 1 of phone: iciia_t, for 5 % of the devices" in said.stdout
    number = (*keys, "--device-class", "phone", "--number", "1")
    assert "--without-reports" in str(command("promote", place, *number, "--percent", "50").exception)
    assert command("promote", place, *number, "--percent", "50", "--without-reports").exit_code == 0
    assert command("withdraw", place, *number, "--why", "slow").exit_code == 0
    assert "withdrawn: slow" in command("list", place).stdout
    assert "timestamp: until" in command("renew", place, *keys).stdout
    assert "phone-2.pem" in command("rotate", place, *keys, "--role", "phone").stdout
    assert Metadata.from_file(str(place / "metadata" / "1.root.json")).signed.roles["root"].threshold == 2
