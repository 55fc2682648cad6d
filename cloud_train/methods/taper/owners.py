"""Whether owners without a task description gain by a bank's networks, or by the shares of their classes alone.

Validation photos are dealt to owners who meet the classes of one task each. As on a device, an owner's class shares
come from the generic network's answers to one part of their photos; the other part judges the generic network with
these shares, and the network that is mixed for the classes found, with the same shares. No photo judges two owners,
or their differences would look surer than they are. The bank's card takes the networks only where they are better
beyond chance: they cost nothing to leave out.

Notation: n photos, C classes, K owners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.taper.bank import Taper
from refocus.cloud_train.methods.taper.descriptions import Descriptions
from refocus.cloud_train.methods.taper.tasks import Around, Task, TaskPhotos
from refocus.cloud_train.progress import track
from refocus.edge.bundle import SelfImprovementBy
from refocus.edge.taper import class_shares, common_classes, shift_of

OWNERS, TEACHING, JUDGED = 60, 96, 20
FEWEST_JUDGED = 8  # photos of an owner
FEWEST_OWNERS = 12  # below these nothing is claimed of the networks
STUDENT = 2.2  # standard errors of a 95 % interval over twelve owners; over more it is a little wider than that


@dataclass(frozen=True)
class OwnersGain:
    """Accuracy of owners of validation photos, by the generic network, class shares, and networks.

    Attributes:
        owners: K.
        generic, shares, networks: their accuracy with the generic network as it is, with the shares of their classes,
            and with networks for the classes that were found; None where there is no owner.
        low: lower end of the interval of ``networks - shares``, over owners; None of too few.
    """

    owners: int
    generic: float | None = None
    shares: float | None = None
    networks: float | None = None
    low: float | None = None

    @property
    def best(self) -> SelfImprovementBy:
        """The model for a bank's owners: networks if they are better beyond chance; else class shares, unless the
        generic network is better as it is."""
        if self.low is not None and self.low > 0:
            return "networks"
        worse = self.shares is not None and self.generic is not None and self.shares < self.generic
        return "generic" if worse else "shares"


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
    """Deals validation photos to owners and judges what each would get.

    Args:
        logits: (n, C) of the generic network for the photos.
        around: sampler of an owner's classes.
        plain_domain: whose descriptions a device reads where no domain is named; -1: their mean.
    """
    index, rng = TaskPhotos(photos.label.numpy(), np.zeros(len(photos), int)), np.random.default_rng(seed)
    probabilities = torch.from_numpy(logits).double().softmax(1).numpy()
    label, left = photos.label.numpy(), np.ones(len(photos), bool)
    found = []
    for _ in track(range(owners), f"seed {seed}: what owners gain by networks", owners):
        try:
            rows = rng.permutation(index.rows(index.draw(around, False, rng)))
        except UsageError:  # validation photos of super-categories of one class alone
            break
        judged = rows[left[rows]][: min(JUDGED, len(rows) // 2)]
        if len(judged) < FEWEST_JUDGED:
            continue
        left[judged] = False
        shares = class_shares(probabilities[np.setdiff1d(rows, judged)[:TEACHING]])
        task = Task(tuple(sorted(common_classes(shares))), plain_domain)
        [mixers] = taper.predictor(descriptions.of(task)[None])
        answers = taper.answer(taper.personal(mixers), photos.batch(judged)).numpy()
        ways = logits[judged], logits[judged] + shift_of(shares), answers + shift_of(shares)
        found.append([float((one.argmax(1) == label[judged]).mean()) for one in ways])
    return _summary(np.array(found))


def _summary(found: np.ndarray) -> OwnersGain:
    """Of the accuracy (K, 3) of each owner with the generic network, class shares, and networks."""
    if not len(found):
        return OwnersGain(0)
    by_networks, low = found[:, 2] - found[:, 1], None
    if len(found) >= FEWEST_OWNERS:
        low = float(by_networks.mean() - STUDENT * by_networks.std(ddof=1) / np.sqrt(len(found)))
    generic, shares, networks = found.mean(0).tolist()
    return OwnersGain(len(found), generic, shares, networks, low)
