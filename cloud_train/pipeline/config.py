"""What ``pipeline.toml`` says: everything a release depends on, and the limits it is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from refocus.cloud_train.backbones.pretrain import GLYPH_BACKBONE, EncoderRecipe
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.run import FederatedConfig, prompts_recipe
from refocus.cloud_train.methods.iciia.block import IciiaConfig
from refocus.cloud_train.methods.iciia.train import Devices, IciiaRecipe
from refocus.cloud_train.methods.iciia.train_gate import GateRecipe
from refocus.cloud_train.release.gates import GateLimits
from refocus.cloud_train.runs.iciia import GLYPHS, DataConfig, RunConfig
from refocus.cloud_train.runs.taper import TaperConfig
from refocus.cloud_train.settings import Count, FilePath, read_settings
from refocus.edge.bundle import Strict


class Model(Strict, frozen=True):
    """The backbone.

    Attributes:
        backbone: timm name.
        checkpoint: weights; "" lets the embedded letters train their own.
        keep_encoder: take the encoder of the current release, so that devices fetch a new head alone.
        arguments, mean, std: as of :class:`refocus.cloud_train.runs.iciia.RunConfig`.
    """

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "bundle": "a bundle of one's own network takes refocus train iciia --from BUNDLE"
    }
    backbone: str = GLYPH_BACKBONE
    checkpoint: FilePath = ""
    keep_encoder: bool = False
    arguments: dict[str, Any] = {}  # noqa: RUF012  # msgspec copies it
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


class Prompts(Strict, frozen=True):
    """Prompts and a classifier for each domain of the photos, before one frozen vision transformer.

    Attributes:
        backbone, arguments: a timm vision transformer.
        checkpoint: its weights; "": it is pretrained on embedded letters of other people.
        pretraining: people and epochs of that.
        count: K.
        deep: new ones before each block, as many in all.
        epochs, rate: of SGD, along a cosine.
        photos_per_group: at most.
    """

    backbone: str = FederatedConfig.backbone
    arguments: dict[str, Any] = msgspec.field(default_factory=lambda: FederatedConfig().arguments)
    checkpoint: FilePath = ""
    pretraining: tuple[int, int] = FederatedConfig.pretraining
    count: int = 10
    deep: bool = False
    epochs: int = 20
    rate: float = 0.25
    photos_per_group: int = 2000

    @property
    def method(self) -> str:
        return "singleset-vpt-d" if self.deep else "singleset-vpt"


class Judging(Strict, frozen=True):
    """How the candidate is compared with the current release.

    Attributes:
        photos_per_person: of each test person, at most, spread evenly over theirs.
        batch: photos of a person that a bank's self-improvement learns from at once.
        target: what is run, as ``onnx:fp32``; it is among the targets.
        rounds: of the interleaved timer.
    """

    photos_per_person: Count = 32
    batch: Count = 8
    target: str = "onnx:fp32"
    rounds: int = 96


class Releasing(Strict, frozen=True):
    """Where a release goes; without a repository it stays in the pipeline's folder.

    Attributes:
        repository, keys: of ``refocus release init``.
        device_class: whose release it is.
        percent: of the devices that may take it at first.
    """

    repository: FilePath = ""
    keys: FilePath = ""
    device_class: str = ""
    percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0


OF_DATA = ("source", "label_column", "glyph_clients", "data_seed", "large")  # of [taper], which has no say in them


class PipelineConfig(Strict, frozen=True):
    """One retraining.

    Attributes:
        name: of the bundle and of the registered model.
        method: "iciia", a head on frozen features; "taper", a bank of networks; or "prompts" of each domain.
        targets: of the export, each a branch of its own.
        retries: of a step that failed.
        threads: of every step; the same number gives the same bytes.
        block: of ICIIA; its width is the backbone's.
        taper, prompts: of those methods; photos and splits are those of ``data``.
    """

    name: str = "refocus"
    method: Literal["iciia", "taper", "prompts"] = "iciia"
    targets: tuple[str, ...] = ("onnx:fp32",)
    retries: Annotated[int, msgspec.Meta(ge=0)] = 0
    threads: Count = 1
    data: DataConfig = DataConfig()
    model: Model = Model()
    encoder: EncoderRecipe = EncoderRecipe()
    block: IciiaConfig = IciiaConfig(layers=0)
    recipe: IciiaRecipe = IciiaRecipe()
    gate: GateRecipe = GateRecipe()
    taper: TaperConfig = TaperConfig()
    prompts: Prompts = Prompts()
    devices: Devices = Devices(accelerator="cpu")
    judging: Judging = Judging()
    limits: GateLimits = GateLimits()
    release: Releasing = Releasing()

    def run_config(self) -> RunConfig:
        """What the model of this release is made of, as :class:`refocus.cloud_train.runs.iciia.Run` asks for it."""
        m = self.model
        return RunConfig(self.data, m.backbone, m.checkpoint, m.arguments, m.mean, m.std, self.encoder)

    def iciia(self, width: int) -> IciiaConfig:
        """The block for features of that width."""
        return self.block.on(width, self.data.source == GLYPHS)

    def taper_config(self) -> TaperConfig:
        """What TAPER is trained of, with this release's photos."""
        data = self.data
        return replace(self.taper, source=data.source, label_column=data.label_column, data_seed=data.seed)

    def prompts_config(self) -> FederatedConfig:
        """What the groups' prompts are trained of, with this release's photos."""
        data, own = self.data, self.prompts
        return FederatedConfig(
            **{name: getattr(data, name) for name in ("source", "label_column", "client_column")},
            # Refocus 0.1 had one column for both.
            domain_column=data.domain_column if data.parent_column == DataConfig.parent_column else data.parent_column,
            partition="domain",
            photos_per_client=own.photos_per_group,
            unseen=0.0,
            **{name: getattr(own, name) for name in ("backbone", "arguments", "checkpoint", "pretraining")},
            recipe=prompts_recipe(own.epochs, own.count),
            part_rates=(own.rate,),
            data_seed=data.seed,
        )


def load_config(path: Path) -> PipelineConfig:
    """Reads ``pipeline.toml``; relative paths in it are relative to its folder.

    Raises:
        UsageError: no such file, no TOML, or a setting that nothing knows or that makes no sense.
    """
    if not path.exists():
        raise UsageError(f"--config {path}: no such file; refocus pipeline init writes one")
    config = read_settings(PipelineConfig(), path)
    wrong = [*_wrong(config)]
    if wrong:
        raise UsageError(f"--config {path}: {'; '.join(wrong)}")
    return config


def encode_config(config: PipelineConfig) -> bytes:
    """The settings with every default, as JSON; the same settings give the same bytes."""
    return msgspec.json.format(msgspec.json.encode(config, order="deterministic")) + b"\n"


def decode_config(content: bytes) -> PipelineConfig:
    """What :func:`encode_config` gave."""
    document = msgspec.json.decode(content)
    document["block"].setdefault("layers", 0)  # Refocus 0.1 wrote what differs from the default alone
    return msgspec.convert(document, PipelineConfig)


def settings(work: Path) -> PipelineConfig:
    """The settings of a run."""
    return decode_config((work / "pipeline.json").read_bytes())


def _wrong(config: PipelineConfig) -> Iterator[str]:
    """What is wrong with settings each of which could be right."""
    from refocus.export.targets import find_target

    if not config.targets or len(set(config.targets)) < len(config.targets):
        yield f"targets {list(config.targets)}: expected one or more, each once"
    for target in config.targets:
        find_target(target)
    if config.judging.target not in config.targets:
        yield f"[judging] target {config.judging.target} is not among the targets {list(config.targets)}"
    given = [bool(value) for value in (config.release.repository, config.release.keys, config.release.device_class)]
    if any(given) and not all(given):
        yield "[release] needs repository, keys and device_class, or none of them"
    if config.method != "iciia" and (config.model != Model() or config.devices.count > 1):
        named = {"taper": "[taper] small", "prompts": "[prompts] backbone"}[config.method]
        yield (
            f"method {config.method} trains the network of {named}, on one device; leave [model] and [devices] count"
            " out"
        )
    if config.data.labels != "one":
        yield "[data] labels several: a release is judged by one label of each photo; leave labels out"
    if config.data.clients != "natural":
        yield f"[data] clients {config.data.clients}: people judge a release; give the photos a column of them"
    own, default = config.taper, TaperConfig()
    said = [name for name in OF_DATA if getattr(own, name) != getattr(default, name)]
    if said:
        yield f"[taper] knows no '{said[0]}': [data] says which photos, and [judging] what it is compared with"
