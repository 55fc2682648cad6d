"""Ways to hand photos to clients, as pure functions of labels and a seed.

Every function returns one client name per photo; "" means that the photo belongs to nobody (a last, incomplete
block). R photos, C classes.
"""

from __future__ import annotations

import numpy as np

from refocus.cloud_train.errors import DataError, UsageError

DEALT = "classes"  # how the names of pseudo-clients with random classes begin


def by_parent(parent: np.ndarray, photos_per_client: int, ratio: float = 1.0, seed: int = 0) -> np.ndarray:
    """Clients by parent category with heterogeneity ratio r (ICIIA section 4.1 and Fig. 6).

    The first r of each parent's shuffled photos stay with clients of that parent alone. The rest of all parents is
    pooled, shuffled and handed out without regard to the parent. r = 1 is the paper's main setting, r = 0 the one in
    which no client is special.

    Args:
        parent: (R,) parent category of each photo.
        photos_per_client: size of a client.
        ratio: r in [0, 1].
        seed: order of the photos.

    Returns:
        (R,) client names: ``PARENT/NUMBER`` or ``mixed/NUMBER``.
    """
    if not 0 <= ratio <= 1:
        raise UsageError(f"ratio {ratio}: expected a share between 0 and 1")
    rng = np.random.default_rng(seed)
    client = np.full(len(parent), "", dtype=object)
    pooled: list[np.ndarray] = []
    for name in np.unique(parent):
        rows = rng.permutation(np.flatnonzero(parent == name))
        kept = round(ratio * len(rows))
        _cut(client, rows[:kept], str(name), photos_per_client)
        pooled.append(rows[kept:])
    _cut(client, rng.permutation(np.concatenate(pooled)), "mixed", photos_per_client)
    return client.astype(str)


def mixed(client: np.ndarray, heterogeneity: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Clients at a chosen level of cross-client heterogeneity (ICIIA section 4.2, Fig. 6), from given ones.

    That share of the clients keep their photos. The photos of all others are pooled, shuffled and handed back, as many
    to each as they had, so at 0 nobody's photos have anything in common. No photo comes or goes: what is measured at
    one level can be paired with every other.

    Args:
        client: (R,) client of each photo.
        heterogeneity: share of the clients that stay as they are, in [0, 1].
        seed: who is mixed, and how.

    Returns:
        (R,) row indices, the mixed photos in their new order behind the others, and (R,) client names of those rows;
        a mixed client is named ``mixed/CLIENT``.
    """
    if not 0 <= heterogeneity <= 1:
        raise UsageError(f"heterogeneity {heterogeneity}: expected a share between 0 and 1")
    rng = np.random.default_rng(seed)
    names = rng.permutation(np.unique(client))
    poured = np.isin(client, names[round(heterogeneity * len(names)) :])
    order = np.concatenate([np.flatnonzero(~poured), rng.permutation(np.flatnonzero(poured))])
    handed = np.sort(client[poured]).astype(object)  # each client as often as before
    return order, np.concatenate([client[~poured].astype(object), "mixed/" + handed]).astype(str)


def dirichlet(label: np.ndarray, clients: int, alpha: float, seed: int = 0) -> np.ndarray:
    """Each class is dealt to the clients in proportions drawn from Dirichlet(alpha): small alpha, few classes each.

    Every photo goes to somebody; a client that draws nothing does not appear.
    """
    if alpha <= 0 or clients < 1:
        raise UsageError(f"alpha {alpha} must be positive and number_of_clients {clients} at least 1")
    rng = np.random.default_rng(seed)
    client = np.full(len(label), "", dtype=object)
    for value in np.unique(label):
        rows = rng.permutation(np.flatnonzero(label == value))
        ends = np.round(np.cumsum(rng.dirichlet(np.full(clients, alpha))) * len(rows)).astype(int)
        for number, part in enumerate(np.split(rows, ends[:-1])):
            client[part] = f"dirichlet/{number:04d}"
    return client.astype(str)


def disjoint_classes(label: np.ndarray, clients: int, seed: int = 0) -> np.ndarray:
    """The classes are dealt out: no class is met by two clients."""
    classes = np.unique(label)
    if not 1 <= clients <= len(classes):
        raise UsageError(f"number_of_clients {clients}: expected between 1 and the number of classes, {len(classes)}")
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(classes), clients)
    owner = {value: number for number, part in enumerate(parts) for value in part}
    return np.array([f"disjoint/{owner[value]:04d}" for value in label])


def random_classes(
    label: np.ndarray, photos_per_client: int, classes: tuple[int, int] = (5, 10), seed: int = 0
) -> np.ndarray:
    """Pseudo-clients with a few random classes each, every photo with one of them at most.

    What sets them apart is which classes they meet, and nothing else; people are more alike within and differ more.
    Classes with many photos are met by more of them. The last photos, of too few classes, belong to nobody.

    Args:
        label: (R,) classes.
        photos_per_client: of each, drawn evenly from its classes while these last.
        classes: of a client, least and most.
        seed: who gets what.

    Raises:
        DataError: there are fewer than two classes, or fewer photos than a client has.
    """
    rng = np.random.default_rng(seed)
    left = {int(c): rng.permutation(np.flatnonzero(label == c)).tolist() for c in np.unique(label)}
    if len(left) < 2 or len(label) < photos_per_client:
        raise DataError(
            f"{len(label)} photos of {len(left)} classes cannot be dealt to people with {photos_per_client} photos each"
        )
    client = np.full(len(label), "", dtype=object)
    number = 0
    while True:
        usable = [c for c, rows in left.items() if rows]
        sizes = np.array([len(left[c]) for c in usable], dtype=float)
        wanted = min(int(rng.integers(classes[0], classes[1] + 1)), len(left))
        if len(usable) < min(classes[0], len(left)) or sizes.sum() < photos_per_client:
            return client.astype(str)
        met = rng.choice(usable, min(wanted, len(usable)), replace=False, p=sizes / sizes.sum()).tolist()
        taken: list[int] = []
        while len(taken) < photos_per_client and (met := [c for c in met if left[c]]):
            taken.append(left[int(rng.choice(met))].pop())
        if len(taken) == photos_per_client:
            client[taken] = f"{DEALT}/{number:04d}"
            number += 1


def natural(client: np.ndarray, smallest: int = 1) -> np.ndarray:
    """The people who took the photos; those with fewer than ``smallest`` photos are left out.

    Raises:
        DataError: nobody has that many photos.
    """
    names, inverse, counts = np.unique(client, return_inverse=True, return_counts=True)
    if not (counts >= smallest).any():
        raise DataError(f"no client has {smallest} photos (the largest has {counts.max(initial=0)})")
    return np.where((counts[inverse] >= smallest) & (names[inverse] != ""), client, "").astype(str)


def _cut(client: np.ndarray, rows: np.ndarray, name: str, size: int) -> None:
    for number in range(len(rows) // size):
        client[rows[number * size : (number + 1) * size]] = f"{name}/{number:04d}"
