"""Loading a bundle: nothing of it is used before everything in it was checked."""

from __future__ import annotations

import hashlib
import itertools
import math
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec import structs

from refocus.edge.bundle.manifest import (
    MAX_MANIFEST_BYTES,
    SCHEMA_VERSION,
    Artifact,
    Defaults,
    Head,
    Listed,
    Manifest,
    Personalisation,
    State,
    Tensor,
    decode_manifest,
    encode_manifest,
)
from refocus.edge.bundle.precision import find_named_target
from refocus.edge.bundle.tensor_file import decode_tensors
from refocus.edge.bundle.verified_files import Content, Files, exchange, read_small, read_verified
from refocus.edge.bundle.weight_patching import check_places
from refocus.edge.errors import BundleError, PersonalWeightsError
from refocus.edge.files import printable, replaced, sync_folder, sync_tree, working_folder

MANIFEST = "manifest.json"
HASH_BYTES = 4  # of the SHA-256 of a photo file, by which a bundle knows it
HELD_BYTES = 64 * 1024**2  # of the files that load_bundle keeps for later; the others are read again
Shapes = dict[str, tuple[int | str, ...]]
_Key = tuple[str, str, int]


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are used only as the manifest describes them.

    Every content that this object gives out was compared with the SHA-256 of the manifest, and is a private copy: what
    happens to the files afterwards changes nothing. Contents that were compared already are kept until they are used.
    """

    folder: Path
    manifest: Manifest
    _held: dict[_Key, Files] = field(default_factory=dict, repr=False, compare=False)

    def files_of(self, listed: Listed, scratch: Path | None = None) -> Files:
        """Verified contents of one entry of the manifest by name: "" for a file, paths below it for a folder.

        Args:
            scratch: folder for copies of very large files; default: that for temporary files.

        Raises:
            BundleError: something is missing, was changed, or is not a regular file.
        """
        key = _key(listed)
        if key not in self._held:
            self._held[key] = read_verified(self.folder, *key, scratch=scratch)
        return self._held[key]

    def content(self, listed: Listed) -> Content:
        """Verified content of an entry that is one file.

        Raises:
            BundleError: as :meth:`files_of`; or it is a folder.
        """
        found = self.files_of(listed)
        if "" not in found:
            raise BundleError(f"{self.folder / listed.file} is a folder, expected a file; export the bundle again")
        return found[""]

    def release(self, listed: Listed) -> None:
        """Stops keeping the content of an entry; asked for again, it is read and verified again."""
        self._held.pop(_key(listed), None)

    def artifact(self, role: str, runtime: str, precision: str = "fp32", head: str = "") -> Artifact:
        """The one artifact of that role, runtime and precision; of the first head where none is named.

        Raises:
            BundleError: the bundle has none; the message lists what it has.
        """
        wanted = self.manifest.head(head).name if role == "head" else ""
        found = {a.target: a for a in self.manifest.artifacts if (a.role, a.head) == (role, wanted)}
        target = find_named_target(f"{runtime}:{precision}", found)
        if target:
            return found[target]
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
        """Every file that belongs to the bundle, below its folder; unlisted files are ignored."""
        found = {MANIFEST}
        for listed in self.manifest.listed:
            path = self.folder / listed.file
            inside = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
            found |= {file.relative_to(self.folder).as_posix() for file in inside}
        return sorted(found)

    def foreign_file(self) -> str:
        """The first file in the bundle's folder that does not belong to it; "" without one. Replacing the bundle would
        remove it."""
        listed = set(self.files())
        names = (path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if not path.is_dir())
        return min((name for name in names if name not in listed), default="")

    @staticmethod
    def check_replaceable(out: Path) -> Bundle | None:
        """Checks that a bundle at ``out`` would replace an earlier one, which is returned, an empty folder, or nothing.

        Raises:
            BundleError: other files are there, which would be removed, or a bundle that cannot be read, whose own files
                cannot be told from others.
        """
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return None
        if not (out / MANIFEST).exists():
            raise BundleError(f"{out} is not replaced: it is not a bundle; choose another folder")
        try:
            there = Bundle(out, _manifest_of(out))
        except BundleError as error:
            raise BundleError(f"{out} is not replaced: {error}; move it elsewhere, or choose another folder") from None
        if name := there.foreign_file():
            raise BundleError(
                f"{out} holds {printable(name)}, which is no file of its bundle and would be removed with it; move it"
                " elsewhere"
            )
        return there

    def defaults(self, artifact: Artifact) -> dict[str, np.ndarray]:
        """Inputs that are each person's own, as they are for somebody who has none; by name.

        Raises:
            BundleError: the file does not hold tensors for inputs of the program.
        """
        if artifact.defaults is None:
            return {}
        path, found = self.folder / artifact.defaults.file, self._tensors(artifact.defaults)
        declared = {tensor.name: tensor for tensor in artifact.inputs}
        for name, value in found.items():
            tensor = declared.get(name)
            if tensor is None or value.shape != tensor.shape or value.dtype != tensor.dtype:
                name = name[:80]
                raise BundleError(
                    f"{path}: {name} {value.dtype} {value.shape} is not an input of {artifact.file}; export again"
                )
        return found

    def taught_by(self, head: str = "") -> frozenset[bytes]:
        """Of each photo file that training of a head has seen, the first 4 bytes of its SHA-256; empty: not noted.

        Raises:
            BundleError: the file does not hold such hashes.
        """
        listed = self.manifest.head(head).taught_by
        if listed is None:
            return frozenset()
        hashes = self._tensors(listed).get("photos")
        if hashes is None or hashes.dtype != np.int8 or hashes.ndim != 2 or hashes.shape[1] != HASH_BYTES:
            raise BundleError(f"{self.folder / listed.file} has no photos (n, {HASH_BYTES}), int8; export again")
        return frozenset(row.tobytes() for row in hashes)

    def _tensors(self, listed: Defaults) -> dict[str, np.ndarray]:
        """The tensors of a file.

        Raises:
            BundleError: it holds none.
        """
        path = self.folder / listed.file
        try:
            return dict(decode_tensors(memoryview(self.content(listed)), str(path)))
        except PersonalWeightsError as error:
            raise BundleError(f"{path} holds no tensors ({error}); export the bundle again") from None


def _files_of(heads: Iterable[Head]) -> list[Defaults]:
    return [file for head in heads for file in head.files]


def photo_hash(content: bytes) -> bytes:
    """What a bundle keeps of a photo file that taught it; one in four billion others has the same."""
    return hashlib.sha256(content).digest()[:HASH_BYTES]


def load_bundle(folder: Path, targets: Collection[str] | None = None) -> Bundle:
    """Reads the manifest and verifies every file it lists.

    Each file is read once, and kept for its use, as long as all that is kept has at most :data:`HELD_BYTES`. Beyond
    that a file is verified in constant memory, and read and verified again when it is used.

    Args:
        targets: as ``onnxruntime:fp32``, or with an old name of a precision; only their files are read now, whatever
            their size. Every other file is read and verified when it is first used.

    Raises:
        BundleError: no bundle, a newer schema, a missing or changed file, a file outside the folder, or a head that
            does not accept the features of the encoder beside it, or a place for a person's tensors outside its file.
    """
    bundle, left = Bundle(folder, _manifest_of(folder)), HELD_BYTES
    if targets is not None:
        has = [artifact.target for artifact in bundle.manifest.artifacts]
        targets = {find_named_target(target, has) for target in targets}
    for listed in _listed_once(bundle.manifest, targets):
        if targets is None and listed.size_bytes > left:
            read_verified(folder, *_key(listed), keep=False)
        else:
            bundle.files_of(listed)
            left -= listed.size_bytes
    _check(bundle, targets)
    return bundle


def hold_bundle(folder: Path, scratch: Path | None = None) -> Bundle:
    """As :func:`load_bundle`, keeping private copies of all files whatever their size.

    Args:
        scratch: folder for the copies of very large files; default: that for temporary files.
    """
    bundle = Bundle(folder, _manifest_of(folder))
    for listed in _listed_once(bundle.manifest, None):
        bundle.files_of(listed, scratch)
    _check(bundle, None)
    return bundle


def _manifest_of(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        content = read_small(folder, MANIFEST, MAX_MANIFEST_BYTES)
    except BundleError as error:
        why = error if folder.exists() else "there is no such folder; name the folder that refocus export wrote"
        raise BundleError(f"{folder} is not a bundle: {why}{_bundles_in(folder)}") from None
    return decode_manifest(content, str(path))


def _bundles_in(folder: Path) -> str:
    """Which bundles may be meant by a folder that holds some, as that of a training run; "" where it holds none."""
    inside = itertools.chain(folder.glob(f"*/{MANIFEST}"), folder.glob(f"*/*/{MANIFEST}"))
    found = sorted(str(path.parent) for path in itertools.islice(inside, 100))
    return f"; or did you mean {' or '.join(found[:3])}?" if found else ""


def _listed_once(manifest: Manifest, targets: Collection[str] | None) -> list[Listed]:
    """Files to read now, small ones first, so that those are kept in memory."""
    chosen: Iterable[Listed] = manifest.listed
    if targets is not None:
        of_targets = (a for a in manifest.artifacts if a.target in targets)
        chosen = (part for a in of_targets for part in (a, a.defaults) if part is not None)
    return sorted({_key(listed): listed for listed in chosen}.values(), key=lambda listed: listed.size_bytes)


def _key(listed: Listed) -> _Key:
    return listed.file, listed.sha256, listed.size_bytes


def _check(bundle: Bundle, targets: Collection[str] | None) -> None:
    """Checks across files: tensor places, feature spaces and shapes fit together."""
    manifest = bundle.manifest
    artifacts = [a for a in manifest.artifacts if targets is None or a.target in targets]
    for artifact in artifacts:
        check_places(artifact, bundle.folder)
    if manifest.has_encoder:
        _check_feature_spaces(manifest, str(bundle.folder))
    _check_shapes(bundle, artifacts)


def write_manifest(folder: Path, manifest: Manifest) -> Bundle:
    """Writes a bundle's manifest, by rename, and loads the bundle: what is wrong shows now, not on a device."""
    with replaced(folder / MANIFEST) as temporary:
        temporary.write_bytes(encode_manifest(manifest))
    return load_bundle(folder)


def put_in_place(made: Path, out: Path, scratch: Path) -> Bundle:
    """Moves a finished bundle to ``out``; a bundle that was there goes to ``scratch``.

    Where the system can exchange two names at once (Linux, macOS), there is a whole bundle at ``out`` at every moment.
    Elsewhere, a process that is killed between two renames leaves the earlier bundle in that hidden folder. The new
    bundle is on the disk before it takes the place of the earlier one, and its name when this returns.
    """
    sync_tree(made)
    move_into_place(made, out, scratch)
    sync_folder(out.parent)
    return load_bundle(out)


def move_into_place(made: Path, out: Path, scratch: Path) -> None:
    """As :func:`put_in_place`, for a caller who knows every byte of the bundle: it is neither read again nor synced."""
    if out.exists() and exchange(made, out):
        return
    if out.exists():
        shutil.move(out, scratch / "previous")
    shutil.move(made, out)


def upgrade(installed: Bundle, heads: Bundle) -> Bundle:
    """Puts the heads of one bundle beside the encoder of an installed one; heads of the same name are replaced.

    Programs for runtimes that the installed bundle has no encoder for are left out. A bank stays a bank, and a bundle
    that was condensed for a task still says so. The new bundle is made beside the installed one and takes its place by
    renaming, once every file was verified.

    Raises:
        BundleError: a head accepts no feature space of the installed encoders, or has the name of a bank's own head;
            photos are prepared differently; or the installed bundle's folder holds other files.
    """
    Bundle.check_replaceable(installed.folder)
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
    with working_folder(installed.folder) as temporary:
        folder = temporary / "bundle"
        folder.mkdir()
        files = _files_of(h for h in old.heads if h.name not in names)
        _copy(installed.folder, folder, [*kept, *(a.defaults for a in kept), *files, old.bank])
        _copy(heads.folder, folder, [*offered, *(a.defaults for a in offered), *_files_of(new.heads)])
        photos, source = (new.self_test_photos, heads) if new.self_test_photos else (old.self_test_photos, installed)
        _copy(source.folder, folder, photos)
        same = [photo.sha256 for photo in photos] == [photo.sha256 for photo in old.self_test_photos]
        # Without their self-tests where their answers were to other photos.
        others = [h if same else structs.replace(h, self_test=None) for h in old.heads if h.name not in names]
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            name=new.name,
            preprocessing=old.preprocessing,
            artifacts=(*kept, *offered),
            heads=(*new.heads, *others),
            self_test_photos=photos,
            bank=old.bank,
            task=old.task,
        )
        write_manifest(folder, manifest)
        return put_in_place(folder, installed.folder, temporary)


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


def _copy(source: Path, target: Path, entries: Iterable[Listed | None]) -> None:
    """Copies the files and folders of entries of a manifest from one bundle's folder to another."""
    for file in (entry.file for entry in entries if entry is not None):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        if (source / file).is_dir():
            shutil.copytree(source / file, target / file, dirs_exist_ok=True)
        else:
            shutil.copyfile(source / file, target / file)


def _short(spaces: Iterable[str | None]) -> str:
    return ", ".join(sorted(str(space)[:12] for space in spaces)) or "none"


def _check_feature_spaces(manifest: Manifest, where: str) -> None:
    widths: dict[str | None, set[int | str]] = {}
    for artifact in manifest.artifacts:
        if artifact.role == "encoder":
            widths.setdefault(artifact.feature_space, set()).update(_widths(artifact.outputs))
    spaces = set(widths)
    for artifact in manifest.artifacts:
        taken = _widths(artifact.inputs)
        if any(taken != widths[space] for space in spaces & set(artifact.accepts)):
            raise BundleError(
                f"{where}: {artifact.file} does not fit the encoder beside it: it takes features of other"
                " width; export the bundle again"
            )
        if artifact.role == "head" and not spaces & set(artifact.accepts):
            raise BundleError(
                f"{where}: {artifact.file} accepts no feature space of the encoders beside it; features of one model"
                " must not meet the head of another"
            )


def _widths(tensors: Iterable[Tensor]) -> set[int | str]:
    return {size for tensor in tensors if tensor.name == "feature" for size in tensor.shape[-1:]}


def _check_shapes(bundle: Bundle, artifacts: Iterable[Artifact]) -> None:
    """Labels, window, state and programs must fit together before the first photo."""
    manifest = bundle.manifest
    for artifact in artifacts:
        _check_names_and_types(bundle, artifact)
        personal = bundle.defaults(artifact)
        inputs = {tensor.name: tensor.shape for tensor in artifact.inputs if tensor.name not in personal}
        outputs = {tensor.name: tensor.shape for tensor in artifact.outputs}
        if artifact.role == "encoder":
            fits = _encoder_fits(manifest, inputs, outputs)
            wanted = f"photos of {manifest.preprocessing.crop} pixels"
            if manifest.preprocessing.of_clips:
                wanted = f"clips of {manifest.preprocessing.frames} frames of {manifest.preprocessing.crop} pixels"
        else:
            head = manifest.head(artifact.head)
            fits = _head_fits(head, inputs, outputs)
            wanted = f"{len(head.labels)} labels and a window of {head.personalisation.window}"
        if not fits:
            raise BundleError(
                f"{bundle.folder}: {artifact.file} does not fit {wanted}: it takes {inputs} and gives {outputs};"
                " export the bundle again"
            )


def _check_names_and_types(bundle: Bundle, artifact: Artifact) -> None:
    """Names are unique, and everything but the number of photos and a person's own inputs is float32."""
    own = bundle.defaults(artifact)
    for tensors in (artifact.inputs, artifact.outputs):
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise BundleError(
                f"{bundle.folder}: {artifact.file} has two inputs or outputs of one name; export it again"
            )
    for tensor in (*artifact.inputs, *artifact.outputs):
        wanted = "int64" if tensor.name == "history_length" else "float32"
        if tensor.name not in own and tensor.dtype != wanted:
            raise BundleError(
                f"{bundle.folder}: {tensor.name[:80]} of {artifact.file} is {tensor.dtype}, expected"
                f" {wanted}; export the bundle again"
            )


def _encoder_fits(manifest: Manifest, inputs: Shapes, outputs: Shapes) -> bool:
    personal = any(head.personalisation.carrier == "inputs" for head in manifest.heads)
    return (
        (set(inputs) == {"photo"} or (personal and "photo" in inputs))
        and inputs["photo"][1:] == manifest.preprocessing.input_shape
        and _takes_one(inputs["photo"])
        and set(outputs) == {"feature"}
        and len(outputs["feature"]) == 2
        and _takes_one(outputs["feature"])
        and isinstance(outputs["feature"][1], int)
    )


def _head_fits(head: Head, inputs: Shapes, outputs: Shapes) -> bool:
    """A head takes the photo's feature and every state, and gives its answers and every row that state is made of."""
    classes, how = len(head.labels), head.personalisation
    if how.form == "none":
        return _alone_fits(head, inputs, outputs)
    width, names = (inputs.get("feature") or ("?",))[-1], [state.name for state in head.state]
    streaming = how.form == "streaming"
    looked_at = len(outputs.get("attention", ())) == 2 and outputs["attention"][1]
    answers: Shapes = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, classes))
    answers |= {"attention": (1, looked_at if streaming else how.window + 1), "trust": (1,)}
    rows: Shapes = {s.source: (1, *s.shape[1:]) for s in head.state if s.update == "append" and s.source != "feature"}
    rows |= {s.source: outputs.get(s.source, ()) for s in head.state if s.update == "ring"}
    return (
        outputs == answers | rows
        and isinstance(width, int)
        and len(set(names)) == len(names)
        and all(_state_fits(state, how, outputs) for state in head.state)
        and (streaming or inputs.get("history") == (1, how.window, width))
        and isinstance(looked_at, int)
        and 1 <= looked_at <= how.window + 1
        and inputs
        == {
            "feature": (1, width),
            "history_length": (1,),
            **{s.name: s.shape if s.update == "ring" else (1, *s.shape) for s in head.state},
        }
    )


def _alone_fits(head: Head, inputs: Shapes, outputs: Shapes) -> bool:
    """A head that reads no history takes the feature alone, and attends to nothing but the photo itself."""
    answers: Shapes = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, len(head.labels)))
    feature = inputs.get("feature", ())
    alone = not head.state and head.personalisation.window == 0 and set(inputs) == {"feature"}
    return (
        alone
        and len(feature) == 2
        and _takes_one(feature)
        and outputs == answers | {"attention": (1, 1), "trust": (1,)}
    )


def _takes_one(shape: tuple[int | str, ...]) -> bool:
    """Whether a program takes one photo at a time, or any number."""
    return shape[0] == 1 or isinstance(shape[0], str)


def _state_fits(state: State, how: Personalisation, outputs: Shapes) -> bool:
    if how.form == "window":
        return state.update == "append" and state.slots == how.window
    row = outputs.get(state.source, ())
    whole = all(isinstance(size, int) for size in row) and math.prod(int(size) for size in row) == state.row_size
    return state.update == "ring" and 0 < state.slots <= how.window and whole
