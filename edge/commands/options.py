"""Options that several commands of the device share, and the profiles that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus import edge
from refocus.edge.commands.app import ThreadsOption
from refocus.edge.commands.news import logger
from refocus.edge.errors import HistoryError, RefocusError
from refocus.edge.files import default_bundle, default_profiles

if TYPE_CHECKING:
    from refocus.edge.personal.store import PersonalWeightStore  # refocus --help loads nothing of the device


def optional(default: Callable[[], Any], text: str) -> Any:
    """Return an argument with a default that shell completion ignores.

    Args:
        default: called where the argument is left out; it may raise.
        text: help.
    """
    return typer.Argument(
        default_factory=lambda: None, callback=lambda given: given or default(), show_default=False, help=text
    )


Bundle = Annotated[Path, optional(default_bundle, "folder of the bundle; default: the installed one")]
BundleOrPhoto = Annotated[Path, optional(lambda: None, "folder of the bundle; default: the installed one")]
Bundles = Annotated[list[Path], optional(lambda: [default_bundle()], "folders of bundles; default: the installed one")]
Profile = Annotated[str, typer.Option(help="name of the profile")]
Profiles = Annotated[
    Path,
    typer.Option(
        default_factory=default_profiles,
        show_default=False,
        help="folder of the profiles; default: the user's data folder",
    ),
]
Head = Annotated[str, typer.Option(help="name of the head; default: the bundle's first head")]
Runtime = Annotated[str, typer.Option(help="inference runtime: onnxruntime (default), executorch, tensorrt or coreml")]
Precision = Annotated[str, typer.Option(help="precision of the artifact: fp32 (default), fp16, w8a8, ...")]
Provider = Annotated[
    str, typer.Option(help="execution provider; of onnxruntime: cpu, cuda, tensorrt, xnnpack, nnapi or coreml")
]
RefuseFallback = Annotated[
    bool, typer.Option("--refuse-fallback", help="fail if the execution provider does not run every node")
]
HeadTarget = Annotated[
    str,
    typer.Option(
        help="target of the head, such as native:w16; default: native if available, else the encoder's target"
    ),
]
Threads = ThreadsOption
Shares = Annotated[
    bool,
    typer.Option(
        "--shares/--no-shares", help="use the person's class shares as a class prior, if the bundle supports them"
    ),
]
Top = Annotated[int, typer.Option(min=1, help="number of labels per photo (top-k)")]
Yes = Annotated[bool, typer.Option("--yes", help="skip the confirmation prompt")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


def bundle_and_photos(bundle: Path, photos: list[Path]) -> tuple[Path, list[Path]]:
    """Return the bundle and the photos that the paths of a command name.

    The bundle is the default one if the first path exists and is none, or is the only one.

    Args:
        bundle: first path, a :data:`BundleOrPhoto`; None: there is none at all.
        photos: the other paths.
    """
    if bundle and not (bundle / "manifest.json").exists() and (bundle.exists() or not photos):
        return default_bundle(bundle), [bundle, *photos]
    if not photos:
        raise typer.BadParameter("expected photos", param_hint="PHOTOS")
    return bundle, photos


def words(text: str, separator: str = ",") -> list[str]:
    """``red wolf, coyote`` -> ["red wolf", "coyote"], without empty ones."""
    return [word.strip() for word in text.split(separator) if word.strip()]


def numbers(
    text: str, flag: str, kind: type, check: Callable[[list[Any]], bool], expected: str, example: str
) -> tuple[Any, ...]:
    """Numbers of a kind between commas.

    Args:
        check: of the numbers, which are none where one of them is no such number.

    Raises:
        RefocusError: the check fails.
    """
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not check(values):
        raise RefocusError(f"{flag} {text}: expected {expected}, such as {example}")
    return tuple(values)


def personal_weights(profiles: Path) -> PersonalWeightStore | None:
    """What was learned for the people of a folder of profiles; None if nothing ever was."""
    from refocus.edge.personal.store import PersonalWeightStore

    return PersonalWeightStore.beside(profiles)


def has_history(profile: str, profiles: Path) -> bool:
    """Whether there is a file of a profile."""
    path = edge.profile_path(profiles, profile)
    return path.exists() or path.with_name(path.name + ".salvaged").exists()


def existing_path(profile: str, profiles: Path) -> Path:
    """The file of a profile that is there; a mistyped name must not make a new one."""
    path = edge.profile_path(profiles, profile)
    ending = edge.profile_path(profiles, "x").name[1:]
    if not has_history(profile, profiles):
        names = sorted(file.name.removesuffix(ending) for file in profiles.glob(f"*{ending}"))
        there = f"there are: {', '.join(names[:8])}" if names else "there is none"
        raise HistoryError(f"--profile {profile}: no such profile in {profiles}; {there}")
    return path


def open_existing(profile: str, profiles: Path, or_read_only: bool = False) -> edge.FeatureHistory:
    """The history of a profile that is there, verified; what was recovered of a damaged file is told.

    Args:
        or_read_only: one that cannot be written is opened to be read.
    """
    history = edge.FeatureHistory(existing_path(profile, profiles), or_read_only=or_read_only)
    history.verify()
    if (recovered := history.recovered) is not None:
        logger.warning(f"{profile}: {recovered}")
    return history
