"""Makes a release again from its record, and compares it byte by byte."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from refocus.cloud_train.errors import PipelineError, UsageError
from refocus.cloud_train.pipeline.config import settings
from refocus.cloud_train.pipeline.data import check_contents, open_run, read_list
from refocus.cloud_train.pipeline.model import export, features, merge, train
from refocus.cloud_train.pipeline.registry import RECORD, Registry
from refocus.edge.bundle import load_bundle
from refocus.edge.update import files_of, identity_of


@dataclass(frozen=True)
class Rebuilt:
    """A release that was made again.

    Attributes:
        bundle: the new one.
        same: every file has the bytes of the release.
        identity: of the release, as devices know it.
        differs: files that have other bytes, where the release's own bundle is still there.
    """

    bundle: Path
    same: bool
    identity: str
    differs: list[str]


def rebuild(folder: Path, number: int, name: str) -> Rebuilt:
    """Trains and exports a release again, of the same photos with the same settings.

    Args:
        folder: of the pipeline.
        number: of the release.
        name: of the registered model.

    Raises:
        UsageError: there is no such release.
        DataError: a photo of it is gone or was changed.
        PipelineError: a target did not come out.
    """
    folder = folder.resolve()
    registry = Registry(folder)
    found = next((row for row in reversed(registry.releases(name)) if row["number"] == number), None)
    if found is None:
        known = ", ".join(str(row["number"]) for row in registry.releases(name)) or "none"
        raise UsageError(f"RELEASE {number}: {folder} has releases {known} of {name}")
    work = folder / "runs" / f"rebuild-{found['run']}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    registry.fetch(found["version"], name, work, RECORD)
    config = settings(work)
    check_contents(open_run(config, work).table, read_list(work / "photos.csv"))
    features(work)
    train(work)
    for target in config.targets:
        export(work, target)
    mismatch = merge(work)["mismatch"]
    if mismatch:
        raise PipelineError(f"release {number} cannot be made again: {'; '.join(mismatch.values())}")
    made = {file.path: file for file in files_of(load_bundle(work / "bundle"))}
    released = folder / "runs" / found["run"] / "bundle"
    differs = []
    if released.exists():
        before = {file.path: file for file in files_of(load_bundle(released))}
        differs = sorted(path for path in {*made, *before} if made.get(path) != before.get(path))
    return Rebuilt(work / "bundle", identity_of(made.values()) == found["identity"], found["identity"], differs)
