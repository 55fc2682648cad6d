"""Federated methods on a real NVFlare server and client processes, on loopback, with provisioned mutual TLS.

Every process is started and ended here; a machine that fails is a process that is killed with all its children.
"""

from __future__ import annotations

import contextlib
import csv
import json
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from refocus.cloud_train.data import glyphs
from refocus.cloud_train.documents import write_results
from refocus.cloud_train.federated.checkpoint import read_log
from refocus.cloud_train.federated.client import Recipe
from refocus.cloud_train.federated.methods import PeftSizes
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun, Rates
from studies.report.results_page import results_pages

pytest.importorskip("nvflare", reason="needs NVFlare: pip install 'refocus-edge[flare]'")
psutil = pytest.importorskip("psutil")  # comes with it

pytestmark = pytest.mark.slow
REFOCUS = Path(sys.executable).parent / "refocus"
NAMES = ("client-0000", "client-0001", "client-0002")
NETWORK = dict(img_size=16, patch_size=8, embed_dim=16, depth=2, num_heads=2)
CLASSES = 6
PATIENCE_S = 300  # of this test, on a busy machine; nothing here takes that long


class Machine:
    """A command on a machine of its own: what it says, and how to cut its power."""

    def __init__(self, log: Path, *command: object) -> None:
        self.log, self._command, self._seen = log, [str(REFOCUS), *map(str, command)], 0
        self.start()

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
                                            if "--json" in self._command else log, stderr=log,
                                            start_new_session=True)  # fmt: skip

    def read_on(self) -> None:
        """Forgets what it said until now."""
        self._seen = len(self.log.read_text().splitlines())

    def kill(self) -> None:
        """Ends it and all that it started, at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            family = [root, *root.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(family, 10)
        self.process.wait(10)
        if self.process.stdout:
            self.process.stdout.close()

    def says(self, words: str) -> str:
        """Waits for a line with these words, after the last one that was waited for; returns it."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            lines = self.log.read_text().splitlines()
            for place, line in enumerate(lines[self._seen :], self._seen + 1):
                if words in line:
                    self._seen = place
                    return line
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        raise AssertionError(f"{words!r} is not in {self.log.read_text()}")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The same training in one process: whom the deployed one must equal."""
    folder = tmp_path_factory.mktemp("simulated")
    rng, count = np.random.default_rng(0), 120
    label = rng.integers(0, CLASSES, count)
    photos = (40 * label[:, None, None, None] + rng.integers(0, 9, (count, 16, 16, 3))).astype(np.uint8)
    np.savez(folder / "all.npz", x=photos, y=label, client=np.arange(count) % 3)
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=len(glyphs.CLASSES), **NETWORK)
    save_file(network.state_dict(), folder / "vit.safetensors")
    recipe = replace(Recipe(), rounds=3, sizes=PeftSizes(prompts=3))
    return FederatedRun(folder / "run", FederatedConfig(
        source=str(folder / "all.npz"), unseen=0.0, clients=3, backbone="vit_tiny_patch16_224", arguments=NETWORK,
        checkpoint=str(folder / "vit.safetensors"), recipe=recipe,
    ))  # fmt: skip


@pytest.fixture(scope="module")
def project(simulated, refocus, tmp_path_factory, free_port):
    """Kits of a server and three clients, the first two provisioned before the third."""
    folder, port = tmp_path_factory.mktemp("project"), free_port()
    for names in (",".join(NAMES[:2]), NAMES[2]):
        done = refocus("federate", "provision", "--out", folder, "--server", "localhost", "--port", port,
                       "--clients", names)  # fmt: skip
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def clients(simulated, project, tmp_path_factory):
    """Three client processes; the last one has nothing but a folder with its own photos."""
    own = write_photos(simulated.clients.members[2], tmp_path_factory.mktemp("own"))
    made = {}
    try:
        for name, photos in zip(NAMES, (simulated.folder, simulated.folder, own), strict=True):
            kit = project / "clients" / name
            made[name] = Machine(project / f"{name}.log", "federate", "client", kit, "--photos", photos)
        yield made
    finally:
        for machine in made.values():
            machine.kill()


def write_photos(client, folder: Path) -> Path:
    with (folder / "metadata.csv").open("w") as file:
        rows = csv.writer(file)
        rows.writerow(("file_name", "label", "split"))
        for role in ("train", "validation", "test"):
            photos = getattr(client, role)
            for number, (pixels, label) in enumerate(zip(photos.pixels, photos.label.tolist(), strict=True)):
                name = f"{role}-{number:03d}.png"
                Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / name)
                rows.writerow((name, label, role))
    return folder


def server(simulated, project, out: str, method: str, *more: object) -> Machine:
    arguments = ",".join(f"{name}={value}" for name, value in NETWORK.items())
    return Machine(project / f"{out}.log", "federate", "server", project / "server", "--out", project / out,
                   "--method", method, "--classes", ",".join(map(str, range(CLASSES))),
                   "--backbone", "vit_tiny_patch16_224", "--backbone-arguments", arguments,
                   "--checkpoint", simulated.config.checkpoint, "--prompts", "3", "--json", *more)  # fmt: skip


def finished(machine: Machine) -> dict:
    out, _ = machine.process.communicate(timeout=PATIENCE_S)
    assert machine.process.returncode == 0, machine.log.read_text()
    return json.loads(out)


# Neither travels: a round's wall-clock time, and what the simulation alone knows of how clients trained.
SAID_HERE = {"seconds", "steps", "loss", "accuracy"}


def timeless(log: list[dict]) -> list[dict]:
    return [{name: value for name, value in record.items() if name not in SAID_HERE} for record in log]


def test_three_clients_on_their_own_end_where_the_simulation_does(simulated, project, clients):
    expected = simulated.result("pfedpg", 0, Rates(0.25, 0.01))
    running = server(simulated, project, "equal", "pfedpg", "--rounds", "3")
    try:
        running.says("a session with 3 of 3 clients")
        refuses_strangers(project)
        found = finished(running)
    finally:
        running.kill()
    assert found["members"] == expected["members"]
    assert found["flops_per_photo"] == expected["flops_per_photo"]
    assert timeless(found["log"]) == timeless(expected["log"])
    assert not any({"steps", "loss", "accuracy"} & {*record} for record in found["log"]), (
        "how a client trained was sent"
    )
    here, there = (folder / "seed-0" / "pfedpg-0.25-0.01" for folder in (project / "equal", simulated.folder))
    assert_equal(here / "server" / "000003.safetensors", there / "server" / "000003.safetensors")
    for name in NAMES:
        (kept,) = (project / "clients" / name / "state").glob("*/rounds/000003.safetensors")
        assert_equal(kept, there / "clients" / name / "000003.safetensors")
    assert not (here / "clients").exists(), "what a client keeps was sent"
    # 3 prompts of 16 numbers, and the header of a file of one tensor: what pFedPG's column says, from what was sent.
    assert {record["numbers"] for record in found["log"]} == {3 * 16}
    assert all(0 < record["bytes_up"] - 4 * 3 * 16 < 100 for record in found["log"])


def assert_equal(one: Path, other: Path) -> None:
    found, expected = load_file(one), load_file(other)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def refuses_strangers(project: Path) -> None:
    """The server's port speaks to nobody whose certificate is not of its authority."""
    kit = project / "clients" / NAMES[0] / "startup"
    port = int(json.loads((kit / "fed_client.json").read_text())["servers"][0]["service"]["target"].split(":")[1])

    def greet(with_certificate: bool) -> bytes:
        context = ssl.create_default_context(cafile=str(kit / "rootCA.pem"))
        context.set_alpn_protocols(["h2"])
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        if with_certificate:
            context.load_cert_chain(kit / "client.crt", kit / "client.key")
        with (
            socket.create_connection(("127.0.0.1", port), 10) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as wrapped,
        ):
            wrapped.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            return wrapped.recv(64)

    assert greet(with_certificate=True), "the server answers one of its own"
    with contextlib.suppress(ssl.SSLError, ConnectionError):  # it hangs up, with a word or without
        assert not greet(with_certificate=False), "the server answers a stranger"


@pytest.mark.full
def test_a_training_outlives_killed_clients_and_a_killed_server(simulated, project, clients, refocus, tmp_path):
    """A client dies in the middle of a round and returns; then the server does; meanwhile somebody with a kit of
    another authority, and a client's name, knocks at the door."""
    port = json.loads((project / "server" / "project.json").read_text())["port"]
    done = refocus("federate", "provision", "--out", tmp_path / "other", "--server", "localhost", "--port", port,
                   "--clients", "mallory")  # fmt: skip
    assert done.returncode == 0, done.stderr
    mallory = tmp_path / "other" / "clients" / "mallory"
    for client in clients.values():
        client.read_on()
    running = server(simulated, project, "broken", "fedrep", "--rounds", "1000", "--epochs", "60")
    intruder = Machine(tmp_path / "mallory.log", "federate", "client", mallory, "--photos", simulated.folder)
    victim, place = clients[NAMES[1]], project / "broken" / "seed-0" / "fedrep-0.05"
    try:
        running.says("a session with 3 of 3 clients")
        victim.says("round 2, ")
        victim.kill()
        running.says(f"absent {NAMES[1]}")
        running.says(f"{NAMES[1]} takes no part: ")
        victim.start()
        running.says("a session with 3 of 3 clients")
        victim.says("trained on")
        victim.says("bytes came")
        running.kill()
        before = read_log(place)
        assert all(client.process.poll() is None for client in clients.values()), "clients wait for their server"
        running.start()
        running.says("a session with 3 of 3 clients")
        running.says(f"round {len(before) + 1}  clients 3  absent -")
        assert "Successfully registered" not in (mallory / "log.txt").read_text()
    finally:
        running.kill()
        intruder.kill()
    log = read_log(place)
    assert [record["round"] for record in log] == list(range(1, len(log) + 1))
    assert all(0 < record["bytes_up"] - 4 * record["numbers"] < 100 * 30 for record in log), (
        "a network but its classifier"
    )
    assert log[: len(before)] == before, "rounds that were done were not done again"
    assert log[0]["clients"] == before[-1]["clients"] == log[-1]["clients"] == 3
    assert {tuple(record.get("absent", ())) for record in log} == {(), (NAMES[1],)}


@pytest.mark.full
def test_a_trial_measures_a_deployment_that_ends_as_the_simulation_and_one_that_loses_a_client(studies, tmp_path):
    asked = ("federate-trial", tmp_path / "trial", "--clients", 3, "--photos", 30, "--rounds", 12, "--steps", 2,
             "--drop-after", 2)  # fmt: skip
    done = studies(*asked, "--json")
    assert done.returncode == 0, done.stderr
    simulation, complete, dropped = json.loads(done.stdout)["rows"]
    assert complete["as_simulated"] is True
    assert simulation["clients"] == complete["clients"] == [3] * 12
    assert dropped["clients"][-1] == 2
    assert dropped["missed_s"] > 0
    assert complete["bytes_up"] == simulation["bytes_up"]
    assert complete["loopback_bytes"] > 3 * (complete["bytes_up"] + complete["bytes_down"])
    write_results(json.loads(done.stdout), tmp_path / "results" / "trial.json")
    assert "## trial: a server and 3 client processes beside the simulation" in results_pages(tmp_path / "results").text
    again = studies(*asked)
    assert again.returncode == 1
    assert "is not empty; a trial is timed from its beginning, so give a new folder" in again.stderr
