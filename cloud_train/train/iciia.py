"""Run ``refocus train iciia`` as a function.

It trains heads that use a person's history, on the features of a frozen encoder.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from refocus.cloud_train.backbones.backbone import feature_width
from refocus.cloud_train.backbones.bundle_encoder import bundle_backbone
from refocus.cloud_train.backbones.pretrain import CLIP_ARGUMENTS, CLIP_BACKBONE, EncoderRecipe
from refocus.cloud_train.data import moving_glyphs as clips
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.data.windows import common_length, windows
from refocus.cloud_train.methods.iciia.block import TINY, IciiaConfig, roomy_partitions
from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe
from refocus.cloud_train.methods.iciia.train_gate import GateRecipe
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import note_settings, starting
from refocus.cloud_train.runs.iciia import CLIPS, DRAWN, Run, RunConfig, check_network, chosen_by, variant_name
from refocus.cloud_train.settings import NotNegativeCount, checked, part_of
from refocus.cloud_train.train.recipes import OfRecipes, Seeds, of_drawn_clips, of_glyphs, section
from refocus.edge.bundle import load_bundle
from refocus.export.program import Checkpoint


@dataclass(frozen=True)
class IciiaSettings(RunConfig, OfRecipes):
    """Hold the settings that a run of ICIIA depends on.

    The defaults are the recipe ``default`` for glyphs.

    Attributes:
        seeds: one head of each is trained.
        partitions: P of several heads, as [1, 256], of which validation people choose; 0: the largest of ICIIA-B,
            P = 4, 8 and 16 that the number of training photos supports; empty: that of the block.
        block: the ICIIA block; its width is the backbone's.
        recipe: how a block is trained; its seed is each of the seeds.
        gate: how much a history is trusted; its seed is that of its head.
        devices: where training runs.
    """

    seeds: Seeds = (0,)
    partitions: tuple[NotNegativeCount, ...] = ()
    block: IciiaConfig = field(default_factory=lambda: IciiaConfig(layers=0, window=0))
    recipe: IciiaRecipe = field(default_factory=lambda: IciiaRecipe(0.2, 0.9, 16, 12))
    gate: GateRecipe = field(default_factory=GateRecipe)
    devices: Devices = field(default_factory=Devices)


def _default(given: Mapping[str, Any]) -> IciiaSettings:
    """Of docs/results: glyphs.json, and for photos real-photos.json; of drawn clips fewer and smaller."""
    settings = IciiaSettings()
    if of_glyphs(section(given, "data")):
        return settings
    if of_drawn_clips(section(given, "data")):
        data = replace(
            settings.data, source=CLIPS, photos_per_client=clips.CLIPS_PER_CLIENT, glyph_clients=clips.CLIENTS
        )
        settings = replace(settings, data=data, backbone=CLIP_BACKBONE, arguments=CLIP_ARGUMENTS, frames=clips.FRAMES)
        return replace(settings, encoder=EncoderRecipe(epochs=6, batch=32), recipe=IciiaRecipe(0.05, 0.9, 16, 12))
    steps = None if section(given, "recipe").get("learning_rate") else 5  # as run.toml of a given rate states none
    recipe = IciiaRecipe(0.0, 0.9, 16, epochs=500, clip_norm=1.0, steps_per_epoch=steps)
    partitions = () if "partitions" in section(given, "block") else (TINY, 0)
    return replace(settings, partitions=partitions, recipe=recipe)


def _paper(given: Mapping[str, Any]) -> IciiaSettings:
    """ICIIA section 4.1 and appendix A; a fixed count in place of the gate on statistics (section 4.2)."""
    return IciiaSettings(recipe=IciiaRecipe(), gate=GateRecipe("warm_up"))


IciiaSettings.RECIPES = {"default": _default, "paper": _paper}


def train_iciia(settings: IciiaSettings, out: Path, command: str = "") -> list[Checkpoint]:
    """Train the heads that are missing in a run's folder.

    Existing heads are not made again.

    Args:
        out: folder of the run; it gets ``run.toml``, which repeats it.
        command: what made it, to be published with its figures; "": nothing is noted.

    Returns:
        The heads, by seed and partitions, as ``export_bundle`` takes them.

    Raises:
        UsageError, DataError: the settings or the photos do not allow it; nothing is left behind that refuses the
            corrected call.
    """
    settings = checked(settings)
    check_network(settings)  # before photos are read
    fabric = settings.devices.launch()
    with starting(out, alone=fabric.is_global_zero):
        run = Run(out, part_of(settings, RunConfig))
        blocks = blocks_of(settings, _width(settings), run.table.of_split("train"))
        prepared = run.prepare(fabric)
        if fabric.is_global_zero:
            say(prepared.facts())
            note_settings(out, settings)
            if command:
                run.note_command(command)
        heads = []
        for seed, block in itertools.product(settings.seeds, blocks):
            recipe = replace(settings.recipe, seed=seed)
            heads.append(run.train_head(variant_name(block), block, recipe, prepared, fabric, settings.gate))
            say(f"wrote {heads[-1].path}")
        if fabric.is_global_zero:
            chosen = chosen_by(heads)
            note_settings(out, settings, () if settings.block.window and settings.recipe.learning_rate else chosen)
    return heads


def blocks_of(settings: IciiaSettings, width: int, train: PhotoTable) -> list[IciiaConfig]:
    """Return the blocks of the heads.

    Window and partitions fit the data where the settings leave them open.

    Raises:
        UsageError, DataError: the network's width or the photos do not allow a block.
    """
    drawn, photos = settings.data.source in DRAWN, common_length(train)
    several = settings.partitions or (settings.block.partitions,)
    largest = roomy_partitions(settings.block.on(width, drawn), len(train)) if 0 in several else 0
    blocks = [replace(settings.block, partitions=p or largest).on(width, drawn, photos) for p in several]
    windows(train, blocks[0].window)  # before features are extracted
    return list(dict.fromkeys(blocks))


def _width(settings: IciiaSettings) -> int:
    """Return D, without weights where that is possible.

    A mistake must be found before hours of feature extraction.
    """
    if settings.bundle:
        return bundle_backbone(load_bundle(Path(settings.bundle))).width
    return feature_width(settings.backbone, settings.arguments)
