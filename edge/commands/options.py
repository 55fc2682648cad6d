"""Options that several commands of the device share, and the profiles that they name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refocus import edge
from refocus.edge.errors import HistoryError

if TYPE_CHECKING:
    from refocus.edge.personal.store import PersonalWeightStore  # refocus --help loads nothing of the device

MAX_THREADS = 256  # a runtime starts as many as it is told, and takes minutes for millions


def default_profiles() -> Path:
    """Where profiles live unless ``--profiles`` says otherwise: the user's data folder."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "refocus" / "profiles"


Bundle = Annotated[Path, typer.Argument(help="folder of the bundle")]
Profile = Annotated[str, typer.Option(help="whose history")]
Profiles = Annotated[
    Path,
    typer.Option(
        default_factory=default_profiles,
        show_default=False,
        help="folder of the profiles; default: the user's data folder",
    ),
]
Head = Annotated[str, typer.Option(help="which of the bundle's heads; default: its first")]
Runtime = Annotated[str, typer.Option(help="onnxruntime, executorch, tensorrt or coreml")]
Precision = Annotated[str, typer.Option(help="fp32, fp16 or int8, whichever the bundle has")]
Provider = Annotated[
    str, typer.Option(help="part of the device: for onnxruntime cpu, cuda, tensorrt, xnnpack, nnapi or coreml")
]
RefuseFallback = Annotated[
    bool, typer.Option("--refuse-fallback", help="fail where the provider does not take everything")
]
Threads = Annotated[int, typer.Option("--threads", min=0, max=MAX_THREADS, help="threads; 0 leaves it to the runtime")]
Top = Annotated[int, typer.Option(min=1, help="labels per photo")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]


def personal_weights(profiles: Path) -> PersonalWeightStore | None:
    """What was learned for the people of a folder of profiles; None if nothing ever was."""
    from refocus.edge.personal.store import PersonalWeightStore

    folder = profiles / "weights"
    return PersonalWeightStore(folder) if folder.is_dir() else None


def existing_path(profile: str, profiles: Path) -> Path:
    """The file of a profile that is there; a mistyped name must not make a new one."""
    path = edge.profile_path(profiles, profile)
    ending = edge.profile_path(profiles, "x").name[1:]
    if not path.exists() and not path.with_name(path.name + ".salvaged").exists():
        names = sorted(file.name.removesuffix(ending) for file in profiles.glob(f"*{ending}"))
        there = f"there are: {', '.join(names[:8])}" if names else "there is none"
        raise HistoryError(f"--profile {profile}: no such profile in {profiles}; {there}")
    return path


def open_existing(profile: str, profiles: Path) -> edge.FeatureHistory:
    """The history of a profile that is there, verified; what was recovered of a damaged file is told."""
    history = edge.FeatureHistory(existing_path(profile, profiles))
    history.verify()
    if (recovered := history.recovered) is not None:
        sys.stderr.write(f"{profile}: {recovered}\n")
    return history
