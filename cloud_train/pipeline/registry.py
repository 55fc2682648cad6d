"""Tracking and registry: every run with its inputs, figures and artifacts; and which release is the current one.

MLflow on SQLite in the pipeline's folder. Its telemetry is switched off before it is imported; no socket is opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refocus.cloud_train.errors import PipelineError
from refocus.cloud_train.pipeline.state import read_state, repository_of, write_state

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # it tells people how it makes its tables

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

CHAMPION = "champion"
RECORD = ("pipeline.json", "photos.csv", "current.json")  # what a release is made again from
STATES = ("ingest", "features", "train", "evaluate", "gate", "parity", "benchmark", "release")


class Registry:
    """The records of one pipeline's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        database = f"sqlite:///{(folder / 'pipeline.db').resolve()}"
        self.client = MlflowClient(tracking_uri=database, registry_uri=database)

    def begin(self, work: Path) -> None:
        """Starts the record of a run, and notes which release it is compared with."""
        if read_state(work, "tracking"):
            return
        name = read_state(work, "pipeline")["name"]
        experiment = self.client.get_experiment_by_name(name)
        place = (self.folder / "artifacts").resolve().as_uri()
        number = experiment.experiment_id if experiment else self.client.create_experiment(name, place)
        current = self.current(name, self._withdrawn(work))
        if current is not None:
            write_state(work, "current", current)
        run = self.client.create_run(number, run_name=work.name, tags={"work": work.name})
        write_state(work, "tracking", {"run_id": run.info.run_id})

    def current(self, name: str, withdrawn: frozenset[int] = frozenset()) -> dict[str, Any] | None:
        """The release that devices have: the champion; if that was taken back, the newest before it that was not."""
        champion = self._champion(name)
        for version in range(champion, 0, -1):
            tags = self.client.get_model_version(name, str(version)).tags
            if int(tags["published"]) in withdrawn:
                continue
            if version != champion:
                self.client.set_registered_model_alias(name, CHAMPION, str(version))
            return {"run": tags["work"], "version": version, "number": int(tags["number"])}
        return None

    def release(self, work: Path, name: str, published: int | None, identity: str) -> int:
        """Registers the bundle of a run whose gates were all passed, and makes it the champion; its version."""
        version = self._version_of(name, work.name)
        if version is None:
            run = read_state(work, "tracking")["run_id"]
            made = self.client.create_model_version(
                name, (work / "bundle").resolve().as_uri(), run, tags={"work": work.name}
            )
            version = int(made.version)
        number = published or version
        self.client.set_model_version_tag(name, str(version), "identity", identity)
        self.client.set_model_version_tag(name, str(version), "published", str(published or 0))
        self.client.set_model_version_tag(name, str(version), "number", str(number))
        self.client.set_registered_model_alias(name, CHAMPION, str(version))
        return version

    def finish(self, work: Path, outcome: dict[str, Any]) -> None:
        """Writes all that a run found, and ends its record."""
        run_id = read_state(work, "tracking")["run_id"]
        parameters, figures = {"release": str(outcome["release"] or "none")}, {}
        for name in STATES:
            for key, value in _flat(read_state(work, name), name):
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    figures[key] = float(value)
                elif isinstance(value, (str, bool)):
                    parameters[key] = str(value)[:6000]
        self.client.log_batch(
            run_id,
            metrics=[Metric(key, value, 0, 0) for key, value in figures.items()],
            params=[Param(key, value) for key, value in parameters.items()],
        )
        for file in (*RECORD, "card.md", "report.html", *(f"{name}.json" for name in STATES)):
            if (work / file).exists():
                self.client.log_artifact(run_id, str(work / file))
        self.client.set_terminated(run_id, "FINISHED" if outcome["passed"] else "FAILED")

    def releases(self, name: str) -> list[dict[str, Any]]:
        """All releases, the oldest first."""
        champion = self._champion(name)  # a search does not tell aliases
        found = [v for v in self.client.search_model_versions(f"name='{name}'") if "number" in v.tags]
        return [
            {
                "version": int(v.version),
                "number": int(v.tags["number"]),
                "run": v.tags["work"],
                "identity": v.tags["identity"],
                "champion": int(v.version) == champion,
            }
            for v in sorted(found, key=lambda v: int(v.version))
        ]

    def fetch(self, version: int, name: str, out: Path, files: Sequence[str]) -> None:
        """Copies files of a release's record into a folder, those that it has.

        Raises:
            PipelineError: the record's files are gone.
        """
        run_id = self.client.get_model_version(name, str(version)).run_id
        has = {artifact.path for artifact in self.client.list_artifacts(run_id)}
        if "pipeline.json" not in has:
            raise PipelineError(f"{self.folder / 'artifacts'} lacks the record of version {version}; restore it")
        for file in files:
            if file in has:
                self.client.download_artifacts(run_id, file, str(out))

    def _champion(self, name: str) -> int:
        """Version of the champion; 0 if nothing was released yet."""
        try:
            return int(self.client.get_model_version_by_alias(name, CHAMPION).version)
        except MlflowException:
            return 0

    def _version_of(self, name: str, work: str) -> int | None:
        """The version that a killed run registered already; makes the model's entry where there is none."""
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise PipelineError(f"{self.folder}: the registry refused the model {name} ({error})") from None
        found = [v for v in self.client.search_model_versions(f"name='{name}'") if v.tags.get("work") == work]
        return int(found[0].version) if found else None

    @staticmethod
    def _withdrawn(work: Path) -> frozenset[int]:
        """Numbers of releases that were taken back from all devices."""
        wanted = read_state(work, "pipeline")["release"]
        repository = repository_of(wanted)
        releases = repository.channel(wanted["device_class"]).releases if repository is not None else ()
        return frozenset(release.number for release in releases if release.withdrawn)


def _flat(value: Any, name: str) -> list[tuple[str, Any]]:
    """Leaves of nested dictionaries by their path; gates by their names; other lists stay in the artifacts."""
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in _flat(inner, f"{name}.{key}")]
    if isinstance(value, list) and value and isinstance(value[0], dict) and "limit" in value[0]:
        return [
            (f"{name.removesuffix('.gates')}.{gate['name'].replace(' ', '_')}.{key}", gate[key])
            for gate in value
            for key in ("value", "limit", "passed", "why")
        ]
    return [] if isinstance(value, list) else [(name, value)]
