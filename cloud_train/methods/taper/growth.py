"""One basis more for a bank that is there (TAPER section 3.4): new photos of its classes, without training it again.

The new basis is fine-tuned from the generic network on the new photos; the old bases stay as they are. The mixer
predictor gets one output more: first it learns which tasks have photos of the new shard and then, by the loss of the
mixed networks, how much of the new basis they want. How far it may go is decided by validation photos of the old tasks,
which are to be no worse off.

Notation as in :mod:`refocus.cloud_train.methods.taper.bank`: Q bases, M mixers, T tasks, n numbers of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from refocus.cloud_train.data.image_tensors import Photos
from refocus.cloud_train.methods.taper.bank import Bases, MixerPredictor, Taper
from refocus.cloud_train.methods.taper.descriptions import Descriptions
from refocus.cloud_train.methods.taper.tasks import Around, TaskPhotos
from refocus.cloud_train.methods.taper.train import TaperRecipe, best_of, personal_networks, teach_mixers

FIRST_SHARE = 0.002  # of the new basis in every mixer, before anything is learned of it
HELD_BACK = (1.0, 2.0, 3.0)  # by which the new basis' score is lowered
WORSE = 0.001  # of accuracy: what the old tasks may lose on validation photos, which nobody can tell
State = Mapping[str, Tensor]
JUDGED, PHOTOS_OF_TASK = 100, 40  # validation tasks, and photos of each at most


def widened(taper: Taper, row: Tensor, descriptions: Descriptions) -> Taper:
    """The bank with one basis more, which has ``FIRST_SHARE`` of the mixers of a class described alone, on average.

    Args:
        row: (n,) the new basis.
    """
    old = taper.predictor
    last = old.layers[-1]
    assert isinstance(last, nn.Linear)  # noqa: S101  # of MixerPredictor
    made = MixerPredictor(descriptions.width, old.mixers, old.bases + 1, last.in_features)
    with torch.no_grad():
        scores = old.eval().layers(descriptions.table.flatten(0, 1)).unflatten(1, (old.mixers, old.bases))
        level = scores.logsumexp(2).mean(0) + float(np.log(FIRST_SHARE / (1 - FIRST_SHARE)))
        state = dict(state_of(taper))
        key = f"layers.{len(old.layers) - 1}"
        weight = state[f"{key}.weight"].unflatten(0, (old.mixers, old.bases))
        bias = state[f"{key}.bias"].unflatten(0, (old.mixers, old.bases))
        state[f"{key}.weight"] = torch.cat([weight, torch.zeros_like(weight[:, :1])], 1).flatten(0, 1)
        state[f"{key}.bias"] = torch.cat([bias, level[:, None]], 1).flatten()
    made.load_state_dict(state)
    rows = torch.cat([taper.bases.rows().detach(), row[None]])
    return Taper(taper.network, Bases(taper.bases.layout, rows), made, taper.norm).eval()


def route_to_new(
    wider: Taper,
    old: Taper,
    photos: Photos,
    added: np.ndarray,
    around: Around,
    by_domain: bool,
    descriptions: Descriptions,
    recipe: TaperRecipe,
) -> None:
    """Teaches the predictor the new basis' share of a task: that of the new photos among the task's.

    The old bases share the rest as before.

    Args:
        added: (R,) bool, which of the photos are new.
    """
    old.eval()

    def wanted(of_tasks: Sequence[np.ndarray], told: Tensor) -> Tensor:
        share = torch.tensor([added[rows].mean() for rows in of_tasks], dtype=torch.float32)
        share = ((1 - recipe.evenness) * share + recipe.evenness / wider.predictor.bases)[:, None, None]
        with torch.no_grad():
            before = old.predictor(told)
        return torch.cat([(1 - share) * before, share.expand(-1, before.shape[1], 1)], dim=2)

    teach_mixers(wider, photos, around, by_domain, descriptions, recipe, wanted)


def candidates(wider: Taper, start: State, routed: State, trained: State) -> dict[str, State]:
    """States of the predictor that may become the bank's: from the widest use of the new basis to none.

    Args:
        start: as widened; the new basis has next to nothing.
        routed: after :func:`route_to_new`.
        trained: after stage 3.
    """
    key = f"layers.{len(wider.predictor.layers) - 1}.bias"

    def held_back(by: float) -> State:
        bias = routed[key].clone().unflatten(0, (wider.predictor.mixers, wider.predictor.bases))
        bias[:, -1] -= by
        return {**routed, key: bias.flatten()}

    less = {f"routed, odds of the new basis divided by {np.exp(by):.0f}": held_back(by) for by in HELD_BACK}
    return {"trained": trained, "routed": routed, **less, "unused": start}


def choose(
    wider: Taper,
    states: Mapping[str, State],
    old: Callable[[Taper], float],
    new: Callable[[Taper], float],
    least: float,
) -> tuple[str, dict[str, dict[str, float]]]:
    """Gives the predictor the state that is best for the new tasks of those that are good enough for the old ones.

    Args:
        old, new: accuracy of old and of new tasks.
        least: that the old tasks need; the last state is taken where no other reaches it.

    Returns:
        The name of the state, and both accuracies of each.
    """
    found = {}
    for name, state in states.items():
        wider.predictor.load_state_dict(state)
        found[name] = {"old": old(wider), "new": new(wider)}
    allowed = [name for name in states if found[name]["old"] >= least]
    chosen = max(allowed, key=lambda name: found[name]["new"]) if allowed else [*states][-1]
    wider.predictor.load_state_dict(states[chosen])
    return chosen, found


def state_of(taper: Taper) -> State:
    """A copy of the predictor's state."""
    return {name: value.clone() for name, value in taper.predictor.state_dict().items()}


def accuracy_of_tasks(
    taper: Taper, photos: Photos, around: Around, by_domain: bool, descriptions: Descriptions, seed: int = 0
) -> float:
    """Share of photos that the personal networks of random tasks tell apart, of the classes of each task."""
    index, rng, right = TaskPhotos.of(photos), np.random.default_rng(seed), []
    tasks = [index.draw(around, by_domain, rng) for _ in range(JUDGED)]
    for task, flat in zip(tasks, personal_networks(taper, tasks, descriptions), strict=True):
        rows = rng.permutation(index.rows(task))[:PHOTOS_OF_TASK]
        with torch.no_grad():
            best = best_of(taper.answer(flat, photos.batch(rows)), task)
        right += (best == photos.label[rows]).tolist()
    return float(np.mean(right))


def some(photos: Photos, chosen: np.ndarray) -> Photos:
    """The photos that are chosen, bool (R,)."""
    rows = torch.from_numpy(np.flatnonzero(chosen))
    return replace(photos, pixels=photos.pixels[rows], label=photos.label[rows], domain=photos.domain[chosen])
