"""Secrets of the service: the key that signs personal bundles, whose public half devices are given, and the tokens."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from refocus.cloud_train.errors import UsageError

LEAST_TOKEN = 20  # characters
_MOST_BYTES = 1 << 20


def read_secret(path: Path, flag: str) -> bytes:
    """The bytes of a file that only this user may read; of root's files a group may (a mounted secret).

    Raises:
        UsageError: it cannot be read, is not a regular file, is larger than 1 MiB, or others may read or write it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read ({error.strerror}); name a file with the secret") from None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise UsageError(f"{flag} {path}: expected a regular file of at most {_MOST_BYTES} bytes")
        mounted = status.st_uid == 0 and os.geteuid() != 0
        if status.st_mode & (0o037 if mounted else 0o077):
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise UsageError(
                f"{flag} {path} has mode {mode}, so other users may read or change it; call: chmod 600 {path}, and make"
                " a new secret if they may have read it"
            )
        return stream.read(_MOST_BYTES)


def read_tokens(path: Path) -> list[str]:
    """The tokens of a file, one per line.

    Raises:
        UsageError: as :func:`read_secret`; no token, or one that could be guessed.
    """
    try:
        lines = read_secret(path, "--tokens").decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"--tokens {path}: expected text in UTF-8, one token per line") from None
    tokens = [line.strip() for line in lines if line.strip()]
    if not tokens or min(map(len, tokens)) < LEAST_TOKEN:
        wanted = f"one token per line, each of {LEAST_TOKEN} characters or more"
        raise UsageError(f"--tokens {path}: expected {wanted}; make one with: openssl rand -hex 32")
    return tokens


def signing_key(path: Path) -> Ed25519PrivateKey:
    """The private key of a file; made, readable by its owner only, if missing, as is its public half beside it.

    Raises:
        UsageError: as :func:`read_secret`; the file is not such a key.
    """
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
        _write_public(path, key)
        return key
    try:
        found = load_pem_private_key(read_secret(path, "--key"), password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--key {path} is not a private key in PEM format ({error})") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise UsageError(f"--key {path}: expected an ed25519 key; name a missing file to have one made")
    _write_public(path, found)
    return found


def _write_public(path: Path, key: Ed25519PrivateKey) -> None:
    """The public half beside a key, where it is missing."""
    place = path.with_name(f"{path.name}.pub")
    if not place.exists():
        place.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key of a file.

    Raises:
        UsageError: the file is not such a key.
    """
    try:
        found = load_pem_public_key(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is not a public key in PEM format ({error})") from None
    if not isinstance(found, Ed25519PublicKey):
        raise UsageError(f"{path}: expected an ed25519 key")
    return found
