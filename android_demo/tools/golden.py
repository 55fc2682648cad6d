"""Golden vectors: answers of a bundle to photos, to test other runtimes.

A runtime in another language recognises the same photos in sequence and is compared with them. The folder has
``photos/`` (the files), ``decoded/`` (the same photos as RGB after EXIF, lossless, so that two implementations do not
differ by a JPEG decoder), ``golden.safetensors`` (the encoder's input and output, the answers) and ``golden.json`` (the
sequence of photos and the decisions). ``formats/`` has files of every kind that users have, for testing the decoder of
a platform, each with the largest accepted difference.

``python android_demo/tools/golden.py write BUNDLE FOLDER`` writes them, ``golden.py compare BUNDLE FOLDER`` runs them
again in Python.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from format_photos import format_photos
from PIL import Image

from refocus.edge.bundle.load import Bundle, load_bundle
from refocus.edge.bundle.manifest import Head, Preprocessing
from refocus.edge.bundle.personal_weights import NewWeights, model_of
from refocus.edge.bundle.tensor_file import decode_tensors, encode_tensors
from refocus.edge.errors import PersonalWeightsError, RefocusError
from refocus.edge.history.feature_history import RetentionPolicy
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.photos.decode import decode
from refocus.edge.photos.preprocess import decode_at_least, decode_photo, preprocess, read_photo
from refocus.edge.recognize.album import find_photos, nearest
from refocus.edge.recognize.chosen_target import manifest_sha256
from refocus.edge.recognize.recognizer import Answer, Recognizer, profile_path

SCHEMA = 2
READS = (1, SCHEMA)  # 1: Refocus 0.1; the same fields
TARGET = "onnxruntime:fp32"
# Formats are also prepared for these crops, in addition to the bundle's own.
OTHER_CROPS = ((256, 224, "bilinear"), (97, 96, "lanczos"))
FEATURE_TOLERANCE = 1e-4  # from the same pixels, between two builds of one runtime
_JSON, _TENSORS = "golden.json", "golden.safetensors"
_ORIENTATION, _TURNED = 0x0112, 6
_TURNS = [Image.Transpose[turn] for turn in ("FLIP_LEFT_RIGHT", "ROTATE_90", "ROTATE_180", "TRANSPOSE")]
_ANSWERS = ("logits", "plain_logits", "calibrated_logits")
_Place = tuple[int, bool, bool, tuple[int, ...]]  # photo, restart before, remember, photos erased before


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Step of a sequence: a photo and the decisions on it.

    Attributes:
        photo: number of the photo.
        restart: whether the recogniser was closed and opened again just before.
        remember: whether the photo was added to the history.
        label: most likely label.
        trust: weight of the answer with history.
        history: identities of the history photos that were used, oldest first.
        erased: numbers of photos that were erased from the history just before.
        known: whether the photo shows one of the labels, by the bundle's rejection threshold.
        score: score of that hypothesis; None in files of Refocus 0.1.
    """

    photo: int
    restart: bool
    remember: bool
    label: str
    trust: float
    history: tuple[str, ...]
    erased: tuple[int, ...] = ()
    known: bool = True
    score: float | None = None


class AlbumAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer to a photo of an album of all photos, which pages show.

    ``photo`` is its number and ``beside`` has the identities of the photos that it was answered with, in order.
    ``label`` is the most likely label and ``trust`` is the weight of the answer with history. ``recognised`` is whether
    the photo shows one of the labels.
    """

    photo: int
    label: str
    recognised: bool
    trust: float
    beside: tuple[str, ...]


class FormatPhoto(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """File of one kind that users have.

    Attributes:
        kind: name of the kind, such as ``jpeg-progressive``.
        file: path of the file.
        decoded: path of the decoded photo, lossless.
        levels: largest accepted difference of a prepared pixel, in levels of 255, for every decoder.
    """

    kind: str
    file: str
    decoded: str
    levels: float


class History(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sequence of one person's photos, recognised by one head.

    Attributes:
        head: name of the head.
        personal: whether the person has personal inputs (``person.<head>.safetensors``).
        space: feature space of the person's features.
        capacity: maximum number of photos of the history.
        steps: steps in order.
        album: answers to the same photos as an album; none in files of Refocus 0.1, and none with personal inputs.
    """

    head: str
    personal: bool
    space: str
    capacity: int
    steps: tuple[Step, ...]
    album: tuple[AlbumAnswer, ...] = ()

    @property
    def key(self) -> str:
        """Prefix of the tensors, ``<head>`` or ``<head>.personal``."""
        return f"{self.head}.personal" if self.personal else self.head


class GoldenPhoto(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Photo of the golden vectors.

    Attributes:
        file: path of the file.
        decoded: path of the decoded photo, lossless.
        sha256: identity of the photo, the hash of the file.
    """

    file: str
    decoded: str
    sha256: str


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``golden.json``.

    Attributes:
        schema: version of the format.
        bundle: name of the bundle that answered.
        manifest_sha256: hash of its manifest.
        target: runtime and precision.
        tolerance: largest accepted difference of a feature's element, from the same pixels.
        photos: photos, each once.
        sequences: sequences of all heads.
        formats: files of other kinds; none in files of Refocus 0.1.
        contracts: preprocessings of the formats; their pixels are the tensors ``formats.0``, ``formats.1``, ...
    """

    schema: int
    bundle: str
    manifest_sha256: str
    target: str
    tolerance: float
    photos: tuple[GoldenPhoto, ...]
    sequences: tuple[History, ...]
    formats: tuple[FormatPhoto, ...] = ()
    contracts: tuple[Preprocessing, ...] = ()


@dataclass(frozen=True)
class Difference:
    """Largest absolute differences of a second run from golden vectors.

    Attributes:
        steps: number of compared steps of all sequences.
        decisions: number of answers with another label or history, in sequences and albums.
        pixels: largest difference of a prepared pixel.
        features: largest difference of a feature's element.
        logits: largest difference of a logit.
        trust: largest difference of a weight of the answer with history.
        formats: number of files of other kinds beyond their accepted difference.
    """

    steps: int
    decisions: int
    pixels: float
    features: float
    logits: float
    trust: float
    formats: int = 0


def album_answers(recognizer: Recognizer, photos: Sequence[str], features: Sequence[np.ndarray]) -> list[Answer]:
    """Return the answers to all photos of an album.

    Each photo is answered with those nearest to it, or for a streaming head with those before it, and with the class
    shares of those before it.

    Args:
        recognizer: recogniser of the head.
        photos: identities of the photos, each once.
        features: features of the photos, (D,) each.
    """
    if recognizer.card.personalisation.form == "streaming":
        return list(recognizer.replay(features))
    answers, shares = [], recognizer.empty_shares()
    for position, feature in enumerate(features):
        beside = nearest(photos, position, recognizer.window)
        history = np.asarray([features[other] for other in beside], dtype=np.float32).reshape(len(beside), len(feature))
        named = [*(photos[other] for other in beside), photos[position]]
        answers.append(answer := recognizer.answer(feature, history, named, shares))
        if shares is not None and answer.shared is not None:
            shares.add(answer.shared.row, photos[position])
    return answers


def write_golden(
    bundle: Bundle, folder: Path, photos: Sequence[bytes] = (), target: str = "", head_target: str = ""
) -> Golden:
    """Recognise photos with every head of a bundle; write the answers.

    Each head has a growing history on disk. The sequences cover critical cases: an empty, a growing and a full history,
    a repeated photo, one that is not remembered, one that is erased, a restart, and personal inputs if the bundle takes
    some.

    Args:
        bundle: bundle to record.
        folder: output folder; must be empty or new.
        photos: encoded photos; default: those of the bundle, and turned and cropped versions of them.
        target: runtime and precision; default: ``onnxruntime:fp32``, or else the bundle's first of ONNX Runtime.
        head_target: target of the head, such as ``native:fp32``; default: ``target``.

    Raises:
        RefocusError: the folder is not empty, there are no photos, or the bundle recognises clips.
        BundleError: the bundle has no programs for that target.
    """
    if folder.exists() and any(folder.iterdir()):
        raise RefocusError(f"{folder} is not empty; give a new folder for golden vectors")
    if bundle.manifest.preprocessing.of_clips:
        raise RefocusError(
            f"{bundle.folder} recognises clips, and golden vectors are of photos; refocus check runs its self-test"
        )
    target = target or _default_target(bundle)
    contents = list(photos) or _variants(bundle)
    if not contents:
        raise RefocusError(f"{bundle.folder} carries no photos; give some with --photos FOLDER")
    contents = list({hashlib.sha256(content).hexdigest(): content for content in contents}.values())
    listed = _write_photos(contents, bundle, folder)
    tensors: dict[str, np.ndarray] = {
        "pixels": np.concatenate([preprocess(content, bundle.manifest.preprocessing) for content in contents])
    }
    formats, contracts = _write_formats(contents[0], bundle, folder, tensors)
    sequences = []
    for head in bundle.manifest.heads:
        for personal in (False, True) if _personal_inputs(bundle, head.name, target) else (False,):
            order = _order(len(contents))
            sequence, found = _run(bundle, folder, head.name, personal, contents, order, target, head_target)
            sequences.append(sequence)
            tensors |= {f"{sequence.key}.{name}": value for name, value in found.items()}
    (folder / _TENSORS).write_bytes(b"".join(encode_tensors(tensors)))
    made_by = bundle.manifest.name, manifest_sha256(bundle.folder), target
    golden = Golden(SCHEMA, *made_by, FEATURE_TOLERANCE, tuple(listed), tuple(sequences), formats, contracts)
    (folder / _JSON).write_bytes(msgspec.json.format(msgspec.json.encode(golden), indent=1) + b"\n")
    return golden


def _default_target(bundle: Bundle) -> str:
    there = [":".join(found) for found in bundle.targets() if found[0] == TARGET.partition(":")[0]]
    return TARGET if TARGET in there or not there else there[0]


def compare_golden(bundle: Bundle, folder: Path) -> Difference:
    """Run the sequences of golden vectors again; return the differences.

    Photos are decoded from their files.

    Raises:
        RefocusError: there are no golden vectors, or those of another bundle.
    """
    golden, expected = read_golden(folder)
    if golden.manifest_sha256 != manifest_sha256(bundle.folder):
        raise RefocusError(f"{folder} was written by another bundle than {bundle.folder}; write it again")
    contents = [(folder / photo.file).read_bytes() for photo in golden.photos]
    pixels = np.concatenate([preprocess(content, bundle.manifest.preprocessing) for content in contents])
    largest = {"pixels": _off(pixels, expected["pixels"]), "features": 0.0, "logits": 0.0, "trust": 0.0}
    steps = decisions = 0
    for sequence in golden.sequences:
        order = [(step.photo, step.restart, step.remember, step.erased) for step in sequence.steps]
        again, found = _run(bundle, folder, sequence.head, sequence.personal, contents, order, golden.target)
        for was, now in zip(sequence.steps, again.steps, strict=True):
            known = now.known if was.score is None else was.known
            decisions += (was.label, was.history, known) != (now.label, now.history, now.known)
            largest["trust"] = max(largest["trust"], abs(was.trust - now.trust))
        for shown, now_shown in zip(sequence.album, again.album, strict=bool(sequence.album)):
            decisions += (shown.label, shown.beside) != (now_shown.label, now_shown.beside)
            largest["trust"] = max(largest["trust"], abs(shown.trust - now_shown.trust))
        steps += len(again.steps)
        for name in ("features", "logits"):
            largest[name] = max(largest[name], _off(found[name], expected[f"{sequence.key}.{name}"]))
    return Difference(steps, decisions, **largest, formats=_formats_beyond_bounds(golden, expected, folder))


def _formats_beyond_bounds(golden: Golden, expected: dict[str, np.ndarray], folder: Path) -> int:
    """Return the number of files beyond their accepted difference.

    A file counts if it exceeds it for any of the contracts.
    """
    beyond = 0
    for number, photo in enumerate(golden.formats):
        content = (folder / photo.file).read_bytes()
        off = (
            np.abs(preprocess(content, contract, photo.file)[0] - expected[f"formats.{which}"][number])
            * (255 * np.asarray(contract.std, dtype=np.float32)[:, None, None])
            for which, contract in enumerate(golden.contracts)
        )
        beyond += not max(float(each.max()) for each in off) <= photo.levels + 0.01
    return beyond


def read_golden(folder: Path) -> tuple[Golden, dict[str, np.ndarray]]:
    """Read golden vectors and their tensors.

    Raises:
        RefocusError: the folder has no golden vectors, or those of another version.
    """
    try:
        golden = msgspec.json.decode((folder / _JSON).read_bytes(), type=Golden)
        tensors = decode_tensors(memoryview((folder / _TENSORS).read_bytes()), str(folder / _TENSORS))
    except (OSError, msgspec.DecodeError, PersonalWeightsError) as error:
        raise RefocusError(
            f"{folder} holds no golden vectors ({error}); golden.py write BUNDLE {folder} writes them"
        ) from None
    if golden.schema not in READS:
        reads = " and ".join(map(str, READS))
        raise RefocusError(f"{folder} has schema {golden.schema}, this refocus reads {reads}; write it again")
    return golden, tensors


def _run(
    bundle: Bundle,
    folder: Path,
    head: str,
    personal: bool,
    contents: Sequence[bytes],
    order: Iterable[_Place],
    target: str,
    head_target: str = "",
) -> tuple[History, dict[str, np.ndarray]]:
    """Run one sequence.

    Returns:
        Its decisions; and tensors by name, such as the features (n, D) of photos and the logits (m, C) of steps.
    """
    capacity = bundle.manifest.head(head).personalisation.window + 2
    names = [hashlib.sha256(content).hexdigest() for content in contents]
    runtime, precision = target.split(":")
    steps, answers, features = [], [], {}
    with tempfile.TemporaryDirectory() as scratch:
        cache = PersonalWeightStore(Path(scratch) / "weights", sync=False) if personal else None
        if cache is not None:
            _keep_person(bundle, head, folder, cache, target)
        profile = profile_path(Path(scratch), "golden")

        def opened() -> Recognizer:
            kept = RetentionPolicy(capacity)
            return Recognizer(
                bundle,
                profile,
                runtime,
                precision,
                1,
                head=head,
                keeping=kept,
                weights=cache,
                head_target=head_target or target,
            )

        recognizer = opened()
        try:
            for photo, restart, remember, erased in order:
                if restart:
                    recognizer.close()
                    recognizer = opened()
                for gone in erased:
                    recognizer.history.erase(names[gone])  # type: ignore[union-attr]  # there is a profile
                answer = recognizer.recognize(contents[photo], names[photo], remember)
                answers.append(answer)
                features[photo] = answer.feature
                said = answer.labels[0], answer.trust, answer.history_photos
                steps.append(Step(photo, restart, remember, *said, erased, answer.is_known, answer.known_score))
            space = recognizer.space
            shown = [] if personal else album_answers(recognizer, names, [features[n] for n in range(len(contents))])
        finally:
            recognizer.close()
    found = {name: np.stack([getattr(answer, name) for answer in answers]) for name in _ANSWERS}
    found["features"] = np.stack([features[number] for number in range(len(contents))])
    found["attention"] = _attention(answers, bundle.manifest.head(head).personalisation.window)
    if shown:
        found["album_logits"] = np.stack([answer.logits for answer in shown])
    album = _album(recognizer.card, names, shown)
    return History(head, personal, space, capacity, tuple(steps), album), found


def _album(card: Head, names: Sequence[str], answers: Sequence[Answer]) -> tuple[AlbumAnswer, ...]:
    rows, window = [], card.personalisation.window
    for position, answer in enumerate(answers):
        before = range(max(0, position - window), position)
        beside = before if card.personalisation.form == "streaming" else nearest(names, position, window)
        said = answer.labels[0], answer.is_known, answer.trust
        rows.append(AlbumAnswer(position, *said, tuple(names[other] for other in beside)))
    return tuple(rows)


def _order(photos: int) -> list[_Place]:
    """Return all steps: one photo is erased, and two are seen again."""
    steps: list[_Place] = []
    for number in range(photos):
        erased = (number - 2,) if number == photos * 2 // 3 and number > 1 else ()
        steps.append((number, number == photos // 2, number % 7 != 6, erased))
        if number in (5, photos - 1):
            steps.append((number - min(3, number), False, True, ()))
    return steps


def _attention(answers: Sequence[Answer], window: int) -> np.ndarray:
    """Return the attention of answers, right-aligned, (m, window + 1).

    The photo itself is last.
    """
    rows = np.zeros((len(answers), window + 1), dtype=np.float32)
    for row, answer in zip(rows, answers, strict=True):
        row[len(row) - len(answer.attention) :] = answer.attention
    return rows


def _variants(bundle: Bundle) -> list[bytes]:
    """Return the bundle's photos and versions of them.

    The versions are turned, mirrored, cropped, or a JPEG with an EXIF orientation.
    """
    found = []
    for content in (bytes(bundle.content(photo)) for photo in bundle.manifest.self_test_photos):
        image = decode_photo(content, "photo")
        cut = image.crop((0, 0, max(1, image.width * 3 // 4), image.height))
        wide = image.resize((image.width * 3, image.height * 2), Image.Resampling.BICUBIC)
        changed = (*(image.transpose(turn) for turn in _TURNS), cut)
        found += [content, *(_encoded(picture, "PNG") for picture in changed), _encoded(wide, "JPEG")]
    return found


def _encoded(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    exif = Image.Exif()
    if kind == "JPEG":
        exif[_ORIENTATION] = _TURNED
    image.save(stream, kind, quality=90, exif=exif)
    return stream.getvalue()


def _write_photos(contents: Sequence[bytes], bundle: Bundle, folder: Path) -> list[GoldenPhoto]:
    (folder / "photos").mkdir(parents=True, exist_ok=True)
    (folder / "decoded").mkdir(exist_ok=True)
    listed = []
    for number, content in enumerate(contents):
        ending = {b"\xff\xd8": "jpg", b"\x89P": "png"}.get(content[:2], "img")
        photo = GoldenPhoto(
            f"photos/{number:03}.{ending}", f"decoded/{number:03}.png", hashlib.sha256(content).hexdigest()
        )
        (folder / photo.file).write_bytes(content)
        _write_decoded(content, folder / photo.decoded, [bundle.manifest.preprocessing])
        listed.append(photo)
    return listed


def _write_decoded(content: bytes, path: Path, contracts: Iterable[Preprocessing]) -> None:
    """Write a decoded photo as a PNG, upright at full size.

    For contracts that decode it at 1 / k of that, also write those pixels as ``NAME.k.png``, as the file stores them.
    """
    decode_photo(content, path.name).save(path, compress_level=1)
    for at_least in sorted({decode_at_least(contract) for contract in contracts}):
        photo = decode(content, path.name, upright=False, at_least=at_least)
        if photo.scale > 1:
            photo.whole().save(path.with_suffix(f".{photo.scale}.png"), compress_level=1)


def _write_formats(
    content: bytes, bundle: Bundle, folder: Path, tensors: dict[str, np.ndarray]
) -> tuple[tuple[FormatPhoto, ...], tuple[Preprocessing, ...]]:
    """Write files of other kinds, made of one photo; return them.

    Their prepared pixels are added to the tensors.
    """
    (folder / "formats").mkdir(exist_ok=True)
    own = bundle.manifest.preprocessing
    others = (
        msgspec.structs.replace(own, resize_shorter=shorter, crop=crop, resize_filter=resample)
        for shorter, crop, resample in OTHER_CROPS
    )
    contracts = (own, *others)
    listed: list[FormatPhoto] = []
    pixels: list[list[np.ndarray]] = [[] for _ in contracts]
    for made in format_photos(decode_photo(content, "photo")):
        file = FormatPhoto(made.kind, f"formats/{made.kind}.{made.ending}", f"formats/{made.kind}.rgb.png", made.levels)
        (folder / file.file).write_bytes(made.content)
        _write_decoded(made.content, folder / file.decoded, contracts)
        for which, contract in enumerate(contracts):
            pixels[which].append(preprocess(made.content, contract, file.file)[0])
        listed.append(file)
    tensors |= {f"formats.{which}": np.stack(rows) for which, rows in enumerate(pixels)}
    return tuple(listed), contracts


def _personal_inputs(bundle: Bundle, head: str, target: str) -> dict[str, np.ndarray]:
    """Return the personal inputs of both programs with default values."""
    if bundle.manifest.head(head).personalisation.carrier != "inputs":
        return {}
    runtime, precision = target.split(":")
    programs = bundle.artifact("encoder", runtime, precision), bundle.artifact("head", runtime, precision, head)
    return {name: value for program in programs for name, value in bundle.defaults(program).items()}


def _keep_person(bundle: Bundle, head: str, folder: Path, cache: PersonalWeightStore, target: str) -> None:
    """Store the personal inputs of an invented person.

    The folder has them as ``person.<head>.safetensors``.
    """
    path = folder / f"person.{head}.safetensors"
    if not path.exists():
        random = np.random.default_rng(0)
        tensors = {
            name: (value + random.normal(scale=0.2, size=value.shape)).astype(value.dtype)
            for name, value in sorted(_personal_inputs(bundle, head, target).items())
        }
        path.write_bytes(b"".join(encode_tensors(tensors)))
    tensors = decode_tensors(memoryview(path.read_bytes()), str(path))
    runtime, precision = target.split(":")
    model = model_of(bundle.artifact("encoder", runtime, precision), bundle.artifact("head", runtime, precision, head))
    cache.put("golden", model, NewWeights("inputs", "golden", tensors))


def _off(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max(initial=0.0)) if one.shape == other.shape else float("inf")


def _write(bundle: Bundle, folder: Path, photos: Path | None) -> str:
    contents = [read_photo(file) for file in find_photos([photos])] if photos is not None else []
    if contents:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # for copies of a person's photos
    written = write_golden(bundle, folder, contents)
    steps = sum(len(history.steps) for history in written.sequences)
    return f"{folder}: {len(written.photos)} photos, {len(written.sequences)} sequences of {steps} steps\n"


def _compare(bundle: Bundle, folder: Path) -> str:
    """Compare a bundle with golden vectors; return a summary.

    Raises:
        RefocusError: a decision differs, or a feature or decoded file exceeds its tolerance.
    """
    found = compare_golden(bundle, folder)
    if found.decisions or found.formats or not found.features <= FEATURE_TOLERANCE:
        raise RefocusError(
            f"{bundle.folder}: {found.decisions} of {found.steps} decisions differ from {folder}, features by up to"
            f" {found.features:.1e} (tolerance {FEATURE_TOLERANCE}), {found.formats} files of other formats by more"
            " than their bound; see that runtime and Pillow are those it was written with"
        )
    return (
        f"{folder}: {found.steps} of {found.steps} decisions as written; pixels within {found.pixels:.1e}, features"
        f" {found.features:.1e}, logits {found.logits:.1e}, trust {found.trust:.1e}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    for action in ("write", "compare"):
        command = actions.add_parser(action)
        command.add_argument("bundle", type=Path)
        command.add_argument("folder", type=Path)
        if action == "write":
            command.add_argument("--photos", type=Path, help="default: the bundle's own photos, and turned ones")
    given = parser.parse_args(arguments)
    try:
        bundle = load_bundle(given.bundle)
        write = given.action == "write"
        sys.stdout.write(_write(bundle, given.folder, given.photos) if write else _compare(bundle, given.folder))
    except RefocusError as error:
        sys.stderr.write(f"golden: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
