"""``refocus train taper`` as a function: bases of one architecture, and the mixer predictor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from refocus.cloud_train.methods.taper.train import TaperRecipe
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import note_settings, starting
from refocus.cloud_train.runs.taper import Network, TaperConfig
from refocus.cloud_train.runs.taper_growth import grown_settings, open_taper
from refocus.cloud_train.settings import checked, part_of
from refocus.cloud_train.train.recipes import OfRecipes, Seeds, of_glyphs, section
from refocus.export.program import Checkpoint


@dataclass(frozen=True)
class TaperSettings(TaperConfig, OfRecipes):
    """Everything that a run of TAPER depends on. The defaults are the recipe ``default`` for glyphs.

    Attributes:
        seeds: one bank of each is trained.
    """

    seeds: Seeds = (0,)


def _on_their_networks(settings: TaperSettings, given: Mapping[str, Any]) -> TaperSettings:
    """Without the recipe's arguments of a network, where another one is asked for."""
    small, large = (
        replace(own, arguments={}) if "name" in section(given, which) else own
        for which, own in (("small", settings.small), ("large", settings.large))
    )
    return replace(settings, small=small, large=large)


_OF_PHOTOS = TaperSettings(side=64, bases=10, shards="nearest", kind="nearest")


def _default(given: Mapping[str, Any]) -> TaperSettings:
    """Of the bank that is to grow; else of docs/decisions/0013-taper.md, and of photos as in
    docs/results/real-photos-taper.json."""
    if given.get("grown_from"):
        start = grown_settings(Path(str(given["grown_from"])), given)
        return TaperSettings(**{field.name: getattr(start, field.name) for field in fields(start)})
    if of_glyphs(given):
        return TaperSettings()
    return replace(
        _OF_PHOTOS,
        small=Network("resnet10t", {"channels": [24, 48, 96, 192], "stem_width": 16}),
        large=Network("resnet10t", {"channels": [44, 88, 176, 352], "stem_width": 28}),
        recipe=TaperRecipe((14, 6, 2), (0.1, 0.02, 0.005), select_shards=True, flip=True, shift=4),
    )


def _paper(given: Mapping[str, Any]) -> TaperSettings:
    """TAPER section 4 (ResNet-18, 10 bases of classes on ImageNet; 100, 5 and 20 epochs); of glyphs what differs."""
    if of_glyphs(given):
        return TaperSettings(recipe=TaperRecipe(any_domain=0.0))
    recipe = TaperRecipe(flip=True, shift=4)
    return replace(_OF_PHOTOS, small=Network("resnet18"), large=Network("resnet101"), shards="classes", recipe=recipe)


TaperSettings.RECIPES = {
    "default": lambda given: _on_their_networks(_default(given), given),
    "paper": lambda given: _on_their_networks(_paper(given), given),
}


def train_taper(settings: TaperSettings, out: Path) -> list[Checkpoint]:
    """Trains the banks that are missing in a run's folder.

    Args:
        out: folder of the run; it gets ``run.toml``, which repeats it.

    Returns:
        A checkpoint per seed, as ``export_bank`` takes it.

    Raises:
        UsageError, DataError: the settings or the photos do not allow it; nothing is left behind that refuses the
            corrected call.
    """
    settings, made = checked(settings), []
    with starting(out, alone=True):
        run = open_taper(out, part_of(settings, TaperConfig))
        run.check()
        note_settings(out, settings)
        for seed in settings.seeds:
            made.append(run.export_checkpoint(seed))
            say(f"wrote {made[-1].path}")
    return made
