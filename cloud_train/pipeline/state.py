"""The folder of one retraining: what each step left for the next, as small JSON and file names.

RUN/pipeline.json     the settings with all defaults
RUN/begun.json        which file they were read from
RUN/steps.log         what began, ended and failed when, one line each
RUN/STEP.json         what a step found
RUN/photos.csv        the photos that were taken, with their SHA-256, labels, people and splits
RUN/model/            encoder, features and head (cloud_train/runs/iciia.py)
RUN/exports/TARGET/   one bundle per target
RUN/bundle/           the release
RUN/card.md, report.html, outcome.json
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocus.cloud_train.errors import PipelineError
from refocus.edge.bundle import Bundle, load_bundle
from refocus.edge.files import write_durably

if TYPE_CHECKING:
    from refocus.cloud_train.release.repository import Repository


def write_state(work: Path, name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Keeps what a step found, whole or not at all."""
    content = json.dumps(found, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    write_durably(work / f"{name}.json", content.encode())
    return found


def read_state(work: Path, name: str) -> dict[str, Any]:
    """What a step found; empty where it did not run.

    Raises:
        PipelineError: the file was changed to something else.
    """
    path = work / f"{name}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise PipelineError(f"{path} is not what the step {name} wrote ({error}); start a new run") from None
    return dict(found)


def current_work(work: Path) -> Path | None:
    """The folder of the run that made the current release, as it was when this run began."""
    current = read_state(work, "current")
    return work.parent / str(current["run"]) if current else None


def current_bundle(work: Path) -> Bundle | None:
    """The current release, as it was when this run began; None for a first one."""
    current = current_work(work)
    return load_bundle(current / "bundle") if current is not None else None


def repository_of(wanted: dict[str, Any]) -> Repository | None:
    """The repository that a run's settings of ``release`` name; None where it releases into its own folder."""
    if not wanted["repository"]:
        return None
    from refocus.cloud_train.release.repository import open_repository

    return open_repository(Path(wanted["repository"]), Path(wanted["keys"]))


def parity_photos(work: Path) -> Path:
    """Validation people's photos as files, in folders: those of the encoder's run, or beside TAPER's bank."""
    return next(path for path in (work / "model").glob("**/parity") if path.is_dir())


def folder_of(target: str) -> str:
    """A file name for a target."""
    return target.replace(":", "-")


def note(work: Path, line: str) -> None:
    """Adds a line to the log of steps: one write, so that branches that run beside each other do not mix."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with (work / "steps.log").open("a", encoding="utf-8") as log:
        log.write(f"{stamp} {os.getpid()} {line}\n")


def has_ended(work: Path, step: str) -> bool:
    """Whether a step ran to its end: then it is not done again, whatever Metaflow's own records say."""
    return f"{step} ended" in _noted(work)


def is_failed_start(work: Path) -> bool:
    """Whether a run ended by an error that people can mend before anything was trained: the next need not resume it."""
    noted = _noted(work)
    return bool(noted) and noted[-1].endswith(" failed") and "train ended" not in noted


def is_finished(work: Path) -> bool:
    """Whether a run came to an end, released or refused."""
    return (work / "outcome.json").exists()


def _noted(work: Path) -> list[str]:
    """The lines of the log of steps, as "train began"."""
    log = work / "steps.log"
    return [line.split(" ", 2)[2] for line in log.read_text().splitlines()] if log.exists() else []
