"""A release is put together on a device: what another one has by link, the rest fetched; then verified as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from refocus.edge.bundle.load import load_bundle
from refocus.edge.errors import BundleError, UpdateError
from refocus.edge.files import file_sha256, sync_folder, sync_tree
from refocus.edge.update.device_state import Slot, Slots, UpdateState
from refocus.edge.update.rules import PART, File, Release

if TYPE_CHECKING:
    from refocus.edge.update.repository import RepositoryClient  # which needs python-tuf

_SPARE_BYTES = 16 << 20  # that must stay free on the disk


def missing(slots: Slots, slot: Slot, release: Release) -> list[File]:
    """The files of a release that are not in its staging folder yet; their contents are verified with the whole."""
    staging = slots.staging(slot)
    staging.mkdir(parents=True, exist_ok=True)
    return [file for file in release.files if not _has_size(staging / file.path, file)]


def fetch(
    slots: Slots, record: UpdateState, slot: Slot, files: Sequence[File], repository: RepositoryClient | None
) -> bool:
    """Puts the first of the missing files in the staging folder of a release; False where nobody has it.

    Raises:
        UpdateError: it cannot be fetched, or the disk has no room for all that is missing.
    """
    needed, free = sum(file.size_bytes for file in files) + _SPARE_BYTES, shutil.disk_usage(slots.folder).free
    if free < needed:
        raise UpdateError(f"{slots.folder}: the update needs {needed} bytes, {free} are free; make room")
    into = slots.staging(slot) / files[0].path
    into.parent.mkdir(parents=True, exist_ok=True)
    if not _share(slots, record, files[0], into):
        if repository is None:
            return False
        repository.download(files[0], into)
    return True


def verify(slots: Slots, slot: Slot, release: Release, runtime: str, precision: str) -> None:
    """Verifies what was put together; files that are not the release's, such as parts of a cut download, are removed.

    Raises:
        UpdateError: a file is not what was fetched; it is fetched again next time.
        BundleError: the files are those of the release, and are no whole bundle.
    """
    staging = slots.staging(slot)
    listed = {staging / file.path for file in release.files}
    for path in [path for path in staging.rglob("*") if path.is_symlink() or not path.is_dir()]:
        if path not in listed or path.is_symlink():
            path.unlink()
    for file in release.files:
        path = staging / file.path
        if not _is_same(path, file):  # a power cut, or another program's write
            path.unlink(missing_ok=True)
            raise UpdateError(f"{path} was changed on this device; it is fetched again next time")
    space = load_bundle(staging).artifact("encoder", runtime, precision).feature_space
    if space != slot.space:
        raise BundleError(f"its features are of space {str(space)[:12]}, {slot.space[:12]} was announced")


def is_intact(folder: Path, release: Release | None) -> bool:
    """Whether a folder still has the files of a release, as they were signed; None: nothing says otherwise."""
    return release is None or all(_is_same(folder / file.path, file) for file in release.files)


def install(slots: Slots, slot: Slot) -> None:
    """Puts a verified release in its slot; on the disk when it returns."""
    staging, target = slots.staging(slot), slots.path(slot)
    sync_tree(staging)
    shutil.rmtree(target, ignore_errors=True)  # left by a kill in an earlier update to the same release
    staging.replace(target)
    sync_folder(target.parent)


def _share(slots: Slots, record: UpdateState, file: File, into: Path) -> bool:
    """Takes a file from a slot that has it: it is neither fetched nor stored again."""
    for slot in (record.active, record.previous):
        for path in sorted(slots.path(slot).rglob("*")) if slot else ():
            if _has_size(path, file) and _is_same(path, file):
                _link(path, into)
                return True
    return False


def _link(path: Path, into: Path) -> None:
    """Stores a file a second time without its bytes; on a file system without links, with them."""
    into.unlink(missing_ok=True)
    try:
        os.link(path, into)
    except OSError:
        part = into.with_name(into.name + PART)
        shutil.copyfile(path, part)
        part.replace(into)


def _is_same(path: Path, file: File) -> bool:
    return path.is_file() and file_sha256(path) == file.sha256


def _has_size(path: Path, file: File) -> bool:
    return path.is_file() and path.stat().st_size == file.size_bytes
