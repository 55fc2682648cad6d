"""Prepare, train and evaluate one study in a folder, each step once.

    RUN/run.json                      what was asked for
    RUN/run.toml                      all settings of the command: ``--config RUN/run.toml`` repeats it
    RUN/commands.txt                  by which commands, without the paths of the machine
    RUN/encoder.safetensors, .json    the frozen encoder; of a bundle, its network's own classifier
    RUN/bundle/                       a copy of the bundle that training went on from
    RUN/features/KEY/                 the feature bank
    RUN/taught_by.safetensors, .json  hashes of the photo files of all who are not judged
    RUN/parity/CLIENT/NNN.*           photos of validation clients, for parity and self-test; labels in metadata.csv
    RUN/curves.jsonl                  losses and accuracies of all trainings, by step
    RUN/seed-S/iciia_t.safetensors    one head per seed and variant, with its card
    RUN/seed-S/bundles/iciia_t/       its bundle
    RUN/results.json                  what evaluate found

Every step is skipped if its result is there, so an interrupted run resumes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from torch import nn

from refocus.cloud_train.backbones.backbone import Backbone, classes_in, create_backbone, load_weights, stated_side
from refocus.cloud_train.backbones.bundle_encoder import BUILDER, COPY, BundleBackbone, bundle_backbone, keep_bundle
from refocus.cloud_train.backbones.clip import BUILDER as CLIP_BUILDER
from refocus.cloud_train.backbones.clip import ClipBackbone, Pooling, over_frames
from refocus.cloud_train.backbones.feature_cache import FeatureCache, extract
from refocus.cloud_train.backbones.pretrain import GLYPH_BACKBONE, GLYPH_PREPROCESSING, EncoderRecipe, train_encoder
from refocus.cloud_train.data import glyphs, moving_glyphs
from refocus.cloud_train.data.partitions import DEALT, by_parent, dirichlet, disjoint_classes, natural, random_classes
from refocus.cloud_train.data.sources import load_source
from refocus.cloud_train.data.table import SPLITS, PhotoTable, assert_clients_never_meet, split_clients
from refocus.cloud_train.data.windows import common_length, streams
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.iciia.block import WEIGHTS_PER_PHOTO, WINDOW, IciiaConfig, tiny_partitions
from refocus.cloud_train.methods.iciia.delivery import CLOSE, FOREIGN_PART, Delivery, accuracy_of, choose_delivery
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, WarmUpGate
from refocus.cloud_train.methods.iciia.plain_classifier import fit_plain_classifier, plain_accuracy
from refocus.cloud_train.methods.iciia.programs import WindowHead, backbone_of
from refocus.cloud_train.methods.iciia.train import (
    HISTORY_LENGTHS,
    IciiaRecipe,
    Trained,
    choose_warm_up,
    right_by_history,
    train_iciia,
)
from refocus.cloud_train.methods.iciia.train_gate import GateRecipe, gate_for, train_gate
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.runs.folder import (
    contents,
    numbered,
    photo_folder,
    same_inputs,
    same_photos,
    save_settings,
    settings_of,
    tell_copies,
)
from refocus.cloud_train.settings import Count, FilePath, Photos, Positive, Share
from refocus.edge.bundle import MAX_FRAMES, Preprocessing, load_bundle, photo_hash
from refocus.edge.files import file_sha256
from refocus.export.program import TAUGHT_BY, Card, Checkpoint, load_checkpoint, save_checkpoint

GLYPHS, CLIPS, DOMAIN = "glyphs", "moving-glyphs", "domain"
DRAWN = (GLYPHS, CLIPS)
CLASSES = (5, 10)  # of a pseudo-client
TINY = "iciia_t"  # the paper's name of its small block, of which heads that are delivered are made
FEWEST_PEOPLE, FEWEST_PHOTOS = 40, 24  # pseudo-clients that photos are dealt to, and photos of each
PARITY_CLIENTS, PARITY_PHOTOS = 4, 50  # longer than any window, and 200 photos in all
CALIBRATION_CLIENTS, CALIBRATION_PHOTOS = 20, 5
SHARES = {"train": 0.6, "validation": 0.1, "gate": 0.15, "test": 0.15}


@dataclass(frozen=True)
class DataConfig:
    """Where the photos come from and how they are handed to clients.

    Attributes:
        source: "glyphs", "moving-glyphs", or the path of a folder or zip file.
        clients: how clients are made of the photos: "natural" (a column names them), "parent" (of one parent category
            each), "dirichlet", "disjoint" (no class is met by two), or "classes" (a few random ones each, others in
            every epoch). Natural ones of photos without that column are made as "classes".
        labels: of a photo: "one"; or "several", which the label column names with ";" between them, as "a;b". Glyphs
            then have the attributes script, hand, slant, ink and paper as labels.
        label_column, client_column: of the metadata file.
        domain_column: of each photo's domain, as "sketch".
        parent_column: of each photo's super-category; "domain": the domains are the parents.
        photos_per_client: of "parent" and "classes" clients, and of glyph writers; "classes": fewer of few photos.
        ratio: heterogeneity of "parent" clients: share of a parent's photos that its own clients get.
        alpha: concentration of "dirichlet" clients.
        number_of_clients: "dirichlet" and "disjoint" ones.
        glyph_clients: writers of glyphs, or of moving ones, per split.
        seed: of drawing, dealing and splitting.
    """

    source: Photos = GLYPHS
    clients: Literal["natural", "parent", "dirichlet", "disjoint", "classes"] = "natural"
    labels: Literal["one", "several"] = "one"
    label_column: str = "label"
    client_column: str = "client"
    domain_column: str = DOMAIN
    parent_column: str = DOMAIN
    photos_per_client: Annotated[int, msgspec.Meta(ge=2)] = glyphs.PHOTOS_PER_CLIENT
    ratio: Share = 1.0
    alpha: Positive = 0.1
    number_of_clients: Annotated[int, msgspec.Meta(ge=4)] = 100
    glyph_clients: dict[str, Count] = field(default_factory=lambda: dict(glyphs.CLIENTS))
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0


@dataclass(frozen=True)
class RunConfig:
    """Hold the content of ``run.json``: inputs of encoder and feature bank.

    Attributes:
        data: the photos, and who has which.
        backbone: timm name; one that is trained here sees photos or frames of 32 pixels.
        checkpoint: weights of the backbone, .safetensors.
        arguments: of ``timm.create_model``, for weights made with others than timm's own.
        mean, std: per RGB channel in [0, 1]; empty: what timm states for the backbone.
        encoder: how a backbone that is trained here is trained, as that of glyphs.
        bundle: one of a network that ``refocus export`` wrote: its encoder in place of backbone and checkpoint.
        classifier: of a bundle: "own", its network's, or "fit", trained on the photos' labels.
        frames: T, that the encoder is given of each clip; 0: it takes photos.
        pooling: of clips, how features of frames become one: their "mean", or "conv", a small temporal convolution,
            which is trained with the encoder.
        scratch: whether the backbone is trained here, on the training people's photos at 32 pixels, as that of glyphs
            always is; for small and simple pictures alone.
    """

    data: DataConfig = field(default_factory=DataConfig)
    backbone: str = GLYPH_BACKBONE
    checkpoint: FilePath = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    encoder: EncoderRecipe = field(default_factory=EncoderRecipe)
    bundle: FilePath = ""
    classifier: Literal["own", "fit"] = "own"
    frames: Annotated[int, msgspec.Meta(ge=0, le=MAX_FRAMES)] = 0
    pooling: Pooling = "conv"
    scratch: bool = False


Split = Callable[[PhotoTable, dict[str, float], int], PhotoTable]  # table, shares, seed


def source_table(config: DataConfig) -> PhotoTable:
    """Return the photos as their source has them.

    People and splits are those that the source alone names.

    Raises:
        DataError, UsageError: the source or its columns do not allow what is asked.
    """
    if config.source == GLYPHS:
        glyphs.check_people(config.glyph_clients, SPLITS)
        attributes = config.labels == "several"
        return glyphs.glyphs(config.seed, config.glyph_clients, config.photos_per_client, attributes)
    if config.source == CLIPS:
        glyphs.check_people(config.glyph_clients, SPLITS)
        if config.labels == "several":
            raise UsageError(f"data.labels = several: {CLIPS} have one label each, their motion")
        return moving_glyphs.moving_glyphs(config.seed, config.glyph_clients, config.photos_per_client)
    parent_column = "" if config.parent_column == DOMAIN else config.parent_column
    columns = config.label_column, config.client_column, config.domain_column, parent_column
    return load_source(Path(config.source), *columns, several=config.labels == "several")


def load_table(config: DataConfig, split: Split = split_clients) -> PhotoTable:
    """The photos with clients and splits.

    Args:
        split: puts each client into a split, where the photos come with none.

    Raises:
        DataError, UsageError: the source or its columns do not allow what is asked.
    """
    table = source_table(config)
    if config.source in DRAWN:
        return table
    if config.clients == "natural" and {"train", "validation", "test"} <= set(table.split.tolist()):
        kept = (table.split != "") & (table.client != "")
        if kept.any():
            if not kept.all():
                say(
                    f"{int((~kept).sum())} of {len(table)} photos are left out: their row names no split, or nobody in"
                    f" the column {config.client_column}"
                )
            assert_clients_never_meet(table.rows(kept))
            return table.rows(kept)
    if (table.split != "").any():
        say("the split column is not used: it needs natural clients and at least train, validation and test")
    return split(table.with_clients(_deal(config, table)), SHARES, config.seed)


def _deal(config: DataConfig, table: PhotoTable) -> np.ndarray:
    if config.clients == "natural" and (table.client != "").any():
        client = natural(table.client, smallest=2)
        if (left := int((client == "").sum())) > 0:
            say(
                f"{left} of {len(table)} photos are left out: their row names nobody in the column"
                f" {config.client_column}, or a person with one photo"
            )
        return client
    if config.clients == "natural" and config.client_column != DataConfig.client_column:
        raise DataError(
            f"--data {config.source} names no clients in a column '{config.client_column}'; name another as"
            " data.client_column, or have pseudo-people dealt with data.clients = classes"
        )
    if config.clients in ("natural", "classes", "dirichlet", "disjoint"):
        _refuse_several(config, table)
    if config.clients in ("natural", "classes"):
        size = max(FEWEST_PHOTOS, min(config.photos_per_client, len(table) // FEWEST_PEOPLE))
        try:
            client = random_classes(table.label, size, CLASSES, config.seed)
        except DataError as error:
            raise DataError(
                f"--data {config.source} names no clients, and {error}; add a column '{config.client_column}', name"
                " another as data.client_column, or add photos"
            ) from None
        why = (
            "" if config.clients == "classes" else f" {config.source} names no clients (column {config.client_column}):"
        )
        say(
            f"{why} {len(np.unique(client[client != '']))} pseudo-people with {size} photos and {CLASSES[0]} to"
            f" {CLASSES[1]} random classes each are dealt; photos of real people teach what belongs together".strip()
        )
        return client
    if config.clients == "parent":
        parents = table.domain if config.parent_column == DOMAIN else table.parent
        if not (parents != "").any():
            raise DataError(
                f"data.clients = parent needs a column '{config.parent_column}'; name it as data.parent_column"
            )
        return by_parent(parents, config.photos_per_client, config.ratio, config.seed)
    if config.clients == "dirichlet":
        return dirichlet(table.label, config.number_of_clients, config.alpha, config.seed)
    if config.clients == "disjoint":
        return disjoint_classes(table.label, config.number_of_clients, config.seed)
    raise UsageError(f"data.clients = {config.clients}: expected natural, parent, dirichlet, disjoint or classes")


def _refuse_several(config: DataConfig, table: PhotoTable) -> None:
    """Raise DataError if photos with several labels are dealt by class.

    Pseudo-people cannot be dealt by class from such photos.
    """
    if table.several:
        raise DataError(
            f"--data {config.source} names no clients in a column '{config.client_column}', and photos with several"
            " labels are dealt to pseudo-people by no class; add that column, name another as data.client_column, or a"
            " parent category with data.clients = parent"
        )


@dataclass(frozen=True)
class Prepared:
    """Hold the training inputs of a run's heads.

    The frozen backbone, its features, and the plain classifier.
    """

    backbone: Backbone
    bank: FeatureCache
    plain: nn.Linear

    def facts(self) -> str:
        """Return the counts of people and photos, and the plain accuracy.

        Also the classes that no training photo has.
        """
        parts = {split: self.bank.of_split(split) for split in ("train", "validation", "test")}
        train, validation, test = parts.values()
        people = {split: len(np.unique(part.table.client)) for split, part in parts.items()}
        right = plain_accuracy(self.plain, validation)
        classes = train.table.classes
        missing = sorted(set(_met(test.table)) - set(_met(train.table)))
        lines = [
            f"{people['train']} people with {len(train.table)} photos train, {people['validation']} with"
            f" {len(validation.table)} validate, {people['test']} with {len(test.table)} are judged",
            f"plain classifier: {right:.1%} of the {'labels' if test.table.several else 'validation photos'}"
            + (" of validation photos, there or not" if test.table.several else ""),
        ]
        if missing:
            listed = ", ".join(classes[number] for number in missing[:10])
            listed += f" and {len(missing) - 10} more" if len(missing) > 10 else ""
            lines.append(f"{len(missing)} classes of test photos that no training person has: {listed}")
        return "\n".join(lines)


def _met(table: PhotoTable) -> list[int]:
    """Numbers of the classes that some photo has."""
    found = np.flatnonzero(table.label.any(axis=0)) if table.several else np.unique(table.label)
    return [int(number) for number in found]


class Run:
    """An opened run folder.

    Args:
        table: photos of the source that were chosen elsewhere, with their people and splits; None: all of it.

    Raises:
        UsageError: the folder holds a run with other settings.
    """

    def __init__(self, folder: Path, config: RunConfig | None = None, table: PhotoTable | None = None) -> None:
        self.folder = folder
        path = folder / "run.json"
        what = "a run of ICIIA: it has no run.json; make one with refocus train iciia"
        self.config = config = settings_of(path, config, RunConfig, what)
        # Before anything is written: a call with a mistake leaves no run behind.
        self.table = load_table(config.data) if table is None else table
        self._fingerprint = self.table.fingerprint()
        self.own_classifier = not (config.bundle or config.checkpoint)
        if config.bundle:
            kept = folder / COPY
            self._use_labels(bundle_backbone(load_bundle(kept if kept.exists() else Path(config.bundle))))
        folder.mkdir(parents=True, exist_ok=True)  # before anything is computed: a place that cannot be written to

    def _use_labels(self, backbone: BundleBackbone) -> None:
        """The table with the labels of a bundle's network, where its own classifier knows those of all photos.

        Raises:
            UsageError: it should, and the bundle has none.
        """
        if self.config.classifier == "fit":
            return
        if self.table.several:
            say("photos have several labels: a classifier is trained on them in place of the network's own")
            return
        unknown = sorted(set(self.table.classes) - set(backbone.labels))
        if unknown:
            say(
                f"{len(unknown)} of {len(self.table.classes)} labels of the photos, as {unknown[0]}, are none of the"
                " bundle's: a classifier is trained on the photos in place of the network's own"
            )
            return
        if backbone.classifier() is None:
            raise UsageError(
                f"--from {self.config.bundle} was exported without its network's classifier; export it again, or train"
                " one with --set classifier=fit"
            )
        self.own_classifier = True
        number = {label: index for index, label in enumerate(backbone.labels)}
        renumbered = np.array([number[label] for label in self.table.classes], dtype=np.int64)[self.table.label]
        self.table = replace(self.table, label=renumbered, classes=backbone.labels)

    @property
    def backbone_name(self) -> str:
        """What the encoder is called in results."""
        if not self.config.bundle:
            return self.config.backbone
        found = bundle_backbone(load_bundle(self.folder / COPY)).bundle.manifest
        return str(found.head().training.get("network", found.name))

    def save(self) -> None:
        """Writes ``run.json``."""
        save_settings(self.folder / "run.json", self.config)

    def kind_of_people(self) -> dict[str, str]:
        """Return ``people``: "pseudo-people" where clients were dealt.

        Empty where they are people.
        """
        dealt = self.config.data.clients != "natural" or str(self.table.client[0]).startswith(f"{DEALT}/")
        return {"people": "pseudo-people"} if dealt else {}

    def commands(self) -> list[str]:
        """The commands that made this run, each once, in order."""
        path = self.folder / "commands.txt"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def note_command(self, command: str) -> None:
        """Adds to :meth:`commands`; figures are published with what made them."""
        if command not in self.commands():
            with (self.folder / "commands.txt").open("a", encoding="utf-8") as file:
                file.write(command + "\n")

    @property
    def encoder_path(self) -> Path:
        return self.folder / "encoder.safetensors"

    def backbone(self) -> Backbone:
        """Return the frozen encoder.

        It is loaded, or trained (glyphs), or taken from the user's checkpoint.
        """
        if self.encoder_path.with_suffix(".json").exists():
            return backbone_of(load_checkpoint(self.encoder_path))
        backbone = self._make_backbone()
        classifier = backbone.classifier()
        config = backbone.card_config(classes=classifier.out_features if classifier is not None else 0)
        training: dict[str, Any] = {"recipe": asdict(self.config.encoder), "data": self.table.fingerprint()}
        if self.config.bundle:
            training = {"bundle": Path(self.config.bundle).name}
        elif self.config.checkpoint:
            training = {"checkpoint": Path(self.config.checkpoint).name}
        builder = BUILDER if self.config.bundle else "timm_encoder"
        builder = CLIP_BUILDER if isinstance(backbone, ClipBackbone) else builder
        card = Card(builder=builder, config=config, labels=self.table.classes, training=training)
        save_checkpoint(self.encoder_path, backbone.network.state_dict(), card)
        return backbone

    def _make_backbone(self) -> Backbone:
        check_network(self.config)
        if self.config.bundle:
            of_bundle = bundle_backbone(keep_bundle(Path(self.config.bundle), self.encoder_path))
            self.save()
            return of_bundle
        if self.config.checkpoint:
            backbone = load_backbone(self.config)
            self.save()  # not before: weights that do not fit leave no run behind
            return backbone
        self.save()
        contract = GLYPH_PREPROCESSING
        if self.config.frames:
            contract = msgspec.structs.replace(contract, frames=self.config.frames)
        name, pooling = self.config.backbone, self.config.pooling
        return train_encoder(self.table, self.config.encoder, name, contract, pooling=pooling, **self.config.arguments)

    def bank(self, backbone: Backbone, device: str = "cpu") -> FeatureCache:
        return extract(backbone, self.table, self.folder / "features", device)

    def plain_classifier(self, backbone: Backbone, bank: FeatureCache) -> nn.Linear:
        """Return the original backbone's classifier for this table's classes.

        Its own, if it was trained for them.
        """
        own = backbone.classifier()
        if own is not None and self.own_classifier and not self.table.several:
            return own
        path = self.folder / "plain.safetensors"
        layer = nn.Linear(backbone.width, len(self.table.classes))
        if path.with_suffix(".json").exists():
            layer.load_state_dict(load_checkpoint(path).weights)
            return layer
        layer = fit_plain_classifier(bank.of_split("train"), bank.of_split("validation")).layer
        save_checkpoint(path, layer.state_dict(), Card(builder="", config={}, labels=self.table.classes))
        return layer

    def taught_by(self) -> Checkpoint | None:
        """Return hashes of the photo files of people who are not evaluated.

        None for drawn photos, which are not files.
        """
        if self.config.data.source in DRAWN:
            return None
        path = self.folder / "taught_by.safetensors"
        if path.with_suffix(".json").exists():
            return load_checkpoint(path)
        seen = self.table.rows(self.table.split != "test")
        names = track(sorted(set(seen.photo.tolist())), "hashes of photos")
        hashes = sorted({photo_hash(seen.read(name)) for name in names})
        rows = torch.frombuffer(bytearray(b"".join(hashes)), dtype=torch.int8).reshape(len(hashes), -1)
        return save_checkpoint(path, {"photos": rows}, Card(builder="", config={}, labels=()))

    def parity_photos(self) -> Path:
        """Return streams of validation clients as files.

        They serve parity and the self-test of every bundle of this run.
        """
        held_out = self.table.of_split("validation")
        people = itertools.islice(streams(held_out, PARITY_PHOTOS), PARITY_CLIENTS)
        return photo_folder(self.folder / "parity", held_out, numbered(people))

    def calibration_photos(self) -> Path:
        """Return streams of training clients as files, for calibrated ranges.

        None of the people who are evaluated is among them.
        """
        train = self.table.of_split("train")
        people = list(streams(train, CALIBRATION_PHOTOS))
        spread = np.unique(np.linspace(0, len(people) - 1, CALIBRATION_CLIENTS).astype(int))
        return photo_folder(self.folder / "calibration", train, numbered(people[i] for i in spread))

    def prepare(self, fabric: Any) -> Prepared:
        """Return the parts that heads of this run share.

        The first process makes them, and all read them.
        """
        device = str(fabric.device)
        made = self._prepare(device) if fabric.is_global_zero else None
        fabric.barrier()
        return made or self._prepare(device)

    def _prepare(self, device: str) -> Prepared:
        self.check_photos()
        backbone = self.backbone()
        tell_copies(self.table)
        bank = self.bank(backbone, device)
        plain = self.plain_classifier(backbone, bank)
        self.parity_photos()
        self.calibration_photos()
        return Prepared(backbone, bank, plain)

    def check_photos(self) -> None:
        """Notes which photos and weights the run is of.

        Raises:
            DataError: something was made of others.
        """
        made = [self.folder / name for name in ("plain.json", "taught_by.json", "parity", "calibration")]
        encoder, weights = self.encoder_path.with_suffix(".json"), self.config.checkpoint
        if not (self.config.bundle or weights):
            made.append(encoder)  # trained on these photos
        same_photos(self.folder, self._fingerprint, made=[*made, *self.heads()])
        same_inputs(self.folder, contents(self.folder, self.table), made=[*made, *self.heads()])
        if weights and Path(weights).is_file():
            same_inputs(self.folder, {f"weights {weights}": file_sha256(Path(weights))}, [encoder])
        if encoder.exists() and load_checkpoint(self.encoder_path).card.labels != self.table.classes:
            encoder.unlink()  # published weights with the classes of before, of which nothing was made

    def head_path(self, seed: int, variant: str) -> Path:
        return self.folder / f"seed-{seed}" / f"{variant}.safetensors"

    def heads(self) -> list[Path]:
        """Every trained head, by seed and variant."""
        return sorted(self.folder.glob("seed-*/*.safetensors"), key=lambda p: (int(p.parent.name[5:]), p.stem))

    def train_head(
        self,
        variant: str,
        iciia: IciiaConfig,
        recipe: IciiaRecipe,
        prepared: Prepared,
        fabric: Any,
        gate: GateRecipe | None = None,
    ) -> Checkpoint:
        """Train one head with its gate, or load it.

        It is loaded if this run already has it with the same settings.
        """
        path = self.head_path(recipe.seed, variant)
        gate = replace(gate or GateRecipe(), seed=recipe.seed)
        wanted = {"iciia": asdict(iciia), "recipe": asdict(recipe), "gate": gate.as_dict()}
        if path.with_suffix(".json").exists():
            trained_before = load_checkpoint(path)
            if _settings(trained_before.card.config) != wanted:
                raise UsageError(f"{path} was trained with other settings; choose another folder or remove it")
            say(f"{path.parent.name}/{variant}: already trained")
            return trained_before
        plain, validation = prepared.plain, prepared.bank.of_split("validation")
        gate = gate_for(gate, prepared.bank.of_split("gate"), iciia.receptive_field)
        trained = train_iciia(prepared.bank.of_split("train"), validation, iciia, recipe, fabric, plain)
        fabric.barrier()
        checkpoint = self._finish_head(path, trained, prepared, wanted, gate) if fabric.is_global_zero else None
        fabric.barrier()
        return checkpoint or load_checkpoint(path)

    def _finish_head(
        self, path: Path, trained: Trained, prepared: Prepared, config: dict[str, Any], recipe: GateRecipe
    ) -> Checkpoint:
        """Gives a trained block its gate and saves the head."""
        plain, bank = prepared.plain, prepared.bank
        validation, iciia = bank.of_split("validation"), trained.model.iciia.config
        by_history = right_by_history(trained.model, plain, validation, usable_lengths(validation.table, iciia))
        if recipe.kind in ("warm_up", "shares"):
            count = choose_warm_up(by_history, iciia.receptive_field)
            gate: WarmUpGate | StatisticsGate = WarmUpGate(count)
            config = {**config, "gate": {**config["gate"], "count": count}}
        else:
            gate = train_gate(bank.of_split("train"), bank.of_split("gate"), plain, trained.model, recipe)
        head = WindowHead(plain, trained.model, gate, bank.table.several).eval()
        rates = label_rates(bank.of_split("train").table)
        delivery = choose_delivery(head, validation, max(by_history), gated=recipe.kind == "shares", base=rates)
        if delivery.thresholds:
            config = {**config, "thresholds": list(delivery.thresholds)}
        also = f" (of somebody else, {FOREIGN_PART:.0%} of the cases)" if delivery.foreign else ""
        also += " [with half of the classes unknown]" if delivery.open else ""
        say(f"validation people after {delivery.history} photos{also}: {_said(delivery)}")
        encoder = load_checkpoint(self.encoder_path)
        taught_by = self.taught_by()
        others = {TAUGHT_BY: taught_by} if taught_by is not None else {}
        card = Card(
            builder="iciia_head",
            config=config,
            labels=self.table.classes,
            requires={
                role: {"file": f"../{other.path.name}", "sha256": other.card.sha256}
                for role, other in {"encoder": encoder, **others}.items()
            },
            training={
                "data": self.table.fingerprint(),
                "seed": config["recipe"]["seed"],
                "best_epoch": trained.best_epoch,
                "validation_accuracy": [round(value, 4) for value in trained.validation],
                "validation_by_history": {str(k): [round(v, 4) for v in pair] for k, pair in by_history.items()},
                "delivery": delivery.as_dict(),
                **({"label_rates": [round(rate, 6) for rate in rates]} if rates else {}),
                "learning_rate": trained.learning_rate,
                "range_test": {f"{rate:g}": round(min(loss, 1e9), 4) for rate, loss in trained.losses.items()},
                "steps": trained.steps,
                "seconds": round(trained.seconds, 1),
            },
        )
        return save_checkpoint(path, head.state_dict(), card)


def label_rates(table: PhotoTable) -> tuple[float, ...]:
    """Return the rate (C,) of each label among photos with several.

    Never 0 or 1; empty where each photo has one.
    """
    if not table.several:
        return ()
    return tuple(((table.label.sum(axis=0, dtype=np.int64) + 1) / (len(table) + 2)).tolist())


def _said(delivery: Delivery) -> str:
    own = delivery.accuracy
    shown = (own, "{:.1%}"), (delivery.foreign, "({:.1%})"), (delivery.open, "[{:.1%}]")
    parts = {"original": "plain", "class shares": "shares", "head": "head", "both": str(delivery.with_head)}
    said = [" ".join([name, *(form.format(of[key]) for of, form in shown if of)]) for name, key in parts.items() if own]
    gains = [f"{100 * (own[key] - own['plain']):+.1f}" for key in ("head", "uniform") if own]
    said += [f"the head gains {' points, with uniform attention '.join(gains)}"] if own else []
    return ", ".join([*said, f"delivered: {delivery.choice}"])


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a card.

    With the defaults of those that it does not name, without those found in training.
    """
    gate = {name: value for name, value in config.get("gate", {}).items() if name != "count"}
    return {
        "iciia": asdict(IciiaConfig(**config["iciia"])),
        "recipe": asdict(IciiaRecipe(**config["recipe"])),
        "gate": GateRecipe(**{**gate, "share": tuple(gate.get("share", GateRecipe.share))}).as_dict(),
    }


def usable_lengths(table: PhotoTable, iciia: IciiaConfig) -> tuple[int, ...]:
    """Return the studies' history lengths for this window.

    Those that the window and most clients' photos allow.
    """
    longest = common_length(table) - 1
    return tuple(length for length in HISTORY_LENGTHS if length <= min(longest, iciia.receptive_field - 1))


def variant_name(config: IciiaConfig) -> str:
    """Return the paper's names for P = 1 and for ICIIA-T's P.

    Differences from its main setting are named too.
    """
    known = {tiny_partitions(config.width): TINY, 1: "iciia_b"}
    name = known.get(config.partitions, f"iciia_p{config.partitions}")
    name += {"own": "", "shared": "_shared", "residual": "_residual"}[config.classifier]
    name += {"full": "", "causal": "_causal", "none": "_no_attention", "alone": "_attention_alone"}[config.attention]
    return name if config.shuffle else name + "_no_shuffle"


def delivered_variant(heads: Sequence[Path], where: str) -> str:
    """Return the variant that devices get: the one that is expected to serve validation people best.

    Of those that are equally good it is ICIIA-T or another small one. Other attention and classifiers do not compete.

    Raises:
        DataError: there is no head, or no variant that every seed has.
    """
    by_seed: dict[str, dict[str, float]] = {}
    for head in heads:
        found = load_checkpoint(head).card.training.get("delivery")
        by_seed.setdefault(head.parent.name, {})[head.stem] = accuracy_of(found) if found else 0.0
    common = set.intersection(*map(set, by_seed.values())) if by_seed else set()
    if not common:
        has = "; ".join(f"{seed}: {', '.join(sorted(names))}" for seed, names in by_seed.items()) or "none"
        raise DataError(
            f"{where} has no variant that every seed was trained for ({has}); run refocus train iciia again"
        )
    small = sorted(common, key=lambda name: (name != TINY, not name.startswith(TINY), name))
    mean = {name: np.mean([found[name] for found in by_seed.values()]) for name in small}
    alike = [name for name in small if name.split("_")[2:] == small[0].split("_")[2:]]
    best = max(mean[name] for name in alike)
    return next(name for name in alike if mean[name] >= best - CLOSE)


def chosen_by(heads: Sequence[Checkpoint]) -> list[str]:
    """Return what a run chose by itself for its heads, and why, one line each; the last one is the head to export."""
    lines = []
    for head in heads:
        block, about = head.card.config["iciia"], head.card.training
        losses = ", ".join(f"{rate}: {loss}" for rate, loss in sorted(about.get("range_test", {}).items()))
        lines.append(
            f"{head.path.parent.name}/{head.path.stem}: block.window = {block['window']} (0: what half of the people"
            f" have, up to {WINDOW}), block.partitions = {block['partitions']} (0: up to {WEIGHTS_PER_PHOTO} weights"
            f" a training photo), recipe.learning_rate = {about.get('learning_rate')} (losses by rate:"
            f" {losses or 'given'}), epoch {about['best_epoch']} of {len(about['validation_accuracy']) - 1}"
        )
    lines.append(f"validation people are served best by {delivered_variant([head.path for head in heads], 'the run')}")
    say(lines[-1])
    return lines


def check_network(config: RunConfig) -> None:
    """Raises UsageError unless the settings name one network with its weights."""
    _check_frames(config)
    named, stated = config.backbone != GLYPH_BACKBONE, config.mean or config.std
    if config.scratch and (config.bundle or config.checkpoint):
        raise UsageError("scratch trains a network on the photos; leave out --checkpoint and --from, or scratch")
    if config.bundle:
        if named or config.checkpoint or config.arguments or stated:
            raise UsageError("--from brings its own network; leave out backbone, checkpoint, arguments, mean and std")
    elif not config.checkpoint:
        if config.data.source not in DRAWN and not config.scratch:
            raise UsageError(
                f"--data {config.data.source} needs a network: --from BUNDLE, which refocus export made of any network,"
                " or --backbone NAME with its weights as --checkpoint FILE.safetensors; for small and simple pictures,"
                " --set scratch=true trains one"
            )
        if stated:
            raise UsageError("mean and std describe given weights; add --checkpoint")


def _check_frames(config: RunConfig) -> None:
    """Raise UsageError unless the settings ask for clip frames or photos."""
    source, frames = config.data.source, config.frames
    if frames == 1 or (source == CLIPS and not frames):
        raise UsageError(f"frames = {frames}: an encoder of clips takes 2 or more of each, as frames = 8")
    if frames and source == GLYPHS:
        raise UsageError(f"frames = {frames}: glyphs are photos; leave frames out, or give --data {CLIPS}")
    if frames and config.bundle:
        raise UsageError(f"frames = {frames}: --from brings an encoder as it is; leave frames out")
    if frames and config.checkpoint and config.pooling == "conv":
        raise UsageError(
            "pooling = conv has weights of its own, which are trained with the encoder of drawn clips; with"
            " --checkpoint give --set pooling=mean"
        )


def load_backbone(config: RunConfig) -> Backbone:
    """The user's backbone with the user's weights.

    Raises:
        UsageError: an unknown network, or weights that are not its own.
    """
    path, arguments = Path(config.checkpoint), config.arguments
    probe = create_backbone(config.backbone, 1, **arguments)
    backbone = create_backbone(config.backbone, classes_in(path, probe.network), **arguments)
    load_weights(backbone, path)
    stated = {name: value for name, value in (("mean", config.mean), ("std", config.std)) if value}
    try:
        wanted = msgspec.to_builtins(backbone.preprocessing) | stated | stated_side(arguments)
        backbone = replace(backbone, preprocessing=msgspec.convert(wanted, Preprocessing))
        return over_frames(backbone, config.frames, config.pooling) if config.frames else backbone
    except ValueError as error:
        raise UsageError(f"mean or std: {error}") from None
