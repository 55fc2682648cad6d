"""NVFlare's own processes: the server's, a client's, and the operator's connection to the server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.federated.deployment.kits import (
    CLIENT_CLASS,
    CONTROLLER_CLASS,
    EXECUTOR_CLASS,
    HEARTBEAT_S,
    NAME,
    OPERATOR,
    SERVER_CLASS,
    settle_storage,
)
from refocus.cloud_train.locks import one_at_a_time
from refocus.edge.errors import RefocusError

START_S = 120  # that a job's processes may take to come up: each imports torch
STOP_S = 15
_MODULES = "nvflare.private.fed.app"


class ServerFailed(RefocusError):
    """NVFlare's server cannot be started or reached: its log says why."""


def become_client(kit: Path, name: str) -> None:
    """Turns this process into NVFlare's client of a kit; it ends when it is stopped.

    Raises:
        UsageError: another process is that client. NVFlare would let both run, and neither train.
    """
    settings = [f"uid={name}", f"heart_beat_interval={HEARTBEAT_S}"]
    command = [sys.executable, "-u", "-m", *_command("client", kit, settings)]
    sys.stdout.flush()
    sys.stderr.flush()
    refusal = f"{kit} is in use by another refocus federate client on this machine; stop that one, or give another kit"
    with one_at_a_time(kit / ".client.lock", refusal) as lock:
        os.set_inheritable(lock, True)  # held for as long as the process that this one becomes
        os.execv(sys.executable, command)  # noqa: S606  no shell, our own interpreter


@contextlib.contextmanager
def running_server(kit: Path) -> Iterator[subprocess.Popen[bytes]]:
    """NVFlare's server, for as long as this lasts and not a moment longer.

    Raises:
        ServerFailed: NVFlare's server ended at once.
    """
    settle_storage(kit)
    module = "refocus.cloud_train.federated.deployment.exit_with_parent"
    command = [sys.executable, "-u", "-m", module, *_command("server", kit, [])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603  our own interpreter
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin:
            process.stdin.close()


def _command(kind: str, kit: Path, more: Sequence[str]) -> list[str]:
    own = "-m", str(kit.resolve()), "-s", f"fed_{kind}.json"
    settings = "secure_train=true", f"org={NAME}", "config_folder=config"
    return [f"{_MODULES}.{kind}.{kind}_train", *own, "--set", *settings, *more]


class Operator:
    """The operator's connection; it is opened again whenever it breaks.

    Args:
        kit: the operator's.
        server: NVFlare's, to know that it still runs.
    """

    def __init__(self, kit: Path, server: subprocess.Popen[bytes]) -> None:
        self._kit, self._server = kit, server
        self._session: Any = None

    def connected(self) -> dict[str, float]:
        """Who is connected, and when each was last heard of."""
        found = self._do(lambda session: session.get_system_info())
        return {client.name: float(client.last_connect_time or 0) for client in found.client_info}

    def submit(self, job: Path) -> str:
        return str(self._do(lambda session: session.submit_job(str(job.resolve()))))

    def status(self, job: str) -> str:
        """NVFlare's word for how a job is."""
        status = self._do(lambda session: session.get_job_meta(job)).get("status", "")
        return str(getattr(status, "value", status))

    def abort(self, job: str) -> None:
        def work(session: Any) -> None:
            with contextlib.suppress(Exception):  # it ended meanwhile
                session.abort_job(job)

        self._do(work)

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.close()
        self._session = None

    def _do(self, work: Any) -> Any:
        """Asks the server.

        Raises:
            ServerFailed: it ended, or does not answer for too long.
        """
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        until, wrong = time.monotonic() + START_S, ""
        while time.monotonic() < until:
            if self._server.poll() is not None:
                raise ServerFailed(
                    f"NVFlare's server ended with status {self._server.returncode}; see log.txt in its kit"
                )
            try:
                with contextlib.redirect_stdout(sys.stderr):  # it says that it connects; our output may be JSON
                    if self._session is None:
                        self._session = new_secure_session(OPERATOR, str(self._kit), timeout=10.0)
                    return work(self._session)
            except Exception as error:  # NVFlare has no common type for what a broken connection raises
                wrong = f"{type(error).__name__}: {error}"
                self.close()
                time.sleep(1.0)
        raise ServerFailed(f"NVFlare's server does not answer ({wrong}); see log.txt in its kit")


def write_job(folder: Path, run: Path, clients: Sequence[str]) -> Path:
    """A job of one session: settings alone, no code.

    Raises:
        UsageError: no clients.
    """
    if not clients:
        raise UsageError("a session needs a client")
    calls = {"server_obj_id": "server", "collab_obj_ids": [], "sync_task_timeout": START_S}
    answers = {"client_obj_id": "client", "collab_obj_ids": []}
    server = {
        "format_version": 2,
        "components": [{"id": "server", "path": SERVER_CLASS, "args": {"folder": str(run.resolve())}}],
        "workflows": [{"id": "controller", "path": CONTROLLER_CLASS, "args": calls}],
    }
    client = {
        "format_version": 2,
        "components": [{"id": "client", "path": CLIENT_CLASS, "args": {}}],
        "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR_CLASS, "args": answers}}],
    }
    meta = {
        "name": NAME,
        "resource_spec": {},
        "min_clients": 1,
        "deploy_map": {"on_server": ["server"], "on_clients": list(clients)},
    }
    for path, content in (
        ("meta.json", meta),
        ("on_server/config/config_fed_server.json", server),
        ("on_clients/config/config_fed_client.json", client),
    ):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(content, indent=2) + "\n")
    return folder
