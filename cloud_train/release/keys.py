"""Private keys as files: one per role, and several for the root, each to be kept by another person."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner, SSlibKey

from refocus.cloud_train.errors import ReleaseError


class KeyRing:
    """A folder of ed25519 keys as PKCS8 PEM, readable by their owner only.

    Keys that are kept elsewhere are simply not in it: what needs them says which. A role's older keys stay, numbered,
    because the next root must still be signed by them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, name: str) -> CryptoSigner:
        """A new key of that name.

        Raises:
            ReleaseError: there is one; nothing is overwritten.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        signer = CryptoSigner.generate_ed25519()
        try:
            descriptor = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ReleaseError(f"--keys {self.folder} already has {name}; choose an empty folder") from None
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(signer.private_bytes)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            self.remove(name)
            raise
        return signer

    def remove(self, name: str) -> None:
        """Takes back a key that nothing is signed with."""
        self._path(name).unlink(missing_ok=True)

    def find(self, public: SSlibKey) -> CryptoSigner | None:
        """The private key of a public one, whatever its file is called; None if it is not here."""
        for path in sorted(self.folder.glob("*.pem")):
            signer = self._read(path)
            if signer.public_key.keyid == public.keyid:
                return signer
        return None

    def free_name(self, role: str) -> str:
        """A name for one more key of a role."""
        return next(f"{role}-{n}" for n in range(1, 10_000) if not self._path(f"{role}-{n}").exists())

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def _read(self, path: Path) -> CryptoSigner:
        try:
            return CryptoSigner(load_pem_private_key(path.read_bytes(), password=None))  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            raise ReleaseError(f"{path} is not a private key in PEM format ({error}); restore it") from None
