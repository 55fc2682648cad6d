"""The key that signs personal bundles; devices are given its public half."""

from __future__ import annotations

import os
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

from cloud_train.errors import UsageError


def signing_key(path: Path) -> Ed25519PrivateKey:
    """The private key of a file; made, readable by its owner only and with its public half beside it, if missing.

    Raises:
        UsageError: the file is no such key.
    """
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        path.with_name(f"{path.name}.pub").write_bytes(public)
        return key
    try:
        found = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--key {path} is no private key in PEM ({error})") from None
    if not isinstance(found, Ed25519PrivateKey):
        raise UsageError(f"--key {path}: expected an ed25519 key; name a missing file to have one made")
    return found


def public_key(path: Path) -> Ed25519PublicKey:
    """The public key of a file.

    Raises:
        UsageError: the file is no such key.
    """
    try:
        found = load_pem_public_key(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is no public key in PEM ({error})") from None
    if not isinstance(found, Ed25519PublicKey):
        raise UsageError(f"{path}: expected an ed25519 key")
    return found
