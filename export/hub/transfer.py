"""Upload and download of bundles, by huggingface_hub. A device never does either by itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from refocus.edge import load_bundle
from refocus.edge.bundle import MANIFEST, MAX_MANIFEST_BYTES, Bundle, decode_manifest, put_in_place
from refocus.edge.errors import BundleError, RefocusError
from refocus.edge.files import read_file
from refocus.export.hub.card import CARD, card_text

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
_PLACE = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


class HubError(RefocusError):
    """The hub cannot be reached, refuses, or holds another bundle than expected."""


@dataclass(frozen=True)
class Place:
    """A repository on a hub, and one of its revisions.

    Attributes:
        repository: "organisation/name".
        revision: a branch, a tag or a commit.
    """

    repository: str
    revision: str = "main"


@dataclass(frozen=True)
class Pushed:
    """An uploaded bundle.

    Attributes:
        commit: of the repository, which holds it from now on.
        sha256: of ``manifest.json``, which holds the SHA-256 of every other file: it identifies the whole bundle.
        url: of the commit.
    """

    commit: str
    sha256: str
    url: str


def parse_place(text: str) -> Place:
    """Reads ``hf://organisation/name[@revision]``.

    Raises:
        HubError: it is something else.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise HubError(f"{text}: expected hf://ORGANISATION/NAME or hf://ORGANISATION/NAME@REVISION")
    return Place(found[1], found[2] or "main")


def push_bundle(
    folder: Path, place: Place, licence: str = "", tags: tuple[str, ...] = (), private: bool = False, endpoint: str = ""
) -> Pushed:
    """Uploads the files of a bundle and a model card as one commit. Unlisted files of the folder stay where they are.

    Args:
        place: its repository is made where it is missing; its revision is a branch.
        licence: of the model, as the hub names it ("apache-2.0").
        tags: words for the hub's search, besides "refocus" and the runtimes.
        private: whether a repository that is made can be seen by its organisation alone.
        endpoint: URL of the hub; "" for that of huggingface_hub.

    Raises:
        BundleError: the bundle is damaged.
        HubError: the hub cannot be reached or refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    bundle = load_bundle(folder)
    sha256 = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    card = card_text(bundle.manifest, place.repository, sha256, licence, tags)
    files = [CommitOperationAdd(name, folder / name) for name in bundle.files() if name != CARD]
    api = HfApi(endpoint=endpoint or None)
    with _explained(place, endpoint):
        api.create_repo(place.repository, private=private, exist_ok=True)
        done = api.create_commit(
            place.repository,
            [*files, CommitOperationAdd(CARD, card.encode())],
            commit_message=f"Upload {bundle.manifest.name}",
            revision=place.revision,
        )
    return Pushed(done.oid, sha256, done.commit_url)


def pull_bundle(place: Place, out: Path, sha256: str = "", endpoint: str = "") -> Bundle:
    """Downloads a bundle. Only files that its manifest lists are asked for, and each is compared with its SHA-256.

    A bundle that was at ``out`` is replaced at the end, or kept where anything fails. What is there is on the disk
    when this returns.

    Args:
        sha256: of the manifest, as :func:`push_bundle` gave it; "" trusts the repository for it.
        endpoint: URL of the hub; "" for that of huggingface_hub.

    Raises:
        BundleError: a file differs from the manifest, there is not enough space, or ``out`` holds files that are not
            its bundle's.
        HubError: the hub cannot be reached or refuses, or the manifest is not the expected one.
    """
    Bundle.check_replaceable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".refocus-", dir=out.parent) as temporary:
        received, made = Path(temporary) / "received", Path(temporary) / "bundle"
        with _explained(place, endpoint):
            names, commit = _list_files(place, endpoint)
            manifest = _fetch(Place(place.repository, commit), [MANIFEST], received, endpoint) / MANIFEST
        content = read_file(manifest, MAX_MANIFEST_BYTES, "a manifest", BundleError)
        found = hashlib.sha256(content).hexdigest()
        if sha256 and found != sha256.lower():
            raise HubError(
                f"hf://{place.repository}@{commit} holds another bundle: the SHA-256 of {MANIFEST} is {found},"
                f" expected {sha256}; check the revision, or leave --sha256 out to take what is there"
            )
        listed = decode_manifest(content, str(manifest)).listed
        entries = {entry.file: entry.size_bytes for entry in listed}
        if sum(entries.values()) > shutil.disk_usage(out.parent).free:
            raise BundleError(f"{out}: the bundle has {sum(entries.values())} bytes, more than the disk has free")
        wanted = [name for name in names if name in entries or _is_below(name, entries)]
        with _explained(place, endpoint):
            _fetch(Place(place.repository, commit), wanted, received, endpoint)
        for name in (MANIFEST, *wanted):
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (received / name).rename(made / name)
        load_bundle(made)
        return put_in_place(made, out, Path(temporary))


def _is_below(name: str, folders: Iterable[str]) -> bool:
    return ".." not in name.split("/") and any(name.startswith(f"{folder}/") for folder in folders)


def _list_files(place: Place, endpoint: str) -> tuple[list[str], str]:
    """Names of the files of a revision, and its commit."""
    from huggingface_hub import HfApi

    found = HfApi(endpoint=endpoint or None).model_info(place.repository, revision=place.revision)
    names = [sibling.rfilename for sibling in found.siblings or []]
    if MANIFEST not in names:
        raise HubError(f"hf://{place.repository}@{place.revision} holds no bundle: {MANIFEST} is not among its files")
    return names, str(found.sha)


def _fetch(place: Place, names: list[str], folder: Path, endpoint: str) -> Path:
    from huggingface_hub import hf_hub_download

    for name in names:
        hf_hub_download(place.repository, name, revision=place.revision, local_dir=folder, endpoint=endpoint or None)
    return folder


@contextlib.contextmanager
def _explained(place: Place, endpoint: str) -> Iterator[None]:
    """Turns errors of the network and the hub into one of ours."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    try:
        yield
    except HFValidationError as error:
        why = str(error).rstrip(".")
        raise HubError(f"hf://{place.repository} is no name of a repository ({why}); check the name") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "no status"
        raise HubError(
            f"hf://{place.repository}@{place.revision}: the hub refused ({status}); check the name, the revision and"
            " the token (hf auth login)"
        ) from None
    except (HTTPError, OSError, OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # of the disk
        where = endpoint or constants.ENDPOINT
        raise HubError(
            f"{where} cannot be reached ({type(error).__name__}); check the network and --endpoint"
        ) from None
