"""Loading a bundle: nothing of it is used before everything in it was checked."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge.errors import BundleError, PersonalWeightsError
from edge.manifest import (
    MAX_MANIFEST_BYTES,
    SCHEMA_VERSION,
    Artifact,
    Head,
    Manifest,
    Personalisation,
    State,
    decode_manifest,
    encode_manifest,
)
from edge.personal import PersonalWeights
from edge.personal_places import check_places
from edge.runtimes import Program, load_program, verify
from edge.tensor_file import decode_tensors

MANIFEST = "manifest.json"
Shapes = dict[str, tuple[int | str, ...]]


@dataclass(frozen=True)
class Bundle:
    """A verified bundle: every file listed by the manifest is there, with the size and SHA-256 it says."""

    folder: Path
    manifest: Manifest

    def artifact(self, role: str, runtime: str, precision: str = "fp32", head: str = "") -> Artifact:
        """The one artifact of that role, runtime and precision; of the first head where none is named.

        Raises:
            BundleError: the bundle has none; the message lists what it has.
        """
        wanted = self.manifest.head(head).name if role == "head" else ""
        for artifact in self.manifest.artifacts:
            if (artifact.role, artifact.head, artifact.target) == (role, wanted, f"{runtime}:{precision}"):
                return artifact
        has = sorted({a.target for a in self.manifest.artifacts if a.role == role})
        hint = "" if has else "; a bundle of heads alone is installed with refocus upgrade"
        raise BundleError(
            f"{self.folder} has no {role} for {runtime}:{precision}; it has {', '.join(has) or 'none'}{hint}"
        )

    def targets(self, head: str = "") -> list[tuple[str, str]]:
        """(runtime, precision) of every complete recogniser in the bundle, in the manifest's order."""
        name = self.manifest.head(head).name
        heads = {a.target for a in self.manifest.artifacts if a.role == "head" and a.head == name}
        return [(a.runtime, a.precision) for a in self.manifest.artifacts if a.role == "encoder" and a.target in heads]

    def files(self) -> list[str]:
        """Every file that belongs to the bundle, below its folder; what merely lies there is not among them."""
        listed = [artifact.file for artifact in self.manifest.artifacts]
        listed += [artifact.defaults.file for artifact in self.manifest.artifacts if artifact.defaults is not None]
        listed += [photo.file for photo in self.manifest.self_test_photos]
        listed += [self.manifest.bank.file] if self.manifest.bank is not None else []
        found = {MANIFEST}
        for name in listed:
            path = self.folder / name
            inside = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
            found |= {file.relative_to(self.folder).as_posix() for file in inside}
        return sorted(found)

    def defaults(self, artifact: Artifact) -> dict[str, np.ndarray]:
        """Inputs that are each person's own, as they are for somebody who has none; by name.

        Raises:
            BundleError: the file does not hold tensors for inputs of the program.
        """
        if artifact.defaults is None:
            return {}
        path = self.folder / artifact.defaults.file
        try:
            found = decode_tensors(memoryview(path.read_bytes()), str(path))
        except (OSError, PersonalWeightsError) as error:
            raise BundleError(f"{path} holds no tensors ({error}); export the bundle again") from None
        declared = {tensor.name: tensor for tensor in artifact.inputs}
        for name, value in found.items():
            tensor = declared.get(name)
            if tensor is None or value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise BundleError(
                    f"{path}: {name} {value.dtype} {value.shape} is no input of {artifact.file}; export again"
                )
        return dict(found)

    def load(self, role: str, runtime: str, precision: str = "fp32", threads: int = 0, head: str = "",
             provider: str = "", allow_fallback: bool = True, personal: PersonalWeights | None = None
             ) -> Program:  # fmt: skip
        """Loads a program, as it is or with one person's weights."""
        artifact = self.artifact(role, runtime, precision, head)
        return load_program(self.folder, artifact, threads, provider, allow_fallback, personal)


def load_bundle(folder: Path) -> Bundle:
    """Reads the manifest and verifies every file it lists.

    Raises:
        BundleError: no bundle, a newer schema, a missing or changed file, a file outside the folder, or a head that
            does not accept the features of the encoder beside it, or a place for a person's tensors outside its file.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise BundleError(f"{path} has {path.stat().st_size} bytes, at most {MAX_MANIFEST_BYTES} are read")
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{folder} is not a bundle: {path} cannot be read ({error.strerror})") from None
    manifest = decode_manifest(content, str(path))
    for artifact in manifest.artifacts:
        verify(folder, artifact.file, artifact.sha256, artifact.size_bytes)
        if artifact.defaults is not None:
            verify(folder, artifact.defaults.file, artifact.defaults.sha256, artifact.defaults.size_bytes)
        check_places(artifact, folder)
    for photo in manifest.self_test_photos:
        verify(folder, photo.file, photo.sha256, photo.size_bytes)
    if manifest.bank is not None:
        verify(folder, manifest.bank.file, manifest.bank.sha256, manifest.bank.size_bytes)
    if manifest.has_encoder:
        _check_feature_spaces(manifest, str(folder))
    bundle = Bundle(folder, manifest)
    _check_shapes(bundle)
    return bundle


def write_manifest(folder: Path, manifest: Manifest) -> Bundle:
    """Writes a bundle's manifest, by rename, and loads the bundle: what is wrong shows now, not on a device."""
    temporary = folder / f"{MANIFEST}.tmp"
    temporary.write_bytes(encode_manifest(manifest))
    temporary.replace(folder / MANIFEST)
    return load_bundle(folder)


def put_in_place(made: Path, out: Path, scratch: Path) -> Bundle:
    """Moves a finished bundle to ``out``; a bundle that was there goes to ``scratch``, as ``previous``.

    Killed between the two renames, the earlier bundle is in that hidden folder.
    """
    move_into_place(made, out, scratch)
    return load_bundle(out)


def move_into_place(made: Path, out: Path, scratch: Path) -> None:
    """As :func:`put_in_place`, for a caller who knows every byte of the bundle and need not read it again."""
    if out.exists():
        shutil.move(out, scratch / "previous")
    shutil.move(made, out)


def upgrade(installed: Bundle, heads: Bundle) -> Bundle:
    """Puts the heads of one bundle beside the encoder of an installed one; heads of the same name are replaced.

    Programs for runtimes that the installed bundle has no encoder for are left out. A bank stays a bank, and a bundle
    that was condensed for a task still says so. The new bundle is made beside the installed one and takes its place by
    renaming, once every file was verified.

    Raises:
        BundleError: a head accepts no feature space of the installed encoders, or has the name of a bank's own head; or
            photos are prepared differently.
    """
    old, new = installed.manifest, heads.manifest
    if new.preprocessing != old.preprocessing:
        raise BundleError(
            f"{heads.folder} was trained on photos prepared as {new.preprocessing}, {installed.folder} prepares them as"
            f" {old.preprocessing}; export the head for this encoder"
        )
    spaces = {a.feature_space for a in old.artifacts if a.role == "encoder"}
    offered = [a for a in new.artifacts if a.role == "head" and spaces & set(a.accepts)]
    for head in new.heads:
        if head.name not in {artifact.head for artifact in offered}:
            accepted = {space for a in new.artifacts if a.head == head.name for space in a.accepts}
            raise BundleError(
                f"{heads.folder}: the head {head.name} accepts features of {_short(accepted)}, the encoders of"
                f" {installed.folder} give {_short(spaces)}; install a bundle with its own encoder"
            )
    names = {head.name for head in new.heads}
    _check_bank_stays(installed, heads, names)
    kept = [a for a in old.artifacts if a.head not in names]
    with tempfile.TemporaryDirectory(dir=installed.folder.parent, prefix=f".{installed.folder.name}-") as temporary:
        folder = Path(temporary) / "bundle"
        folder.mkdir()
        for source, artifact in [*((installed, a) for a in kept), *((heads, a) for a in offered)]:
            _copy(source.folder / artifact.file, folder / artifact.file)
            if artifact.defaults is not None:
                _copy(source.folder / artifact.defaults.file, folder / artifact.defaults.file)
        if old.bank is not None:
            _copy(installed.folder / old.bank.file, folder / old.bank.file)
        photos = {photo.file: (installed, photo) for photo in old.self_test_photos}
        photos = {photo.file: (heads, photo) for photo in new.self_test_photos} or photos
        for source, photo in photos.values():
            _copy(source.folder / photo.file, folder / photo.file)
        same = [p.sha256 for _, p in photos.values()] == [p.sha256 for p in old.self_test_photos]
        others = [h if same else _without_self_test(h) for h in old.heads if h.name not in names]
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            name=new.name,
            preprocessing=old.preprocessing,
            artifacts=(*kept, *offered),
            heads=(*new.heads, *others),
            self_test_photos=tuple(photo for _, photo in photos.values()),
            bank=old.bank,
            task=old.task,
        )
        write_manifest(folder, manifest)
        return put_in_place(folder, installed.folder, Path(temporary))


def _check_bank_stays(installed: Bundle, heads: Bundle, names: Collection[str]) -> None:
    """Raises BundleError where a head would replace one whose weights are mixed from the bank."""
    bank = installed.manifest.bank
    placed = {file.artifact for file in bank.weight_files} if bank is not None else set()
    taken = [a.head for a in installed.manifest.artifacts if a.file in placed and a.head in names]
    if taken:
        raise BundleError(
            f"{heads.folder}: the head {taken[0]} has the name of the bank's own head in {installed.folder}; export it"
            " under another name"
        )


def _without_self_test(head: Head) -> Head:
    """Its answers were to other photos."""
    return Head(name=head.name, labels=head.labels, personalisation=head.personalisation, state=head.state,
                training=head.training)  # fmt: skip


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def _short(spaces: Iterable[str | None]) -> str:
    return ", ".join(sorted(str(space)[:12] for space in spaces)) or "none"


def _check_feature_spaces(manifest: Manifest, where: str) -> None:
    spaces = {artifact.feature_space for artifact in manifest.artifacts if artifact.role == "encoder"}
    for artifact in manifest.artifacts:
        if artifact.role == "head" and not spaces & set(artifact.accepts):
            raise BundleError(
                f"{where}: {artifact.file} accepts no feature space of the encoders beside it; features of one model"
                " must not meet the head of another"
            )


def _check_shapes(bundle: Bundle) -> None:
    """Labels, window, state and programs must fit together before the first photo."""
    manifest = bundle.manifest
    for artifact in manifest.artifacts:
        personal = bundle.defaults(artifact)
        inputs = {tensor.name: tensor.shape for tensor in artifact.inputs if tensor.name not in personal}
        outputs = {tensor.name: tensor.shape for tensor in artifact.outputs}
        if artifact.role == "encoder":
            fits = _encoder_fits(manifest, inputs, outputs)
            wanted = f"photos of {manifest.preprocessing.crop} pixels"
        else:
            head = manifest.head(artifact.head)
            fits = _head_fits(head, inputs, outputs)
            wanted = f"{len(head.labels)} labels and a window of {head.personalisation.window}"
        if not fits:
            raise BundleError(
                f"{bundle.folder}: {artifact.file} does not fit {wanted}: it takes {inputs} and gives {outputs};"
                " export the bundle again"
            )


def _encoder_fits(manifest: Manifest, inputs: Shapes, outputs: Shapes) -> bool:
    side = manifest.preprocessing.crop
    personal = any(head.personalisation.carrier == "inputs" for head in manifest.heads)
    return (
        (set(inputs) == {"photo"} or (personal and "photo" in inputs))
        and inputs["photo"][1:] == (3, side, side)
        and set(outputs) == {"feature"}
        and len(outputs["feature"]) == 2
        and isinstance(outputs["feature"][1], int)
    )


def _head_fits(head: Head, inputs: Shapes, outputs: Shapes) -> bool:
    """A head takes the photo's feature and every state, and gives its answers and every row that state is made of."""
    classes, how = len(head.labels), head.personalisation
    if how.form == "none":
        return _alone_fits(head, inputs, outputs)
    width = (inputs.get("feature") or ("?",))[-1]
    streaming = how.form == "streaming"
    looked_at = len(outputs.get("attention", ())) == 2 and outputs["attention"][1]
    answers: Shapes = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, classes))
    answers |= {"attention": (1, looked_at if streaming else how.window + 1), "trust": (1,)}
    rows: Shapes = {s.source: (1, *s.shape[1:]) for s in head.state if s.update == "append" and s.source != "feature"}
    rows |= {s.source: outputs.get(s.source, ()) for s in head.state if s.update == "ring"}
    return (
        outputs == answers | rows
        and all(_state_fits(state, how, outputs) for state in head.state)
        and (streaming or inputs.get("history") == (1, how.window, width))
        and isinstance(looked_at, int)
        and 1 <= looked_at <= how.window + 1
        and inputs == {
            "feature": (1, width),
            "history_length": (1,),
            **{s.name: s.shape if s.update == "ring" else (1, *s.shape) for s in head.state},
        }
    )  # fmt: skip


def _alone_fits(head: Head, inputs: Shapes, outputs: Shapes) -> bool:
    """A head that reads no history takes the feature alone, and attends to nothing but the photo itself."""
    answers: Shapes = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, len(head.labels)))
    feature = inputs.get("feature", ())
    alone = not head.state and head.personalisation.window == 0 and set(inputs) == {"feature"}
    return alone and len(feature) == 2 and outputs == answers | {"attention": (1, 1), "trust": (1,)}


def _state_fits(state: State, how: Personalisation, outputs: Shapes) -> bool:
    if how.form == "window":
        return state.update == "append" and state.slots == how.window
    row = outputs.get(state.source, ())
    whole = all(isinstance(size, int) for size in row) and math.prod(int(size) for size in row) == state.row_size
    return state.update == "ring" and 0 < state.slots <= how.window and whole
