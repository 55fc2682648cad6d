"""A bundle as one signed file: what a service sends to a device, and what a device accepts of it.

A service signs a *statement* about the file: its SHA-256, which request it answers, from which bank it was
made, and from when to when it may be installed. Up to release 0.1.0 the file's SHA-256 alone was signed; such a
signature proves who made a bundle, not for whom, from what or when.

Layout of a statement, in ASCII: ``base64url(JSON) "." base64url(ed25519 signature)``, without padding. What is signed
is the line ``refocus personal bundle 2`` with its newline, then the bytes of the JSON.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import shutil
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from refocus.edge.bundle.load import Bundle, load_bundle, put_in_place
from refocus.edge.bundle.manifest import check_stays_inside
from refocus.edge.errors import BundleError
from refocus.edge.files import open_regular, stream_sha256, working_folder

# A signature of this key for anything else must not fit.
_CONTEXT = b"refocus personal bundle 1\n"
_STATEMENT = b"refocus personal bundle 2\n"
MAX_BYTES = 4 << 30
MAX_MEMBERS = 4096
MAX_STATEMENT = 2048  # characters
REQUEST = r"[A-Za-z0-9_-]{16,64}"
CLOCKS_S = 300  # by which the clocks of service and device may differ
_BLOCK = 1 << 20

_Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a service signs of a file.

    Unknown fields are refused: a restriction that a device does not know must not be ignored.

    Attributes:
        sha256: of the file.
        request: identifier that the device drew for its request; "" where it gave none.
        bank: SHA-256 of the bank that the bundle was condensed from; "" for a bundle that was not.
        issued, expires: seconds since 1970 between which the bundle may be installed.
    """

    sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    request: Annotated[str, msgspec.Meta(pattern=rf"\A({REQUEST})?\Z")]
    bank: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
    issued: _Seconds
    expires: _Seconds


@dataclass(frozen=True)
class Asked:
    """What a device asked for, and therefore expects of the answer.

    Attributes:
        request: drawn by :func:`new_request` for this one request, and sent with it. It is secret from nobody, says
            nothing of the person, and is used once.
        bank: SHA-256 of the bank that is expected; "" for any bank of the service.
    """

    request: str
    bank: str = ""


def new_request() -> str:
    """An identifier for one request: 192 random bits."""
    return secrets.token_urlsafe(24)


def pack(bundle: Bundle, file: Path) -> None:
    """Writes a bundle's files as a plain tar; the same bundle gives the same bytes."""
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in bundle.files():
            member = tarfile.TarInfo(name)
            member.size, member.mode = (bundle.folder / name).stat().st_size, 0o644
            with (bundle.folder / name).open("rb") as stream:
                archive.addfile(member, stream)


def sign(file: Path, key: Ed25519PrivateKey) -> str:
    """The signature of a file alone, in base64, for readers of release 0.1.0."""
    return base64.b64encode(key.sign(_CONTEXT + _digest(file))).decode()


def sign_statement(file: Path, key: Ed25519PrivateKey, asked: Asked, valid_s: int, now: float | None = None) -> str:
    """The signed statement of a file.

    Args:
        asked: the request that is answered, and the bank that the bundle was made from.
        valid_s: seconds in which the bundle may be installed.
        now: seconds since 1970; default: the clock's.
    """
    issued = int(time.time() if now is None else now)
    about = Statement(_digest(file).hex(), asked.request, asked.bank, issued, issued + valid_s)
    content = msgspec.json.encode(about)
    return f"{_text(content)}.{_text(key.sign(_STATEMENT + content))}"


def unpack(
    file: Path, signature: str, key: Ed25519PublicKey, out: Path, asked: Asked | None = None, now: float | None = None
) -> Bundle:
    """Verifies a signed bundle and puts it in place of an earlier one; the earlier one stays if anything is wrong.

    Args:
        signature: the statement that came with the file; or, without ``asked``, also a signature of release 0.1.0.
        asked: what was asked for. None takes whatever the key's owner ever signed, for anybody, and a signature of
            release 0.1.0 at any time: only for files whose way to the device is trusted by itself.
        now: seconds since 1970; default: the clock's.

    Raises:
        BundleError: it was not signed by the key's owner; it answers another request, was made from another bank, or
            its time is over; it is not a complete bundle; or ``out`` holds files that are not its bundle's.
    """
    Bundle.check_replaceable(out)
    digest = _digest(file)
    about = _verified(file, digest, signature, key)
    if about is not None:
        _check_statement(file, digest, about, asked, time.time() if now is None else now)
    elif asked is not None:
        raise BundleError(
            f"{file} has a signature of release 0.1.0, which names no request; ask a service of refocus 0.2 or later"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with working_folder(out) as temporary:
        folder = temporary / "bundle"
        try:
            if _extract(file, folder) != digest:
                raise ValueError("it was changed while it was read")
        except (tarfile.TarError, ValueError, OSError) as error:
            raise BundleError(f"{file} holds no bundle ({error}); fetch it again") from None
        task = load_bundle(folder).manifest.task
        if about is not None and about.bank != (task.bank if task is not None else ""):
            raise BundleError(f"{file} holds a bundle of another bank than its statement names; fetch it again")
        return put_in_place(folder, out, temporary)


def _verified(file: Path, digest: bytes, signature: str, key: Ed25519PublicKey) -> Statement | None:
    """The statement, if the key's owner signed it; None for a signature of release 0.1.0 that fits the file.

    Raises:
        BundleError: the key's owner signed neither.
    """
    refused = BundleError(f"{file} is not signed by the key that was given; fetch it again from its source")
    try:
        if "." not in signature:
            key.verify(base64.b64decode(signature, validate=True), _CONTEXT + digest)
            return None
        if len(signature) > MAX_STATEMENT:
            raise refused
        content, signed = map(_bytes, signature.split("."))
        key.verify(signed, _STATEMENT + content)
    except (InvalidSignature, ValueError):
        raise refused from None
    try:
        return msgspec.json.decode(content, type=Statement)
    except msgspec.DecodeError as error:
        raise BundleError(f"the statement of {file} is not understood ({error}); update refocus") from None


def _check_statement(file: Path, digest: bytes, about: Statement, asked: Asked | None, now: float) -> None:
    """Compares a statement with the file, the request and the clock.

    Raises:
        BundleError: the statement is about another file, request, bank or time.
    """
    if digest.hex() != about.sha256:
        raise BundleError(f"{file} is not the file that was signed; fetch it again")
    if not about.issued - CLOCKS_S <= now <= about.expires:
        when = " to ".join(time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(t)) for t in (about.issued, about.expires))
        raise BundleError(f"{file} may be installed from {when} (UTC), not now; check the clock and ask again")
    if asked is None:
        return
    if not asked.request or about.request != asked.request:
        raise BundleError(
            f"{file} answers another request than {asked.request!r}: it may be another person's or an"
            " old one; ask again"
        )
    if asked.bank and about.bank != asked.bank:
        raise BundleError(
            f"{file} was made from bank {about.bank[:12] or 'none'}, expected {asked.bank[:12]}; ask the"
            " service of that bank"
        )


def _extract(file: Path, folder: Path) -> bytes:
    """Unpacks a tar; the SHA-256 of all that was read."""
    with _opened(file) as plain:
        stream = _Hashing(plain)
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            left = MAX_BYTES
            for number, member in enumerate(archive):
                left -= member.size
                if not member.isreg() or member.issparse() or left < 0 or number >= MAX_MEMBERS:
                    raise ValueError(
                        f"{member.name[:80]!r}: expected plain files, {MAX_MEMBERS} and {MAX_BYTES} bytes at most"
                    )
                check_stays_inside(member.name)
                _write_member(archive, member, folder / member.name)
        while stream.read(_BLOCK):
            pass
    return stream.digest.digest()


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None  # noqa: S101  # a plain file has contents
    with path.open("xb") as target:
        shutil.copyfileobj(source, target, _BLOCK)
        target.flush()
        os.fsync(target.fileno())


class _Hashing:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.digest = stream, hashlib.sha256()

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self.digest.update(block)
        return block


def _opened(file: Path) -> BinaryIO:
    """A regular file of bounded size, for reading.

    Raises:
        BundleError: it is none, or cannot be read.
    """
    try:
        stream, size = open_regular(file)
    except OSError as error:
        raise BundleError(f"{file} cannot be read ({error.strerror}); fetch it again") from None
    if size > MAX_BYTES:
        stream.close()
        raise BundleError(f"{file}: expected a regular file of at most {MAX_BYTES} bytes; fetch it again")
    return stream


def _digest(file: Path) -> bytes:
    with _opened(file) as stream:
        return bytes.fromhex(stream_sha256(stream))


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """Strictly the reverse of :func:`_text` (ValueError)."""
    content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _text(content) != text:
        raise ValueError("not base64url")
    return content
