"""The target of a bundle that was the fastest on this machine, measured once by ``refocus bench --choose``.

It is kept in a file below the cache folder, named after the manifest's SHA-256, and used where no target is asked for.
A file that is damaged, or that was measured with another library or processor, is ignored with a note. So is one whose
features the person's history does not have: a faster target is not worth an empty history.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import platform
from pathlib import Path
from typing import Literal

import msgspec

from refocus.edge.bundle.load import MANIFEST
from refocus.edge.bundle.manifest import MAX_MANIFEST_BYTES, Artifact, Manifest, decode_manifest
from refocus.edge.bundle.precision import find_runtime
from refocus.edge.bundle.verified_files import read_small
from refocus.edge.errors import HistoryError, RefocusError, RuntimeUnavailable
from refocus.edge.files import cache_folder, read_file, write_file
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.runtimes.base import RUNTIMES

logger = logging.getLogger(__name__)

DEFAULT_TARGET = ("onnxruntime", "fp32")
_MAX_BYTES = 1 << 16
_LEAST_PHOTOS = 1  # of a history, from which on its features decide


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One target as it was measured.

    Attributes:
        p50_ms: median time of a photo, decoded before, answer and durable append included.
        over_default: median ratio to the default target in the same rounds, and its 95 % interval; None: it is that.
        refused: why it was not chosen though it may be faster; "" where nothing was against it.
    """

    target: str
    p50_ms: float | None = None
    over_default: tuple[float, float, float] | None = None
    refused: str = ""


class ChosenTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file holds.

    Attributes:
        manifest: SHA-256 of the bundle's manifest.
        version: of the runtime's library.
        processor: that measured.
        head, threads: with which it was measured.
        measured: all targets, the default first.
    """

    manifest: str
    runtime: str
    precision: str
    version: str
    processor: str
    head: str
    threads: int
    measured: tuple[Measured, ...]
    format: Literal[1] = 1

    @property
    def target(self) -> str:
        return f"{self.runtime}:{self.precision}"


def processor() -> str:
    """The name of this machine's processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model", "Hardware")))
    return next((name for name in names if name), platform.processor() or platform.machine())


def library_version(runtime: str) -> str:
    """The version of a runtime's library.

    Raises:
        RuntimeUnavailable: it is not installed, or refused.
    """
    return str(importlib.import_module(RUNTIMES[runtime][0]).VERSION)


def choice_path(bundle: Path) -> Path:
    """Where the choice for a bundle is kept.

    Raises:
        BundleError: there is no manifest.
        RuntimeUnavailable: this user has no home folder.
    """
    path = _kept_choice(bundle)
    if path is None:
        raise RuntimeUnavailable("this user has no home folder to keep a choice in; set XDG_CACHE_HOME or HOME")
    return path


def _kept_choice(bundle: Path) -> Path | None:
    """As :func:`choice_path`; None: nothing can be kept, and nothing was."""
    cache = cache_folder()
    return cache / "choices" / f"{manifest_sha256(bundle)}.json" if cache is not None else None


def manifest_sha256(bundle: Path) -> str:
    """SHA-256 of a bundle's manifest.

    Raises:
        BundleError: there is none, or it is larger than ``MAX_MANIFEST_BYTES``.
    """
    return hashlib.sha256(read_small(bundle, MANIFEST, MAX_MANIFEST_BYTES)).hexdigest()


def keep_choice(bundle: Path, choice: ChosenTarget) -> Path:
    """Stores the target choice of a bundle, replacing an earlier one."""
    path = choice_path(bundle)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_file(path, msgspec.json.format(msgspec.json.encode(choice)) + b"\n")
    return path


def forget_choice(bundle: Path) -> bool:
    """Removes the choice for a bundle; whether there was one."""
    path = _kept_choice(bundle)
    if path is None:
        return False
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def read_choice(bundle: Path) -> tuple[ChosenTarget | None, str]:
    """Stored target choice of a bundle; or None and why a stored choice is ignored ("" if there is none)."""
    path = _kept_choice(bundle)
    if path is None or not path.exists():
        return None, ""
    again = "; refocus bench --choose measures again"
    try:
        choice = msgspec.json.decode(read_file(path, _MAX_BYTES, "a choice"), type=ChosenTarget)
    except (RefocusError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, f"the chosen target in {path} is damaged and ignored{again}"
    if choice.manifest != path.stem or choice.runtime not in RUNTIMES:
        return None, f"the chosen target in {path} is that of another bundle and ignored{again}"
    if choice.processor != processor():
        return None, f"the chosen target {choice.target} was measured on another processor and is ignored{again}"
    try:
        version = library_version(choice.runtime)
    except RefocusError as error:
        return None, f"the chosen target {choice.target} is ignored: {error}"
    if version != choice.version:
        what = f"with {choice.runtime} {choice.version}, this is {version}"
        return None, f"the chosen target {choice.target} was measured {what}; it is ignored{again}"
    return choice, ""


def target_for(
    bundle: Path, profile: Path | None, head: str = "", runtime: str = "", precision: str = ""
) -> tuple[str, str]:
    """Runtime and precision: those asked for; or the chosen ones where neither is; or ``DEFAULT_TARGET``; or, of a
    bundle that has no such encoder, the first that runs here.

    What is against using a choice is told to the logger.

    Args:
        bundle: its folder.
        profile: the person's file, whose stored features must fit; None: nobody's.
        head: as asked for; "": the bundle's first.
    """
    runtime = find_runtime(runtime)
    if precision or not (bundle / MANIFEST).is_file():  # whoever opens it says what is wrong
        return runtime or DEFAULT_TARGET[0], precision or DEFAULT_TARGET[1]
    if runtime:
        return _default(bundle, runtime)
    choice, note = read_choice(bundle)
    if choice is not None and (note := _obstacle(bundle, choice, profile, head)):
        choice = None
    if note:
        logger.warning(note)
    return (choice.runtime, choice.precision) if choice is not None else _default(bundle)


def _default(bundle: Path, runtime: str = "") -> tuple[str, str]:
    """The default target, where the bundle has an encoder for it, else its first that runs here.

    Args:
        runtime: the only one that is asked for.
    """
    default, manifest = (runtime or DEFAULT_TARGET[0], DEFAULT_TARGET[1]), _manifest(bundle)
    encoders = [a for a in manifest.artifacts if a.role == "encoder" and a.runtime == (runtime or a.runtime)]
    pairs = [(a.runtime, a.precision) for a in encoders]
    if default in pairs or not pairs:
        return default
    return next((pair for pair in pairs if _runs_here(pair[0])), default)


def _runs_here(runtime: str) -> bool:
    try:
        importlib.import_module(RUNTIMES[runtime][0])
    except (KeyError, ImportError, RuntimeUnavailable):
        return False
    return True


def _manifest(bundle: Path) -> Manifest:
    return decode_manifest(read_small(bundle, MANIFEST, MAX_MANIFEST_BYTES), str(bundle / MANIFEST))


def _obstacle(bundle: Path, choice: ChosenTarget, profile: Path | None, head: str) -> str:
    """Why a choice does not fit this head or person; "" if it does."""
    manifest = _manifest(bundle)
    about = manifest.head(head)
    ignored = f"the chosen target {choice.target} is ignored: "
    if about.name != choice.head:
        return f"{ignored}it was measured with the head {choice.head}, not {about.name}"
    encoder, default = (_encoder(manifest, *pair) for pair in ((choice.runtime, choice.precision), DEFAULT_TARGET))
    if encoder is None:
        return f"{ignored}the bundle has no such encoder"
    if default is None or default.feature_space == encoder.feature_space:
        return ""
    if about.personalisation.carrier != "none":
        return f"{ignored}people have weights of their own, made for {':'.join(DEFAULT_TARGET)}"
    if profile is not None and _has_photos(profile, str(default.feature_space), str(encoder.feature_space)):
        asked = f"--runtime {choice.runtime} --precision {choice.precision}"
        return f"{ignored}the history holds features of {':'.join(DEFAULT_TARGET)}; {asked} begins a new one"
    return ""


def _encoder(manifest: Manifest, runtime: str, precision: str) -> Artifact | None:
    wanted = ("encoder", runtime, precision)
    return next((a for a in manifest.artifacts if (a.role, a.runtime, a.precision) == wanted), None)


def _has_photos(profile: Path, default: str, chosen: str) -> bool:
    """Whether a profile has photos of the default's features and none of the chosen target's."""
    try:
        if not profile.exists():
            return False
        with FeatureHistory(profile, or_read_only=True) as history:
            found = history.count(default) >= _LEAST_PHOTOS and not history.count(chosen)
            if history.recovered is not None:  # which whoever opens it next is not told
                logger.warning(f"{profile.name}: {history.recovered}")
            return found
    except (HistoryError, OSError):
        return True  # whoever opens it next says what is wrong; nothing is begun anew meanwhile


def about_choice(bundle: Path) -> str:
    """One line for people on what is chosen for a bundle here; "" where nothing is."""
    choice, note = read_choice(bundle)
    if choice is None:
        return note
    times = ", ".join(f"{row.target} {row.p50_ms:.2f} ms" for row in choice.measured if row.p50_ms is not None)
    threads = f"{choice.threads} threads" if choice.threads != 1 else "1 thread"
    return (
        f"chosen on this machine: {choice.target} (p50 {times}; {threads}); used where no target is asked for;"
        " refocus bench --forget-choice removes it"
    )
