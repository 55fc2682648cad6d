"""Condensing: a bank and a task -> a bundle of one's own, in the time it takes to read the bank once.

The programs of a personal bundle are those of the bank; only their flat weight files are new. On a server or a device,
without torch.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from refocus.edge.bundle.load import MANIFEST, Bundle, hold_bundle, move_into_place
from refocus.edge.bundle.manifest import (
    SCHEMA_VERSION,
    Artifact,
    BankCard,
    Head,
    Manifest,
    TaskCard,
    WeightFile,
    encode_manifest,
)
from refocus.edge.bundle.precision import find_named_target
from refocus.edge.bundle.tensor_file import decode_tensors
from refocus.edge.bundle.verified_files import Files, tree_digest
from refocus.edge.errors import BundleError, PersonalWeightsError, TaskError
from refocus.edge.files import working_folder
from refocus.edge.taper.description import choose
from refocus.edge.taper.weight_mixing import MixedNetwork, mask, places, predict_mixers, write_shifted, write_weights

ROWS, WORDS = "rows.bin", "words.safetensors"
DESCRIPTIONS = "descriptions"  # the tensor beside those of the predictor: (domains, C, E)
NEAREST = 20  # classes of a task that was only described
# Cosine of a description to its nearest class. With all-MiniLM-L6-v2 and 200 classes, sixteen descriptions that mean
# something have 0.50 to 0.72, fourteen others 0.23 to 0.47 (decision 13).
LEAST_ALIKE = 0.49
MAX_TEXT = 2000  # characters of a description that the manifest keeps


@dataclass(frozen=True)
class Task:
    """What a personal model is to be for.

    Attributes:
        classes: numbers of its classes.
        labels: their names.
        description: the words that were given.
        domain: one of the bank's, "" for none.
        mixers: (M, Q); of no rows for the generic network as it is.
        shift: (C,) added to the logits: it masks the other classes, or makes them less likely.
        merged: classes that were named more than once.
    """

    classes: tuple[int, ...]
    labels: tuple[str, ...]
    description: str
    domain: str
    mixers: np.ndarray
    shift: np.ndarray
    merged: tuple[str, ...] = ()


@dataclass(frozen=True)
class Condensed:
    """A personal bundle that was just written.

    Attributes:
        weights_bytes: size of its weight files together.
    """

    folder: Path
    manifest: Manifest
    weights_bytes: int


class Bank:
    """A verified bank, in private copies: what happens to its files afterwards changes nothing.

    Made once, by :meth:`open`; tasks and personal bundles then cost milliseconds. It may be used from several threads.

    Attributes:
        rows: (Q, n) float32.
        words: weights of the mixer predictor by name, and the descriptions of the classes.
    """

    def __init__(self, bundle: Bundle, card: BankCard, rows: np.ndarray, words: Mapping[str, np.ndarray]) -> None:
        self.folder, self.manifest, self.card, self.rows, self.words = bundle.folder, bundle.manifest, card, rows, words
        placed = {file.artifact: file for file in card.weight_files}
        self._programs = {
            artifact.file: _Program.of(placed[artifact.file], bundle.files_of(artifact), folder=bundle.folder)
            for artifact in bundle.manifest.artifacts
            if artifact.file in placed
        }

    @classmethod
    def open(cls, folder: Path, scratch: Path | None = None) -> Bank:
        """Reads and verifies every file of a bank once.

        Args:
            scratch: folder for the private copy of rows too large for memory; default: that for temporary files.

        Raises:
            BundleError: no bundle, not a bank, or its parts do not fit together.
        """
        bundle = hold_bundle(folder, scratch)
        card = bundle.manifest.bank
        if card is None:
            raise BundleError(
                f"{folder} is not a bank, so it cannot be condensed; give a bundle that refocus export made from a"
                " TAPER checkpoint"
            )
        files = bundle.files_of(card)
        held = len(files.get(ROWS, b""))
        if held != 4 * card.bases * card.size:
            raise _broken(folder, f"{ROWS} does not hold {card.bases} x {card.size} numbers: it has {held} bytes")
        rows = np.frombuffer(files[ROWS], "<f4").reshape(card.bases, card.size)
        try:
            words = decode_tensors(memoryview(files.get(WORDS, b"")), WORDS)
        except PersonalWeightsError as error:
            raise _broken(folder, str(error)) from None
        bank = cls(bundle, card, rows, words)
        bank._check()
        return bank

    def _check(self) -> None:
        if len(self._programs) < len(self.card.weight_files):
            raise _broken(self.folder, "it places weights twice in one artifact")
        table = self.words.get(DESCRIPTIONS)
        if table is None or table.ndim != 3 or table.shape[:2] != (len(self.card.domains), len(self.labels)):
            raise _broken(self.folder, "the descriptions are not one per domain and class")
        try:
            found = predict_mixers(self.words, table[0, 0], self.card.mixers).shape
            network = MixedNetwork(
                self.card, self.rows, np.full((self.card.mixers, self.card.bases), 1 / self.card.bases)
            )
            network.check(len(self.labels))
        except (LookupError, ValueError, TypeError, ArithmeticError, AttributeError, MemoryError) as error:
            raise _broken(self.folder, f"predictor, columns and folds do not fit ({error})") from None
        if found != (self.card.mixers, self.card.bases):
            raise _broken(self.folder, f"the predictor gives mixers {found}")
        for file in self.card.weight_files:
            self._check_places(file, network)
        roles = Counter((artifact.target, artifact.role) for artifact in self._mixed)
        heads = {artifact.head for artifact in self._mixed if artifact.role == "head"}
        if len(heads) != 1 or any((target, role) not in roles for target, _ in roles for role in ("encoder", "head")):
            raise _broken(self.folder, "it does not place weights in one encoder and one head of each target")
        shifted = {artifact.target for artifact in self._mixed if self._bias in self._programs[artifact.file].names}
        if shifted != {target for target, _ in roles}:
            raise _broken(self.folder, f"a target does not place {self._bias}, which says what classes a task has")

    def _check_places(self, file: WeightFile, network: MixedNetwork) -> None:
        end = 0
        try:
            for start, stop, placed, of_scales in places(network, file):
                if start < end or sorted(placed.axes) != [*range(len(network.shape(placed.name)))]:
                    raise _broken(self.folder, f"{placed.name} is misplaced in {file.artifact}")
                if placed.scales is not None and placed.name in network.vectors:
                    raise _broken(self.folder, f"{placed.name} is a vector, which has no scales, in {file.artifact}")
                if (placed.dtype == "int8") != (placed.scales is not None) or (of_scales and start < placed.offset):
                    raise _broken(self.folder, f"the scales of {placed.name} are misplaced in {file.artifact}")
                end = stop
        except KeyError as error:
            raise _broken(self.folder, f"{file.artifact}: {error} is not there") from None
        if end > len(self._programs[file.artifact].template):
            raise _broken(self.folder, f"{file.artifact}/{file.file} ends before its last tensor")

    @property
    def labels(self) -> tuple[str, ...]:
        """C class names."""
        return self._head.labels

    @property
    def _head(self) -> Head:
        """The head that is condensed; refocus upgrade may have put others beside it."""
        return self.manifest.head(next((artifact.head for artifact in self._mixed if artifact.head), ""))

    @property
    def _bias(self) -> str:
        """Name of the classifier's bias, which a task's shift is added to."""
        return f"{self.card.classifier}.bias"

    @property
    def _mixed(self) -> list[Artifact]:
        """The programs whose weights are mixed."""
        placed = {file.artifact for file in self.card.weight_files}
        return [artifact for artifact in self.manifest.artifacts if artifact.file in placed]

    def descriptions(self, domain: str = "") -> np.ndarray:
        """(C, E) of all classes, in one domain; without one the mean over all, unless the bank has a plain one.

        Raises:
            TaskError: the bank has no such domain.
        """
        table = self.words[DESCRIPTIONS]
        if domain in self.card.domains:
            found: np.ndarray = table[self.card.domains.index(domain)]
            return found
        if not domain:
            return np.asarray(table.mean(axis=0, dtype=np.float32))
        known = ", ".join(word for word in self.card.domains if word) or "none"
        raise TaskError(f"--domain {domain[:80]}: the bank was trained for the domains {known}")

    def task(
        self, what: Iterable[str] | np.ndarray, domain: str = "", classes: Iterable[str] = (), text: str = ""
    ) -> Task:
        """A task from class names, or from a description.

        Args:
            what: names in any case and spacing; or the vector (E,) of a description in free words.
            domain: one of the bank's words.
            classes: of a description, the names of its classes; default: the nearest ones.
            text: of a description, its words.

        Raises:
            TaskError: unknown names or domain, no name at all, or a vector of another text encoder.
        """
        table = self.descriptions(domain)
        merged: tuple[str, ...] = ()
        if isinstance(what, np.ndarray):
            vector, names = self._vector(what), [*classes]
            numbers = choose(names, self.labels).classes if names else self.nearest_classes(vector, NEAREST, domain)
        else:
            chosen = choose(what, self.labels)
            numbers, merged = chosen.classes, chosen.merged
            vector = table[list(numbers)].mean(axis=0)
        labels = tuple(self.labels[number] for number in numbers)
        mixers = predict_mixers(self.words, vector, self.card.mixers)
        words, shift = (text or ", ".join(labels))[:MAX_TEXT], mask(numbers, len(self.labels))
        return Task(numbers, labels, words, domain, mixers, shift, merged)

    def _vector(self, vector: np.ndarray) -> np.ndarray:
        width = self.words[DESCRIPTIONS].shape[2]
        if vector.shape != (width,) or not np.isfinite(vector).all():
            raise TaskError(
                f"the description is a vector of shape {vector.shape}, the bank takes ({width},) of its text encoder"
                f" {self.card.text_encoder}; describe it with that one"
            )
        return vector

    def nearest_classes(self, vector: np.ndarray, count: int, domain: str = "") -> tuple[int, ...]:
        """The classes whose descriptions are most like a vector (E,), by cosine, the nearest first."""
        order = np.argsort(-self._alike(vector, domain), kind="stable")
        return tuple(int(number) for number in order[:count])

    def _alike(self, vector: np.ndarray, domain: str) -> np.ndarray:
        """(C,) cosine of a vector (E,) to the description of each class."""
        table = self.descriptions(domain)
        lengths = np.linalg.norm(table, axis=1) * np.linalg.norm(vector)
        cosines: np.ndarray = (table @ vector) / np.maximum(lengths, np.finfo(np.float32).tiny)
        return cosines

    def check_description(self, vector: np.ndarray, text: str, domain: str = "") -> None:
        """Refuses words that mean none of the bank's classes: their mixers would be made up.

        Raises:
            TaskError: no class is like the vector (E,) of the description.
        """
        alike = self._alike(vector, domain)
        if alike.max() < LEAST_ALIKE:
            nearest = self.labels[int(alike.argmax())]
            raise TaskError(
                f"--describe '{text[:60]}' is like none of the {len(self.labels)} classes (most like {nearest},"
                f" {alike.max():.2f}, where sense begins at {LEAST_ALIKE}): say what is on the photos, or name the"
                " classes with --task"
            )

    def condense(self, task: Task, out: Path, targets: Sequence[str] = ()) -> Condensed:
        """Writes the personal bundle of a task: one pass over the bank per target.

        It is made beside ``out`` and takes its place by renaming: a kill leaves no half bundle, and an earlier one
        stays. The files are with the operating system then, not yet on the disk: a power cut may damage them, which
        the next reader finds by their SHA-256.

        Args:
            out: folder of the bundle, or a link to one; must not exist, or be a bundle that is not a bank, which is
                replaced.
            targets: as ``onnxruntime:fp32``; default: all that the bank has.

        Raises:
            BundleError: ``out`` is something else, or the bank has no such target.
        """
        _check_out(out)
        chosen = self._artifacts(targets)
        network = self.network(task) if len(task.mixers) else None
        place = Path(os.path.realpath(out))
        place.parent.mkdir(parents=True, exist_ok=True)
        with working_folder(place) as temporary:
            folder = temporary / "bundle"
            folder.mkdir()
            manifest = self._manifest(task, [self._write(folder, artifact, task, network) for artifact in chosen])
            (folder / MANIFEST).write_bytes(encode_manifest(manifest))
            move_into_place(folder, place, temporary)
        return Condensed(out, manifest, sum(len(self._programs[artifact.file].template) for artifact in chosen))

    def network(self, task: Task) -> MixedNetwork:
        """The folded tensors of a task, by name: for comparisons, and for programs of one's own.

        Raises:
            TaskError: the task has no mixers: its network is the generic one, which lies in the bank's programs alone.
        """
        if not len(task.mixers):
            raise TaskError("the task's network is the bank's generic one, which is in its programs; give it mixers")
        return MixedNetwork(self.card, self.rows, task.mixers, task.shift)

    def _artifacts(self, targets: Sequence[str]) -> list[Artifact]:
        has = list(dict.fromkeys(artifact.target for artifact in self._mixed))
        chosen = {target: find_named_target(target, has) for target in targets}
        unknown = [target for target, found in chosen.items() if not found]
        if unknown:
            raise BundleError(f"{self.folder} has no programs for {', '.join(unknown)}; it has {', '.join(has)}")
        return [artifact for artifact in self._mixed if artifact.target in (chosen.values() or has)]

    def _write(self, folder: Path, artifact: Artifact, task: Task, network: MixedNetwork | None) -> Artifact:
        """Writes one artifact's folder, and returns its manifest entry. Without a network the generic one stays."""
        program, target = self._programs[artifact.file], folder / artifact.file
        target.mkdir(parents=True)
        for name, content in program.shared.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(content)
        file = program.file
        (target / file.file).parent.mkdir(parents=True, exist_ok=True)
        place = target / file.file
        if network is None:
            digest = write_shifted(file, self._bias, task.shift, program.template, place)
        else:
            digest = write_weights(network, file, program.template, place)
        digests = {**program.digests, file.file: digest}
        return msgspec.structs.replace(artifact, sha256=tree_digest(digests))

    def _manifest(self, task: Task, made: Sequence[Artifact]) -> Manifest:
        identity = hashlib.sha256(self.card.sha256.encode() + np.ascontiguousarray(task.mixers).tobytes()).hexdigest()
        note = f"condensed from bank {self.card.sha256[:12]}; parity was measured there, on its generic model"
        artifacts = tuple(_own(artifact, identity if len(task.mixers) else "", note) for artifact in made)
        card = TaskCard(
            classes=task.labels,
            description=task.description,
            domain=task.domain,
            bank=self.card.sha256,
            mixers=tuple(tuple(float(part) for part in row) for row in task.mixers),
        )
        # The bank's own answers would be wrong here, and only a device can give others: none travel.
        unset = {"self_test": None, "rejection": msgspec.UNSET, "known_scores": msgspec.UNSET}
        return msgspec.structs.replace(
            self.manifest,
            schema_version=SCHEMA_VERSION,
            artifacts=artifacts,
            heads=(msgspec.structs.replace(self._head, **unset),),
            self_test_photos=(),
            bank=None,
            task=card,
        )


@dataclass(frozen=True)
class _Program:
    """One artifact of a bank.

    Attributes:
        template: its weight file, for the generic model.
        shared: its other files by name, which are the same for every task.
        digests: SHA-256 of those.
    """

    file: WeightFile
    template: memoryview
    shared: Files
    digests: Mapping[str, str]

    @property
    def names(self) -> set[str]:
        """Names of the tensors in the weight file."""
        return {placed.name for placed in self.file.tensors}

    @classmethod
    def of(cls, file: WeightFile, files: Files, folder: Path) -> _Program:
        if file.file not in files:
            raise _broken(folder, f"{file.artifact}/{file.file} is not there")
        shared = {name: content for name, content in files.items() if name != file.file}
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in shared.items()}
        return cls(file, memoryview(files[file.file]), shared, digests)


def _own(artifact: Artifact, identity: str, note: str) -> Artifact:
    """The entry of a personal artifact: features of two mixtures never meet; of no identity they are the bank's."""
    spaces = [
        hashlib.sha256(f"{space}:{identity}".encode()).hexdigest() if space and identity else space
        for space in (artifact.feature_space, *artifact.accepts)
    ]
    return msgspec.structs.replace(
        artifact, parity=None, parity_note=note, accuracy=None, feature_space=spaces[0], accepts=tuple(spaces[1:])
    )


def _check_out(out: Path) -> None:
    there = Bundle.check_replaceable(out)
    if there is not None and there.manifest.bank is not None:
        raise BundleError(f"{out} is a bank; choose another folder")


def _broken(folder: Path, why: str) -> BundleError:
    return BundleError(f"{folder}: its bank does not fit its programs: {why}; export it again")
