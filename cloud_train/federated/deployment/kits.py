"""Startup kits: who may take part, and what a server may ask of a client.

    PROJECT/authority/        the certificate authority; keep it away from everybody: it makes new kits
    PROJECT/server/           for the server's machine: certificate, key, settings, and the operator's own kit
    PROJECT/clients/NAME/     for the machine of one client

Certificates are NVFlare's: one authority per project, mutual TLS, and a client is who its certificate says. On top of
NVFlare's defaults a kit lets no job bring code, lets nobody run commands on a client, and lets a job name the classes
of :mod:`refocus.cloud_train.federated.deployment.flare` alone, which are installed where they run.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.runs.folder import read_settings, save_settings

OPERATOR = "operator@refocus.local"
NAME = "refocus"  # of the project and of its one organisation, in certificates
PROJECT = "project.json"
SERVER_CLASS = "refocus.cloud_train.federated.deployment.flare.FlareServer"
CLIENT_CLASS = "refocus.cloud_train.federated.deployment.flare.FlareClient"
CONTROLLER_CLASS = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR_CLASS = "nvflare.collab.runtime.executor.CollabExecutor"
ALLOWED = (SERVER_CLASS, CLIENT_CLASS, CONTROLLER_CLASS, EXECUTOR_CLASS)
DEAD_AFTER_S = 30  # without a heartbeat, of which there is one every HEARTBEAT_S
HEARTBEAT_S = 5
YEARS = 10  # that the authority's certificate is good for
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Project:
    """What ``project.json`` holds.

    Attributes:
        host: name of the server's machine, as clients reach it.
        port: the one port that the server listens on.
        clients: everybody who has a kit, sorted.
    """

    host: str
    port: int
    clients: tuple[str, ...]


def provision(folder: Path, host: str, port: int, clients: Sequence[str]) -> list[Path]:
    """Makes a project, or adds clients to one. Kits that are there stay as they are.

    Returns:
        The kits that were made.

    Raises:
        UsageError: a name that cannot stand in a certificate, twice the same, or another server than the project's.
    """
    for name in clients:
        if not _CLIENT.fullmatch(name) or name in ("server", "admin", host):
            raise UsageError(f"--clients {name}: a name has letters, digits, - and _, and is not the server's or admin")
    if not _HOST.fullmatch(host):
        raise UsageError(f"--server {host}: expected the host name, such as fl.example.org")
    known = project_of(folder) if (folder / PROJECT).exists() else None
    if known and (known.host, known.port) != (host, port):
        raise UsageError(f"--out {folder} is a project of the server {known.host}:{known.port}; choose another folder")
    everybody = sorted({*clients, *(known.clients if known else ())})
    if len(everybody) != len(clients) + len(known.clients if known else ()):
        raise UsageError("--clients: a name appears twice, or has a kit already")
    built = _built(folder / "authority", host, port, everybody)
    operator, server = folder / "server" / "operator", folder / "server" / "kit"
    kits = {folder / "clients" / name: built / name for name in everybody}
    kits |= {operator: built / OPERATOR, server: built / host}
    made = [place for place in kits if not place.exists()]
    for place in made:
        if place != operator:
            _settle(kits[place], for_server=place == server)
        _put(kits[place], place)
    shutil.rmtree(built)
    save_settings(folder / PROJECT, Project(host, port, tuple(everybody)))
    save_settings(folder / "server" / PROJECT, Project(host, port, tuple(everybody)))
    return made


def project_of(folder: Path) -> Project:
    """The project of a folder, or of a server's kit.

    Raises:
        UsageError: it is none.
    """
    if not (folder / PROJECT).exists():
        raise UsageError(
            f"{folder} is not a server's kit; give the folder server/ that refocus federate provision made"
        )
    return read_settings(folder / PROJECT, Project)


def _built(authority: Path, host: str, port: int, clients: Sequence[str]) -> Path:
    """NVFlare's own kits of everybody, with the certificates that they had before."""
    from nvflare.lighter.entity import Project as FlareProject
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = FlareProject(NAME, "", props={"api_version": 4})
    project.set_server(host, NAME, {"fed_learn_port": port, "admin_port": port, "default_host": host})
    for name in clients:
        project.add_client(name, NAME, {})
    project.add_admin(OPERATOR, NAME, {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(root_valid_days=365 * YEARS),
        SignatureBuilder(),
    ]
    authority.mkdir(parents=True, exist_ok=True, mode=0o700)
    done = Provisioner(str(authority.resolve()), builders).provision(project, logger=_Quiet())
    place = done.get("current_prod_dir")
    if not place:
        raise UsageError(f"no kits were made: {'; '.join(_Quiet.errors) or 'see above'}")
    return Path(place)


class _Quiet:
    """A logger that keeps what is wrong."""

    errors: list[str] = []  # noqa: RUF012  of the one provisioning of a process

    def debug(self, *_: Any) -> None: ...

    info = warning = debug

    def error(self, message: str, *_: Any) -> None:
        self.errors.append(str(message))


def _put(kit: Path, place: Path) -> None:
    """Copies a kit to its place, whole or not at all."""
    unfinished = place.with_name(f"{place.name}.unfinished")  # a killed process may have left one
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(kit, unfinished)
    unfinished.chmod(0o700)
    for key in unfinished.rglob("*.key"):
        key.chmod(0o600)
    unfinished.rename(place)


def _settle(kit: Path, for_server: bool) -> None:
    """What this site allows and how it runs: site settings, which NVFlare takes before its own defaults."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources |= {"class_allow_list": list(ALLOWED), "class_list_enforcement_mode": "enforce"}
    if for_server:
        resources["servers"][0] |= {"heart_beat_timeout": DEAD_AFTER_S}
    else:
        resources["allow_log_streaming"] = False  # a client's log stays with the client
        resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
    _write(local / "resources.json", resources)
    policy = json.loads((local / "authorization.json.default").read_text())
    rights = dict.fromkeys(("submit_job", "clone_job", "manage_job", "download_job", "view", "operate"), "any")
    rights |= dict.fromkeys(("byoc", "shell_commands", "server-predeployed-flwr"), "none")
    policy["permissions"] = {"project_admin": rights}
    _write(local / "authorization.json", policy)
    log = json.loads((local / "log_config.json.default").read_text())
    log["handlers"]["consoleHandler"]["level"] = "CRITICAL"  # log.txt has the rest; the terminal is ours
    _write(local / "log_config.json", log)


def settle_storage(kit: Path) -> None:
    """Lets jobs and snapshots of a server lie in its kit, wherever that is now, not where all servers share them."""
    path, place = kit / "local" / "resources.json", kit.resolve() / "storage"
    resources = json.loads(path.read_text())
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(place / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(place / "jobs")
    _write(path, resources)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
