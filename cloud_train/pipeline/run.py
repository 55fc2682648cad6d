"""Runs a retraining from beginning to end, or on from where it was killed: what ``refocus pipeline`` calls."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from refocus.cloud_train.errors import PipelineError, UsageError
from refocus.cloud_train.locks import one_at_a_time
from refocus.cloud_train.pipeline.state import is_failed_start, is_finished, read_state, write_state
from refocus.cloud_train.progress import say
from refocus.edge.files import write_durably

FLOW = Path(__file__).with_name("flow.py")
# "2026-01-01 12:00:00.000 [1/train/4 (pid 7)] what the step said"
TASK_LINE = re.compile(r"^\S+ \S+ \[\S+?/(\w+)/\S+ \(pid \d+\)\] (.*)$")
# "package.DataError: what is wrong", the end of a traceback; Metaflow strips its lines
ERROR_LINE = re.compile(r"^(\w+\.)*[A-Z]\w*(: |$)")


@dataclass(frozen=True)
class Outcome:
    """What a retraining came to.

    Attributes:
        passed: every gate was passed, and the bundle is the current release.
        bundle: the release; where a gate refused before the targets were joined, it does not exist.
        report: one page.
        release: number in the repository, or the registry's version where there is no repository; None if refused.
        reasons: of each gate that refused.
        work: folder of the run, with everything that was found.
    """

    passed: bool
    bundle: Path
    report: Path
    release: int | None
    reasons: list[str]
    work: Path


def run_pipeline(config_path: Path, folder: Path) -> Outcome:
    """One retraining.

    Args:
        config_path: ``pipeline.toml``.
        folder: of the pipeline: its runs, records and current release.

    Raises:
        UsageError: the settings are wrong, or an earlier run was stopped and not resumed. One that failed by its
            settings, photos or checkpoint before anything was trained refuses none.
        PipelineError: a step failed.
    """
    with _begun(config_path, folder) as (work, lock):
        return _go(work, lock)


def prepare_run(config_path: Path, folder: Path) -> Path:
    """Begins a run whose steps are run elsewhere, as by Argo; its folder is the parameter ``work`` of the workflow.

    Raises:
        UsageError: as of :func:`run_pipeline`.
    """
    with _begun(config_path, folder) as (work, _):
        return work


def resume_pipeline(folder: Path) -> Outcome:
    """Resumes the interrupted run with the settings it began with; steps that ended are not repeated. Settings that its
    file has otherwise by now are said.

    Raises:
        UsageError: there is nothing to resume.
        PipelineError: a step failed.
    """
    check_installed()
    folder = folder.resolve()
    work = last_run(folder)
    if work is None or is_finished(work):
        raise UsageError(f"{folder} has no interrupted run; start one with refocus pipeline run")
    with _locked(folder) as lock:
        _say_changes(work)
        return _go(work, lock)


def last_run(folder: Path) -> Path | None:
    """The newest run of a pipeline's folder."""
    return next(reversed(_folders(folder)), None)


def model_name(folder: Path) -> str:
    """The registered model's name, as the newest run has it.

    Raises:
        UsageError: there is no run.
    """
    last = last_run(folder)
    if last is None:
        raise UsageError(f"{folder} has no run; start one with refocus pipeline run")
    return str(read_state(last, "pipeline")["name"])


def runs_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Every run, the oldest first, what it came to, and whether it made the current release."""
    from refocus.cloud_train.pipeline.registry import Registry

    name = model_name(folder)
    champions = {row["run"] for row in Registry(folder.resolve()).releases(name) if row["champion"]}
    for work in _folders(folder):
        found = read_state(work, "outcome")
        if found:
            state = "released" if found["passed"] else "refused"
        else:
            state = "failed at its start" if is_failed_start(work) else "interrupted"
        of = {"release": found.get("release"), "reasons": found.get("reasons", [])}
        yield {"run": work.name, "state": state, **of, "current": work.name in champions}


def environment(folder: Path) -> dict[str, str]:
    """What keeps Metaflow and MLflow inside the pipeline's folder: no settings of the user's, no reporting home."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("METAFLOW_")},
        "METAFLOW_HOME": str(folder / "metaflow"),
        "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(folder / "metaflow"),
        "METAFLOW_DEFAULT_DATASTORE": "local",
        "METAFLOW_DEFAULT_METADATA": "local",
        "METAFLOW_USER": "refocus",
        "AWS_EC2_METADATA_DISABLED": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "PYTHONUNBUFFERED": "1",
    }


@contextlib.contextmanager
def _begun(config_path: Path, folder: Path) -> Iterator[tuple[Path, int]]:
    """The folder of a new run with its settings, and the lock of the pipeline's."""
    from refocus.cloud_train.pipeline.config import encode_config, load_config

    check_installed()
    config, folder = load_config(config_path), folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder) as lock:
        last = last_run(folder)
        if last is not None and not is_finished(last) and not is_failed_start(last):
            raise UsageError(
                f"the run {last} was interrupted; resume it with refocus pipeline resume, or remove that folder"
            )
        work = folder / "runs" / f"{int(last.name) + 1 if last else 1:04d}"
        work.mkdir(parents=True, exist_ok=True)  # it is there if a kill came before its settings
        write_state(work, "begun", {"config": str(config_path.resolve())})
        write_durably(work / "pipeline.json", encode_config(config))
        yield work, lock


def _say_changes(work: Path) -> None:
    """Says which settings the file of a run has otherwise than the run, which keeps its own."""
    from refocus.cloud_train.pipeline.config import decode_config, encode_config, load_config, settings
    from refocus.cloud_train.settings import keys_of

    begun = read_state(work, "begun")  # empty in a run of Refocus 0.1
    if not begun or not Path(begun["config"]).exists():
        return
    own = f"the run {work.name} goes on with the settings it began with"
    try:
        now = load_config(Path(begun["config"]))
    except UsageError as error:
        say(f"{own}; {error}")
        return
    before = dict(keys_of(settings(work)))
    changed = [
        f"{'.'.join(keys)} = {before[keys]!r}, not {value!r}"
        for keys, value in keys_of(decode_config(encode_config(now)))
        if before[keys] != value
    ]
    if changed:
        say(f"{own}, not with those of {begun['config']} now: {'; '.join(changed)}")


def retry_flags(times: int) -> list[str]:
    """What lets Metaflow try a failed step again so often, at once."""
    return ["--with", f"retry:times={times},minutes_between_retries=0"] if times else []


def check_installed(*more: str) -> None:
    """Raises ModuleNotFoundError for a package that the flow, or ``more``, needs; the command line names the extra."""
    for name in ("metaflow", "mlflow", "sqlalchemy", "alembic", *more):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def _folders(folder: Path) -> list[Path]:
    """Every run that has begun, the oldest first."""
    return sorted(path.parent for path in (folder / "runs").glob("[0-9]*/pipeline.json"))


def _go(work: Path, lock: int) -> Outcome:
    folder, tries = work.parent.parent, read_state(work, "pipeline")["retries"]
    (folder / "metaflow").mkdir(exist_ok=True)
    (work / "error.json").unlink(missing_ok=True)
    retries = retry_flags(tries)
    # A run's number in Metaflow's own records; there is none if the first attempt was killed before it had one.
    _keep_number(work)
    numbers = work / "metaflow.txt"
    earlier = numbers.read_text().split() if numbers.exists() else []
    begin = ["resume", "--origin-run-id", earlier[-1]] if earlier else ["run", "--work", str(work)]
    kept = ["--run-id-file", str(work / ".metaflow.txt")]
    command = [sys.executable, str(FLOW), "--no-pylint", *begin, *kept, *retries]
    # The lock is handed on: should this process die alone, the flow still holds it.
    flow = subprocess.Popen(  # noqa: S603  # our own file
        command,
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=(lock,),
    )
    assert flow.stdout is not None  # noqa: S101
    tell = _Teller()
    with (work / "flow.log").open("a", encoding="utf-8") as log, flow:
        for line in flow.stdout:
            log.write(line)
            log.flush()
            _keep_number(work)
            tell(line)
    if flow.returncode:
        error = read_state(work, "error")
        where = f"the run {work.name} failed; {work / 'flow.log'} says where, refocus pipeline resume goes on"
        raise PipelineError(f"{error['step']}: {error['message']}" if error else where)
    found = read_state(work, "outcome")
    return Outcome(found["passed"], work / "bundle", work / "report.html", found["release"], found["reasons"], work)


def _keep_number(work: Path) -> None:
    """Moves the run's number in Metaflow's records beside those of earlier attempts, once it is there.

    Metaflow creates the file and then writes it: an empty one is left for the next line, or the attempt would be
    lost and its steps repeated.
    """
    new, kept = work / ".metaflow.txt", work / "metaflow.txt"
    number = new.read_text().strip() if new.exists() else ""
    if number:
        with kept.open("a") as file:
            file.write(number + "\n")
        new.unlink()


class _Teller:
    """Says what the steps say, without Metaflow's own lines and without tracebacks, which are in ``flow.log``.

    A traceback ends with the line that names the error, which is said: a process that the step started may have failed.
    What follows the failure of the step itself, up to Metaflow's next line, is not: the command ends with that error.
    """

    def __init__(self) -> None:
        self._in_traceback = self._failed = False

    def __call__(self, line: str) -> None:
        found = TASK_LINE.match(line)
        if found is None:
            return
        name, text = ({"start": "ingest", "end": "report"}.get(found[1], found[1])), found[2]
        if text.startswith(("Task ", "<flow ")):
            self._in_traceback, self._failed = False, text.startswith("<flow ")
            if text == "Task is starting.":
                say(f"{name} ...")
            return
        if text.startswith("Traceback "):
            self._in_traceback = True
        elif ERROR_LINE.match(text):
            self._in_traceback = False
        silent = self._failed or self._in_traceback or not text.strip()
        if not silent and not text.startswith(("Foreach ", "During handling ", "The above exc")):
            say(f"{name}: {text}")


def _locked(folder: Path) -> contextlib.AbstractContextManager[int]:
    """One run at a time."""
    return one_at_a_time(folder / ".lock", f"a run of {folder} is going on; wait for it, or end it")
