"""What is measured: one target of one bundle at work through the device's own recogniser, on real photos."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refocus.benchmarks.document.schema import BenchError, Document, Fastest, Photos, Placed, Ran
from refocus.benchmarks.measure.accuracy import read_labelled
from refocus.edge.bundle import Artifact, Bundle
from refocus.edge.errors import PhotoError
from refocus.edge.history import RetentionPolicy
from refocus.edge.personal import PersonalWeightStore
from refocus.edge.photos import preprocess, read_photo
from refocus.edge.recognize import DEFAULT_TARGET, Recognizer, find_photos, library_version, profile_path
from refocus.edge.runtimes import Part, Program, fallback_text, load_program, profile_folder, profiled

MOST_PHOTOS = 64  # in memory at once; they are recognised in turns
STORED = 256  # photos in a profile that is full
_START = "import", "cold load", "first photo"  # names of the rows that add up to a start
MOST_LOST = 0.01  # the largest loss of accuracy that a target's measured interval may include
_NUMBER_BYTES = 8


@dataclass(frozen=True)
class Album:
    """Photos to recognise, each a new one whenever it is asked for.

    A number behind the end of a photo's file gives it another identity and leaves its pixels as they are; the same
    photo again would be recognised from its place in the history instead.

    Attributes:
        about: for the document.
        contents: encoded bytes.
    """

    about: Photos
    contents: tuple[bytes, ...]
    _number: Iterator[int] = field(default_factory=itertools.count, repr=False)

    def next(self) -> bytes:
        """The bytes of the next photo."""
        number = next(self._number)
        return self.contents[number % len(self.contents)] + number.to_bytes(_NUMBER_BYTES, "big")

    def identity(self) -> str:
        """Of a photo that never was."""
        return f"photo {next(self._number)}"


def read_album(bundle: Bundle, given: Path | None) -> Album:
    """The given photos, or those that travel in the bundle for its self-test.

    Args:
        given: a folder or zip with ``metadata.csv``, or any folder of photos.

    Raises:
        BenchError: no photo, or none that the bundle's preprocessing takes.
    """
    if given is not None:
        source, found = given.name, dict(itertools.islice(_given(given), MOST_PHOTOS))
    else:
        source = "the bundle's own"
        found = {photo.file: (bundle.folder / photo.file).read_bytes() for photo in bundle.manifest.self_test_photos}
    if not found:
        raise BenchError(f"{bundle.folder} carries no photos; give some with --photos")
    usable = [content for content in itertools.islice(found.values(), MOST_PHOTOS) if _keeps_pixels(bundle, content)]
    if not usable:
        raise BenchError(f"none of the photos in {source} can be decoded; give JPEG or PNG files with --photos")
    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in usable)).hexdigest()
    return Album(Photos(source=source, count=len(usable), fingerprint=digest), tuple(usable))


def _given(source: Path) -> Iterator[tuple[str, bytes]]:
    if source.suffix == ".zip" or (source / "metadata.csv").is_file():
        # Any two columns serve to find the files; who is on them matters for the accuracy alone.
        photos = read_labelled(source, "file_name", "file_name", split="", photos_per_person=1 << 30)
        for rows in photos.people.values():
            for file, _ in rows:
                yield file, photos.read(file)
        return
    for path in find_photos([source]):
        yield str(path), read_photo(path)


def _keeps_pixels(bundle: Bundle, content: bytes) -> bool:
    contract = bundle.manifest.preprocessing
    try:
        return np.array_equal(preprocess(content, contract), preprocess(content + bytes(_NUMBER_BYTES), contract))
    except PhotoError:
        return False


def options_of(asked: Any) -> dict[str, Any]:
    """Return the arguments of a recogniser that a plan states."""
    return {name: getattr(asked, name) for name in ("head", "provider", "allow_fallback", "threads", "head_target")}


@dataclass
class Target:
    """One target of a bundle, with everything that decides how it runs.

    Attributes:
        name: of the bundle, in the document.
        pair: runtime and precision.
        album: the photos.
        scratch: an empty folder for profiles.
    """

    name: str
    bundle: Bundle
    pair: tuple[str, str]
    album: Album
    scratch: Path
    head: str = ""
    provider: str = ""
    allow_fallback: bool = True
    threads: int = 1
    head_target: str = ""

    def __post_init__(self) -> None:
        contract = self.bundle.manifest.preprocessing
        self.pixels = [preprocess(content, contract) for content in self.album.contents]
        self._turn = itertools.cycle(self.pixels)
        self._features: dict[str, np.ndarray] = {}

    @property
    def target_name(self) -> str:
        return ":".join(self.pair)

    def profile(self, name: str) -> Path:
        return profile_path(self.scratch, name)

    def open(
        self, profile: str | None, capacity: int = STORED, weights: PersonalWeightStore | None = None
    ) -> Recognizer:
        """A recogniser as ``refocus recognize`` makes it."""
        return Recognizer(
            self.bundle,
            self.profile(profile) if profile else None,
            *self.pair,
            keeping=RetentionPolicy(capacity=capacity),
            weights=weights,
            **options_of(self),
        )

    def encoder(self, threads: int) -> Program:
        """The encoder alone."""
        return load_program(self.bundle, "encoder", *self.pair, threads, self.head, self.provider, self.allow_fallback)

    def next_pixels(self) -> np.ndarray:
        """(1, 3, S, S) of the next photo, prepared before."""
        return next(self._turn)

    def features(self, device: Recognizer) -> np.ndarray:
        """(n, D) of all photos, computed once per feature space."""
        if device.space not in self._features:
            self._features[device.space] = np.stack([device.feature_of(pixels) for pixels in self.pixels])
        return self._features[device.space]

    def open_full(self, profile: str) -> Recognizer:
        """A recogniser whose profile has as many photos as it keeps."""
        device = self.open(profile)
        self.fill(device, device.capacity)
        return device

    def fill(self, device: Recognizer, count: int) -> None:
        """Stores ``count`` photos in the open profile: the album over and over, each time under another identity."""
        if device.history is None:
            raise ValueError("the recogniser has no profile open")
        features = self.features(device)
        for number in range(count):
            device.history.append(device.space, f"stored {number}", features[number % len(features)])

    def recognise(self, device: Recognizer, remember: bool = True) -> None:
        """One new photo whose pixels are there already: everything but decoding."""
        device.recognize_pixels(self.next_pixels(), self.album.identity(), remember=remember)

    def ran(self) -> Ran:
        """Placement that was measured: one profiled run of each loaded program on this device.

        What was asked for falls back here whatever ``allow_fallback`` says, so that its shares are known;
        :func:`refused` judges.
        """
        encoder = self.bundle.artifact("encoder", *self.pair, self.head)
        with replace(self, allow_fallback=True).open(None) as device:
            head, passed_over = device.head.artifact, device.head_passed_over
            used, path = device.encoder.ran_on(), device.encoder.numeric_path()
            threads = device.encoder.threads
            reasons = [passed_over, *_reasons(device.encoder, encoder, head)]
        placement = [*self._placed(encoder), *self._placed(head)]
        parts = {role: [part for place, part in placement if place == role] for role in ("encoder", "head")}
        found = {role: fallback_text(of_role) for role, of_role in parts.items()}
        fell_back = [f"{role}: {text}" for role, text in found.items() if text]
        return Ran(
            bundle=self.name,
            target=self.target_name,
            encoder_sha256=encoder.sha256,
            head_sha256=head.sha256,
            head=head.head,
            runtime_version=library_version(encoder.runtime),
            asked=self.provider or "the runtime's default",
            used=used,
            fallback="; ".join(filter(None, (*fell_back, *reasons))),
            threads=threads,
            telemetry=TELEMETRY.get(encoder.runtime, "none in this runtime"),
            size_bytes=encoder.size_bytes + head.size_bytes,
            numeric_path=path,
            placement=tuple(msgspec.convert({"role": role, **asdict(part)}, Placed) for role, part in placement),
        )

    def _placed(self, artifact: Artifact) -> list[tuple[str, Part]]:
        """The parts of one program, by role."""
        provider = self.provider if artifact.runtime == self.pair[0] else ""  # a native head has a place of its own
        shapes = {t.name: [n if isinstance(n, int) else 1 for n in t.shape] for t in artifact.inputs}
        inputs = {t.name: np.zeros(shapes[t.name], dtype=t.dtype) for t in artifact.inputs}
        inputs |= self.bundle.defaults(artifact)
        if "photo" in inputs:
            inputs["photo"] = self.pixels[0]
        which = artifact.role, artifact.runtime, artifact.precision, self.threads, self.head, provider
        with profile_folder() as folder:
            program = load_program(self.bundle, *which, profile=Path(folder))
            return [(artifact.role, part) for part in profiled(program, inputs)]


TELEMETRY = {"onnxruntime": "off: releases below 1.29 have none outside Windows, newer ones are refused"}


def _reasons(program: Program, *artifacts: Artifact) -> list[str]:
    """Why something else runs than what was asked for, where the runtime or the exporter says so."""
    said: list[str] = [reason] if (reason := getattr(program, "fallback", "")) else []
    for artifact in artifacts:
        fallbacks: dict[str, Any] = dict(artifact.placement.fallbacks) if artifact.placement else {}
        said += [f"{artifact.role}: {operator}: {why}" for operator, why in fallbacks.items()]
    return said


def refused(ran: Ran) -> str:
    """Why ``--refuse-fallback`` refuses what ran; "" where everything ran where it was asked to."""
    elsewhere = any(not part.asked for part in ran.placement)
    return f"--refuse-fallback: {ran.asked} does not take everything: {ran.fallback}" if elsewhere else ""


def loses_accuracy(bundle: Bundle, pair: tuple[str, str], head: str, served: Artifact | None = None) -> str:
    """Return why a target may lose accuracy, or "" if it keeps it.

    The manifest has both: the parity of the export, and the accuracy that ``refocus accuracy`` recorded.
    ``served`` is the program of the head, such as a native one; default: that of the encoder's target.
    """
    for artifact in (bundle.artifact("encoder", *pair, head), served or bundle.artifact("head", *pair, head)):
        if artifact.parity is not None and not artifact.parity.passed:
            return f"the parity of {artifact.file} did not pass when it was exported"
        found = artifact.accuracy
        change = found.change if found is not None else None
        if found is not None and found.reference and change is None and pair != DEFAULT_TARGET:
            return f"its accuracy was compared with {found.reference} on one person's photos, which give no interval"
        if change is not None and change[1] < -MOST_LOST:
            return f"its accuracy may be {-100 * change[1]:.1f} points lower (95 %), at most {100 * MOST_LOST:.0f}"
    return ""


def _served_head(target: Target, sha256: str) -> Artifact:
    """Return the program of this hash; default: the head of the target."""
    found = (artifact for artifact in target.bundle.manifest.artifacts if artifact.sha256 == sha256)
    return next(found, target.bundle.artifact("head", *target.pair, target.head))


def fastest(targets: Iterable[Target], document: Document) -> Iterator[Fastest]:
    """Yield the fastest measured target of each bundle that keeps accuracy."""
    rows = {(row.bundle, row.target, row.name): row for row in document.rows if row.group in ("start", "stages")}
    peaks = {(one.bundle, one.target): one.peak_bytes for one in document.memory}
    heads = {(one.bundle, one.target): one.head_sha256 for one in document.ran}
    for name, of_bundle in itertools.groupby(targets, key=lambda target: target.name):
        timed = {t.target_name: t for t in of_bundle if (name, t.target_name, "whole") in rows}
        served = {of: _served_head(t, heads.get((name, of), "")) for of, t in timed.items()}
        refused = {of: why for of, t in timed.items() if (why := loses_accuracy(t.bundle, t.pair, t.head, served[of]))}
        whole = {of: rows[name, of, "whole"] for of in timed if of not in refused}
        best = min(whole, key=lambda of: whole[of].summary.p50.ms, default="")
        if not best:
            continue
        parity = served[best].parity
        steps = [row.samples_ms for at, row in rows.items() if at[:2] == (name, best) and at[2] in _START]
        yield Fastest(
            bundle=name,
            target=best,
            p50=whole[best].summary.p50,
            p99=whole[best].summary.p99,
            valid=whole[best].verdict.valid,
            agreement=parity.top1_agreement if parity else None,
            peak_bytes=peaks.get((name, best)),
            start_ms=float(np.median(np.sum(steps, axis=0))) if steps else None,
            refused=refused,
        )
