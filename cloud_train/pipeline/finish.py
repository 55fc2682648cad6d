"""The last steps: the model card, the release, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.pipeline.gates import JUDGED, judged_gates
from refocus.cloud_train.pipeline.report import model_card, write_report
from refocus.cloud_train.pipeline.state import read_state, repository_of, write_state
from refocus.edge.bundle import load_bundle
from refocus.edge.update import files_of, identity_of


def card(work: Path) -> Path:
    """The model card."""
    path = work / "card.md"
    path.write_text(model_card(work), encoding="utf-8")
    return path


def release(work: Path) -> dict[str, Any]:
    """Publishes the bundle, registers it and makes it the current release.

    Raises:
        ReleaseError: a gate was not passed, or was not judged at all.
    """
    states = {name: read_state(work, name) for name in JUDGED}
    for name, state in states.items():
        if not state.get("passed"):
            raise ReleaseError(
                f"{work}: the gate '{name}' was {'refused' if state else 'not judged'}; nothing is released"
            )
    from refocus.cloud_train.pipeline.registry import Registry

    config = read_state(work, "pipeline")
    published = _publish(work, config["release"])
    identity = identity_of(files_of(load_bundle(work / "bundle")))
    version = Registry(work.parent.parent).release(work, config["name"], published, identity)
    state = {"number": published or version, "version": version, "published": published, "identity": identity}
    return write_state(work, "release", state)


def report(work: Path) -> dict[str, Any]:
    """The last step, of a release and of a refusal alike: report, tracking, outcome."""
    from refocus.cloud_train.pipeline.registry import Registry

    reasons = [f"{found['name']}: {found['why']}" for found in judged_gates(work) if not found["passed"]]
    released = read_state(work, "release")
    outcome = {"passed": not reasons and bool(released), "reasons": reasons, "release": released.get("number")}
    write_report(work, work / "report.html", outcome)
    Registry(work.parent.parent).finish(work, outcome)
    return write_state(work, "outcome", outcome)


def _publish(work: Path, wanted: dict[str, Any]) -> int | None:
    """Signs the bundle as the next release; the newest one, as a killed run published it, keeps its number.

    Raises:
        ReleaseError: it is an earlier release, which devices that have a newer one do not take.
    """
    repository = repository_of(wanted)
    if repository is None:
        return None
    from refocus.cloud_train.release.stages import publish

    bundle, device_class = work / "bundle", wanted["device_class"]
    files, newer = files_of(load_bundle(bundle)), []
    for known in reversed(repository.channel(device_class).releases):
        if known.withdrawn:
            continue
        if known.files != files:
            newer.append(str(known.number))
        elif newer:
            raise ReleaseError(
                f"{bundle} is release {known.number} of {device_class}, which has newer ones: nothing is published;"
                f" withdraw {', '.join(reversed(newer))} to go back to {known.number}"
            )
        else:
            return known.number
    return publish(repository, bundle, device_class, wanted["percent"]).release.number
