"""A bank with one basis more than that of another run, for new photos of its classes (TAPER section 3.4).

    RUN/photos/added-SPLIT.npy                  the new photos, decoded; those of the other run stay there
    RUN/seed-S/stages/added.safetensors         the new basis: stage 2 alone, from the other run's generic network
    RUN/seed-S/stages/taper.safetensors         all bases, and the predictor that was trained again
    RUN/seed-S/growth.json                      accuracy of old and new tasks on validation photos, before and after

Everything else is as in :mod:`refocus.cloud_train.runs.taper`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refocus.cloud_train.data.image_tensors import Photos, decoded
from refocus.cloud_train.data.table import TEXT, PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.taper.bank import Taper
from refocus.cloud_train.methods.taper.growth import (
    WORSE,
    accuracy_of_tasks,
    candidates,
    choose,
    route_to_new,
    some,
    state_of,
    widened,
)
from refocus.cloud_train.methods.taper.train import train_mixing
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import once
from refocus.cloud_train.runs.taper import (
    TAPER,
    TaperConfig,
    TaperRun,
    Variant,
    described,
    load,
    taper_of,
    taper_settings,
    tensors_of,
)
from refocus.edge.files import write_file

SAME = ("side", "mean", "std", "small", "large", "kind", "ways", "norm", "text_encoder", "teacher")


def grown_settings(run: Path, given: Mapping[str, Any]) -> TaperConfig:
    """The settings of the bank that grows, with one basis more; new photos have to be named.

    Args:
        given: nested tables of what is asked for besides.

    Raises:
        UsageError: ``run`` is no run of TAPER, or nothing says which photos are new.
    """
    if "source" not in given and "data_seed" not in given:
        raise UsageError(f"name the new photos, of classes of {run}, with --data (of glyphs: --set data_seed=NUMBER)")
    old = taper_settings(run)
    return replace(old, bases=old.bases + 1, grown_from=str(run))


class GrownRun(TaperRun):
    """An opened run folder of a bank that grows.

    Args:
        table: new photos that were chosen elsewhere, with their splits; None: all of the source.
        old: the run that it grows from; None: that of ``grown_from`` is opened.

    Raises:
        UsageError: the settings differ from the other run's where they may not, or the photos are the same.
        DataError: the new photos are not of the other run's classes, or there are none.
    """

    def __init__(
        self,
        folder: Path,
        config: TaperConfig | None = None,
        table: PhotoTable | None = None,
        old: TaperRun | None = None,
    ) -> None:
        self._old = old
        super().__init__(folder, config, table)

    @cached_property
    def old(self) -> TaperRun:
        return self._old or open_taper(Path(self.config.grown_from))

    @property
    def _prefix(self) -> str:
        """Before the names of the new photos, which may be those of old ones."""
        return f"basis-{self.config.bases}/"

    def _described(self, table: PhotoTable | None) -> tuple[PhotoTable, np.ndarray, tuple[str, ...]]:
        """The old photos, then the new ones, with the old classes."""
        config, before = self.config, self.old.config
        differ = [name for name in SAME if getattr(config, name) != getattr(before, name)]
        if config.bases != before.bases + 1:
            differ.append("bases")
        if differ:
            raise UsageError(f"{', '.join(differ)}: expected those of {self.old.folder}, with one basis more")
        if before.small.frozen:
            raise UsageError(f"{self.old.folder} has frozen blocks (small.frozen); a bank of such bases cannot grow")
        if table is None and (config.source, config.data_seed) == (before.source, before.data_seed):
            raise UsageError(f"{config.source}: the photos of {self.old.folder}; name the new ones with --data")
        added, *_ = described(config, load(config) if table is None else table)
        joined = join(self.old.table, added, self._prefix, str(self.old.folder))
        if (len(set(joined.domain.tolist())) > 1) != self.old.by_domain:
            raise UsageError(f"the new photos have other domains than those of {self.old.folder}, which has one")
        return joined, self.old.groups, self.old.group_names

    def photos(self, split: str) -> Photos:
        """The old photos of a split, then the new ones."""
        pixels = torch.cat([self.old.photos(split).pixels, self._pixels(split)])
        return self._photos_of(self.table.of_split(split), pixels)

    def _pixels(self, split: str) -> Tensor:
        """The new photos of a split, decoded once."""
        added = self.table.of_split(split).rows(self.added(split))
        path = self.folder / "photos" / f"added-{split}.npy"
        return torch.from_numpy(once(path, lambda: decoded(added, self.preprocessing, f"reading new photos: {split}")))

    def added(self, split: str) -> np.ndarray:
        """(R,) bool: which photos of a split are new."""
        found: np.ndarray = np.char.startswith(self.table.of_split(split).photo, self._prefix)
        return found

    def generic(self, seed: int, which: str = "small", epochs: int = 0) -> dict[str, Tensor]:
        """The other run's: it is not trained again."""
        return self.old.generic(seed, which, epochs)

    def _check_shards(self) -> None:
        """The old bases stay as they are, and :func:`join` sees to photos for the new one."""

    def shards(self, bases: int = 0) -> list[np.ndarray]:
        """One more than the other run's: the new photos."""
        return [*self.old.shards(), np.flatnonzero(self.added("train"))]

    def specialists(self, seed: int, bases: int = 0) -> Tensor:
        """The other run's bases as they are in its bank, and the new one, of stage 2; (Q + 1, n)."""
        shard = np.flatnonzero(self.added("train"))
        new = self._specialists(seed, "added", lambda: self.network().network, lambda: [shard])
        return torch.cat([self.old.taper(seed).bases.rows().detach(), new])

    def taper(self, seed: int, variant: Variant = TAPER) -> Taper:
        """The bank: old bases, the new one, and the predictor that was trained again.

        Raises:
            UsageError: a variant; they are of banks that did not grow.
        """
        if variant != TAPER:
            raise UsageError(f"{variant.name} is of a bank that did not grow: {self.old.folder}")
        tensors, norm = self._trained(seed, TAPER.name, lambda: self._grow(seed)), self.config.norm
        return taper_of(tensors, self._structure(norm), self.layout(), self.text.width, norm)

    def _grow(self, seed: int) -> dict[str, Tensor]:
        old, recipe, around = self.old.taper(seed), self.recipe(seed), self.around()
        wider = widened(old, self.specialists(seed)[-1], self.text)
        start = state_of(wider)
        about = self.train, around, self.by_domain, self.text
        route_to_new(wider, old, self.train, self.added("train"), *about[1:], recipe)
        routed = state_of(wider)
        what, kept = f"seed {seed}: mixers of {self.config.bases} bases", self._unfinished(seed, TAPER.name)
        train_mixing(wider, *about, recipe, recipe.epochs[2], what, unfinished=kept, frozen=True, teacher=self.teacher)
        held_out, new = self.photos("validation"), self.added("validation")
        judged = partial(accuracy_of_tasks, around=around, by_domain=self.by_domain, descriptions=self.text)
        parts = {"old": some(held_out, ~new), "new": some(held_out, new)}
        before = {name: judged(old, photos) for name, photos in parts.items()}
        states = candidates(wider, start, routed, state_of(wider))
        of_old, of_new = (partial(judged, photos=photos) for photos in parts.values())
        chosen, tried = choose(wider, states, of_old, of_new, before["old"] - WORSE)
        found = {"before": before, "after": tried[chosen], "chosen": chosen, "tried": tried}
        write_file(self.folder / f"seed-{seed}" / "growth.json", json.dumps(found) + "\n")
        tasks = ", ".join(f"{name} tasks {before[name]:.1%} -> {tried[chosen][name]:.1%}" for name in parts)
        say(f"validation photos: {tasks} (mixers: {chosen})")
        return tensors_of(wider)


def join(old: PhotoTable, added: PhotoTable, prefix: str, where: str) -> PhotoTable:
    """The old photos, then the added ones, with the old classes.

    Args:
        prefix: of the added photos' names; no old one begins so.
        where: the old ones are from.

    Raises:
        DataError: an added class that the old photos do not have; no added photo to train on or to validate with.
    """
    unknown = sorted({added.classes[number] for number in np.unique(added.label)} - set(old.classes))
    if unknown:
        raise DataError(f"{', '.join(unknown[:3])}: none of the classes of {where}; a basis is added for its classes")
    for split in ("train", "validation"):
        if not (added.split == split).any():
            raise DataError(f"there are no new photos of the split {split}; a basis is trained and validated on some")
    index = np.array([old.classes.index(name) if name in old.classes else -1 for name in added.classes])
    columns: dict[str, Any] = {name: np.concatenate([getattr(old, name), getattr(added, name)]) for name in TEXT}

    def read(name: str) -> bytes:
        return added.read(name.removeprefix(prefix)) if name.startswith(prefix) else old.read(name)

    def stamp(name: str) -> str:
        return added.stamp(name.removeprefix(prefix)) if name.startswith(prefix) else old.stamp(name)

    return PhotoTable(
        np.concatenate([old.photo, np.char.add(prefix, added.photo)]),
        np.concatenate([old.label, index[added.label]]),
        **columns,
        classes=old.classes,
        read=read,
        stamp=stamp,
    )


def open_taper(folder: Path, config: TaperConfig | None = None) -> TaperRun:
    """A run of TAPER: of a bank of its own, or of one that grew.

    Raises:
        UsageError: the folder is none, or holds one with other settings.
    """
    return (GrownRun if taper_settings(folder, config).grown_from else TaperRun)(folder, config)
