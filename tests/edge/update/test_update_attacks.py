"""Attacks on the way of a release to a device: refused or recovered, and the device keeps recognising throughout.

Most are those of python-tuf's tests of the update of top-level roles, here against a real repository behind a web
server: whoever attacks can change every file of the repository and every answer of the server, has some keys or none,
and may have reached into the device's cache.
"""

from __future__ import annotations

import shutil
from datetime import timedelta

import msgspec
import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, MetaFile, TargetFile

from refocus.cloud_train.release.repository import EXPIRES
from refocus.cloud_train.release.stages import publish
from refocus.edge.errors import UpdateError
from refocus.edge.update.rules import encode_channel
from tests.edge.update.updating import NOW, copy_of, expired, late, newest, rewrite, version

# ---- root


def test_a_root_without_signatures_is_refused(refused, metadata):
    rewrite(metadata / "1.root.json", version(2), to=metadata / "2.root.json")
    refused("root was signed by 0/2 keys")


def test_a_root_signed_by_one_of_two_is_refused(refused, metadata, keys):
    rewrite(metadata / "1.root.json", version(2), keys("root-1"), to=metadata / "2.root.json")
    refused("root was signed by 1/2 keys")


def test_one_root_key_that_signs_twice_counts_once(refused, metadata, keys):
    rewrite(metadata / "1.root.json", version(2), keys("root-1", "root-1"), to=metadata / "2.root.json")
    refused("root was signed by 1/2 keys")


def test_a_root_signed_by_strangers_is_refused(refused, metadata):
    strangers = [CryptoSigner.generate_ed25519() for _ in range(2)]

    def change(root):
        root.version = 2
        for keyid in list(root.roles["root"].keyids):
            root.revoke_key(keyid, "root")
        for signer in strangers:
            root.add_key(signer.public_key, "root")

    rewrite(metadata / "1.root.json", change, strangers, to=metadata / "2.root.json")
    refused("root was signed by 0/2 keys")


def test_a_root_that_lowers_its_own_threshold_must_still_satisfy_the_older_one(refused, metadata, keys):
    def change(root):
        root.version, root.roles["root"].threshold = 2, 1

    rewrite(metadata / "1.root.json", change, keys("root-2"), to=metadata / "2.root.json")
    refused("root was signed by 1/2 keys")


def test_a_root_that_skips_a_version_is_refused(refused, metadata, keys):
    rewrite(metadata / "1.root.json", version(3), keys("root-1", "root-2"), to=metadata / "2.root.json")
    refused("Expected root version 2")


def test_an_old_root_under_a_new_number_is_refused(refused, metadata):
    shutil.copy(metadata / "1.root.json", metadata / "2.root.json")
    refused("Expected root version 2")


def test_an_expired_root_is_refused(refused, metadata, keys):
    def change(root):
        root.version = 2
        expired(root)

    rewrite(metadata / "1.root.json", change, keys("root-1", "root-2"), to=metadata / "2.root.json")
    refused("root.json is expired", "sign it again")


def test_an_expired_root_on_the_way_to_a_good_one_is_no_obstacle(fleet, metadata, keys, other_head):
    def change(root):
        root.version = 2
        expired(root)

    rewrite(metadata / "1.root.json", change, keys("root-1", "root-2"), to=metadata / "2.root.json")
    rewrite(metadata / "1.root.json", version(3), keys("root-1", "root-2"), to=metadata / "3.root.json")
    assert fleet.device().look() == "up to date"


def test_a_root_that_is_no_metadata_is_refused(refused, metadata):
    (metadata / "2.root.json").write_bytes(b"{}")
    refused("cannot be trusted")


# ---- timestamp


def test_a_timestamp_without_signature_is_refused(refused, metadata):
    rewrite(metadata / "timestamp.json", version(9))
    refused("timestamp was signed by 0/1 keys")


def test_a_timestamp_signed_by_the_key_of_the_snapshot_is_refused(refused, metadata, keys):
    rewrite(metadata / "timestamp.json", version(9), keys("snapshot-1"))
    refused("timestamp was signed by 0/1 keys")


def test_an_old_timestamp_is_refused(fleet, refused, metadata, other_head):
    old = (metadata / "timestamp.json").read_bytes()
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    fleet.device().look()
    (metadata / "timestamp.json").write_bytes(old)
    refused("cannot be trusted", "timestamp")


def test_a_timestamp_of_the_same_version_changes_nothing(fleet, serves):
    assert fleet.device().look() == "up to date"
    assert fleet.device().look() == "up to date"
    serves()


def test_a_timestamp_that_names_an_older_snapshot_is_refused(refused, metadata, keys):
    def change(timestamp):
        timestamp.version, timestamp.snapshot_meta = 9, MetaFile(1)

    rewrite(metadata / "timestamp.json", change, keys("timestamp-1"))
    refused("snapshot version must be >= 2")


def test_an_expired_timestamp_is_refused_so_nobody_can_freeze_a_device(fleet, refused):
    late(fleet, EXPIRES["timestamp"] + 1).put_channel(fleet.repository.channel("phone"))
    refused("timestamp.json is expired", "clock")


def test_an_expired_timestamp_still_counts_against_a_rollback(fleet, refused, metadata):
    old = (metadata / "timestamp.json").read_bytes()
    late(fleet, EXPIRES["timestamp"] + 1).put_channel(fleet.repository.channel("phone"))
    # The device had fetched it while it was good.
    shutil.copy(metadata / "timestamp.json", fleet.device().slots.folder / "metadata" / "timestamp.json")
    refused("is expired")
    (metadata / "timestamp.json").write_bytes(old)
    refused("cannot be trusted")


def test_a_timestamp_that_never_ends_is_cut_off(fleet, refused):
    fleet.server.spoil = lambda path, content: b" " * (1 << 20) if path.endswith("timestamp.json") else content
    refused("cannot be reached")


# ---- snapshot


def test_a_snapshot_without_signature_is_refused(fleet, refused, metadata):
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "snapshot"))
    refused("snapshot was signed by 0/1 keys")


def test_a_snapshot_of_another_version_than_announced_is_refused(fleet, refused, metadata, keys):
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "snapshot"), version(77), keys("snapshot-1"))
    refused("Expected snapshot version 3, got 77")


def test_a_snapshot_that_names_an_older_list_of_releases_is_refused(fleet, refused, metadata, keys):
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "snapshot"), lambda s: s.meta.update({"phone.json": MetaFile(1)}), keys("snapshot-1"))
    refused("Expected phone.json version 1, got 2")


def test_a_snapshot_that_forgets_a_role_is_refused(fleet, refused, metadata, keys):
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "snapshot"), lambda s: s.meta.pop("phone.json"), keys("snapshot-1"))
    refused("phone")


def test_an_expired_snapshot_is_refused(fleet, refused, metadata, keys):
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "snapshot"), expired, keys("snapshot-1"))
    refused("snapshot.json is expired")


def test_an_expired_snapshot_still_counts_against_a_rollback(fleet, refused, metadata, keys):
    old = copy_of(metadata, fleet.folder / "old")
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "snapshot"), expired, keys("snapshot-1"))
    refused("is expired")
    rewrite(old / "timestamp.json", version(99), keys("timestamp-1"), to=metadata / "timestamp.json")
    refused("snapshot version must be")


# ---- targets and the list of releases


def test_targets_without_signature_are_refused(fleet, refused, metadata, keys):
    fleet.repository.rotate("phone")
    rewrite(newest(metadata, "targets"))
    refused("targets was signed by 0/1 keys")


def test_targets_of_another_version_than_announced_are_refused(fleet, refused, metadata, keys):
    fleet.repository.rotate("phone")
    rewrite(newest(metadata, "targets"), version(55), keys("targets-1"))
    refused("Expected targets v2, got v55")


def test_expired_targets_are_refused(fleet, refused, metadata, keys):
    fleet.repository.rotate("phone")
    rewrite(newest(metadata, "targets"), expired, keys("targets-1"))
    refused("targets is expired")


def test_a_list_of_releases_without_signature_is_refused(fleet, refused, metadata):
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "phone"))
    refused("phone was signed by 0/1 keys")


def test_the_key_of_one_device_class_signs_nothing_for_another(fleet, refused, metadata, keys):
    """With stolen keys of snapshot and timestamp too."""
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "phone"), signers=keys("jetson-1", "snapshot-1", "timestamp-1"))
    refused("phone was signed by 0/1 keys")


def test_an_old_list_of_releases_under_a_new_number_is_refused(fleet, refused, metadata):
    old = newest(metadata, "phone").read_bytes()
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    newest(metadata, "phone").write_bytes(old)
    refused("Expected phone v3, got v2")


def test_an_expired_list_of_releases_is_refused(fleet, refused, metadata, keys):
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    rewrite(newest(metadata, "phone"), expired, keys("phone-1"))
    refused("phone is expired")


def test_a_class_cannot_speak_for_another_in_its_own_list(fleet, bundle, refused, metadata, keys):
    """A path outside of what was delegated is not even looked for."""
    publish(fleet.repository, bundle.folder, "jetson", 100)
    target = next(iter(Metadata.from_file(str(newest(metadata, "jetson"))).signed.targets.values()))

    def change(signed):
        signed.version += 1
        signed.targets = {"phone/channel.json": TargetFile(target.length, target.hashes, "phone/channel.json")}

    repository = fleet.repository
    rewrite(newest(metadata, "jetson"), change, keys("jetson-1"), to=metadata / "3.jetson.json")
    repository._current({"jetson": MetaFile(3)})
    assert fleet.device().look() == "up to date"
    assert "jetson" not in {path.split(".")[-2] for path, _ in fleet.server.asked if path.endswith(".json")}


def test_a_list_that_was_changed_by_one_bit_is_refused(fleet, refused):
    late(fleet, 0).put_channel(msgspec.structs.replace(fleet.repository.channel("phone"), serial=77))

    def flip(path, content):
        return bytes([content[0] ^ 1]) + content[1:] if path.endswith("channel.json") else content

    fleet.server.spoil = flip
    refused("cannot be trusted")


def test_a_list_for_another_class_is_refused_although_it_is_signed(fleet, refused):
    """Whoever signs may mix up files."""
    repository = fleet.repository
    wrong = encode_channel(msgspec.structs.replace(repository.channel("phone"), device_class="jetson", serial=9))
    target = TargetFile.from_data("phone/channel.json", wrong, ["sha256"])
    folder = repository.folder / "targets" / "phone"
    (folder / f"{target.hashes['sha256']}.channel.json").write_bytes(wrong)
    role = repository._role("phone")
    role.signed.targets = {target.path: target}
    repository._current({"phone": repository._next(role.signed, repository._delegation_keys("phone"), "phone")})
    refused("for the class jetson, not phone")


def test_a_list_of_a_newer_refocus_is_refused_with_what_to_do(fleet, refused):
    repository = fleet.repository
    content = encode_channel(repository.channel("phone")).replace(b'"schema_version":2', b'"schema_version":3')
    target = TargetFile.from_data("phone/channel.json", content, ["sha256"])
    (repository.folder / "targets/phone" / f"{target.hashes['sha256']}.channel.json").write_bytes(content)
    role = repository._role("phone")
    role.signed.targets = {target.path: target}
    repository._current({"phone": repository._next(role.signed, repository._delegation_keys("phone"), "phone")})
    refused("update refocus")


# ---- the device's own cache and clock


def test_a_replay_after_the_cache_was_wiped_is_refused(fleet, refused, metadata):
    old = copy_of(fleet.folder / "repository", fleet.folder / "old")
    late(fleet, 0).put_channel(fleet.repository.channel("phone"))
    fleet.device().look()
    shutil.rmtree(fleet.device().slots.folder / "metadata")
    fleet.server.folder = old
    refused("an old state is being replayed")


@pytest.mark.parametrize("name", ["timestamp.json", "snapshot.json", "targets.json", "phone.json", "root.json",
                                  "root_history/1.root.json"])  # fmt: skip
@pytest.mark.parametrize("content", [b"", b"{}", None], ids=["empty", "nonsense", "gone"])
def test_a_damaged_cache_is_fetched_again(name, content, fleet):
    path = fleet.device().slots.folder / "metadata" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert fleet.device().look() == "up to date"


def test_what_a_kill_left_in_the_cache_is_removed(fleet):
    left = fleet.device().slots.folder / "metadata" / "tmpabc"
    left.write_bytes(b"half")
    fleet.device().look()
    assert not left.exists()


def test_a_clock_that_was_set_back_does_not_make_expired_metadata_good(fleet, refused):
    """The device knows of a later time than its clock shows: by that, the timestamp has expired."""
    device = fleet.device()
    later = NOW + timedelta(days=EXPIRES["timestamp"] + 1)
    device.slots.change(lambda r: msgspec.structs.replace(r, seen=msgspec.structs.replace(r.seen, clock=later)))
    refused("timestamp expired", "clock was set back")


def test_a_wrong_clock_heals_with_the_next_signature(fleet):
    device = fleet.device()
    later = NOW + timedelta(days=3)
    device.slots.change(lambda r: msgspec.structs.replace(r, seen=msgspec.structs.replace(r.seen, clock=later)))
    assert device.look() == "up to date"
    assert device.slots.read().seen.clock == later


# ---- no repository at all


def test_offline_the_device_serves_on(fleet, serves):
    fleet.server.close()
    with pytest.raises(UpdateError, match="cannot be reached"):
        fleet.device().look()
    serves()


def test_an_empty_server_changes_nothing(fleet, refused):
    fleet.server.spoil = lambda path, content: None
    refused("cannot be reached")


def test_a_class_that_the_repository_does_not_know_is_named(fleet):
    slots = fleet.slots("stranger", "tv")
    from refocus.edge.update.agent import UpdateAgent
    from refocus.edge.update.repository import RepositoryClient

    source = RepositoryClient(slots.folder / "metadata", fleet.server.url, slots.root, "tv")
    with pytest.raises(UpdateError, match="nothing for devices of the class tv"):
        UpdateAgent(slots, fleet.settings("stranger"), source).look()
