"""A TUF repository in a folder, to be served by any web server or copied to an object store.

Roles: root (several keys, two of which must sign) says who may sign what; targets hands each device class to a key of
its own; snapshot and timestamp say what is current, and expire soon. Everything that is signed is written under a new
name first and ``timestamp.json`` last, by one rename: a publisher that is killed leaves the state before. A new root
alone counts as soon as it is there: ``renew`` ends what was killed behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import UnsignedMetadataError
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Root,
    Snapshot,
    TargetFile,
    Targets,
    Timestamp,
)

from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.locks import one_at_a_time
from refocus.cloud_train.release.keys import KeyRing
from refocus.edge.files import file_sha256, write_durably
from refocus.edge.update import CHANNEL, Channel, ClassName, blob_path, check_whole, decode_channel, encode_channel

# Days until what a role signs expires. A device refuses what has expired, so the last two bound how long somebody in
# between can hide a release from it; the first three bound how long a stolen key that nobody noticed is of use.
EXPIRES = {"root": 365, "targets": 180, "class": 90, "snapshot": 14, "timestamp": 7}
ROOT_THRESHOLD = 2
TOP_ROLES = ("root", "targets", "snapshot", "timestamp")  # TUF's own: no device class has one of these names
Signed = TypeVar("Signed", Root, Targets, Snapshot, Timestamp)


class Repository:
    """One folder with ``metadata/`` and ``targets/``.

    Args:
        folder: of the repository.
        keys: those that are at hand.
        now: the time that expiries are counted from.

    Raises:
        ReleaseError: there is no repository.
    """

    def __init__(self, folder: Path, keys: KeyRing, now: Callable[[], datetime] | None = None) -> None:
        self.folder, self.keys = folder, keys
        self._now = now or (lambda: datetime.now(timezone.utc))
        self._metadata, self._targets = folder / "metadata", folder / "targets"
        if not (self._metadata / "timestamp.json").exists():
            raise ReleaseError(f"{folder} is not a repository; run refocus release init first")

    @classmethod
    def create(
        cls,
        folder: Path,
        keys: KeyRing,
        classes: list[str],
        root_keys: int = 3,
        now: Callable[[], datetime] | None = None,
    ) -> Repository:
        """Makes the repository and all its keys; none of these keys stays where it fails.

        Args:
            classes: of devices, each with a key of its own.
            root_keys: how many there are, of which two must sign.

        Raises:
            ReleaseError: a repository or keys are there already, a name is none of a class, or the numbers make no
                sense.
        """
        if root_keys < ROOT_THRESHOLD or not classes or len(set(classes)) < len(classes):
            raise ReleaseError(
                f"--root-keys {root_keys}, --device-class {', '.join(classes) or 'none'}: expected at least"
                f" {ROOT_THRESHOLD} keys and one class, each once"
            )
        for name in classes:
            _check_class(name)
        # What a killed call left is all of version 1, and without a timestamp: it is written again.
        if any(not path.name.startswith("1.") for path in (folder / "metadata").glob("*.json")):
            raise ReleaseError(f"{folder} already is a repository; choose another folder")
        with ExitStack() as failed:

            def new_key(name: str) -> CryptoSigner:
                signer = keys.make(name)
                failed.callback(keys.remove, name)
                return signer

            _write_first(folder, new_key, classes, root_keys, (now or (lambda: datetime.now(timezone.utc)))())
            failed.pop_all()
        return cls(folder, keys, now)

    # ---- what is there

    @property
    def root(self) -> Metadata[Root]:
        """The newest root."""
        versions = (int(path.name.split(".")[0]) for path in self._metadata.glob("*.root.json"))
        return Metadata.from_file(str(self._metadata / f"{max(versions)}.root.json"))

    @property
    def first_root(self) -> bytes:
        """What a new device is given to trust; later ones it finds by itself."""
        return (self._metadata / "1.root.json").read_bytes()

    def classes(self) -> list[str]:
        """The device classes."""
        return sorted(self._delegations())

    def channel(self, device_class: str) -> Channel:
        """The releases of one class.

        Raises:
            ReleaseError: there is no such class.
        """
        path = self._channel_file(device_class)
        if path is None:
            return Channel(device_class=device_class, serial=1)
        return decode_channel(path.read_bytes(), str(path))

    def _channel_file(self, device_class: str) -> Path | None:
        target = self._role(device_class).signed.targets.get(f"{device_class}/{CHANNEL}")
        return self._targets / device_class / f"{target.hashes['sha256']}.{CHANNEL}" if target else None

    def expiries(self) -> dict[str, datetime]:
        """When what each role signed expires."""
        found = {
            "root": self.root.signed.expires,
            "targets": self._top("targets").signed.expires,
            "snapshot": self._top("snapshot").signed.expires,
            "timestamp": self._timestamp.signed.expires,
        }
        return found | {name: self._role(name).signed.expires for name in self.classes()}

    # ---- what is changed

    def locked(self) -> AbstractContextManager[int]:
        """One publisher at a time."""
        return one_at_a_time(self.folder / ".lock")

    def put_file(self, source: Path, sha256: str) -> int:
        """Stores one file under its identity; bytes that were new.

        Raises:
            ReleaseError: it is not what it was when the bundle was verified.
        """
        path = self._targets / blob_path(sha256)
        if path.exists() and file_sha256(path) == sha256:
            return 0
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, source.read_bytes())
        if file_sha256(path) != sha256:
            path.unlink()
            raise ReleaseError(f"{source} was changed while it was published; publish again")
        return path.stat().st_size

    def put_channel(self, channel: Channel) -> None:
        """Makes a list of releases the current one of its class.

        Raises:
            ReleaseError: an older Refocus made the repository with a name that is none of a class.
            UpdateError: a newer Refocus wrote the one before, with fields that would be lost; or no device could read
                the new one.
        """
        name, content = channel.device_class, encode_channel(channel)
        _check_class(name)
        decode_channel(content, f"the new {name}/{CHANNEL}")
        before = self._channel_file(name)
        if before is not None:
            check_whole(before.read_bytes(), str(before))
        target = TargetFile.from_data(f"{name}/{CHANNEL}", content, ["sha256"])
        path = self._targets / name / f"{target.hashes['sha256']}.{CHANNEL}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content)
        metadata = self._role(name)
        metadata.signed.targets = {target.path: target}
        self._current({name: self._next(metadata.signed, self._delegation_keys(name), name)})

    def renew(self) -> list[str]:
        """Signs again what has used up half of its time, as far as the keys are at hand; snapshot and timestamp always.

        So it also heals a rotation that was killed when the new root was there and what its new keys sign was not.

        Returns:
            roles that should be signed again, whose keys are not here.
        """
        changed, lacking = {}, []
        for name in [*self.classes(), "targets"]:
            kind = "targets" if name == "targets" else "class"
            metadata = self._top("targets") if name == "targets" else self._role(name)
            fresh = metadata.signed.expires - self._now() > timedelta(days=EXPIRES[kind] / 2)
            if fresh and (name != "targets" or self._is_signed_by_its_keys(metadata)):
                continue
            try:
                keys = self._top_keys("targets") if name == "targets" else self._delegation_keys(name)
                changed[name] = self._next(metadata.signed, keys, name)
            except ReleaseError:
                lacking.append(name)
        if self.root.signed.expires - self._now() <= timedelta(days=EXPIRES["root"] / 2):
            try:
                self._put_root(self.root.signed, [])
            except ReleaseError:
                lacking.append("root")
        self._current(changed)
        return lacking

    def rotate(self, role: str) -> str:
        """Gives a role a new key, for one that was lost or stolen; the older ones count no longer.

        Of the root, one key is replaced: the first that is not at hand, or else the first. The root has to be signed by
        two of the older keys and by two of the new.

        Returns:
            name of the new key.

        Raises:
            ReleaseError: there is no such role, or keys that must sign are not at hand.
        """
        if role not in (*TOP_ROLES, *self.classes()):
            raise ReleaseError(f"--role {role}: expected {', '.join(TOP_ROLES)} or one of {', '.join(self.classes())}")
        delegated = role in self.classes()
        # All are needed in the end, and a new root counts at once: without the others no device would trust the rest.
        for needed in ("targets" if delegated else "root", *({"snapshot", "timestamp"} - {role})):
            self._check_can_sign(needed)
        name = self.keys.free_name(role)
        signer = self.keys.make(name)
        if delegated:
            metadata = self._top("targets")
            for keyid in list(self._delegations()[role].keyids):
                metadata.signed.revoke_key(keyid, role)
            metadata.signed.add_key(signer.public_key, role)
            targets = self._next(metadata.signed, self._top_keys("targets"), "targets")
            self._current({"targets": targets, role: self._next(self._role(role).signed, [signer], role)})
            return name
        self._rotate_top(role, signer)
        return name

    def _rotate_top(self, role: str, signer: CryptoSigner) -> None:
        root = self.root.signed
        keyids = root.roles[role].keyids
        if role == "root":
            absent = [keyid for keyid in keyids if self.keys.find(_ssl(root.keys[keyid])) is None]
            keyids = (absent or keyids)[:1]
        before = self._signers(self.root.signed, "root")
        for keyid in list(keyids):
            root.revoke_key(keyid, role)
        root.add_key(signer.public_key, role)
        self._put_root(root, before)
        changed = {}
        if role == "targets":
            changed["targets"] = self._next(self._top("targets").signed, [signer], "targets")
        self._current(changed)

    # ---- signing

    def _put_root(self, root: Root, also: list[CryptoSigner]) -> None:
        signers = self._signers(root, "root")
        if len(signers) < root.roles["root"].threshold:
            raise ReleaseError(
                f"--keys {self.keys.folder}: the root must be signed by {root.roles['root'].threshold} of"
                f" its keys, {len(signers)} are here"
            )
        both = {signer.public_key.keyid: signer for signer in (*also, *signers)}
        self._next(root, list(both.values()), "root")

    def _next(self, signed: Signed, signers: list[CryptoSigner], name: str, file: str = "") -> MetaFile:
        """One role's next version, written under a name of its own if no other is given; nothing refers to it yet."""
        signed.version += 1
        signed.expires = _after(self._now(), name if name in EXPIRES else "class")
        _write(self.folder, file or f"{signed.version}.{name}.json", Metadata(signed), signers)
        return MetaFile(signed.version)

    def _current(self, changed: dict[str, MetaFile]) -> None:
        """A new snapshot and a new timestamp: from the last rename on, what was written counts."""
        snapshot, timestamp = self._top("snapshot").signed, self._timestamp.signed
        snapshot.meta |= {f"{name}.json": meta for name, meta in changed.items()}
        timestamp.snapshot_meta = self._next(snapshot, self._top_keys("snapshot"), "snapshot")
        self._next(timestamp, self._top_keys("timestamp"), "timestamp", "timestamp.json")

    def _is_signed_by_its_keys(self, targets: Metadata[Targets]) -> bool:
        try:
            self.root.signed.verify_delegate("targets", targets.signed_bytes, targets.signatures)
        except UnsignedMetadataError:
            return False
        return True

    def _check_can_sign(self, role: str) -> None:
        have, need = len(self._signers(self.root.signed, role)), self.root.signed.roles[role].threshold
        if have < need:
            raise ReleaseError(
                f"--keys {self.keys.folder}: {role} must be signed by {need} of its keys, {have} are here"
            )

    def _top_keys(self, role: str) -> list[CryptoSigner]:
        self._check_can_sign(role)
        return self._signers(self.root.signed, role)

    def _delegation_keys(self, name: str) -> list[CryptoSigner]:
        delegations = self._top("targets").signed.delegations
        assert delegations is not None  # noqa: S101
        found = [self.keys.find(_ssl(delegations.keys[keyid])) for keyid in self._delegations()[name].keyids]
        signers = [signer for signer in found if signer is not None]
        if not signers:
            raise ReleaseError(f"--keys {self.keys.folder} has no key of the class {name}; fetch it")
        return signers

    def _signers(self, root: Root, role: str) -> list[CryptoSigner]:
        found = [self.keys.find(_ssl(root.keys[keyid])) for keyid in root.roles[role].keyids]
        return [signer for signer in found if signer is not None]

    # ---- reading

    @property
    def _timestamp(self) -> Metadata[Timestamp]:
        return Metadata.from_file(str(self._metadata / "timestamp.json"))

    def _top(self, role: str) -> Metadata[Any]:
        version = self._timestamp.signed.snapshot_meta.version
        snapshot = Metadata[Snapshot].from_file(str(self._metadata / f"{version}.snapshot.json"))
        if role == "snapshot":
            return snapshot
        return Metadata.from_file(str(self._metadata / f"{snapshot.signed.meta[f'{role}.json'].version}.{role}.json"))

    def _role(self, name: str) -> Metadata[Targets]:
        if name not in self._delegations():
            raise ReleaseError(f"{self.folder} has no device class {name}; it has {', '.join(self.classes())}")
        return self._top(name)

    def _delegations(self) -> dict[str, DelegatedRole]:
        delegations = self._top("targets").signed.delegations
        return dict(delegations.roles or {}) if delegations is not None else {}


def open_repository(folder: Path, keys: Path) -> Repository:
    """The repository of a folder, with the keys that are in another one."""
    return Repository(folder, KeyRing(keys))


def _check_class(name: str) -> None:
    try:
        msgspec.convert(name, ClassName)
    except msgspec.ValidationError:
        expected = "1 to 32 lower-case letters, digits and hyphens, the first no hyphen, as phone-7"
        raise ReleaseError(f"--device-class {name!r}: expected {expected}") from None
    if name in TOP_ROLES:
        raise ReleaseError(f"--device-class {name}: TUF has a role of that name; choose another")


def _write_first(
    folder: Path, new_key: Callable[[str], CryptoSigner], classes: list[str], root_keys: int, now: datetime
) -> None:
    """Version 1 of all metadata of a repository without releases."""
    signers = [new_key(f"root-{number}") for number in range(1, root_keys + 1)]
    top = {name: new_key(f"{name}-1") for name in TOP_ROLES[1:]}
    own = {name: new_key(f"{name}-1") for name in classes}
    root = Root(expires=_after(now, "root"), consistent_snapshot=True)
    for signer in signers:
        root.add_key(signer.public_key, "root")
    root.roles["root"].threshold = ROOT_THRESHOLD
    for name, signer in top.items():
        root.add_key(signer.public_key, name)
    roles = {name: DelegatedRole(name, [], 1, terminating=True, paths=[f"{name}/*"]) for name in classes}
    targets = Targets(expires=_after(now, "targets"), delegations=Delegations({}, roles))
    snapshot = Snapshot(expires=_after(now, "snapshot"))
    for name, signer in own.items():
        targets.add_key(signer.public_key, name)
        snapshot.meta[f"{name}.json"] = MetaFile(1)
    (folder / "metadata").mkdir(parents=True, exist_ok=True)
    (folder / "targets").mkdir(exist_ok=True)
    _write(folder, "1.root.json", Metadata(root), signers)
    _write(folder, "1.targets.json", Metadata(targets), [top["targets"]])
    for name, signer in own.items():
        _write(folder, f"1.{name}.json", Metadata(Targets(expires=_after(now, "class"))), [signer])
    _write(folder, "1.snapshot.json", Metadata(snapshot), [top["snapshot"]])
    _write(folder, "timestamp.json", Metadata(Timestamp(expires=_after(now, "timestamp"))), [top["timestamp"]])


def _write(folder: Path, name: str, metadata: Metadata[Any], signers: list[CryptoSigner]) -> None:
    metadata.signatures.clear()
    for signer in signers:
        metadata.sign(signer, append=True)
    write_durably(folder / "metadata" / name, metadata.to_bytes())


def _after(now: datetime, kind: str) -> datetime:
    return (now + timedelta(days=EXPIRES[kind])).replace(microsecond=0)


def _ssl(key: Any) -> SSlibKey:
    if not isinstance(key, SSlibKey):
        raise ReleaseError(f"the key {key.keyid[:12]} is of a kind that this refocus cannot use")
    return key
