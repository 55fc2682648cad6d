"""What a client says of itself, on its own machine: where its photos lie. The server learns none of it.

KIT/startup/                 who the client is: certificate, key, the server's address
KIT/local/refocus.json       where its photos are
KIT/state/                   what it keeps (:mod:`refocus.cloud_train.federated.deployment.site`)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from refocus.cloud_train.data.sources import load_source
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.federated.client_data import Client, check_own, own_client
from refocus.cloud_train.federated.deployment.site import Site
from refocus.cloud_train.federated.run import FederatedRun
from refocus.cloud_train.runs.folder import read_settings, save_settings


@dataclass(frozen=True)
class SiteConfig:
    """What ``refocus.json`` holds.

    Attributes:
        photos: a folder or .zip of the client's photos, an .npz of arrays; or, for trials on one machine, the folder of
            a run of ``refocus train federated``, one of whose clients has this name.
        label_column: of the metadata file.
    """

    photos: str
    label_column: str = "label"


def save_site(kit: Path, config: SiteConfig) -> None:
    """Stores the location of the client's photos, replacing an earlier one."""
    save_settings(kit / "local" / "refocus.json", config)


def read_site(kit: Path, name: str) -> Site:
    """Reads the site configuration of a client's kit."""
    config = read_settings(kit / "local" / "refocus.json", SiteConfig)
    return Site(name, kit / "state", lambda run: client_of(config, name, run))


def client_of(config: SiteConfig, name: str, run: FederatedRun) -> Client:
    """The client's photos, as the network of a run sees them.

    Raises:
        DataError: they cannot be read, or are not what the federation is about.
    """
    source = Path(config.photos)
    if (source / "federated.json").exists():
        found = {client.name: client for client in FederatedRun(source).clients.members}
        if name not in found:
            raise UsageError(f"--photos {source}: none of its {len(found)} clients is called {name}")
        return found[name]
    return own_client(
        name, own_photos(source, config.label_column), run.classes, run.preprocessing, run.config.data_seed
    )


def own_photos(source: Path, label_column: str = "label") -> PhotoTable:
    """One client's labelled photos.

    Raises:
        DataError: they cannot be read, or they are of several clients.
    """
    table = load_source(source, label_column)
    people = len(np.unique(table.client))
    if people > 1:
        raise DataError(f"--photos {source} has photos of {people} clients; a client may use only its own photos")
    return table


def check_kit(kit: Path) -> tuple[str, str]:
    """The name of a kit's client, and the server's address.

    Raises:
        UsageError: the folder is not a client's kit.
    """
    path = kit / "startup" / "fed_client.json"
    try:
        stated = json.loads(path.read_text())
        return str(stated["client"]["fqsn"]), str(stated["servers"][0]["service"]["target"])
    except (OSError, ValueError, KeyError, IndexError):
        raise UsageError(
            f"{kit} is not a client's kit; give a folder of clients/ that refocus federate provision made"
        ) from None


def check_photos(config: SiteConfig, name: str) -> str:
    """What there is to train on, before anybody waits for it.

    Raises:
        DataError: the photos cannot be read, are too few, are of several clients, or their splits leave a part empty.
    """
    source = Path(config.photos)
    if (source / "federated.json").exists():
        return f"the photos that {source} has of {name}, for a trial"
    table = own_photos(source, config.label_column)
    check_own(table, str(source))
    return f"{len(table)} photos of {len(np.unique(table.label))} classes"
