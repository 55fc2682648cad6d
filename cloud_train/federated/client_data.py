"""Clients with photos of their own: who gets which, and what each trains on, tunes with and is judged on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.data import partitions
from refocus.cloud_train.data.flower import flower
from refocus.cloud_train.data.image_tensors import Photos, decoded
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.progress import say
from refocus.edge.bundle import Preprocessing

SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}  # FedCLIP section 4.1
FEWEST = 15  # photos of a client; with fewer there is nothing to judge it by
PARTITIONS = ("natural", "dirichlet", "disjoint", "domain", "domain-dirichlet", "flwr")


@dataclass(frozen=True)
class Client:
    """One client's photos; no photo is in two of the three, nor with two clients."""

    name: str
    train: Photos
    validation: Photos
    test: Photos


@dataclass(frozen=True)
class Clients:
    """Everybody of a study.

    Attributes:
        members: those who train.
        unseen: those who come when training is over.
        fingerprint: SHA-256 over who has which photo in which role.
    """

    classes: tuple[str, ...]
    members: tuple[Client, ...]
    unseen: tuple[Client, ...]
    fingerprint: str


def partition(
    table: PhotoTable,
    kind: str,
    clients: int,
    alpha: float,
    seed: int,
    partitioner: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> np.ndarray:
    """(R,) client of each photo.

    Args:
        kind: "natural": as the data has them; "dirichlet": each class dealt by Dirichlet(alpha) (pFedPG section 4.1.2);
            "disjoint": no class twice; "domain": a domain per client; "domain-dirichlet": Dirichlet(alpha) within
            each domain, ``clients`` in each (FedPerfix section 4.1); "flwr": by a class of flwr-datasets.
        partitioner, arguments: that class and what it is made with (:mod:`refocus.cloud_train.data.flower`).

    Raises:
        UsageError: an unknown kind or class.
        DataError: domains are asked for, and the data has none.
    """
    if kind.startswith("domain") and len(np.unique(table.domain)) < 2:
        raise DataError(f"partition {kind}: all photos are of one domain; the data has to name several")
    if kind == "domain-dirichlet":
        client = np.full(len(table), "", dtype=object)
        for domain in np.unique(table.domain):
            rows = np.flatnonzero(table.domain == domain)
            dealt = partitions.dirichlet(table.label[rows], clients, alpha, seed)
            client[rows] = [f"{domain}/{name}" for name in dealt]
        return client.astype(str)
    found: Mapping[str, Callable[[], np.ndarray]] = {
        "natural": lambda: partitions.natural(table.client),
        "dirichlet": lambda: partitions.dirichlet(table.label, clients, alpha, seed),
        "disjoint": lambda: partitions.disjoint_classes(table.label, clients, seed),
        "domain": lambda: table.domain.astype(str),
        "flwr": lambda: flower(table, partitioner, arguments or {}, seed),
    }
    if kind not in found:
        raise UsageError(f"partition {kind}: expected {', '.join(PARTITIONS)}")
    return found[kind]()


def gather(
    table: PhotoTable,
    client: np.ndarray,
    contract: Preprocessing,
    most: int,
    unseen: float,
    seed: int,
    hold_out: str = "",
) -> Clients:
    """Decodes every client's photos and divides them.

    The table's own test photos stay test photos; else a fifth of each client's photos is for tuning and a fifth for
    judging, at random. Photos that are equal to the pixel are kept once in all, so that none is on both sides. Clients
    with too few photos, or with one alone beside their test photos, are left out.

    Args:
        client: (R,), "" for photos of nobody.
        most: photos of a client, at most, drawn at random.
        unseen: share of the clients that does not train; one at least trains.
        hold_out: a domain none of whose clients trains, in the place of a share of the clients.

    Raises:
        DataError: no photo is a client's, fewer than two clients have photos enough, or there is no such domain.
    """
    if not (client != "").any():
        raise DataError(
            "no photo names a client; set client_column to the column of the metadata that does, or choose another"
            " partition"
        )
    rng = np.random.default_rng(seed)
    table = replace(table, client=client).rows(client != "")
    kept = np.concatenate([rng.permutation(rows)[:most] for _, rows in table.clients()])
    table = table.rows(np.sort(kept))
    pixels = decoded(table, contract, "reading photos of clients")
    first = _first_of_each(pixels)
    if len(first) < len(table):
        say(f"{len(table) - len(first)} photos are equal to another one to the pixel and left out")
        table, pixels = table.rows(first), pixels[first]
    everybody = list(table.clients())
    people = {name: rows for name, rows in everybody if len(rows) >= FEWEST}
    if len(people) < len(everybody):
        say(f"{len(everybody) - len(people)} of {len(everybody)} clients have fewer than {FEWEST} photos: left out")
    untaught = [name for name, rows in people.items() if (table.split[rows] != "test").sum() == 1]
    if untaught:
        say(
            f"{len(untaught)} of {len(everybody)} clients have one photo that is not for judging, and need one to train"
            f" on and one to tune with: left out, as {untaught[0]}"
        )
        people = {name: rows for name, rows in people.items() if name not in untaught}
    if len(people) < 2:
        raise DataError(
            f"{len(people)} clients have {FEWEST} photos or more, two of them not for judging; add photos, or fewer"
            " clients"
        )
    roles = {name: _divide(table.split[rows], rows, rng) for name, rows in people.items()}
    assert_no_photo_twice(pixels, [part for parts in roles.values() for part in parts.values()])
    made = {name: _client(name, parts, table, pixels, contract) for name, parts in roles.items()}
    names = rng.permutation(sorted(made)).tolist()
    later = (
        _held_out(table, people, hold_out)
        if hold_out
        else set(names[: min(round(unseen * len(names)), len(names) - 1)])
    )
    digest = hashlib.sha256(table.fingerprint().encode() + pixels.tobytes())
    for name, parts in sorted(roles.items()):
        digest.update(f"{name} {name in later} {[parts[role].tolist() for role in SHARES]}".encode())
    return Clients(
        classes=table.classes,
        members=tuple(made[name] for name in sorted(made) if name not in later),
        unseen=tuple(made[name] for name in sorted(later)),
        fingerprint=digest.hexdigest(),
    )


def _held_out(table: PhotoTable, people: Mapping[str, np.ndarray], domain: str) -> set[str]:
    """Clients with a photo of a domain."""
    found = {name for name, rows in people.items() if (table.domain[rows] == domain).any()}
    if found and len(found) < len(people):
        return found
    known = ", ".join(sorted({*table.domain.tolist()} - {""})) or "none"
    what = "every client has photos of it" if found else f"no client has photos of it; the domains are {known}"
    raise DataError(f"hold_out = {domain}: {what}; deal photos with partition domain or domain-dirichlet")


def chosen_classes(table: PhotoTable, most: int, seed: int) -> PhotoTable:
    """The photos of at most so many classes, drawn at random; 0: of all."""
    if not most or most >= len(table.classes):
        return table
    kept = np.sort(np.random.default_rng(seed).permutation(len(table.classes))[:most])
    place = np.full(len(table.classes), -1)
    place[kept] = np.arange(most)
    rows = np.flatnonzero(place[table.label] >= 0)
    names = tuple(table.classes[number] for number in kept)
    return replace(table.rows(rows), label=place[table.label[rows]], classes=names)


def check_own(table: PhotoTable, name: str) -> None:
    """Raises DataError where a client has too few photos to take part, or its splits leave a part without any."""
    if len(table) < FEWEST:
        raise DataError(f"{name} has {len(table)} photos; a client needs {FEWEST} or more")
    photos = {role: int((table.split == role).sum()) for role in SHARES}
    others = len(table) - photos["test"]
    if _divided(table.split):
        for role, count in photos.items():
            if not count:
                raise DataError(f"{name} has no photo for {role}; add some to that split, or leave the splits out")
    elif others < 2:
        raise DataError(
            f"{name} has {photos['test']} photos for test and {others} others; expected one or more for training and"
            " one for tuning: put more into the split train, or leave the splits out"
        )


def _divided(split: np.ndarray) -> bool:
    """Whether each photo of a client has a role already, those for tuning too."""
    return bool(np.isin(split, [*SHARES]).all() and (split == "validation").any())


def own_client(name: str, table: PhotoTable, classes: Sequence[str], contract: Preprocessing, seed: int) -> Client:
    """One client from its own photos, where nobody sees those of the others.

    If the table says of every photo whether it is for "train", "validation" or "test", and names some for validation,
    that counts; else photos for "test" stay so, a fifth of all if there are none, and of the others a quarter is for
    validation. They are divided by their pixels, so that photos which come or go between two rounds leave the others
    where they are: what was trained on is never judged on.

    Args:
        table: its photos, and nobody else's.
        classes: what the federation tells apart; a photo of anything else is refused.

    Raises:
        DataError: a label that the federation does not know, too few photos, or a part without any.
    """
    unknown = sorted({table.classes[label] for label in np.unique(table.label)} - set(classes))
    if unknown:
        raise DataError(
            f"{len(unknown)} labels of {name} are none of the federation's {len(classes)} classes, as"
            f" {unknown[0]}; rename them, or leave their photos out"
        )
    place = {label: number for number, label in enumerate(classes)}
    label = np.array([place.get(label, -1) for label in table.classes])[table.label]
    pixels = decoded(table, contract, f"reading photos of {name}")
    first = _first_of_each(pixels)
    table, pixels = replace(table, label=label, classes=tuple(classes)).rows(first), pixels[first]
    check_own(table, name)
    parts = {role: np.flatnonzero(table.split == role) for role in SHARES}
    if not _divided(table.split):
        others = np.flatnonzero(table.split != "test")
        shares = {role: share for role, share in SHARES.items() if role != "test" or not len(parts["test"])}
        found = _divide_by_content(pixels[others], f"{seed} {name}", shares)
        parts |= {role: others[rows] for role, rows in found.items()}
    assert_no_photo_twice(pixels, [*parts.values()])
    return _client(name, parts, table, pixels, contract)


def _divide(split: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows of one client by role."""
    mixed = rng.permutation(rows)
    if (split == "test").any() and (split != "test").any():
        judged, rest = rows[split == "test"], rng.permutation(rows[split != "test"])
        tuned = max(1, round(len(rest) * SHARES["validation"] / (1 - SHARES["test"])))
        return {"train": rest[tuned:], "validation": rest[:tuned], "test": judged}
    ends = np.cumsum([round(share * len(mixed)) for share in SHARES.values()])[:-1]
    return dict(zip(SHARES, np.split(mixed, ends), strict=True))


def _divide_by_content(pixels: np.ndarray, salt: str, shares: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Rows of one client by role. A role that would have none of few photos gets the one that lies nearest to it.

    Args:
        shares: by role, in proportion; at least as many photos as roles.
    """
    digests = [hashlib.sha256(salt.encode() + photo.tobytes()).digest() for photo in pixels]
    ends = np.cumsum([*shares.values()])
    place = np.array([int.from_bytes(digest[:8], "big") / 2.0**64 for digest in digests]) * ends[-1]
    part = np.searchsorted(ends[:-1], place, side="right")
    for number, (end, share) in enumerate(zip(ends, shares.values(), strict=True)):
        if not (part == number).any():
            spare = np.bincount(part, minlength=len(ends))[part] > 1
            part[np.where(spare, np.abs(place - (end - share / 2)), np.inf).argmin()] = number
    return {role: np.flatnonzero(part == number) for number, role in enumerate(shares)}


def assert_no_photo_twice(pixels: np.ndarray, parts: Sequence[np.ndarray]) -> None:
    """Raises DataError if one photo, as a row or to the pixel, is in two parts: the leak that flatters results."""
    rows = np.concatenate(parts)
    if len(np.unique(rows)) != len(rows) or len(_first_of_each(pixels[rows])) != len(rows):
        raise DataError("a photo is in two splits of the clients' data; training and test photos must be disjoint")


def _first_of_each(pixels: np.ndarray) -> np.ndarray:
    """Ascending indices of the photos (R, 3, S, S) without their repetitions."""
    seen: dict[bytes, int] = {}
    for number, photo in enumerate(pixels):
        seen.setdefault(hashlib.sha256(photo.tobytes()).digest(), number)
    return np.array(sorted(seen.values()), dtype=int)


def _client(
    name: str, roles: Mapping[str, np.ndarray], table: PhotoTable, pixels: np.ndarray, contract: Preprocessing
) -> Client:
    def photos(rows: np.ndarray) -> Photos:
        decoded, label = torch.from_numpy(pixels[rows]), torch.from_numpy(table.label[rows])
        return Photos(decoded, label, np.zeros(len(rows), int), contract.mean, contract.std)

    return Client(name, **{role: photos(rows) for role, rows in roles.items()})
