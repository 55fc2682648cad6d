"""The bundle's manifest: every fact a device needs, as types that are checked while they are read.

A field that a newer schema adds is refused, not ignored: a device that does not know what a field means cannot know
whether it may leave it out.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import msgspec

from edge.errors import BundleError

SCHEMA_VERSION = 2  # 2: the gate is in the head; its outputs are calibrated_logits and trust too
MAX_MANIFEST_BYTES = 16 * 1024 * 1024  # labels of a large model fit many times over; anything above is not a manifest

Positive = Annotated[int, msgspec.Meta(gt=0)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all manifest types: immutable, no unknown fields."""


class Preprocessing(Strict, frozen=True):
    """How a photo becomes the encoder's input; training and device run the same code from this one definition.

    Attributes:
        decoder: who decodes; JPEG always at full size, because reduced decoding changes pixels.
        apply_exif_orientation: whether the photo is first turned as its EXIF tag says.
        resize_shorter: the shorter side after resizing, in pixels.
        resize_filter: the resampling kernel, always with anti-aliasing.
        crop: side of the central square kept, in pixels.
        mean, std: per RGB channel, on values scaled to [0, 1].
        colour_order: order of the channels.
        layout: order of the axes.
    """

    resize_shorter: Positive
    crop: Positive
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resize_filter: Literal["bilinear", "bicubic", "lanczos"] = "bicubic"
    decoder: Literal["pillow-full-size"] = "pillow-full-size"
    apply_exif_orientation: bool = True
    colour_order: Literal["RGB"] = "RGB"
    layout: Literal["NCHW"] = "NCHW"

    def __post_init__(self) -> None:
        if self.crop > self.resize_shorter:
            raise ValueError(f"crop {self.crop} is larger than resize_shorter {self.resize_shorter}")
        if min(self.std) <= 0:
            raise ValueError(f"std {self.std} must be positive")


class Tensor(Strict, frozen=True):
    """One input or output of a program; a dimension that is not fixed carries its name."""

    name: str
    dtype: Literal["float32", "int64"]
    shape: tuple[int | str, ...]


class State(Strict, frozen=True):
    """What a program needs to be kept between photos, and how it changes with each one.

    ``append``: the newest row of ``source`` is added, the oldest falls out. The source "feature" is the encoder's
    output, which is stored; any other is an output of the head that depends on the photo's feature alone, so its rows
    are a cache that a device computes again from stored features when it has lost them.
    """

    name: str
    source: str
    dtype: Literal["float32"]
    shape: tuple[int, ...]
    update: Literal["append"]


class Placement(Strict, frozen=True):
    """What ran where when the program was measured.

    Attributes:
        operators: number of executed nodes per operator, per provider.
        fallbacks: operators the asked provider did not take, each with the reason.
    """

    asked: str
    operators: dict[str, dict[str, int]]
    fallbacks: dict[str, str] = {}


class Parity(Strict, frozen=True):
    """How far the artifact is from eager PyTorch, measured through the device runtime on real photos in sequence.

    Attributes:
        photos: photos compared.
        profiles: people whose history grew from nothing during the comparison.
        longest_history: photos in the longest history that was compared.
        max_abs, p99_abs: largest and 99th percentile absolute difference of any output value.
        top1_agreement: share of photos with the same best class, in [0, 1].
        tolerance: the largest ``max_abs`` that passes.
        reason: why that tolerance.
    """

    photos: Positive
    profiles: Positive
    longest_history: NonNegative
    max_abs: float
    p99_abs: float
    top1_agreement: float
    tolerance: float
    reason: str


class Artifact(Strict, frozen=True):
    """One program of the bundle for one runtime and precision.

    Attributes:
        role: "encoder" turns pixels into a feature; "head" turns a feature and a history into logits.
        file: path below the bundle's folder.
        feature_space: of an encoder, the space its features live in.
        accepts: of a head, the feature spaces whose features it may meet.
    """

    role: Literal["encoder", "head"]
    runtime: str
    precision: Literal["fp32", "fp16", "int8"]
    file: str
    sha256: Sha256
    size_bytes: NonNegative
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    min_runtime_version: str
    producer: dict[str, str]
    parts_bytes: dict[str, int] = {}
    placement: Placement | None = None
    parity: Parity | None = None
    feature_space: Sha256 | None = None
    accepts: tuple[Sha256, ...] = ()

    def __post_init__(self) -> None:
        _check_stays_inside(self.file)
        if (self.role == "encoder") != (self.feature_space is not None):
            raise ValueError(f"'{self.file}': an encoder, and only an encoder, names its feature_space")
        if (self.role == "head") != bool(self.accepts):
            raise ValueError(f"'{self.file}': a head, and only a head, lists the feature spaces it accepts")


class Personalisation(Strict, frozen=True):
    """How the head uses the person's history.

    Attributes:
        method: which method trained the head.
        window: features the head can look back on, its target not counted.
        gate: how the program decides what part the history has in its answer (the output ``trust``).
        carrier: how personal weights travel; "none" for a method that only reads the history.
    """

    method: str
    window: NonNegative
    gate: str
    carrier: Literal["none", "inputs", "weights", "whole"] = "none"


class SelfTestPhoto(Strict, frozen=True):
    """One photo of the self-test with the answer expected after the photos before it."""

    file: str
    sha256: Sha256
    label: str
    logit: float


class SelfTest(Strict, frozen=True):
    """A short sequence of real photos that the device recognises in order, from an empty history.

    Attributes:
        tolerance: largest accepted difference of the winning logit.
    """

    photos: tuple[SelfTestPhoto, ...]
    tolerance: float

    def __post_init__(self) -> None:
        for photo in self.photos:
            _check_stays_inside(photo.file)


class Manifest(Strict, frozen=True):
    """The whole ``manifest.json``."""

    schema_version: Positive
    name: str
    labels: tuple[str, ...]
    preprocessing: Preprocessing
    artifacts: tuple[Artifact, ...]
    personalisation: Personalisation
    state: tuple[State, ...] = ()
    self_test: SelfTest | None = None
    training: dict[str, Any] = {}

    def __post_init__(self) -> None:
        for role in ("encoder", "head"):
            if not any(artifact.role == role for artifact in self.artifacts):
                raise ValueError(f"artifacts hold no {role}")
        if not self.labels:
            raise ValueError("labels are empty")


def _check_stays_inside(file: str) -> None:
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or "\\" in file or ":" in file:
        raise ValueError(f"file '{file}' must stay inside the bundle's folder")


class _Version(msgspec.Struct):
    schema_version: int


def decode_manifest(content: bytes, where: str) -> Manifest:
    """Reads and validates a manifest.

    Args:
        content: the bytes of ``manifest.json``.
        where: named in errors.

    Raises:
        BundleError: not a manifest, another schema, or a field that is missing, unknown or out of range.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{where}: {len(content)} bytes, at most {MAX_MANIFEST_BYTES} are read; not a manifest")
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"{where} is not a Refocus manifest ({error}); export the bundle again") from None
    if version > SCHEMA_VERSION:
        raise BundleError(f"{where} has schema version {version}, this refocus reads {SCHEMA_VERSION}; update refocus")
    if version < SCHEMA_VERSION:
        raise BundleError(f"{where} has schema version {version}, this refocus reads {SCHEMA_VERSION}; export it again")
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"{where} is not valid: {error}; export the bundle again") from None


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as stable, indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=2) + b"\n"
