"""Whether owners without a task description gain by a bank's networks, or by the shares of their classes alone.

Held-out photos are dealt to owners who meet the classes of one task each. As on a device, an owner's class shares come
from the generic network's answers to one part of their photos; the other part judges the generic network with these
shares, and the network that is mixed for the classes found, with the same shares. The bank's card takes the networks
only where they are better beyond chance: they cost nothing to leave out.

Notation: n photos, C classes, K owners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.methods.taper.bank import Taper
from refocus.cloud_train.methods.taper.descriptions import Descriptions
from refocus.cloud_train.methods.taper.tasks import Around, Task, TaskPhotos
from refocus.cloud_train.progress import track
from refocus.edge.bundle import SelfImprovementBy
from refocus.edge.taper import class_shares, common_classes, shift_of

OWNERS, TEACHING, JUDGED = 60, 96, 40
FEWEST_OWNERS, FEWEST_PHOTOS = 8, 24  # below these nothing is claimed of the networks
CONFIDENCE = 1.96  # standard errors


@dataclass(frozen=True)
class OwnersGain:
    """What owners of held-out photos get.

    Attributes:
        owners: K.
        generic, shares, networks: their accuracy with the generic network as it is, with the shares of their classes,
            and with networks for the classes that were found; 0 where no owner was found.
        low: lower end of the interval of ``networks - shares``, over owners; None of too few.
    """

    owners: int
    generic: float = 0.0
    shares: float = 0.0
    networks: float = 0.0
    low: float | None = None

    @property
    def best(self) -> SelfImprovementBy:
        """What a bank's owners should get: class shares alone, unless networks are better beyond chance."""
        return "networks" if self.low is not None and self.low > 0 else "shares"


@torch.no_grad()
def owners_gain(
    taper: Taper,
    logits: np.ndarray,
    photos: Photos,
    descriptions: Descriptions,
    around: Around,
    plain_domain: int = -1,
    owners: int = OWNERS,
    seed: int = 0,
) -> OwnersGain:
    """Deals held-out photos to owners and judges what each would get.

    Args:
        logits: (n, C) of the generic network for the photos.
        around: sampler of an owner's classes.
        plain_domain: whose descriptions a device reads where no domain is named; -1: their mean.
    """
    index, rng = TaskPhotos(photos.label.numpy(), np.zeros(len(photos), int)), np.random.default_rng(seed)
    probabilities = torch.from_numpy(logits).double().softmax(1).numpy()
    found = []
    for _ in track(range(owners), f"seed {seed}: what owners gain by networks", owners):
        rows = rng.permutation(index.rows(index.draw(around, False, rng)))
        if len(rows) < FEWEST_PHOTOS:
            continue
        judged = rows[: min(JUDGED, len(rows) // 2)]
        shares = class_shares(probabilities[rows[len(judged) :][:TEACHING]])
        task = Task(tuple(sorted(common_classes(shares))), plain_domain)
        [mixers] = taper.predictor(descriptions.of(task)[None])
        answers = taper.answer(taper.personal(mixers), photos.batch(judged)).numpy()
        truth, shift = photos.label.numpy()[judged], shift_of(shares)
        ways = logits[judged], logits[judged] + shift, answers + shift
        found.append([float((one.argmax(1) == truth).mean()) for one in ways])
    if not found:
        return OwnersGain(0)
    of_owners = np.array(found)
    by_networks = of_owners[:, 2] - of_owners[:, 1]
    low = None
    if len(found) >= FEWEST_OWNERS:
        low = float(by_networks.mean() - CONFIDENCE * by_networks.std(ddof=1) / np.sqrt(len(found)))
    generic, shares_alone, with_networks = of_owners.mean(0).tolist()
    return OwnersGain(len(found), generic, shares_alone, with_networks, low)
