"""A run of TAPER: a folder in which bases, mixers and everything they are compared with are trained, each once.

    RUN/taper.json                    what was asked for
    RUN/photos/SPLIT.npy              the photos, decoded and cropped
    RUN/photos/teacher.npy            logits of the teacher for the training photos, where there is one
    RUN/features/                     the teacher's features, see refocus.cloud_train.backbones.feature_cache
    RUN/text.safetensors              the classes' descriptions
    RUN/curves.jsonl                  losses of all trainings, by step
    RUN/seed-S/stages/NAME.safetensors    a trained network, or bases with their mixer predictor
    RUN/seed-S/stages/NAME*.unfinished.safetensors    the state of a training, see refocus.cloud_train.resume
    RUN/seed-S/taper.safetensors      what is exported: bases, predictor, descriptions, generic network
    RUN/seed-S/taper.json             its card
    RUN/seed-S/bank*/                 its bundles, and parity/, the validation photos that they were compared on
    RUN/seed-S/answers/               see refocus.cloud_train.evaluate.kept_answers
    RUN/studies/NAME.json             results documents of python -m studies

Every step is skipped if its result is there, so an interrupted run resumes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone, load_weights
from refocus.cloud_train.backbones.pretrain import GLYPH_PREPROCESSING
from refocus.cloud_train.data import glyphs
from refocus.cloud_train.data.image_tensors import Photos, decoded
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.taper import tasks
from refocus.cloud_train.methods.taper.bank import Bases, Layout, MixerPredictor, Taper, layout_of
from refocus.cloud_train.methods.taper.descriptions import (
    MINILM,
    Descriptions,
    bag_of_words,
    prompts_for,
    sentence_encoder,
    text_descriptions,
)
from refocus.cloud_train.methods.taper.owners import OwnersGain, owners_gain
from refocus.cloud_train.methods.taper.teacher import Teacher
from refocus.cloud_train.methods.taper.train import (
    SHARDS,
    TaperRecipe,
    route,
    shards_around,
    shards_of,
    start,
    train_generic,
    train_mixing,
    train_specialists,
)
from refocus.cloud_train.methods.taper.trunk import NO_SHIFT, Activations, Trunk, activations, cut, restate_norms
from refocus.cloud_train.resume import SUFFIX, seconds_of
from refocus.cloud_train.runs.folder import (
    contents,
    once,
    photo_folder,
    same_inputs,
    same_photos,
    save_settings,
    settings_of,
    tell_copies,
)
from refocus.cloud_train.runs.taper_teacher import TeacherNetwork, teacher_logits, teacher_of
from refocus.cloud_train.settings import Count, FilePath
from refocus.cloud_train.settings import Photos as PhotoSource
from refocus.edge.bundle import MANIFEST, Bundle, Preprocessing, load_bundle
from refocus.edge.files import file_sha256
from refocus.export.bank import export_bank, find_folds, fold, folded_structure
from refocus.export.bundle import Export
from refocus.export.parity import FEWEST_PHOTOS, read_streams
from refocus.export.program import Card, Checkpoint, load_checkpoint, save_checkpoint

FOLDED = "folded"  # a norm of variants alone: what it gives has no norms left to fold on a device
PARITY_FOLDERS, PARITY_PHOTOS = 4, 25
ONNX = "onnx:fp32"
COST_OF_MIXING = 3  # times what a photo takes in stages 1 and 2, where no networks are mixed and all photos meet one
MEASURED = 512  # training photos by which norms of pretrained weights are stated
VALIDATION_SHARE = 0.1  # of the training photos, where the data has no validation split of its own


@dataclass(frozen=True)
class Network:
    """A timm network.

    Attributes:
        name: timm name.
        arguments: of ``timm.create_model``.
        checkpoint: pretrained weights, .safetensors; its classifier is left out. "": random weights.
        frozen: blocks behind the stem that stay as they are in the checkpoint, the stem too; all bases share them, and
            stages 1 to 3 train the rest on their activations. 0: all is trained.
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    checkpoint: FilePath = ""
    frozen: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclass(frozen=True)
class TaperConfig:
    """What ``taper.json`` holds.

    Attributes:
        source: "glyphs", or the path of a folder or zip file of photos.
        label_column: of class names in plain words; descriptions are made of them.
        parent_column: of each photo's super-category; "": none.
        domain_column: of each photo's domain, as "sketch"; "": none.
        description_column: of a text about each photo's class, as of a shop's catalogue, which is half of the class's
            description; "": none, descriptions are made of names alone.
        side: pixels of the square that networks see.
        mean, std: per RGB channel in [0, 1], as pretrained weights expect them; not of glyphs.
        small, large: the network that is condensed, and one of at least three times its size to compare with.
        bases: Q.
        shards: what specialists of stage 2 see: parts by "classes", "groups" (whole super-categories), "domains" or
            "both" (:func:`shards_of`), or the "nearest" classes around one (:func:`shards_around`), twice as many as a
            task has.
        kind: of tasks: "fixed", "dynamic", "group" (one super-category) or "nearest".
        ways: k.
        norm: batch normalisation while mixers are learned, "mixed" or "task" (:class:`Taper`).
        text_encoder: Hugging Face name or folder of a sentence encoder.
        recipe: how the three stages are trained.
        teacher: pretrained network whose logits all of them learn from too, and what they are compared with.
        glyph_clients: writers per split.
        data_seed: of drawing and splitting.
        grown_from: run whose bank gets one basis more, of these photos; "": a bank of its own. See
            :mod:`refocus.cloud_train.runs.taper_growth`.
    """

    source: PhotoSource = "glyphs"
    label_column: str = "label"
    parent_column: str = ""
    domain_column: str = ""
    description_column: str = ""
    side: Annotated[int, msgspec.Meta(ge=8)] = 8
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    small: Network = field(default_factory=lambda: Network("resnet10t", {"channels": [3, 6, 12, 24], "stem_width": 4}))
    large: Network = field(default_factory=lambda: Network("resnet10t", {"channels": [6, 12, 24, 44], "stem_width": 8}))
    bases: Count = 36
    shards: Literal["classes", "groups", "domains", "both", "nearest"] = "both"
    kind: Literal["fixed", "dynamic", "group", "nearest"] = "group"
    ways: Annotated[int, msgspec.Meta(ge=2)] = 20
    norm: Literal["mixed", "task"] = "mixed"
    text_encoder: str = MINILM
    recipe: TaperRecipe = field(default_factory=lambda: TaperRecipe((5, 16, 1), (0.1, 0.1, 0.005), any_domain=0.0))
    teacher: TeacherNetwork = field(default_factory=TeacherNetwork)
    glyph_clients: dict[str, Count] = field(default_factory=lambda: {"train": 4000, "validation": 100, "test": 200})
    data_seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    grown_from: FilePath = ""


@dataclass(frozen=True)
class Variant:
    """One way to train bases and mixers: a row of Table 6.

    Attributes:
        rows: what the bases are at first: "specialists" (stage 2), "average" (one basis, their mean) or "random".
        text: descriptions by a sentence encoder; False: a bag of words.
        whole: as much computing as all three stages at once, for training that skips the first two.
        bases: Q; 0: as many as the run has.
        rates: of bases and predictor; None: the recipe's, which are for bases that have been trained.
    """

    name: str
    rows: str = "specialists"
    text: bool = True
    blockwise: bool = True
    select: bool = True
    norm: str = ""
    kind: str = ""
    whole: bool = False
    bases: int = 0
    rates: tuple[float, float] | None = None


TAPER = Variant("taper")


class TaperRun:
    """An opened run folder.

    Args:
        table: photos of the source that were chosen elsewhere, with their splits; None: all of it.

    Raises:
        UsageError: the folder holds a run with other settings.
        DataError: the photos do not allow what is asked.
    """

    def __init__(self, folder: Path, config: TaperConfig | None = None, table: PhotoTable | None = None) -> None:
        path = folder / "taper.json"
        config = taper_settings(folder, config)
        if config.shards not in SHARDS:
            raise UsageError(f"shards {config.shards}: expected {', '.join(SHARDS)}")
        self.folder, self.config = folder, config
        self.table, self.groups, self.group_names = self._described(table)
        self.domains = sorted({str(domain) for domain in self.table.domain})
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            save_settings(path, config)
        same_photos(folder, self.table.fingerprint(), made=[folder / "photos", *folder.glob("seed-*")])
        if same_inputs(folder, self._inputs(), made=folder.glob("seed-*/stages/*")):
            shutil.rmtree(folder / "photos", ignore_errors=True)
            (folder / "text.safetensors").unlink(missing_ok=True)

    def _inputs(self) -> dict[str, str]:
        """Digests of inputs besides labels and splits: contents of photos, super-categories, descriptions, weights."""
        found = contents(self.folder, self.table) | {"super-categories": _digest(self.groups.tolist())}
        if self.config.description_column:
            found["descriptions of classes"] = _digest(self.texts)
        for network in (self.config.small, self.config.large, self.config.teacher):
            if network.checkpoint:
                if not Path(network.checkpoint).is_file():
                    raise UsageError(f"{network.checkpoint}: there is no such file; expected .safetensors weights")
                found[f"weights {network.checkpoint}"] = file_sha256(Path(network.checkpoint))
        return found

    def _described(self, table: PhotoTable | None) -> tuple[PhotoTable, np.ndarray, tuple[str, ...]]:
        if self.config.grown_from:
            raise UsageError(f"{self.folder} is a bank grown from {self.config.grown_from}; give that run instead")
        return described(self.config, load(self.config) if table is None else table)

    def check(self) -> None:
        """Finds mistakes in seconds, not hours.

        Raises:
            UsageError: a network cannot be built, a basis has no photos, or tasks lack their super-categories.
            DataError: a class has no text, or two, in the column of descriptions; too few validation photos to export.
        """
        _ = self.texts
        tell_copies(self.table)
        held_out = len(self.table.of_split("validation"))
        if held_out < FEWEST_PHOTOS:
            raise DataError(
                f"{self.config.source}: {held_out} validation photos; an export is compared on {FEWEST_PHOTOS} of them"
                " or more: move photos of train to the split validation"
            )
        self._check_shards()
        with torch.device("meta"):
            for which in ("small", "large"):
                self.network(which)
        if self.config.teacher.name:
            teacher_of(self.config.teacher)
        elif self.config.teacher.checkpoint:
            raise UsageError("teacher.checkpoint holds weights of no network; name it as teacher.name")
        if self.config.small.frozen:
            if not self.config.small.checkpoint:
                raise UsageError(
                    "small.frozen keeps pretrained blocks as they are: name their weights as small.checkpoint"
                )
            if self.config.large.frozen:
                raise UsageError("large.frozen: the frozen blocks are those of the small network, expected 0")
            if self.config.recipe.shift:
                raise UsageError(NO_SHIFT)
            self._cut(self.network().network)
        if self.config.kind != "nearest":  # which reads the descriptions
            self.around()

    def _check_shards(self) -> None:
        self.check_bases(self.config.bases)

    def check_bases(self, bases: int) -> None:
        """Raises UsageError where one of so many bases would have no photos."""
        if bases < 1:
            raise UsageError(f"bases {bases}: expected 1 or more")
        if self.config.shards == "nearest":  # which reads the descriptions, and leaves no shard without photos
            return
        undecoded = self._photos_of(self.table.of_split("train"), torch.empty(0))  # labels and domains are enough
        full = sum(len(rows) > 0 for rows in self._shards_of(undecoded, bases))
        if full < bases:
            raise UsageError(
                f"bases {bases}: training photos shared out by {self.config.shards} leave"
                f" {bases - full} of them without photos; set bases = {full} or fewer, or other shards"
            )

    # ---- data

    @property
    def preprocessing(self) -> Preprocessing:
        if self.config.source == "glyphs":
            return msgspec.structs.replace(GLYPH_PREPROCESSING, resize_shorter=self.config.side, crop=self.config.side)
        side, mean, std = self.config.side, self.config.mean, self.config.std
        return Preprocessing(resize_shorter=side, crop=side, mean=mean, std=std, decoder="pillow-scaled")

    def photos(self, split: str) -> Photos:
        """The photos of a split, decoded once."""
        photos = self._photos_of(self.table.of_split(split), self._pixels(split))
        return self._through_trunk(photos, split) if self.config.small.frozen else photos

    def _pixels(self, split: str) -> Tensor:
        """The photos of a split, decoded once."""
        table, path = self.table.of_split(split), self.folder / "photos" / f"{split}.npy"
        return torch.from_numpy(once(path, lambda: decoded(table, self.preprocessing, f"reading photos: {split}")))

    def _photos_of(self, table: PhotoTable, pixels: Tensor) -> Photos:
        """Decoded photos with their labels and domains."""
        domain, contract = np.searchsorted(self.domains, table.domain), self.preprocessing
        return Photos(pixels, torch.from_numpy(table.label), domain, contract.mean, contract.std)

    def _through_trunk(self, photos: Photos, split: str) -> Photos:
        """What the frozen blocks make of photos, computed once."""
        path = self.folder / "photos" / f"{split}-activations.npy"
        seen = once(path, lambda: activations(self.trunk, photos, f"frozen blocks: {split}"))
        return Activations(torch.from_numpy(seen), photos.label, photos.domain, photos.mean, photos.std)

    @cached_property
    def train(self) -> Photos:
        return self.photos("train")

    @cached_property
    def texts(self) -> list[str]:
        """The text about each class in the column of descriptions; empty where none is named."""
        return class_texts(self.config, self.table.classes)

    @cached_property
    def text(self) -> Descriptions:
        """Of all classes in all domains by the sentence encoder; computed once."""

        def encoded() -> dict[str, Tensor]:
            encode = sentence_encoder(self.config.text_encoder)
            return {"table": text_descriptions(self.table.classes, self.domains, encode, self.texts).table}

        return Descriptions(once(self.folder / "text.safetensors", encoded)["table"])

    def descriptions(self, text: bool = True) -> Descriptions:
        return self.text if text else bag_of_words(len(self.table.classes), len(self.domains))

    @cached_property
    def teacher(self) -> Teacher | None:
        """Logits of the pretrained network for the training photos, computed once; None where no teacher is named."""
        about, path = self.config.teacher, self.folder / "photos" / "teacher.npy"
        if not about.name:
            return None
        logits = once(path, lambda: teacher_logits(about, self.table, self.folder / "features"))
        return Teacher(torch.from_numpy(logits), about.weight, about.temperature)

    def about_teacher(self) -> dict[str, Any]:
        """The teacher's settings with the digest of its weights in the place of their path."""
        about = asdict(self.config.teacher)
        return {**about, "checkpoint": file_sha256(Path(self.config.teacher.checkpoint))}

    @property
    def by_domain(self) -> bool:
        """Whether tasks are of one domain."""
        return len(self.domains) > 1

    def words_of(self, task: tasks.Task) -> tuple[str, str]:
        """What most of a task's classes are called together, and its domain; "" for none."""
        group = int(np.bincount(self.groups[list(task.classes)]).argmax())
        return self.group_names[group], self.domains[task.domain] if task.domain >= 0 else ""

    def around(self, kind: str = "") -> tasks.Around:
        """The sampler of tasks.

        Raises:
            UsageError: an unknown kind, or one that the data does not allow.
        """
        kind, ways, classes = kind or self.config.kind, self.config.ways, len(self.table.classes)
        if kind == "group" and len(set(self.groups)) == 1:
            raise UsageError("kind group needs super-categories: name their column as parent_column")
        makers: dict[str, Callable[[], tasks.Around]] = {
            "fixed": lambda: tasks.fixed(classes, ways),
            "dynamic": lambda: tasks.dynamic(classes, 5, min(100, classes)),
            "group": lambda: tasks.same_group(self.groups, ways),
            "nearest": lambda: tasks.nearest(self.distances(), ways),
        }
        if kind not in makers:
            raise UsageError(f"kind {kind}: expected {', '.join(makers)}")
        return makers[kind]()

    def distances(self) -> np.ndarray:
        """(C, C): classes of one super-category are nearer than any others; among equals, by their descriptions."""
        table = self.text.table.mean(0)
        unit = table / table.norm(dim=1, keepdim=True)
        apart = self.groups[:, None] != self.groups[None]
        return (1 - unit @ unit.T).numpy() + 2.0 * apart

    # ---- training

    def network(self, which: str = "small") -> Backbone:
        """A whole network, with its pretrained weights where it has some."""
        about: Network = getattr(self.config, which)
        backbone = create_backbone(about.name, len(self.table.classes), self.preprocessing, **about.arguments)
        if about.checkpoint and next(backbone.network.parameters()).device.type != "meta":
            load_weights(backbone, Path(about.checkpoint), classifier=False)
        return backbone

    def trained(self, which: str = "small") -> Any:
        """The part of a network that is trained, as it is before: all of it, or what is behind its frozen blocks."""
        part = self._part(which)
        if getattr(self.config, which).checkpoint:
            part.load_state_dict(self._norms_of(which, part), strict=False)
        return part

    def _part(self, which: str = "small") -> Any:
        network = self.network(which).network
        return self._cut(network)[1] if getattr(self.config, which).frozen else network

    def _norms_of(self, which: str, part: Any) -> dict[str, Tensor]:
        """The norms of pretrained weights, stated for the training photos; measured once."""

        def measured() -> dict[str, Tensor]:
            rows = np.random.default_rng(0).permutation(len(self.train))[:MEASURED]
            restate_norms(part, self.train, rows)
            norms = {name for name, module in part.named_modules() if isinstance(module, nn.BatchNorm2d)}
            return {name: value for name, value in part.state_dict().items() if name.rpartition(".")[0] in norms}

        return once(self.folder / "photos" / f"norms-{which}.safetensors", measured)

    @cached_property
    def trunk(self) -> Trunk:
        """The frozen blocks."""
        return self._cut(self.network().network)[0]

    def _cut(self, network: Any) -> tuple[Trunk, Any]:
        return cut(network, self.config.small.frozen, torch.zeros(1, 3, self.config.side, self.config.side))

    def parameters(self, which: str = "small") -> int:
        return sum(value.numel() for value in self.network(which).network.parameters())

    def layout(self, blockwise: bool = True) -> Layout:
        """Of what is trained."""
        return self._layout_of(self._part(), blockwise)

    def _layout_of(self, trained: Any, blockwise: bool = True) -> Layout:
        frozen = self.config.small.frozen
        if not frozen:
            return layout_of(trained, blockwise)
        return layout_of(self.network().network, blockwise, frozen).part(set(trained.state_dict()))

    def _whole(self, rows: Tensor) -> Tensor:
        """Rows (Q, n) of what is trained as rows of whole networks."""
        frozen = self.config.small.frozen
        if not frozen:
            return rows
        network, part = self.network().network, self.layout()
        layout, shared = layout_of(network, True, frozen), dict(network.state_dict())
        return torch.stack([layout.join(shared | part.split(row)) for row in rows])

    def recipe(self, seed: int) -> TaperRecipe:
        return replace(self.config.recipe, seed=seed)

    def generic(self, seed: int, which: str = "small", epochs: int = 0) -> dict[str, Tensor]:
        """A network trained on all classes: stage 1, or as long as all stages together to compare with."""
        epochs = epochs or self.config.recipe.epochs[0]

        def train() -> dict[str, Tensor]:
            torch.manual_seed(seed)
            network, recipe = self.trained(which), self.recipe(seed)
            name = f"seed {seed}: {which} network, {epochs} epochs"
            about = self.train, recipe, epochs, recipe.learning_rate[0]
            kept = self._unfinished(seed, stage)
            train_generic(network, *about, what=name, unfinished=kept, teacher=self.teacher)
            return dict(network.state_dict())

        stage = f"{which}-{epochs}"
        return self._trained(seed, stage, train)

    def shards(self, bases: int = 0) -> list[np.ndarray]:
        """Rows of the training photos for each specialist of stage 2."""
        return self._shards_of(self.train, bases or self.config.bases)

    def _shards_of(self, photos: Photos, bases: int) -> list[np.ndarray]:
        by = self.config.shards
        if by == "nearest":
            return shards_around(photos, bases, self.distances(), 2 * self.config.ways)
        groups = None if len(set(self.groups)) == 1 else self.groups.tolist()
        return shards_of(photos, bases, groups, by)

    def specialists(self, seed: int, bases: int = 0) -> Tensor:
        """Stage 2: (Q, n), in the block-wise layout; of the run's bases, or of so many."""
        name = f"specialists-{bases}" if bases else "specialists"
        return self._specialists(seed, name, self.trained, lambda: self.shards(bases))

    def _specialists(
        self, seed: int, name: str, network: Callable[[], Any], shards: Callable[[], list[np.ndarray]]
    ) -> Tensor:
        """Return one specialist (n,) per shard, trained once under a name."""

        def train() -> dict[str, Tensor]:
            layout, each = self.layout(), partial(self._unfinished, seed, name)
            generic, made = layout.join(self.generic(seed)), network()
            about = generic, layout, self.train, shards(), self.recipe(seed)
            return {"rows": train_specialists(made, *about, each, self.teacher)}

        return self._trained(seed, name, train)["rows"]

    def taper(self, seed: int, variant: Variant = TAPER) -> Taper:
        """Stage 3, or a variant of it."""
        norm = variant.norm or self.config.norm
        network = self._structure(norm)
        layout = self._layout_of(network, variant.blockwise)
        descriptions, recipe = self.descriptions(variant.text), self.recipe(seed)
        epochs = sum(recipe.epochs) / COST_OF_MIXING if variant.whole else recipe.epochs[2]
        if variant.rates is not None:
            rates = (*recipe.learning_rate[:2], variant.rates[0])
            recipe = replace(recipe, learning_rate=rates, predictor_rate=variant.rates[1])

        def train() -> dict[str, Tensor]:
            taper = start(network, layout, self._first_rows(seed, variant, layout, norm), descriptions, norm, seed)
            about = self.train, self.around(variant.kind), self.by_domain, descriptions
            if variant.rows == "specialists" and recipe.evenness < 1:
                route(taper, *about, self.shards(variant.bases), recipe)
            recipe_of = replace(recipe, select=variant.select)
            what, kept = f"seed {seed}: {variant.name}", self._unfinished(seed, variant.name)
            train_mixing(taper, *about, recipe_of, epochs, what, unfinished=kept, teacher=self.teacher)
            return tensors_of(taper)

        tensors = self._trained(seed, variant.name, train)
        return taper_of(tensors, network, layout, descriptions.width, norm)

    def _structure(self, norm: str) -> Any:
        """The network of stage 3, without the norms that are folded before it."""
        network = self.trained()
        return folded_structure(network, find_folds(network)) if norm == FOLDED else network

    def _first_rows(self, seed: int, variant: Variant, layout: Layout, norm: str) -> Tensor:
        if variant.rows == "random":
            torch.manual_seed(seed)
            return torch.stack(
                [layout.join(self.trained().state_dict()) for _ in range(variant.bases or self.config.bases)]
            )
        blocks, folds = self.layout(), find_folds(self.trained()) if norm == FOLDED else ()
        rows = torch.stack(
            [layout.join(fold(blocks.split(row), folds)) for row in self.specialists(seed, variant.bases)]
        )
        return rows.mean(0, keepdim=True) if variant.rows == "average" else rows

    def _trained(self, seed: int, name: str, train: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors of one training, trained once."""
        stages = self.folder / f"seed-{seed}" / "stages"
        patterns = f"{name}{SUFFIX}", f"{name}.[0-9]*{SUFFIX}"
        if not (stages / f"{name}.safetensors").exists():
            _ = self.teacher  # made before the clock of the training starts
        before = sum(seconds_of(path) for pattern in patterns for path in stages.glob(pattern))
        tensors = once(stages / f"{name}.safetensors", train, f"seed {seed}: {name}", before)
        for left in [path for pattern in patterns for path in stages.glob(pattern)]:
            left.unlink(missing_ok=True)  # of another command, which had waited for the same training
        return tensors

    def _unfinished(self, seed: int, name: str, number: int | None = None) -> Path:
        """Where a training keeps its state; of one of several its number stands in the name."""
        part = "" if number is None else f".{number}"
        return self.folder / f"seed-{seed}" / "stages" / f"{name}{part}{SUFFIX}"

    def seconds(self) -> dict[str, float]:
        """Of training, by what was trained, the mean over seeds."""
        seconds: dict[str, list[float]] = {}
        for path in sorted(self.folder.glob("seed-*/stages/*.safetensors")):
            if path.name.endswith(SUFFIX):
                continue
            with safe_open(path, "pt") as file:
                seconds.setdefault(path.stem, []).append(float(file.metadata()["seconds"]))
        return {name: round(float(np.mean(values)), 1) for name, values in seconds.items()}

    # ---- what is exported

    def export_checkpoint(self, seed: int) -> Checkpoint:
        """The trained TAPER as one checkpoint, with photos for its export beside it."""
        path = self.folder / f"seed-{seed}" / "taper.safetensors"
        if path.with_suffix(".json").exists():
            self.parity_photos(seed)
            return load_checkpoint(path)
        for split in ("train", "validation", "test"):  # one that cannot be read is found now, not after the training
            if len(self.table.of_split(split)):
                self._pixels(split)
        taper, backbone = self.taper(seed), self.network()
        self.parity_photos(seed)
        owners, tensors = self.owners(seed), tensors_of(taper)
        weights = {
            **tensors,
            "rows": self._whole(tensors["rows"]),
            "generic": self._whole(self.layout().join(self.generic(seed))[None])[0],
            "descriptions": self.text.table,
        }
        config = backbone.card_config(
            classes=len(self.table.classes),
            blockwise=True,
            domains=self.domains,
            text_encoder=self.config.text_encoder,
            prompts=list(prompts_for(self.domains)),
            self_improvement=owners.best,
            **({"frozen": self.config.small.frozen} if self.config.small.frozen else {}),
        )
        training = {"data": self.table.fingerprint(), "recipe": asdict(self.recipe(seed)), "seed": seed}
        training["owners"] = asdict(owners)
        if self.config.teacher.name:
            training["teacher"] = self.about_teacher()
        return save_checkpoint(
            path, weights, Card(builder="taper", config=config, labels=self.table.classes, training=training)
        )

    def owners(self, seed: int) -> OwnersGain:
        """Accuracy of owners without a task description, with and without networks, on validation photos."""
        photos, network = self.photos("validation"), self.trained()
        network.load_state_dict(self.generic(seed), strict=False)
        with torch.no_grad():
            logits = torch.cat([network.eval()(photos.batch(rows)) for rows in torch.arange(len(photos)).split(512)])
        plain = self.domains.index("") if "" in self.domains else -1
        return owners_gain(self.taper(seed), logits.numpy(), photos, self.text, self.around(), plain, seed=seed)

    def bank(self, seed: int, target: str = ONNX) -> Bundle:
        """The exported bank for one target; made once."""
        name = "bank" if target == ONNX else f"bank-{target.replace(':', '-')}"
        checkpoint, place = self.export_checkpoint(seed), self.folder / f"seed-{seed}" / name
        if not (place / MANIFEST).exists():
            streams = read_streams(self.parity_photos(seed))
            export_bank(checkpoint, place, Export([target]), streams)
        return load_bundle(place)

    def parity_photos(self, seed: int) -> Path:
        """Validation photos as files beside the checkpoint, in a few folders: for parity of what is exported."""
        held_out = self.table.of_split("validation")
        chosen = np.random.default_rng(0).permutation(len(held_out))[: PARITY_FOLDERS * PARITY_PHOTOS]
        rows = ((f"{number % PARITY_FOLDERS}/{number:03d}", row) for number, row in enumerate(chosen.tolist()))
        return photo_folder(self.folder / f"seed-{seed}" / "parity", held_out, rows)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def taper_settings(folder: Path, config: TaperConfig | None = None) -> TaperConfig:
    """The settings of a run's folder, or those asked for.

    Raises:
        UsageError: the folder holds a run with other settings, or none.
    """
    return settings_of(folder / "taper.json", config, TaperConfig, "a TAPER run; make one with refocus train taper")


def tensors_of(taper: Taper) -> dict[str, Tensor]:
    """What is kept of a bank: "rows" (Q, n), and the predictor's tensors by name."""
    predictor = {f"predictor.{name}": value for name, value in taper.predictor.state_dict().items()}
    return {"rows": taper.bases.rows().detach(), **predictor}


def taper_of(tensors: Mapping[str, Tensor], network: Any, layout: Layout, width: int, norm: str) -> Taper:
    """The bank that :func:`tensors_of` was of.

    Args:
        width: E, of a description.
    """
    rows = tensors["rows"]
    predictor = MixerPredictor(width, layout.mixers, len(rows))
    predictor.load_state_dict({n.removeprefix("predictor."): value for n, value in tensors.items() if n != "rows"})
    return Taper(network, Bases(layout, rows), predictor, norm).eval()


def load(config: TaperConfig) -> PhotoTable:
    """The photos with splits.

    Raises:
        DataError, UsageError: the source or its columns do not allow what is asked.
    """
    if config.source == "glyphs":
        glyphs.check_people(config.glyph_clients, ("train", "validation", "test"))
        return glyphs.glyphs(config.data_seed, config.glyph_clients)
    return _split(load_photos(Path(config.source), config.label_column), config.data_seed)


def described(config: TaperConfig, table: PhotoTable) -> tuple[PhotoTable, np.ndarray, tuple[str, ...]]:
    """Photos of the source with their domains, the super-category (C,) of each class, and what these are called.

    Raises:
        DataError: the source has no such columns.
    """
    if config.source == "glyphs":
        hands = [glyphs.hand_words(glyphs.hand_of(config.data_seed, int(c.split("-")[1])).font) for c in table.client]
        scripts = list(glyphs.SCRIPTS)
        groups = np.array([scripts.index(name.split()[0]) for name in table.classes])
        return replace(table, domain=np.array(hands)), groups, tuple(f"{name} letters" for name in scripts)
    columns = config.domain_column, config.parent_column
    if not any(columns):
        return replace(table, domain=np.full(len(table), "")), np.zeros(len(table.classes), dtype=int), ("",)
    everything = load_photos(Path(config.source), config.label_column, "client", *columns)
    domain_of = dict(zip(everything.photo.tolist(), everything.domain.tolist(), strict=True))
    table = replace(table, domain=np.array([domain_of.get(name, "") for name in table.photo.tolist()]))
    if config.domain_column and set(table.domain.tolist()) == {""}:
        raise DataError(f"domain_column {config.domain_column}: the data has no such column")
    if not config.parent_column:
        return table, np.zeros(len(table.classes), dtype=int), ("",)
    names = sorted(set(everything.parent.tolist()))
    if names == [""]:
        raise DataError(f"parent_column {config.parent_column}: the data has no such column")
    of_class = np.zeros(len(table.classes), dtype=int)
    of_class[everything.label] = np.searchsorted(names, everything.parent)
    return table, of_class, tuple(names)


def class_texts(config: TaperConfig, classes: Sequence[str]) -> list[str]:
    """The text about each class in the column of descriptions; empty where none is named.

    Raises:
        UsageError: the embedded letters have no such column.
        DataError: a class has no text there, or more than one.
    """
    column = config.description_column
    if not column:
        return []
    if config.source == "glyphs":
        raise UsageError(f"description_column {column}: the embedded letters have no such column; leave it empty")
    everything = load_photos(Path(config.source), config.label_column, "client", domain_column=column)
    found: dict[str, set[str]] = {name: set() for name in classes}
    for number, text in zip(everything.label.tolist(), everything.domain.tolist(), strict=True):
        found.setdefault(everything.classes[number], set()).add(" ".join(text.split()))
    texts = []
    for name in classes:
        given = found[name] - {""}
        if len(given) != 1:
            raise DataError(
                f"description_column {column}: class {name} has {len(given) or 'no'} text{'s' * (len(given) > 1)};"
                " expected one, the same for all of its photos"
            )
        texts.append(given.pop())
    return texts


def _split(table: PhotoTable, seed: int) -> PhotoTable:
    """The data's own training and test photos; a part of the former for validation, unless it has some.

    Raises:
        DataError: it says nothing about a split.
    """
    split = table.split.astype("<U10")
    if not {"train", "test"} <= set(split.tolist()):
        raise DataError("TAPER needs photos it is not trained on: a column 'split' with train and test")
    if "validation" not in set(split.tolist()):
        train = np.flatnonzero(split == "train")
        held_out = np.random.default_rng(seed).permutation(train)[: int(VALIDATION_SHARE * len(train))]
        split[held_out] = "validation"
    return replace(table, split=split)
