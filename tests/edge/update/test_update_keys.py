"""Keys that change, are stolen, or belong to another repository; and what a class key can do at worst."""

from __future__ import annotations

import json
import shutil

import msgspec
import pytest
from tuf.api.metadata import Metadata, MetaFile, TargetFile

from refocus.cloud_train.release.keys import KeyRing
from refocus.cloud_train.release.repository import Repository
from refocus.cloud_train.release.stages import publish
from refocus.edge.errors import UpdateError
from refocus.edge.update.device_state import TrustedVersions, merged
from refocus.edge.update.rules import MAX_NUMBER, decode_channel, encode_channel
from tests.edge.update.updating import late, newest, rewrite, version

# ---- keys that change


@pytest.mark.parametrize("role", ["root", "targets", "snapshot", "timestamp", "phone"])
def test_a_new_key_is_followed_and_the_older_one_counts_no_longer(role, fleet, refused, metadata, keys, other_head):
    fleet.repository.rotate(role)
    fleet.publish(other_head)
    assert "release 2 is to be fetched" in fleet.device().look()
    if role == "phone":
        late(fleet, 0).put_channel(fleet.repository.channel("phone"))
        rewrite(newest(metadata, "phone"), signers=keys("phone-1"))
        refused("phone was signed by 0/1 keys")


@pytest.mark.parametrize("role", ["timestamp", "snapshot"])
def test_a_number_that_was_run_up_with_a_stolen_key_is_healed_by_a_new_key(role, fleet, metadata, keys, serves):
    """Fast-forward: without this the device could never be updated again."""
    if role == "timestamp":
        rewrite(metadata / "timestamp.json", version(10**6), keys("timestamp-1"))
    else:
        rewrite(newest(metadata, "snapshot"), version(10**6), keys("snapshot-1"), to=metadata / "1000000.snapshot.json")
        rewrite(metadata / "timestamp.json", lambda t: (version(50)(t), setattr(t, "snapshot_meta", MetaFile(10**6))),
                keys("timestamp-1"))  # fmt: skip
    assert fleet.device().look() == "up to date"
    assert fleet.device().slots.read().seen.versions[role][0] == 10**6
    # Its owner restores the repository and changes both keys.
    rewrite(metadata / "timestamp.json", lambda t: (version(3)(t), setattr(t, "snapshot_meta", MetaFile(2))),
            keys("timestamp-1"))  # fmt: skip
    for name in ("snapshot", "timestamp"):
        fleet.repository.rotate(name)
    assert fleet.device().look() == "up to date"
    assert fleet.device().slots.read().seen.versions[role][0] < 10
    serves()


def current(fleet, **changed):
    """Makes metadata that an attacker has put in the repository the current one, with all keys but the role's own."""
    fleet.repository._current({name: MetaFile(number) for name, number in changed.items()})


def restored(fleet, metadata, made):
    """The owner puts the metadata of a good day back."""
    shutil.rmtree(metadata)
    shutil.copytree(made, metadata)


@pytest.mark.parametrize("role", ["targets", "phone"])
def test_targets_whose_number_was_run_up_with_a_stolen_key_are_healed_by_new_keys(role, fleet, metadata, keys, serves,
                                                                                  other_head, tmp_path):  # fmt: skip
    good = shutil.copytree(metadata, tmp_path / "good")
    rewrite(newest(metadata, role), version(10**6), keys(f"{role}-1"), to=metadata / f"1000000.{role}.json")
    current(fleet, **{role: 10**6})
    assert fleet.device().look() == "up to date"
    assert fleet.device().slots.read().seen.versions[role][0] == 10**6
    restored(fleet, metadata, good)
    for name in (role, "snapshot", "timestamp"):
        fleet.repository.rotate(name)
    assert fleet.device().look() == "up to date"
    assert fleet.device().slots.read().seen.versions[role][0] < 10
    fleet.publish(other_head)
    assert "release 2 is to be fetched" in fleet.device().look()
    serves()


def test_a_version_that_no_device_could_remember_is_refused_with_a_typed_error(fleet, refused, metadata, keys):
    rewrite(metadata / "timestamp.json", version(2**70), keys("timestamp-1"))
    refused("has a version above", "may be stolen")


def test_release_numbers_run_up_with_a_stolen_class_key_are_healed_by_a_new_list(fleet, other_head):
    """The device took the attacker's release; the owner's list begins where it was, under a new key."""
    slots, device = fleet.device().slots, fleet.device()
    theirs = msgspec.structs.replace(slots.read().active, number=MAX_NUMBER, identity="e" * 64)
    slots.change(lambda record: msgspec.structs.replace(record, active=theirs))
    fleet.repository.rotate("phone")
    fleet.publish(other_head)
    assert device.look() == "release 2 is to be fetched"


# ---- rotation with stolen keys


def handed_over(role, signer):
    """A root or targets that gives a role to an attacker's key."""

    def change(signed):
        signed.version += 1
        for keyid in list((signed.roles if hasattr(signed, "roles") else signed.delegations.roles)[role].keyids):
            signed.revoke_key(keyid, role)
        signed.add_key(signer.public_key, role)

    return change


@pytest.fixture
def thief(tmp_path):
    return KeyRing(tmp_path / "thief").make("mine-1")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "root"])
def test_one_stolen_root_key_cannot_hand_a_role_to_its_thief(role, refused, metadata, keys, thief):
    rewrite(metadata / "1.root.json", handed_over(role, thief), [*keys("root-1"), thief],
            to=metadata / "2.root.json")  # fmt: skip
    refused("root was signed by 1/2 keys")


def test_a_stolen_class_key_cannot_hand_its_class_to_its_thief(fleet, refused, metadata, keys, thief):
    rewrite(newest(metadata, "targets"), handed_over("phone", thief), keys("phone-1"), to=metadata / "2.targets.json")
    current(fleet, targets=2)
    refused("targets was signed by 0/1 keys")


def test_stolen_keys_of_snapshot_and_timestamp_sign_no_list_of_releases(fleet, refused, metadata, keys):
    rewrite(newest(metadata, "phone"), version(3), keys("snapshot-1", "timestamp-1"), to=metadata / "3.phone.json")
    current(fleet, phone=3)
    refused("phone was signed by 0/1 keys")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_a_key_that_was_replaced_signs_nothing_any_more(role, fleet, refused, metadata, keys):
    fleet.repository.rotate(role)
    assert fleet.device().look() == "up to date"
    path = metadata / "timestamp.json" if role == "timestamp" else newest(metadata, role)
    number = Metadata.from_file(str(path)).signed.version + 1
    to = path if role == "timestamp" else metadata / f"{number}.{role}.json"
    rewrite(path, version(number), keys(f"{role}-1"), to=to)
    if role == "snapshot":
        rewrite(metadata / "timestamp.json", lambda t: (version(t.version + 1)(t), setattr(t, "snapshot_meta",
                MetaFile(number))), keys("timestamp-1"))  # fmt: skip
    elif role == "targets":
        current(fleet, targets=number)
    refused(f"{role} was signed by 0/1 keys")


def test_a_root_key_that_was_replaced_counts_no_longer(fleet, refused, metadata, keys):
    fleet.repository.rotate("root")
    assert fleet.device().look() == "up to date"
    rewrite(metadata / "2.root.json", version(3), keys("root-1", "root-2"), to=metadata / "3.root.json")
    refused("root was signed by 1/2 keys")


# ---- another repository


@pytest.fixture
def other(tmp_path, bundle):
    """A whole repository of somebody else, for the same class of devices."""
    made = Repository.create(tmp_path / "other", KeyRing(tmp_path / "other-keys"), ["phone", "jetson"])
    publish(made, bundle.folder, "phone", 100)
    return made


def test_another_repository_behind_the_same_address_is_refused(fleet, refused, other):
    fleet.server.folder = other.folder
    refused("timestamp was signed by 0/1 keys")


def test_the_root_of_another_repository_is_no_next_root(refused, metadata, other):
    theirs = KeyRing(other.keys.folder)
    rewrite(other.folder / "metadata" / "1.root.json", version(2), [theirs._read(theirs._path(f"root-{number}"))
            for number in (1, 2, 3)], to=metadata / "2.root.json")  # fmt: skip
    refused("root was signed by 0/2 keys")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "phone"])
def test_the_key_of_another_repository_signs_nothing_here(role, fleet, refused, metadata, other):
    theirs = KeyRing(other.keys.folder)
    path = metadata / "timestamp.json" if role == "timestamp" else newest(metadata, role)
    number = Metadata.from_file(str(path)).signed.version + 1
    to = path if role == "timestamp" else metadata / f"{number}.{role}.json"
    signer = theirs._read(theirs._path(f"{role}-1"))
    if role == "snapshot":
        shutil.copy(path, to)
        fleet.repository._current({})
        path = to = newest(metadata, "snapshot")
        number = Metadata.from_file(str(path)).signed.version
    rewrite(path, version(number), [signer], to=to)
    if role in ("targets", "phone"):
        current(fleet, **{role: number})
    refused(f"{role} was signed by 0/1 keys")


# ---- what the holder of a class key can do at worst


def sign_list(repository, content):
    """The list of a class whose key signs whatever bytes it is given."""
    target = TargetFile.from_data("phone/channel.json", content, ["sha256"])
    (repository.folder / "targets/phone" / f"{target.hashes['sha256']}.channel.json").write_bytes(content)
    role = repository._role("phone")
    role.signed.targets = {target.path: target}
    repository._current({"phone": repository._next(role.signed, repository._delegation_keys("phone"), "phone")})


@pytest.fixture
def channel(first_fleet):
    """The list that the fleet has published."""
    return Repository(first_fleet / "repository", KeyRing(first_fleet / "keys")).channel("phone")


def hostile(channel, change):
    """A list with a second release that was changed as plain data."""
    channel = msgspec.to_builtins(channel)
    release = {**channel["releases"][0], "number": 2, "name": "hostile"}
    release["files"] = [dict(file) for file in release["files"]]
    change(release)
    channel["releases"] = [*channel["releases"], release]
    return json.dumps(channel).encode()


def with_path(path):
    def change(release):
        release["files"].append({**release["files"][0], "path": path, "size_bytes": 3})

    return change


HOSTILE = {
    "one file under two names": with_path("./manifest.json"),
    "two files that differ in case": with_path("Manifest.json"),
    "a file below a file": with_path("manifest.json/x"),
    "the folder itself": with_path("."),
    "a file where others have a folder": with_path("self-test"),
    "a part of a download": with_path("manifest.json.part"),
    "a number beyond all": lambda release: release.update(number=2**70),
    "a number beyond what a device counts": lambda release: release.update(number=MAX_NUMBER + 1),
    "a size beyond all": lambda release: release["files"][0].update(size_bytes=2**62),
    "a name that writes to the terminal": lambda release: release.update(name="\x1b]0;owned\x07\x1b[2J"),
    "a reason that writes to the terminal": lambda release: release.update(withdrawn="\x1b[2J\r\nall is well"),
    "a name without end": lambda release: release.update(name="n" * 10**5),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_list_of_a_class_key_is_refused_with_one_plain_line(what, channel):
    with pytest.raises(UpdateError, match="holds no releases that this refocus can read") as error:
        decode_channel(hostile(channel, HOSTILE[what]), "here")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "what", ["one file under two names", pytest.param("the folder itself", marks=pytest.mark.slow)]
)
def test_a_device_that_is_shown_a_hostile_list_goes_on_as_before(what, fleet, refused):
    sign_list(fleet.repository, hostile(fleet.repository.channel("phone"), HOSTILE[what]))
    refused("holds no releases that this refocus can read")


def test_text_of_a_release_that_reaches_the_record_is_printable(fleet, other_head):
    device = fleet.device()
    fleet.publish(other_head)
    device.look()
    device.give_up("it fails: \x1b[2J\n" + "x" * 10**6)
    why = device.slots.read().outcomes[-1].why
    assert why.isprintable()
    assert len(why) <= 500


def test_a_list_that_was_good_still_is(channel):
    """The bounds refuse nothing that publishers make."""
    assert any(file.path.startswith("self-test/") for file in channel.releases[0].files)
    assert decode_channel(encode_channel(channel), "here") == channel


# ---- two looks at once


def test_a_look_that_ends_late_does_not_lower_the_rollback_floor(fleet):
    """The other one knew newer metadata, and wrote what it had seen while this one was still fetching."""
    device = fleet.device()
    source, slots = device._repository, device.slots
    newer = {}

    class Late:
        def refresh(self, seen):
            channel, found = source.refresh(seen)
            newer.update({role: (number + 7, key) for role, (number, key) in found.versions.items()})
            slots.change(lambda record: msgspec.structs.replace(record, seen=TrustedVersions(newer, found.clock)))
            return channel, found

    device._repository = Late()
    device.look()
    assert slots.read().seen.versions == newer


def test_a_second_look_leaves_the_first_alone(fleet):
    with fleet.device().slots.looking(), pytest.raises(UpdateError, match="another process looks for releases"):
        fleet.device().look()


def test_of_two_keys_the_one_that_a_newer_root_names_counts():
    old = TrustedVersions({"root": (1, ""), "targets": (1, "a"), "timestamp": (9, "old")})
    new = TrustedVersions({"root": (2, ""), "targets": (1, "a"), "timestamp": (3, "new")})
    assert merged(old, new).versions == merged(new, old).versions == new.versions
