"""The bundle's manifest: every fact a device needs, as types that are checked while they are read.

An unknown field is refused, not ignored: a device that does not know what a field means cannot know whether it may
leave it out. The format is docs/formats/bundle.md, which numbers are read and written docs/formats/README.md.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from refocus.edge.bundle.precision import ALIASES, OldPrecisionName, PrecisionName, find_named_target
from refocus.edge.errors import BundleError

SCHEMA_VERSION = 6  # of manifests that are written: Refocus 0.2; 5 is Refocus 0.1
OLDEST_SCHEMA = 5  # that is read
MAX_MANIFEST_BYTES = 16 * 1024 * 1024  # labels of a large model fit many times over; anything above is not a manifest
MAX_ARTIFACTS = 256
MAX_ARTIFACT_BYTES = 4 * 1024**3  # of one artifact; read into memory before it runs
MAX_BUNDLE_BYTES = 64 * 1024**3  # of everything that a manifest lists
MAX_SMALL_BYTES = 256 * 1024**2  # of a photo, or of a file of defaults
MAX_SELF_TEST_PHOTOS = 256
MAX_AXES = 16
MAX_NUMBERS = 2**26  # in all inputs and outputs of a program, or all states of a head, whose shapes are fixed
MAX_WINDOW = 2**20
MAX_SIDE = 2**13  # pixels
MAX_FRAMES = 1024  # of a clip
MAX_PATH = 200
SCALED_MARGIN = 2  # times resize_shorter that a JPEG decoded at a reduced size must have at least

Positive = Annotated[int, msgspec.Meta(gt=0)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Version = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,9}(\.[0-9]{1,9}){0,5}[-+.a-zA-Z0-9]{0,40}\Z")]
Size = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]  # of one axis
Side = Annotated[int, msgspec.Meta(gt=0, le=MAX_SIDE)]
Frames = Annotated[int, msgspec.Meta(ge=2, le=MAX_FRAMES)]
SmallBytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_SMALL_BYTES)]
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # RecursionError: brackets nest too deep


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all manifest types: immutable, no unknown fields."""


class Preprocessing(Strict, frozen=True):
    """How a photo becomes the encoder's input; training and device run the same code from this one definition.

    Attributes:
        decoder: "pillow-full-size" decodes every photo at full size. "pillow-scaled" decodes a JPEG at 1/8, 1/4 or 1/2
            of its size, while its shorter side keeps twice ``resize_shorter`` pixels: quicker, and other pixels.
        apply_exif_orientation: whether the photo is first turned as its EXIF tag says.
        resize_shorter: the shorter side after resizing, in pixels.
        resize_filter: the resampling kernel, always with anti-aliasing.
        crop: side of the central square kept, in pixels.
        mean, std: per RGB channel, on values scaled to [0, 1].
        colour_order: order of the channels.
        layout: order of the axes; of a clip, those of each frame.
        frames: T, of an encoder of clips: the frames that it is given of each, chosen evenly. Unset: it takes photos.
    """

    resize_shorter: Side
    crop: Side
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resize_filter: Literal["bilinear", "bicubic", "lanczos"] = "bicubic"
    decoder: Literal["pillow-full-size", "pillow-scaled"] = "pillow-full-size"
    apply_exif_orientation: bool = True
    colour_order: Literal["RGB"] = "RGB"
    layout: Literal["NCHW"] = "NCHW"
    frames: Frames | msgspec.UnsetType = msgspec.UNSET  # not written where unset: identities of photos' models stay

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input of the encoder: (3, crop, crop) of a photo, (T, 3, crop, crop) of a clip."""
        photo = (3, self.crop, self.crop)
        return photo if self.frames is msgspec.UNSET else (self.frames, *photo)

    @property
    def of_clips(self) -> bool:
        """Whether the encoder takes clips."""
        return self.frames is not msgspec.UNSET

    def __post_init__(self) -> None:
        if self.crop > self.resize_shorter:
            raise ValueError(f"crop {self.crop} is larger than resize_shorter {self.resize_shorter}")
        if not all(math.isfinite(number) for number in (*self.mean, *self.std)):
            raise ValueError(f"mean {self.mean} and std {self.std} must be finite")
        if min(self.std) <= 0:
            raise ValueError(f"std {self.std} must be positive")


class Tensor(Strict, frozen=True):
    """One input or output of a program; a dimension that is not fixed carries its name."""

    name: str
    dtype: Literal["float32", "int64"]
    shape: tuple[Size | str, ...]


class State(Strict, frozen=True):
    """What a program needs to be kept between photos, and how it changes with each one.

    ``append``: rows along the first axis, oldest first; the newest of ``source`` is added, the oldest falls out. The
    source "feature" is the encoder's output, which is stored; any other is an output of the head that depends on the
    photo's feature alone. The program takes it as (1, *shape), padded in front.

    ``ring``: slots along ``axis``, in any order; after photo number t (from 0) slot t modulo their number takes the
    output ``source``. The program takes it as it is, and is told by ``history_length`` how many slots are filled.

    All but the stored features is a cache: a device that has lost it computes it again from them.
    """

    name: str
    source: str
    dtype: Literal["float32"]
    shape: tuple[Size, ...]
    update: Literal["append", "ring"]
    axis: NonNegative = 0

    def __post_init__(self) -> None:
        if self.axis >= max(1, len(self.shape)):
            raise ValueError(f"state {self.name} of shape {self.shape} has no axis {self.axis}")

    @property
    def slots(self) -> int:
        """Photos it holds."""
        return self.shape[self.axis] if self.shape else 0

    @property
    def row_size(self) -> int:
        """Numbers of one photo."""
        return math.prod(self.shape[: self.axis] + self.shape[self.axis + 1 :])


class Placement(Strict, frozen=True):
    """Which part of a device takes which operators.

    Attributes:
        asked: the provider or delegate that was asked for.
        operators: number of nodes per operator, per provider or delegate that has them.
        fallbacks: operators that the asked one did not take, each with the reason.
        how: "measured" when the counts come from a run, "compiled" when the file itself fixes them, "device" when only
            the device decides.
    """

    asked: str
    operators: dict[str, dict[str, int]]
    fallbacks: dict[str, str] = {}
    how: Literal["measured", "compiled", "device"] = "measured"


class Parity(Strict, frozen=True):
    """How far the artifact is from eager PyTorch, measured through the device runtime on real photos in sequence.

    Attributes:
        photos: photos compared.
        profiles: people whose history grew from nothing during the comparison.
        longest_history: photos in the longest history that was compared.
        situations: number of photos compared in each: an empty, growing, full or evicted history (or none, for heads
            without one), after a restart, after a switch of profile.
        max_abs: largest absolute difference of a value of the feature (encoder) or of the logits (head).
        p99_abs: 99th percentile of the absolute differences of all values.
        cosine: smallest cosine between a photo's two feature vectors (encoder) or two delivered answers (head).
        top1_agreement: share of photos with the same best class, in [0, 1].
        rank_changes: share of photos whose five best classes differ in kind or order.
        tolerance: the largest ``max_abs`` that passes.
        reason: why that tolerance.
        passed: False in a bundle that was written with ``--allow-mismatch``.
        largest: largest absolute difference by kind of output: "feature", or "logits", "attention" and "trust".
        typical_logits: of a head, 90th percentile over photos of the largest difference of a logit, as a share of the
            range of that photo's logits.
        accuracy_loss: of a head, net loss of right answers as a share of the photos whose label is known.
    """

    photos: Positive
    profiles: Positive
    longest_history: NonNegative
    max_abs: float
    p99_abs: float
    top1_agreement: float
    tolerance: float
    reason: str
    situations: dict[str, int] = {}
    cosine: float = 1.0
    rank_changes: float = 0.0
    passed: bool = True
    largest: dict[str, float] = {}
    typical_logits: float | None = None
    accuracy_loss: float | None = None


class Accuracy(Strict, frozen=True):
    """Right answers on labelled photos, in [0, 1], each person's in order with a growing history.

    Attributes:
        data: name and fingerprint of the photos.
        delivered, plain: shares of right answers with and without history.
        worst_decile: mean of ``delivered`` over the tenth of the people who are served worst.
        change: paired difference of ``delivered`` to the target ``reference``: mean, and its 95 % interval over people.
        made_worse: share of people whose answers got worse by it.
    """

    data: str
    photos: Positive
    people: Positive
    delivered: float
    plain: float
    worst_decile: float
    reference: str = ""
    change: tuple[float, float, float] | None = None
    made_worse: float | None = None


class SmallFile(Strict, frozen=True):
    """A file of the bundle that is read as a whole."""

    file: str
    sha256: Sha256
    size_bytes: SmallBytes

    def __post_init__(self) -> None:
        check_stays_inside(self.file)


class Defaults(SmallFile, frozen=True):
    """A file of tensors: what a program is given of a person for whom nothing was learned, a classifier, or hashes."""


class Piece(Strict, frozen=True):
    """Rows of a tensor, and where a weight file has them.

    Attributes:
        first, last: of the tensor's first axis; ``last`` is not among them.
        offset: of their first byte.
        axes: the order in which the file has their axes.
    """

    first: NonNegative
    last: Positive
    offset: NonNegative
    dtype: Literal["float32", "float16"]
    axes: tuple[NonNegative, ...]


class PersonalTensor(Strict, frozen=True):
    """A float32 tensor in a program that each person may have another of.

    Attributes:
        name, shape: in a person's file.
        pieces: a program may have it in several, as a joint projection that was taken apart.
    """

    name: str
    shape: tuple[Annotated[int, msgspec.Meta(gt=0, lt=2**31)], ...]
    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        _check_numbers(self.name, [self.shape])
        ends = [0, *(piece.last for piece in self.pieces)]
        follow = all(piece.first == end < piece.last for piece, end in zip(self.pieces, ends[:-1], strict=True))
        axes = [*range(len(self.shape))]
        if not follow or ends[-1:] != [*self.shape[:1]] or any(sorted(piece.axes) != axes for piece in self.pieces):
            raise ValueError(f"{self.name} of shape {self.shape} is not made of its pieces")


class PersonalFile(Strict, frozen=True):
    """The weight file of a program some of whose tensors are each person's own.

    Attributes:
        file: name in the artifact's folder; it holds what somebody gets who has nothing of their own.
    """

    file: str
    tensors: tuple[PersonalTensor, ...]


class Artifact(Strict, frozen=True):
    """One program of the bundle for one runtime and precision.

    Attributes:
        role: "encoder" turns pixels into a feature; "head" turns a feature and a history into logits.
        head: of a head, its name among the bundle's heads.
        file: path below the bundle's folder; a folder for runtimes whose programs are folders.
        sha256: of the file, or of the sorted list of a folder's files with the SHA-256 of each.
        feature_space: of an encoder, the space its features live in.
        accepts: of a head, the feature spaces whose features it may meet.
        recipe: how the device makes its own program of the file, where it does; and the settings it was made with.
        calibration: SHA-256 of the photos that fixed the ranges of a program with calibrated activations.
        parity: None where it was not run, which ``parity_note`` then explains.
        defaults: of the inputs that are each person's own, where the program has some.
        personal: of the tensors inside that are.
    """

    role: Literal["encoder", "head"]
    runtime: str
    precision: PrecisionName | OldPrecisionName
    file: str
    sha256: Sha256
    size_bytes: NonNegative
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    min_runtime_version: Version
    producer: dict[str, str]
    head: str = ""
    parts_bytes: dict[str, int] = {}
    placement: Placement | None = None
    parity: Parity | None = None
    parity_note: str = ""
    accuracy: Accuracy | None = None
    recipe: dict[str, str] = {}
    calibration: Sha256 | None = None
    feature_space: Sha256 | None = None
    accepts: tuple[Sha256, ...] = ()
    defaults: Defaults | None = None
    personal: PersonalFile | None = None

    def __post_init__(self) -> None:
        check_stays_inside(self.file)
        _check_numbers(self.file, [tensor.shape for tensor in (*self.inputs, *self.outputs)])
        if self.personal is not None:
            check_stays_inside(f"{self.file}/{self.personal.file}")
        if self.size_bytes > MAX_ARTIFACT_BYTES:
            raise ValueError(f"'{self.file}' has {self.size_bytes} bytes, at most {MAX_ARTIFACT_BYTES} are read")
        if (self.role == "encoder") != (self.feature_space is not None):
            raise ValueError(f"'{self.file}': an encoder, and only an encoder, names its feature_space")
        if (self.role == "head") != bool(self.accepts):
            raise ValueError(f"'{self.file}': a head, and only a head, lists the feature spaces it accepts")
        if (self.role == "head") != bool(self.head):
            raise ValueError(f"'{self.file}': a head, and only a head, has a name")

    @property
    def target(self) -> str:
        """Runtime and precision, as ``onnxruntime:fp32``."""
        return f"{self.runtime}:{self.precision}"


KNOWN_LEVELS = (0.05, *(number / 10 for number in range(1, 10)))  # of Head.known_scores
SHARES_VERSION = 3  # version of the arithmetic of class shares, and of what is kept of a photo for them
SET_SHARES_VERSION = 4  # the same for photos with several labels, label by label
MAX_SET_LABELS = 256  # of a head whose answers are sets
Count = Annotated[float, msgspec.Meta(ge=0, le=1e9)]  # a number of photos
Photos = Annotated[float, msgspec.Meta(ge=1e-3, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=1e-9, lt=1)]
Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
Score = Annotated[float, msgspec.Meta(ge=-1000, le=1000)]


class ShareCard(Strict, frozen=True):
    """Estimate of the classes that a person meets, as a device computes it.

    :mod:`refocus.edge.recognize.class_shares` says what each number means.

    Attributes:
        version: version of the arithmetic; a device refuses others. ``SET_SHARES_VERSION``: each label is estimated for
            itself, for a head whose answers are sets; ``base`` then has the rate of each label.
        outputs: what the classifier gives.
        temperature, scale, bias: calibration; (C,) or empty.
        base: class shares that the classifier was trained on, (C,); empty: all equal.
        strength: weight of the prior, in photos.
        half_life, evidence_half_life: numbers of photos; 0: nothing fades.
        no_shift, penalty, elsewhere: how the person's shares compete with those of training.
        with_head: exponent of the shares in the answer of a head that has a history too.
        gated: whether the trust of the shares decides how far such a head is followed.
        support: minimum probability without shares, relative to the largest, of classes that shares may favour over the
            most likely class; 0: any class.
        top: number of most likely classes that are kept of each photo.
        capacity: number of photos of the history that count.
        strengths, half_lives, revisit: fields of versions 1 and 2, which are read and have no effect.
    """

    version: Literal[1, 2, 3, 4]
    outputs: Literal["logits", "probabilities"]
    temperature: Annotated[float, msgspec.Meta(gt=0, le=1000)]
    with_head: Probability
    top: Annotated[int, msgspec.Meta(gt=0, le=256)]
    capacity: Annotated[int, msgspec.Meta(gt=0, le=MAX_WINDOW)]
    scale: tuple[Annotated[float, msgspec.Meta(gt=0, le=1e6)], ...] = ()
    bias: tuple[Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)], ...] = ()
    base: tuple[Share, ...] = ()
    strength: Photos = 2.0
    half_life: Count = 46.0
    no_shift: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.73
    penalty: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.1
    evidence_half_life: Count = 34.0
    elsewhere: Probability = 0.25
    gated: bool = False
    support: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.15
    strengths: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET
    half_lives: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET
    revisit: int | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.version >= SHARES_VERSION and not 1e-6 <= self.no_shift <= 1 - 1e-6:
            raise ValueError(f"shares: no_shift is {self.no_shift}, expected 0.000001 to 0.999999")
        for name in ("half_life", "evidence_half_life"):
            if 0 < getattr(self, name) < 0.5 and self.version >= SHARES_VERSION:
                raise ValueError(f"shares: {name} is {getattr(self, name)}, expected 0, or 0.5 photos or more")
        if self.base and not self.is_of_sets and abs(sum(self.base) - 1) > 1e-3:
            raise ValueError(f"shares: base sums to {sum(self.base):.6f}, expected 1")

    @property
    def is_of_sets(self) -> bool:
        """Whether each label is estimated for itself."""
        return self.version % 2 == 0

    def check(self, head: str, classes: int, several: bool = False) -> None:
        """Check that the shares fit a head.

        Args:
            head: name of the head.
            classes: C.
            several: whether its answers are sets of labels.

        Raises:
            ValueError: they do not.
        """
        if several != self.is_of_sets:
            raise ValueError(f"head {head}: shares of version {self.version} do not go with its thresholds")
        if classes < 2 and not several:
            raise ValueError(f"head {head}: class shares need two labels or more, it has {classes}")
        for name in ("scale", "bias", "base"):
            if len(getattr(self, name)) not in (0, classes):
                raise ValueError(f"head {head}: shares.{name} has {len(getattr(self, name))} numbers, not {classes}")


class Personalisation(Strict, frozen=True):
    """How a head uses the person's history.

    Attributes:
        method: which method trained the head.
        window: features the head can look back on, its target not counted.
        form: "window": the head reads the newest features themselves; "streaming": it reads what it left behind at each
            of the photos before, which the newest ``window`` features are enough to compute again; "none": it reads the
            photo's own feature alone, and its answers depend on nothing else.
        gate: how the program decides what part the history has in its answer (the output ``trust``).
        carrier: how personal weights travel; "none" for a method that only reads the history.
        shares: how the classes that the person meets are estimated; None: they are not.
    """

    method: str
    window: Annotated[int, msgspec.Meta(ge=0, le=MAX_WINDOW)]
    gate: str
    form: Literal["window", "streaming", "none"] = "window"
    carrier: Literal["none", "inputs", "weights", "whole"] = "none"
    shares: ShareCard | None = None


EAGER = "eager"  # PyTorch itself, as the name of a target


class SelfTestAnswer(Strict, frozen=True):
    """The best label of one photo, its logit, and how far the second best is behind."""

    label: str
    logit: float
    margin: NonNegativeFloat


class SelfTest(Strict, frozen=True):
    """The answers that a device must give to the bundle's own photos, in order, from an empty history.

    Attributes:
        answers: one per photo, by target; "eager" are those of PyTorch, for targets that could not be run at export.
        tolerance: by precision, the largest accepted difference of a best logit. Another best label is accepted where
            the margin is smaller than that.
    """

    answers: dict[str, tuple[SelfTestAnswer, ...]]
    tolerance: dict[str, float]


class SelfTestPhoto(SmallFile, frozen=True):
    """One photo that travels in the bundle."""


class Head(Strict, frozen=True):
    """What a bundle says about one of its heads, whatever runtime runs it.

    Attributes:
        labels: C class names in the order of the logits.
        state: what is kept between photos.
        training: how it came to be.
        classifier: of a network without history, ``weight`` (C, D) and ``bias`` (C,) of its own classifier; training
            goes on from it.
        thresholds: (C,) of a head whose answers are sets: the least probability of each label at which a photo has it.
            The logits are then those of each label for itself. It is left out of the manifest of any other head.
        rejection: minimum score of answers to photos that show one of the labels, see
            :attr:`refocus.edge.recognize.Answer.known_score`; left out: the bundle cannot tell.
        known_scores: scores of correct answers at the quantiles ``KNOWN_LEVELS``, ascending. Left out: the score is the
            largest logit, not divided by the length of the feature, and class shares count all photos alike.
        taught_by: ``photos`` (n, 4), int8: the first bytes of the SHA-256 of each photo file that training has seen, so
            that no model is evaluated on its training photos.
    """

    name: str
    labels: tuple[str, ...]
    personalisation: Personalisation
    state: tuple[State, ...] = ()
    self_test: SelfTest | None = None
    training: dict[str, Any] = {}
    classifier: Defaults | None = None
    taught_by: Defaults | None = None
    thresholds: tuple[Probability, ...] | msgspec.UnsetType = msgspec.UNSET
    rejection: Score | msgspec.UnsetType = msgspec.UNSET
    known_scores: tuple[Score, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        _check_numbers(f"head {self.name}", [state.shape for state in self.state])
        if isinstance(self.known_scores, tuple) and (
            len(self.known_scores) != len(KNOWN_LEVELS)
            or [*self.known_scores] != sorted(self.known_scores)
            or not isinstance(self.rejection, float)
        ):
            raise ValueError(f"known_scores: expected {len(KNOWN_LEVELS)} ascending numbers and a rejection threshold")
        if not self.labels:
            raise ValueError("labels are empty")
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"head '{self.name}': use letters, digits, '.', '_' and '-', at most 64")
        if self.personalisation.shares is not None:
            self.personalisation.shares.check(self.name, len(self.labels), self.several)
        if isinstance(self.thresholds, tuple) and not len(self.thresholds) == len(self.labels) <= MAX_SET_LABELS:
            raise ValueError(
                f"head {self.name}: {len(self.thresholds)} thresholds for {len(self.labels)} labels, expected one each"
                f" of at most {MAX_SET_LABELS}"
            )

    @property
    def several(self) -> bool:
        """Whether its answers are sets of labels."""
        return isinstance(self.thresholds, tuple)

    @property
    def files(self) -> tuple[Defaults, ...]:
        """Those that belong to the head, and that no device reads."""
        return tuple(file for file in (self.classifier, self.taught_by) if file is not None)


class Column(Strict, frozen=True):
    """Where one tensor of a network is among the n columns of a bank.

    Attributes:
        mixer: which of the M mixers serves it.
    """

    name: str
    shape: tuple[Size, ...]
    start: NonNegative
    stop: Positive
    mixer: NonNegative

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_AXES:
            raise ValueError(f"column {self.name[:80]} has more than {MAX_AXES} axes")
        if self.stop - self.start != math.prod(self.shape):
            raise ValueError(f"column {self.name}: {self.start} to {self.stop} does not hold the shape {self.shape}")


class Fold(Strict, frozen=True):
    """A convolution and the batch norm behind it, which a program has as one convolution with a bias.

    Attributes:
        layer, norm: names of the two modules.
        eps: what the norm adds to the variance.
    """

    layer: str
    norm: str
    eps: NonNegativeFloat


class PlacedTensor(Strict, frozen=True):
    """Where one tensor of a folded network lies in a weight file.

    Attributes:
        name: of the tensor in the folded network.
        offset: of its first byte.
        axes: the order in which the file has the tensor's axes.
        scales: of int8, the offset of what its values are multiplied by: a float32 for each row of the tensor's first
            axis, behind the tensor.
    """

    name: str
    offset: NonNegative
    dtype: Literal["float32", "float16", "int8"]
    axes: tuple[NonNegative, ...]
    scales: NonNegative | None = None


class WeightFile(Strict, frozen=True):
    """The flat file of one artifact's weights; what is not placed in it is the same for every task.

    Attributes:
        artifact: file of the artifact, which is a folder.
        file: name in that folder.
    """

    artifact: str
    file: str
    tensors: tuple[PlacedTensor, ...]

    def __post_init__(self) -> None:
        check_stays_inside(f"{self.artifact}/{self.file}")


SelfImprovementBy = Literal["networks", "shares", "generic"]


class BankCard(Strict, frozen=True):
    """Networks of one architecture, to be mixed weight by weight into one for a task.

    Attributes:
        file: a folder with ``rows.bin``, the (Q, n) float32 numbers of all networks, and ``words.safetensors``, the
            mixer predictor and the descriptions of the classes.
        bases, mixers: Q and M.
        columns: the n columns in order: vectors first, then what is written block by block.
        folds: batch norms that the programs no longer have.
        classifier: name of the linear layer whose rows are the classes.
        domains: words a description may be for; "" is none.
        text_encoder, prompts: what turned class names into descriptions.
        weight_files: how the mixed and folded numbers are placed, one file per artifact.
        self_improvement: what owners without a task description get: a network for the classes that are found, or the
            generic one with their shares, where training did not show that networks help beyond these; or the generic
            one as it is, where shares did not help either.
    """

    file: str
    sha256: Sha256
    size_bytes: Annotated[int, msgspec.Meta(gt=0, le=MAX_BUNDLE_BYTES)]
    bases: Positive
    mixers: Positive
    columns: tuple[Column, ...]
    folds: tuple[Fold, ...]
    classifier: str
    domains: tuple[str, ...]
    text_encoder: str
    prompts: tuple[str, ...]
    weight_files: tuple[WeightFile, ...]
    self_improvement: SelfImprovementBy = "networks"

    def __post_init__(self) -> None:
        check_stays_inside(self.file)
        ends = [0, *(column.stop for column in self.columns)]
        if not self.columns or any(c.start != end for c, end in zip(self.columns, ends[:-1], strict=True)):
            raise ValueError("columns of the bank do not follow one another from 0")
        if any(column.mixer >= self.mixers for column in self.columns):
            raise ValueError(f"a column names a mixer beyond the {self.mixers} there are")
        if not self.domains:
            raise ValueError("domains are empty; a bank without any has one that is ''")

    @property
    def size(self) -> int:
        """n, the numbers of one network."""
        return self.columns[-1].stop


Listed = Artifact | Defaults | SelfTestPhoto | BankCard


class TaskCard(Strict, frozen=True):
    """What a condensed bundle was made for.

    Attributes:
        classes: names of the classes it knows; the others are masked.
        description: the words that were given.
        mixers: (M, Q) part of each base in each block; empty where the network is the bank's generic one.
        bank: SHA-256 of the bank it was condensed from.
    """

    classes: tuple[str, ...]
    description: str
    domain: str
    mixers: tuple[tuple[float, ...], ...]
    bank: Sha256


class Manifest(Strict, frozen=True):
    """The whole ``manifest.json``.

    A bundle without an encoder is an upgrade: its heads are installed beside an encoder whose features they accept.

    Attributes:
        bank: of a bundle that personal bundles can be condensed from; its programs are the generic model.
        task: of a bundle that was condensed from a bank.
    """

    schema_version: Positive
    name: str
    preprocessing: Preprocessing
    artifacts: tuple[Artifact, ...]
    heads: tuple[Head, ...]
    self_test_photos: tuple[SelfTestPhoto, ...] = ()
    bank: BankCard | None = None
    task: TaskCard | None = None

    def __post_init__(self) -> None:
        if len(self.artifacts) > MAX_ARTIFACTS or len(self.self_test_photos) > MAX_SELF_TEST_PHOTOS:
            raise ValueError(f"more than {MAX_ARTIFACTS} artifacts or {MAX_SELF_TEST_PHOTOS} photos")
        if sum(listed.size_bytes for listed in self.listed) > MAX_BUNDLE_BYTES:
            raise ValueError(f"the files have more than {MAX_BUNDLE_BYTES} bytes together")
        names, used = [head.name for head in self.heads], {a.head for a in self.artifacts if a.role == "head"}
        if not names:
            raise ValueError("heads are empty")
        if len(set(names)) < len(names) or set(names) != used:
            raise ValueError(f"heads are {names}, artifacts hold those of {sorted(used)}")
        keys = [(a.role, a.head, a.runtime, a.precision) for a in self.artifacts]
        if len(set(keys)) < len(keys):
            raise ValueError("artifacts hold two programs of one role, head, runtime and precision")
        if self.bank and not {f.artifact for f in self.bank.weight_files} <= {a.file for a in self.artifacts}:
            raise ValueError("the bank places weights in an artifact that is not there")
        for head in self.heads:
            if head.self_test and EAGER not in head.self_test.answers:
                raise ValueError(f"self_test of {head.name} lacks the answers of {EAGER}, every target's fallback")
            for target, answers in (head.self_test.answers if head.self_test else {}).items():
                if len(answers) != len(self.self_test_photos):
                    raise ValueError(
                        f"self_test of {head.name} has {len(answers)} answers of {target}, there are"
                        f" {len(self.self_test_photos)} photos"
                    )

    @property
    def listed(self) -> Iterator[Listed]:
        """Everything that names a file or a folder of the bundle, with its SHA-256 and size."""
        for artifact in self.artifacts:
            yield artifact
            if artifact.defaults is not None:
                yield artifact.defaults
        yield from (file for head in self.heads for file in head.files)
        yield from self.self_test_photos
        if self.bank is not None:
            yield self.bank

    @property
    def has_encoder(self) -> bool:
        return any(artifact.role == "encoder" for artifact in self.artifacts)

    def head(self, name: str = "") -> Head:
        """The head of that name; the first where none is named.

        Raises:
            BundleError: there is none; the message lists what there is.
        """
        for head in self.heads:
            if name in ("", head.name):
                return head
        raise BundleError(f"there is no head '{name}'; the bundle has {', '.join(head.name for head in self.heads)}")


def check_stays_inside(file: str) -> None:
    """Refuses a path that could lead out of a folder (ValueError)."""
    # Plain names only: no drive letters, no bytes that one file system reads as another does.
    if len(file) > MAX_PATH or not _PLAIN_PATH.fullmatch(file) or {".", ".."} & set(file.split("/")):
        raise ValueError(
            f"file {file[:80]!r} must stay inside the bundle's folder: letters, digits, '.', '_', '-' and '/' alone"
        )


def check_members(content: bytes) -> None:
    """Refuses JSON in which an object names a member twice: two readers could take it for two different documents.

    Raises:
        msgspec.DecodeError: a member comes twice, or the content is not JSON.
    """

    def once(members: list[tuple[str, Any]]) -> None:
        seen = set[str]()
        for name, _ in members:
            if name in seen:
                raise msgspec.DecodeError(f"the member '{name[:80]}' appears twice")
            seen.add(name)

    try:
        json.loads(content.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def _check_numbers(what: str, shapes: Sequence[Sequence[int | str]]) -> None:
    """Refuses shapes whose arrays would be enormous (ValueError); an axis of no fixed size counts as one."""
    if any(len(shape) > MAX_AXES for shape in shapes):
        raise ValueError(f"{what[:80]} has a tensor of more than {MAX_AXES} axes")
    numbers = sum(math.prod(size for size in shape if isinstance(size, int)) for shape in shapes)
    if numbers > MAX_NUMBERS:
        raise ValueError(f"{what[:80]} has tensors of {numbers} numbers together, at most {MAX_NUMBERS} are taken")


class _Version(msgspec.Struct):
    schema_version: int


def decode_manifest(content: bytes, where: str) -> Manifest:
    """Reads and validates a manifest.

    Args:
        content: the bytes of ``manifest.json``.
        where: named in errors.

    Raises:
        BundleError: not a manifest, a number that is not read, or a field that is missing, unknown or out of range.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{where}: {len(content)} bytes, at most {MAX_MANIFEST_BYTES} are read; not a manifest")
    try:
        check_members(content)
        version = msgspec.json.decode(content, type=_Version).schema_version
    except NOT_JSON as error:
        raise BundleError(f"{where} is not a Refocus manifest ({error}); export the bundle again") from None
    if not OLDEST_SCHEMA <= version <= SCHEMA_VERSION:
        what_to_do = "update refocus" if version > SCHEMA_VERSION else "export it again"
        reads = f"{OLDEST_SCHEMA} to {SCHEMA_VERSION}"
        raise BundleError(f"{where} has schema version {version}, this refocus reads {reads}; {what_to_do}")
    try:
        return _renamed(msgspec.json.decode(content, type=Manifest))
    except NOT_JSON as error:
        newer = "a newer Refocus may have written it: update refocus, or " if "unknown field" in str(error) else ""
        raise BundleError(f"{where} is not valid: {error}; {newer}export the bundle again") from None


def _renamed(manifest: Manifest) -> Manifest:
    """The manifest with today's names of precisions: 0.1 wrote int8 for what is w8a8 or, without calibration, w8.

    Raises:
        msgspec.ValidationError: two artifacts have the same name then.
    """
    if not any(artifact.precision in ALIASES for artifact in manifest.artifacts):
        return manifest
    artifacts = tuple(
        msgspec.structs.replace(a, precision="w8a8" if a.calibration else "w8") if a.precision in ALIASES else a
        for a in manifest.artifacts
    )
    targets = [artifact.target for artifact in artifacts]
    heads = tuple(
        msgspec.structs.replace(head, self_test=_renamed_test(head.self_test, targets)) for head in manifest.heads
    )
    try:
        return msgspec.structs.replace(manifest, artifacts=artifacts, heads=heads)
    except ValueError as error:
        raise msgspec.ValidationError(str(error)) from None


def _renamed_test(test: SelfTest | None, targets: Sequence[str]) -> SelfTest | None:
    if test is None:
        return None
    answers = {find_named_target(target, targets) or target: found for target, found in test.answers.items()}
    old = {new: value for name, value in test.tolerance.items() for new in ALIASES.get(name, ())}
    kept = {name: value for name, value in test.tolerance.items() if name not in ALIASES}
    return SelfTest(answers=answers, tolerance=old | kept)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as stable, indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=2) + b"\n"
