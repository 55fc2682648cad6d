"""A federated run: a folder in which a body is pretrained once, and every method federates on the same clients.

RUN/federated.json                    what was asked for
RUN/body.safetensors                  the pretrained network, where no checkpoint was given
RUN/tower.safetensors                 the image tower of a small CLIP, where a method asks for one
RUN/curves.jsonl                      losses and accuracies of all trainings, by step or round
RUN/seed-S/METHOD-RATE/               rounds (:mod:`refocus.cloud_train.federated.checkpoint`)
RUN/seed-S/METHOD-RATE/result.json    how each client is served in the end
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from refocus.cloud_train.backbones.backbone import Backbone, classes_in, create_backbone, load_weights, stated_side
from refocus.cloud_train.backbones.pretrain import GLYPH_PREPROCESSING, EncoderRecipe, train_encoder
from refocus.cloud_train.data import glyphs
from refocus.cloud_train.data.image_tensors import Features, enlargement
from refocus.cloud_train.data.image_tensors import Photos as PhotosInMemory
from refocus.cloud_train.data.imagefolder import load_photos
from refocus.cloud_train.data.sources import load_source
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.federated.checkpoint import RoundCheckpoint
from refocus.cloud_train.federated.client import Participant, Recipe
from refocus.cloud_train.federated.client_data import FEWEST, Clients, chosen_classes, gather, partition
from refocus.cloud_train.federated.evaluate import evaluate
from refocus.cloud_train.federated.methods import Method, PeftSizes, find_method, title_of
from refocus.cloud_train.federated.parameters import ClientNetwork, Tensors
from refocus.cloud_train.federated.rounds import federate
from refocus.cloud_train.federated.server import Server
from refocus.cloud_train.federated.towers import (
    ConvexMap,
    MapRecipe,
    class_names,
    classes_of_map,
    convex_map,
    foreign_classes,
    put_classifier,
    train_map,
)
from refocus.cloud_train.locks import one_at_a_time
from refocus.cloud_train.methods.peft.fedclip_adapter import AdaptedTextClassifier, TextClassifier
from refocus.cloud_train.methods.taper.descriptions import sentence_encoder, text_descriptions
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import once, same_inputs, same_photos, save_settings, settings_of
from refocus.cloud_train.settings import Count, FilePath, Photos, Positive, Share
from refocus.edge.bundle import Preprocessing
from refocus.edge.files import file_sha256

RATES = ("rates", "part_rates", "feature_rates", "generator_rates")
SCALE = 100.0  # of cosines, as CLIP ends up with
MOST_ENLARGED = 2.0  # times, above which photos do not suit a network
PRETRAINING_DATA_SEED = 1000  # letters of other people than any client's


@dataclass(frozen=True)
class FederatedConfig:
    """What ``federated.json`` holds.

    Attributes:
        source: "glyphs"; a folder or zip of photos; an .npz of arrays; the folder of Omniglot's archives; or
            "hf:OWNER/NAME", a data set of the Hugging Face Hub.
        label_column, client_column, domain_column: of the metadata file.
        partition: who gets which photos: "natural" (as the data says), "dirichlet" (each class dealt by
            Dirichlet(alpha)), "disjoint" (no class twice), "domain" (one each), "domain-dirichlet" or "flwr".
        partitioner, partitioner_arguments: a class of ``flwr_datasets.partitioner`` and what it is made with, for
            partition "flwr"; ``partition_by`` names label, client, domain or parent. flwr-datasets is installed apart.
        clients: how many the photos are dealt to; of glyphs also how many people there are.
        most_classes: classes that take part, drawn by ``data_seed``; 0: all.
        alpha: concentration of Dirichlet partitions.
        photos_per_client: at most.
        unseen: share of the clients that come when training is over.
        hold_out: a domain all of whose clients come when training is over, in the place of that share.
        backbone, arguments: a timm network.
        checkpoint: its weights; "": it is pretrained here, on embedded letters of other people. Position embeddings
            are resized to ``arguments.img_size``.
        scratch: the network begins with weights drawn by the seed, in the place of a checkpoint or pretraining.
        mean, std: of the network's input, per RGB channel in [0, 1]; empty: as timm states for the checkpoint.
        tower_data: photos that a map from the checkpoint's features to sentences is learned on, for methods that train
            an image tower; classes that the federation tells apart are left out.
        tower_label: column of their class names.
        tower_map: how the map is learned.
        tower_classes: in the place of ``tower_data``, names of the checkpoint's own classes, one a line: the map to
            sentences is the mean of theirs, weighted by their probabilities.
        pretraining: people and epochs of that.
        recipe: how clients and server train together.
        data_seed: of drawing and dealing.
        rates, part_rates, feature_rates: of clients, for methods that train whole networks, parts on a frozen body, and
            on features; of several, each method takes the one that is best on the validation photos of the first seed.
        generator_rates: the same of pFedPG's server. The paper's 0.001 moves a prompt by a hundredth of its size in
            twenty rounds.
        tuning_rounds: of trying several rates; 0: as many as of the run, which then goes on from the best one.
        classes: their names, where photos stay with the clients and nobody else knows them; else as the photos say.
    """

    source: Photos = "glyphs"
    label_column: str = "label"
    client_column: str = "client"
    domain_column: str = "domain"
    partition: Literal["natural", "dirichlet", "disjoint", "domain", "domain-dirichlet", "flwr"] = "natural"
    partitioner: str = ""
    partitioner_arguments: dict[str, Any] = field(default_factory=dict)
    clients: Annotated[int, msgspec.Meta(ge=2)] = 20
    most_classes: Annotated[int, msgspec.Meta(ge=0)] = 0
    alpha: Positive = 0.1
    photos_per_client: Annotated[int, msgspec.Meta(ge=FEWEST)] = 200
    unseen: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.2
    hold_out: str = ""
    backbone: str = "vit_tiny_patch16_224"
    arguments: dict[str, Any] = field(
        default_factory=lambda: {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 6, "num_heads": 4}
    )
    checkpoint: FilePath = ""
    scratch: bool = False
    mean: tuple[Share, ...] = ()
    std: tuple[Share, ...] = ()
    tower_data: FilePath = ""
    tower_label: str = "label"
    tower_map: MapRecipe = field(default_factory=MapRecipe)
    tower_classes: FilePath = ""
    pretraining: tuple[Count, Count] = (600, 12)
    recipe: Recipe = field(default_factory=Recipe)
    rates: tuple[Positive, ...] = (0.05,)
    part_rates: tuple[Positive, ...] = (0.25,)
    feature_rates: tuple[Positive, ...] = (0.001,)
    generator_rates: tuple[Positive, ...] = (0.01,)
    tuning_rounds: Annotated[int, msgspec.Meta(ge=0)] = 0
    data_seed: int = 0
    classes: tuple[str, ...] = ()

    def rates_of(self, method: Method) -> list[Rates]:
        """What is tried for a method; of one that trains nothing, nothing."""
        own = self.rates if method.full else self.feature_rates if method.tower else self.part_rates
        of_server = (0.0,) if method.server == "mean" else self.generator_rates
        tried = [Rates(client, server) for client in own for server in of_server]
        return tried if method.shared or method.own else tried[:1]


def prompts_recipe(epochs: int, prompts: int) -> Recipe:
    """Of groups that each train K prompts and a classifier alone (Jia et al., "Visual Prompt Tuning", ECCV 2022): one
    round, at a rate that falls along a cosine."""
    base = Recipe()
    return Recipe(
        rounds=1,
        sizes=PeftSizes(prompts=prompts),
        full=replace(base.full, epochs=epochs, momentum=0.9, cosine=True),
        parts=replace(base.parts, epochs=epochs, head_epochs=epochs, momentum=0.9, cosine=True),
    )


def allows_towers(config: FederatedConfig) -> bool:
    """Whether an image tower can be had for methods that train one."""
    return not config.scratch and (not config.checkpoint or bool(config.tower_data or config.tower_classes))


def _check_network(config: FederatedConfig) -> None:
    if config.scratch and config.checkpoint:
        raise UsageError("scratch = true begins without weights, and a checkpoint is given; leave one of them out")
    for name in ("mean", "std"):
        if len(getattr(config, name)) not in (0, 3):
            raise UsageError(f"{name} = {list(getattr(config, name))}: expected three numbers, of red, green and blue")


@dataclass(frozen=True)
class Rates:
    """Learning rates of a method: of its clients, and of its server where that learns too."""

    client: float
    server: float = 0.0

    def __str__(self) -> str:
        return f"{self.client:g}" + (f"-{self.server:g}" if self.server else "")


class FederatedRun:
    """An opened run folder.

    Args:
        table: photos of the source that were chosen elsewhere; None: all of it.
        towers: folder of the features that towers are made from; default: in the run.

    Raises:
        UsageError: the folder holds a run with other settings.
    """

    def __init__(
        self,
        folder: Path,
        config: FederatedConfig | None = None,
        table: PhotoTable | None = None,
        towers: Path | None = None,
    ) -> None:
        path = folder / "federated.json"
        config = settings_of(path, config, FederatedConfig, "a federated run; make one with refocus train federated")
        self.folder, self.config, self._chosen = folder, config, table
        self._towers = towers or folder / "features"
        self._caches: dict[str, dict[int, tuple[PhotosInMemory, Features]]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            save_settings(path, config)

    def check(self, names: Sequence[str]) -> None:
        """Finds mistakes in minutes, not hours.

        Args:
            names: of the methods that are going to be trained.

        Raises:
            UsageError: the network, its weights or a method are not available, or there are no rates.
            DataError: the photos do not allow what is asked.
        """
        config = self.config
        empty = [name for name in RATES if not getattr(config, name)]
        if empty:
            raise UsageError(f"{empty[0]} is empty: expected one learning rate, or several to choose from")
        _check_network(config)
        for name in names:
            method = find_method(name)
            config.recipe.of(method)
            if method.tower and not allows_towers(config):
                raise UsageError(
                    f"methods: {name} trains an image tower; of a network with a checkpoint it needs tower_classes, the"
                    " names of its classes, or tower_data, photos of others; of one from scratch there is none"
                )
            network = self._bare().network
            if method.insert is not None and not method.tower:
                method.insert(network, config.recipe.sizes)
        if config.checkpoint:
            self.backbone()
        elif config.source != "glyphs" and not config.scratch:
            say(
                f"the network knows drawn letters at {self.preprocessing.crop} pixels alone, which suits few photos;"
                " give a published one with --backbone and --checkpoint, or set scratch = true"
            )
        if not self.clients.members:
            raise DataError(f"{config.source}: no client has photos enough")
        times = enlargement(self._photos, self.preprocessing) if config.source != "glyphs" else 1.0
        if times > MOST_ENLARGED:
            say(
                f"photos are enlarged {times:.1f} times to the network's {self.preprocessing.crop} pixels, which adds"
                " work and no detail; make the network for smaller ones with arguments.img_size, where it has that"
            )

    def train(self, names: Sequence[str], seeds: Sequence[int]) -> dict[str, Rates]:
        """Train what is missing of some methods, with every seed.

        Returns:
            The learning rates per method, chosen with the first seed.

        Raises:
            UsageError, DataError: see :meth:`check`.
        """
        self.check(names)  # before hours of training
        rates = {name: self.best_rates(name, seeds[0]) for name in names}
        for name in names:
            for seed in seeds:
                self.result(name, seed, rates[name])
        return rates

    @cached_property
    def clients(self) -> Clients:
        """Everybody, with photos; the same for every method and seed."""
        config = self.config
        table = chosen_classes(self._photos, config.most_classes, config.data_seed)
        more = config.partitioner, config.partitioner_arguments
        client = partition(table, config.partition, config.clients, config.alpha, config.data_seed, *more)
        most, unseen, seed = config.photos_per_client, config.unseen, config.data_seed
        clients = gather(table, client, self.preprocessing, most, unseen, seed, config.hold_out)
        weights = file_sha256(Path(config.checkpoint)) if config.checkpoint else ""
        what = "other photos or another checkpoint at the same place"
        same_photos(self.folder, f"{clients.fingerprint}\n{weights}", what)
        if config.tower_classes:
            same_inputs(self.folder, {"tower_classes": file_sha256(Path(config.tower_classes))}, made=[self.folder])
        return clients

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of what is told apart."""
        return self.config.classes or self.clients.classes

    @property
    def preprocessing(self) -> Preprocessing:
        """What the network expects of a photo."""
        return self._bare().preprocessing

    @cached_property
    def _photos(self) -> PhotoTable:
        """All photos of the source."""
        config, source = self.config, Path(self.config.source)
        if self._chosen is not None:
            return self._chosen
        if config.source == "glyphs":
            return glyphs.glyphs(config.data_seed, {"test": config.clients}, config.photos_per_client)
        return load_source(source, config.label_column, config.client_column, config.domain_column)

    def _bare(self) -> Backbone:
        """The network with fresh weights, for the pretraining's classes."""
        config = self.config
        stated = GLYPH_PREPROCESSING if not config.checkpoint else None
        backbone = create_backbone(config.backbone, self._outputs, stated, **config.arguments)
        changed: dict[str, Any] = {name: getattr(config, name) for name in ("mean", "std") if getattr(config, name)}
        changed |= stated_side(config.arguments)
        return replace(backbone, preprocessing=msgspec.structs.replace(backbone.preprocessing, **changed))

    @cached_property
    def _outputs(self) -> int:
        """Classes of the network's own classifier, which is replaced."""
        config = self.config
        if not config.checkpoint:
            return len(glyphs.CLASSES)
        return classes_in(Path(config.checkpoint), create_backbone(config.backbone, 1, **config.arguments).network)

    def backbone(self) -> Backbone:
        """The pretrained network; pretrained now, if it is not yet and none was given."""
        config, path = self.config, self.folder / "body.safetensors"
        backbone = self._bare()
        if config.checkpoint:
            load_weights(backbone, Path(config.checkpoint))
            return backbone
        if config.scratch:
            return backbone

        def pretrained() -> Tensors:
            table, recipe = self._pretraining()
            return train_encoder(table, recipe, config.backbone, **config.arguments).network.state_dict()

        backbone.network.load_state_dict(once(path, pretrained))
        return backbone

    def tower(self) -> tuple[nn.Module, TextClassifier]:
        """An image tower and the clients' classes as sentences: a small CLIP.

        The tower is the network of the checkpoint and a map from its features to sentences (:mod:`.towers`); without a
        checkpoint, a network trained against the sentences of letters of other people.
        """
        config, path = self.config, self.folder / "tower.safetensors"
        width = self.sentence_width()

        def pretrained() -> Tensors:
            if config.checkpoint:
                return self._mapped(width)
            table, recipe = self._pretraining()
            return train_encoder(
                table,
                recipe,
                config.backbone,
                self._bare().preprocessing,
                TextClassifier(self._sentences(table.classes), SCALE),
                width,
                **config.arguments,
            ).network.state_dict()

        weights = once(path, pretrained)
        tower = create_backbone(config.backbone, width, None, **config.arguments).network
        if classes := classes_of_map(tower, weights):
            put_classifier(tower, ConvexMap(tower.get_classifier().in_features, classes, width))
        tower.load_state_dict(weights)
        return tower, TextClassifier(self._sentences(self.classes), SCALE)

    def _mapped(self, width: int) -> Tensors:
        """Weights of the checkpoint's network with a map to sentences in the place of its classifier."""
        config, encoder = self.config, self.backbone()
        if config.tower_classes:
            names, own = class_names(Path(config.tower_classes)), encoder.classifier()
            if own is None:
                raise UsageError(f"tower_classes: {config.backbone} has no classifier of one linear layer")
            put_classifier(encoder.network, convex_map(own, names, self.classes, self._sentences))
            return dict(encoder.network.state_dict())
        photos = load_photos(Path(config.tower_data), config.tower_label, domain_column="")
        table = foreign_classes(photos, self.classes, config.tower_map.photos)
        texts = self._sentences(table.classes)
        learned = train_map(encoder, table, texts, SCALE, config.tower_map, self._towers)
        encoder.network.reset_classifier(width)
        encoder.network.get_classifier().load_state_dict(learned.state_dict())
        return dict(encoder.network.state_dict())

    def _pretraining(self) -> tuple[PhotoTable, EncoderRecipe]:
        """Letters of other people, and how long a network learns from them."""
        people, epochs = self.config.pretraining
        table = glyphs.glyphs(PRETRAINING_DATA_SEED, {"train": people})
        return table, EncoderRecipe(epochs=epochs, learning_rate=0.002)

    def sentence_width(self) -> int:
        """D of the tower and the sentences."""
        return int(self._sentences(glyphs.CLASSES).shape[1])

    def _sentences(self, classes: Sequence[str]) -> Tensor:
        """(C, D) of class names, by the sentence encoder; cached."""
        made = once(
            self.sentences_path(classes),
            lambda: {"table": text_descriptions(classes, [""], sentence_encoder()).table[0]},
        )
        return made["table"]

    def sentences_path(self, classes: Sequence[str]) -> Path:
        """Where they are cached."""
        return self.folder / f"sentences-{hashlib.sha256(chr(10).join(classes).encode()).hexdigest()[:16]}.safetensors"

    def build(self, method: Method, seed: int) -> ClientNetwork:
        """A client's network, with what the method inserts: the same for every client of a seed."""
        classes = len(self.classes)  # read before the seed is set: reading draws numbers
        if method.tower:
            tower, head = self.tower()
            torch.manual_seed(seed)
            body = method.insert(tower, self.config.recipe.sizes) if method.insert else tower
            return ClientNetwork(body, AdaptedTextClassifier(head) if method.text_adapter else head)
        torch.manual_seed(seed)  # of a network from scratch
        backbone = self.backbone()
        width = backbone.width
        backbone.network.reset_classifier(0)
        torch.manual_seed(seed)
        body = backbone.network if method.insert is None else method.insert(backbone.network, self.config.recipe.sizes)
        heads = [nn.Linear(width, classes) for _ in range(1 + method.two_heads)]
        for second in heads[1:]:  # somebody who has not trained it is served by the first alone
            nn.init.zeros_(second.weight)
            nn.init.zeros_(second.bias)
        return ClientNetwork(body, *heads)

    def best_rates(self, name: str, seed: int) -> Rates:
        """Those at which the validation photos of a seed are recognised best, in the round that is kept."""
        tried = self.config.rates_of(find_method(name))
        if len(tried) == 1:
            return tried[0]
        reached = self.validations(name, seed)
        return max(tried, key=lambda rates: reached[str(rates)])

    def validations(self, name: str, seed: int) -> dict[str, float]:
        """Share of the validation photos that are recognised, by the rates that are tried."""
        found, tuning = {}, self.config.tuning_rounds
        for rates in self.config.rates_of(find_method(name)):
            log = self.federated(name, seed, rates, tuning)[2].log
            looked = [record["validation"] for record in log if "validation" in record]
            found[str(rates)] = looked[-1] if self.config.recipe.keep == "last" else max(looked)
        return found

    def recipe(self, rates: Rates, rounds: int = 0) -> Recipe:
        recipe = self.config.recipe if not rounds else replace(self.config.recipe, rounds=rounds)
        changed: dict[str, Any] = {
            part: replace(getattr(recipe, part), learning_rate=rates.client) for part in ("full", "parts", "features")
        }
        return replace(recipe, generator=replace(recipe.generator, learning_rate=rates.server), **changed)

    def place(self, name: str, seed: int, rates: Rates, rounds: int = 0) -> Path:
        tried = ("tuning",) if rounds else ()
        return Path(self.folder, f"seed-{seed}", *tried, f"{name}-{rates}")

    def participant(self, name: str, seed: int, rates: Rates) -> Participant:
        """A method on the network of this run; the same on every machine."""
        method = find_method(name)
        encoder = "tower" if method.tower else f"body {seed if self.config.scratch else ''}"
        cache = self._caches.setdefault(encoder, {})
        return Participant(method, lambda: self.build(method, seed), self.recipe(rates), seed, cache)

    def federated(
        self, name: str, seed: int, rates: Rates, rounds: int = 0
    ) -> tuple[Participant, Server, RoundCheckpoint]:
        """A method, trained to its last round.

        Args:
            rounds: fewer, to try rates; 0: those of the recipe.
        """
        participant, recipe = self.participant(name, seed, rates), self.recipe(rates, rounds)
        place, clients = self.place(name, seed, rates, rounds), self.clients.members
        with one_at_a_time(place / ".training.lock"):
            what = f"seed {seed}: {title_of(name)}, rate {rates}"
            return participant, *federate(participant, clients, recipe, place, what)

    def result(self, name: str, seed: int, rates: Rates) -> dict[str, Any]:
        """How every client is served; computed once."""
        path = self.place(name, seed, rates) / "result.json"

        def compute() -> dict[str, Any]:
            return evaluate(self.clients, *self.federated(name, seed, rates), self.config.recipe)

        return once(path, compute)
