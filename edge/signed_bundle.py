"""A bundle as one signed file: what a service sends to a device, and what a device accepts of it."""

from __future__ import annotations

import base64
import hashlib
import os
import tarfile
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from edge.bundle import Bundle, load_bundle, put_in_place
from edge.errors import BundleError
from edge.manifest import check_stays_inside

_CONTEXT = b"refocus personal bundle 1\n"  # a signature of this key for anything else must not fit
MAX_BYTES = 4 << 30
MAX_MEMBERS = 4096


def pack(bundle: Bundle, file: Path) -> None:
    """Writes a bundle's files as a plain tar; the same bundle gives the same bytes."""
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in bundle.files():
            member = tarfile.TarInfo(name)
            member.size, member.mode = (bundle.folder / name).stat().st_size, 0o644
            with (bundle.folder / name).open("rb") as stream:
                archive.addfile(member, stream)


def sign(file: Path, key: Ed25519PrivateKey) -> str:
    """The signature of a file, in base64."""
    return base64.b64encode(key.sign(_CONTEXT + _digest(file))).decode()


def unpack(file: Path, signature: str, key: Ed25519PublicKey, out: Path) -> Bundle:
    """Verifies a signed bundle and puts it in place of an earlier one; the earlier one stays if anything is wrong.

    Raises:
        BundleError: it was not signed by the key's owner, or is no whole bundle.
    """
    try:
        key.verify(base64.b64decode(signature, validate=True), _CONTEXT + _digest(file))
    except (InvalidSignature, ValueError):
        raise BundleError(f"{file} is not signed by the key that was given; fetch it again from its source") from None
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        folder = Path(temporary) / "bundle"
        try:
            _extract(file, folder)
        except (tarfile.TarError, ValueError) as error:
            raise BundleError(f"{file} holds no bundle ({error}); fetch it again") from None
        load_bundle(folder)
        return put_in_place(folder, out, Path(temporary))


def _extract(file: Path, folder: Path) -> None:
    with tarfile.open(file, "r:") as archive:
        left = MAX_BYTES
        for number, member in enumerate(archive):
            left -= member.size
            if not member.isreg() or left < 0 or number >= MAX_MEMBERS:
                raise ValueError(
                    f"{member.name[:80]!r}: expected plain files, {MAX_MEMBERS} and {MAX_BYTES} bytes at most"
                )
            check_stays_inside(member.name)
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(member)
            assert source is not None  # noqa: S101  # a plain file has contents
            with path.open("xb") as target:
                while block := source.read(1 << 20):
                    target.write(block)
                target.flush()
                os.fsync(target.fileno())


def _digest(file: Path) -> bytes:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.digest()
