"""Compare a deployment on one machine with the simulation.

A server and client processes run on loopback. One method is trained three times on the same clients: simulated in one
process; deployed with all clients; and deployed with one client that is killed after some rounds and does not come
back. This module starts and ends all processes.

    OUT/simulated/        the run in one process, whose photos the client processes use
    OUT/project/          kits of the server and the clients
    OUT/complete/         the deployed run
    OUT/dropped/          the deployed run that loses a client
    OUT/trial.json        the results document
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.checkpoint import read_log
from refocus.cloud_train.federated.deployment.kits import provision
from refocus.cloud_train.federated.deployment.serve import serve
from refocus.cloud_train.federated.deployment.session import Deployment, place_of
from refocus.cloud_train.federated.methods import title_of
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun, Rates
from refocus.cloud_train.progress import say

SCHEMA = 1
LOOK_S = 0.05
PATIENCE_S = 600.0  # seconds for all client processes to connect
DEADLINE_S = 600.0  # seconds a client has for a round


@dataclass(frozen=True)
class Trial:
    """Configuration of a deployment trial.

    Attributes:
        config: settings of the run; ``recipe.keep`` must be "last", the only value that deployments support.
        method: name of the method.
        rates: its learning rates.
        seed: seed of the training.
        drop_after: round after which a client is killed.
    """

    config: FederatedConfig
    method: str
    rates: Rates
    seed: int = 0
    drop_after: int = 3


@dataclass
class _Deployed:
    """Result of a deployed training.

    Attributes:
        result: see :func:`refocus.cloud_train.federated.deployment.serve.serve`.
        start_s: seconds from starting the server to the end of the first round, without that round.
        loopback: bytes that crossed the loopback interface between the ends of the first and the last round.
        error: exception that ended the training, or None.
    """

    result: dict[str, Any] = field(default_factory=dict)
    start_s: float = 0.0
    loopback: int = 0
    error: BaseException | None = None


def measure(trial: Trial, out: Path, command: str) -> dict[str, Any]:
    """Run the three trainings and return the results document.

    Raises:
        UsageError: the folder is in use, there are fewer rounds than the trial with a lost client needs, the rounds
            were over before the client was killed, or the run keeps the best round.
    """
    recipe = trial.config.recipe
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty; a trial is timed from its beginning, so give a new folder")
    if recipe.keep != "last" or recipe.rounds < trial.drop_after + 2:
        raise UsageError(f"a trial needs recipe.keep = last and {trial.drop_after + 2} rounds; it has {recipe.rounds}")
    run = FederatedRun(out / "simulated", trial.config)
    names = [client.name for client in run.clients.members]
    say(f"simulation of {len(names)} clients")
    simulated = run.result(trial.method, trial.seed, trial.rates)
    provision(out / "project", "localhost", _free_port(), names)
    rows = [_row("simulation in one process", simulated["log"])]
    for what in ("complete", "dropped"):
        say(f"deployment, {what}")
        deployed = _deployed(trial, run, out, what, names[-1] if what == "dropped" else "")
        title = "deployed" if what == "complete" else f"deployed, one client killed after round {trial.drop_after}"
        log = deployed.result["log"]
        if what == "dropped" and not log[-1].get("absent"):
            raise UsageError(
                f"all {len(log)} rounds were over before the client that was killed after round {trial.drop_after} was"
                " gone; give more --rounds or --steps"
            )
        row = _row(title, log) | {"start_s": deployed.start_s, "loopback_bytes": deployed.loopback // (len(log) - 1)}
        if what == "complete":
            row["as_simulated"] = _same(run, trial, place_of(out / what))
        rows.append(row)
    return {
        "schema_version": SCHEMA,
        "federate_trial": {
            "method": title_of(trial.method),
            "clients": len(names),
            "photos": sum(len(client.train) for client in run.clients.members),
            "rounds": recipe.rounds,
            "steps": recipe.steps,
            "drop_after": trial.drop_after,
            "backbone": trial.config.backbone,
            "arguments": trial.config.arguments,
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "load": os.getloadavg()[0],
            "torch": torch.__version__,
        },
        "rows": rows,
        "command": command,
    }


def _row(title: str, log: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compute times and message sizes of a training's rounds.

    The round in which a client first did not answer has a separate time.
    """
    first_missed = next((record for record in log if record.get("absent")), None)
    whole = [record["seconds"] for record in log if not record.get("absent")]
    later = [record["seconds"] for record in log if record.get("absent")][1:]
    return {
        "title": title,
        "round_s": statistics.median(whole),
        "fastest_s": min(whole),
        "slowest_s": max(whole),
        "missed_s": first_missed["seconds"] if first_missed else None,
        "without_s": statistics.median(later) if later else None,
        "bytes_down": max(record["bytes_down"] for record in log),
        "bytes_up": max(record["bytes_up"] for record in log),
        "clients": [record["clients"] for record in log],
    }


def _deployed(trial: Trial, run: FederatedRun, out: Path, what: str, victim: str) -> _Deployed:
    """Run a deployed training; kill the client ``victim`` if it is not ""."""
    project, found = out / "project", _Deployed()
    config = replace(trial.config, source="", classes=run.classes)
    asked = Deployment(trial.method, trial.seed, trial.rates, (), DEADLINE_S)

    def work() -> None:
        try:
            found.result = serve(project / "server", out / what, config, asked, PATIENCE_S)
        except BaseException as error:
            found.error = error

    with _clients(project, run.folder, out / what) as processes:
        began, server = time.monotonic(), threading.Thread(target=work, daemon=True)
        server.start()
        first, counted = 0.0, 0
        while server.is_alive():
            log = _rounds(out / what)
            if log and not first:
                first, counted = time.monotonic(), _loopback()
                found.start_s = first - began - log[0]["seconds"]
            if victim and len(log) >= trial.drop_after:
                _kill(processes[victim])
                victim = ""
            if len(log) == trial.config.recipe.rounds and not found.loopback:
                found.loopback = _loopback() - counted
            server.join(LOOK_S)
    if found.error is not None:
        raise found.error
    return found


def _rounds(folder: Path) -> list[dict[str, Any]]:
    return read_log(place_of(folder)) if (folder / "deployment.json").exists() else []


@contextlib.contextmanager
def _clients(project: Path, photos: Path, logs: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Start a process for each client of a project; kill them at the end.

    The clients use the photos of a run.
    """
    logs.mkdir(parents=True, exist_ok=True)
    made = {}
    try:
        for kit in sorted((project / "clients").iterdir()):
            command = [sys.executable, "-m", "refocus", "federate", "client", str(kit), "--photos", str(photos)]
            with (logs / f"{kit.name}.log").open("ab") as log:
                made[kit.name] = subprocess.Popen(  # noqa: S603  our own interpreter
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        yield made
    finally:
        for process in made.values():
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        family = [*root.children(recursive=True), root]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, 10)
    process.wait(10)


def _same(run: FederatedRun, trial: Trial, deployed: Path) -> bool:
    """Compare the server's last tensors with the simulation's, bit for bit."""
    last = f"server/{trial.config.recipe.rounds:06d}.safetensors"
    one, other = (load_file(p / last) for p in (run.place(trial.method, trial.seed, trial.rates), deployed))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _loopback() -> int:
    """Return the bytes that the loopback interface has received.

    It is 0 on systems without ``/proc/net/dev``.
    """
    table = Path("/proc/net/dev")
    lines = table.read_text(encoding="ascii").splitlines() if table.exists() else []
    return next((int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), 0)
