"""The server's side on its own machine: starts NVFlare's server, runs sessions until all rounds are done."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.deployment.kits import project_of
from refocus.cloud_train.federated.deployment.processes import Operator, ServerFailed, running_server, write_job
from refocus.cloud_train.federated.deployment.session import Deployment, place_of, save_deployment
from refocus.cloud_train.federated.deployment.watch import Watch
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun
from refocus.cloud_train.progress import say
from refocus.cloud_train.runs.folder import same_inputs, starting
from refocus.edge.files import file_sha256

POLL_S = 1.0
IN_VAIN = 5  # sessions that end without a round before the server gives up
OVER = "FINISHED"
END_S = 4.0  # that a job may take to end by itself when its session is over


def serve(kit: Path, folder: Path, config: FederatedConfig, asked: Deployment, patience: float) -> dict[str, Any]:
    """Trains a method with the clients of a project, from the last round that is done to the last one of all.

    Args:
        kit: the folder ``server/`` of a project.
        folder: of the run.
        asked: the clients are those of the project.
        patience: seconds for which it waits for clients that are not there, before a session begins without them.

    Returns:
        The result, as of :func:`refocus.cloud_train.federated.evaluate.evaluate`.

    Raises:
        UsageError: no kit, or the folder holds another training. A training that cannot begin leaves no folder.
        ServerFailed: NVFlare's server or its sessions fail again and again.
    """
    if config.recipe.keep == "best":
        raise UsageError("recipe.keep = best: clients keep their own tensors of the last round alone; set it to last")
    asked = replace(asked, clients=project_of(kit).clients)
    with starting(folder):
        run = FederatedRun(folder, config)
        asked = save_deployment(folder, asked)
        if config.checkpoint:
            given = {"checkpoint": file_sha256(Path(config.checkpoint))}
            same_inputs(folder, given, made=[place_of(folder)])  # everybody would begin again from another training
        # Pretrains the body, if there is none, before anybody waits for it.
        run.participant(asked.method, asked.seed, asked.rates)
    place = place_of(folder)
    if not (place / "result.json").exists():
        with running_server(kit / "kit") as server:
            operator = Operator(kit / "operator", server)
            try:
                _sessions(operator, folder, place, asked, patience, run.config.recipe.rounds)
            finally:
                operator.close()
    return json.loads((place / "result.json").read_text())


def _sessions(operator: Operator, folder: Path, place: Path, asked: Deployment, patience: float, rounds: int) -> None:
    clients, vain, before = asked.clients, 0, -1
    with Watch(place, rounds) as watch:
        while not (place / "result.json").exists():
            here = _gathered(operator, asked, patience)
            say(f"a session with {len(here)} of {len(clients)} clients: {', '.join(here)}")
            (place / "session.json").unlink(missing_ok=True)
            with tempfile.TemporaryDirectory() as scratch:
                job = operator.submit(write_job(Path(scratch) / "job", folder, here))
                status = _followed(operator, job, place, clients, watch)
            done = watch.look()
            session = _session(place)
            if session.get("failed") and not (place / "result.json").exists():
                what = f"round {done + 1}" if done < rounds else "the result"
                raise ServerFailed(
                    f"{what} cannot be kept: {session['failed']}; make room, or mend what is wrong, and start"
                    f" the server again with the same flags: it goes on after round {done} of {rounds}"
                )
            why = session.get("stalled") or f"NVFlare says {status}"
            vain, before = (0 if done > before else vain + 1), done
            if not (place / "result.json").exists():
                say(f"the session ended after round {done} of {rounds} ({why})")
            if vain >= IN_VAIN:
                raise ServerFailed(
                    f"{vain} sessions ended without a round, the last one so: {why}; see what clients"
                    " say, and log.txt in the server's kit"
                )


def _gathered(operator: Operator, asked: Deployment, patience: float) -> list[str]:
    """Waits until everybody is connected, or patience ends with some."""
    clients, until, told = asked.clients, time.monotonic() + patience, ""
    while True:
        here = sorted(set(operator.connected()) & set(clients))
        if len(here) == len(clients) or (time.monotonic() > until and len(here) >= asked.fewest):
            return here
        news = f"waiting for {', '.join(sorted(set(clients) - set(here)))}"
        if news != told:
            say(news)
            told = news
        time.sleep(POLL_S)


def _followed(operator: Operator, job: str, place: Path, clients: Sequence[str], watch: Watch) -> str:
    """Shows a session to its end, and ends it between two rounds when somebody could join it."""
    until, told = float("inf"), dict[str, str]()
    while not (status := operator.status(job)).startswith(OVER):
        watch.look()
        session = _session(place)
        absent = {**dict.fromkeys(session.get("lost", {}), "it does not answer"), **session.get("late", {})}
        for name, why in absent.items():
            if told.get(name) != why:
                say(f"{name} takes no part: {why}")
        told = absent
        if session.get("over"):
            until = min(until, time.monotonic() + END_S)
            if time.monotonic() > until:  # calls to those who are lost would keep the job to their deadline
                operator.abort(job)
                until = float("inf")
        elif session.get("present"):
            heard = {name: at for name, at in operator.connected().items() if name in clients}
            if _newcomers(heard, session):
                (place / "regroup").touch()
        time.sleep(POLL_S)
    return status


def _newcomers(connected: dict[str, float], session: dict[str, Any]) -> list[str]:
    """Who is connected and not in the session: came later, or lost the session's process and was heard of since."""
    lost = session["lost"]
    return [
        name
        for name, heard in connected.items()
        if name not in session["present"] or (name in lost and heard > lost[name])
    ]


def _session(place: Path) -> dict[str, Any]:
    try:
        return json.loads((place / "session.json").read_text())
    except FileNotFoundError:  # not yet, or it is written anew
        return {}
