"""Loading a bundle: nothing of it is used before everything in it was checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge.errors import BundleError
from edge.manifest import Artifact, Manifest, decode_manifest
from edge.runtimes import Program, load_program, verified_bytes

MANIFEST = "manifest.json"
Shapes = dict[str, tuple[int | str, ...]]


@dataclass(frozen=True)
class Bundle:
    """A verified bundle: every file listed by the manifest is there, with the size and SHA-256 it says."""

    folder: Path
    manifest: Manifest

    def artifact(self, role: str, runtime: str, precision: str = "fp32") -> Artifact:
        """The one artifact of that role, runtime and precision.

        Raises:
            BundleError: the bundle has none; the message lists what it has.
        """
        for artifact in self.manifest.artifacts:
            if (artifact.role, artifact.runtime, artifact.precision) == (role, runtime, precision):
                return artifact
        has = sorted({f"{a.runtime}:{a.precision}" for a in self.manifest.artifacts if a.role == role})
        raise BundleError(f"{self.folder} has no {role} for {runtime}:{precision}; it has {', '.join(has) or 'none'}")

    def load(self, role: str, runtime: str, precision: str = "fp32", threads: int = 0) -> Program:
        return load_program(self.folder, self.artifact(role, runtime, precision), threads)


def load_bundle(folder: Path) -> Bundle:
    """Reads the manifest and verifies every file it lists.

    Raises:
        BundleError: no bundle, a newer schema, a missing or changed file, a file outside the folder, or a head that
            does not accept the features of the encoder beside it.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{folder} is not a bundle: {path} cannot be read ({error.strerror})") from None
    manifest = decode_manifest(content, str(path))
    for artifact in manifest.artifacts:
        size = len(verified_bytes(folder, artifact.file, artifact.sha256))
        if size != artifact.size_bytes:
            raise BundleError(
                f"{artifact.file} has {size} bytes, the manifest says {artifact.size_bytes}; export it again"
            )
    for photo in manifest.self_test.photos if manifest.self_test else ():
        verified_bytes(folder, photo.file, photo.sha256)
    _check_feature_spaces(manifest, str(folder))
    _check_shapes(manifest, str(folder))
    return Bundle(folder, manifest)


def _check_feature_spaces(manifest: Manifest, where: str) -> None:
    spaces = {artifact.feature_space for artifact in manifest.artifacts if artifact.role == "encoder"}
    for artifact in manifest.artifacts:
        if artifact.role == "head" and not spaces & set(artifact.accepts):
            raise BundleError(
                f"{where}: {artifact.file} accepts no feature space of the encoders beside it; features of one model"
                " must not meet the head of another"
            )


def _check_shapes(manifest: Manifest, where: str) -> None:
    """Labels, window, state and programs must fit together before the first photo."""
    classes, window = len(manifest.labels), manifest.personalisation.window
    for artifact in manifest.artifacts:
        inputs = {tensor.name: tensor.shape for tensor in artifact.inputs}
        outputs = {tensor.name: tensor.shape for tensor in artifact.outputs}
        if artifact.role == "encoder":
            fits = set(inputs) == {"photo"} and set(outputs) == {"feature"}
        else:
            fits = _head_fits(manifest, inputs, outputs)
        if not fits:
            raise BundleError(
                f"{where}: {artifact.file} does not fit {classes} labels and a window of {window}: it takes {inputs}"
                f" and gives {outputs}; export the bundle again"
            )


def _head_fits(manifest: Manifest, inputs: Shapes, outputs: Shapes) -> bool:
    """A head takes the photo's feature and every state, and gives its answers and every row that state is made of."""
    classes, window = len(manifest.labels), manifest.personalisation.window
    answers: Shapes = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, classes))
    answers |= {"attention": (1, window + 1), "trust": (1,)}
    rows = {s.source: (1, *s.shape[1:]) for s in manifest.state if s.source != "feature"}
    width = inputs.get("feature", ("?",))[-1]
    return (
        outputs == answers | rows
        and all(state.shape[:1] == (window,) for state in manifest.state)
        and inputs.get("history") == (1, window, width)
        and inputs == {
            "feature": (1, width),
            "history_length": (1,),
            **{state.name: (1, *state.shape) for state in manifest.state},
        }
    )  # fmt: skip
