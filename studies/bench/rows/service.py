"""Measure latency and memory of ``refocus serve`` under load.

Many clients send requests at once, and a full queue refuses some. The server is a separate process on the loopback,
started here, and so are the load generators (:mod:`studies.bench.rows.service_client`). A round sends all requests at
once, for different tasks; the time of a request runs from before it connects to its last byte. A last row fills a short
queue.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.edge.errors import RefocusError
from refocus.edge.taper import Bank
from studies.bench.rows.condensing import about, deliver

SCHEMA = 2  # 1: Refocus 0.1; without the fields that the page does not need
ROUNDS, CLASSES = 5, 20
GENERATORS = 4  # processes among which the clients are shared out
QUEUE, BESIDE = 4, 12  # room of the short queue, and further requests
ALONE = 10  # requests of one client before the others come
_START_S = 120.0
_SERVE = "import sys; from refocus.edge.commands.app import main; sys.argv = ['refocus', *sys.argv[1:]]; main()"
_CLIENT = "studies.bench.rows.service_client"


@dataclass(frozen=True)
class Service:
    """A running server.

    Attributes:
        target: what is asked for, as "onnxruntime:fp32".
        labels: C classes of the bank.
    """

    port: int
    token: str
    target: str
    labels: Sequence[str]
    process: subprocess.Popen[bytes]

    def bodies(self, clients: int) -> list[str]:
        """Build one request per client, for different tasks."""
        ways = min(CLASSES, len(self.labels))
        tasks = [
            [self.labels[(start + offset) % len(self.labels)] for offset in range(ways)] for start in range(clients)
        ]
        return [json.dumps({"classes": task, "targets": [self.target]}) for task in tasks]

    def memory_bytes(self, which: str) -> int:
        """Return the resident memory of the process (Linux).

        "VmRSS" is the current size, "VmHWM" the maximum so far.
        """
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(f"{which}:")).split()[1])

    def forget_peak(self) -> None:
        """Reset the maximum of the resident memory (Linux)."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="utf-8")


@dataclass(frozen=True)
class Clients:
    """Load generators that are up, each with its share of the clients."""

    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def add(self, plan: Mapping[str, Any]) -> subprocess.Popen[str]:
        """Start one more load generator."""
        command = [sys.executable, "-m", _CLIENT]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        _tell(process, json.dumps(plan))
        self.processes.append(process)
        return process

    def round(self) -> list[dict[str, Any]]:
        """Send all requests at once, and wait for every answer."""
        for process in self.processes:
            _tell(process, "")
        return [answer for process in self.processes for answer in _answers(process)]


def _tell(process: subprocess.Popen[str], line: str) -> None:
    if process.stdin is not None:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def _answers(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    if process.stdout is not None and (line := process.stdout.readline()):
        return list(json.loads(line))
    raise RefocusError(f"a load generator ended with {process.wait()}; what it printed says why")


@contextmanager
def asking(service: Service, clients: int) -> Iterator[Clients]:
    """Start load generators for a number of clients.

    There are at most :data:`GENERATORS` processes.
    """
    bodies = service.bodies(clients)
    with ExitStack() as stack:
        found = Clients()
        for number in range(min(GENERATORS, clients)):
            plan = {"port": service.port, "token": service.token, "bodies": bodies[number::GENERATORS]}
            process = found.add(plan)
            stack.callback(process.wait)
            stack.callback(process.communicate)  # closes its input, upon which it ends
        yield found


@contextmanager
def serving(bank: Path, target: str, waiting: int = 0) -> Iterator[Service]:
    """Start ``refocus serve`` with its defaults and stop it at the end.

    Only the limits per token and per address are raised, so one token may send all requests.

    Args:
        bank: folder of the bank.
        target: target of the requests.
        waiting: maximum number of requests in progress or queued; 0: the default.

    Raises:
        RefocusError: the server does not start.
    """
    with tempfile.TemporaryDirectory(dir=bank.parent, prefix=".service-") as folder:
        token, tokens = secrets.token_hex(16), Path(folder) / "tokens"
        tokens.write_text(f"{token}\n", encoding="utf-8")
        tokens.chmod(0o600)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = {"key": Path(folder) / "key.pem", "tokens": tokens, "port": port, "scratch": folder}
        options |= {"per-minute": 1_000_000, "per-token": 1000, "per-address": 1024}
        options |= {"waiting": waiting} if waiting else {}
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-c", _SERVE, "serve", bank, *flags]
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL)  # noqa: S603  # our own command
        try:
            _await(port, process)
            yield Service(port, token, target, Bank.open(bank).labels, process)
        finally:
            process.terminate()
            process.wait()


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RefocusError("refocus serve did not come up; start it by hand to see why")


def measure(bank: Path, clients: int, rounds: int = ROUNDS, target: str = "onnxruntime:fp32") -> dict[str, Any]:
    """Measure latency percentiles, failures and the server's memory.

    Percentiles are in seconds over all requests of all rounds. ``peak_extra_bytes`` is the growth of the server beyond
    its size after answering one client.
    """
    with serving(bank, target) as service:
        with asking(service, 1) as one:
            alone = [one.round()[0]["seconds"] for _ in range(ALONE)]
        service.forget_peak()
        before = service.memory_bytes("VmRSS")
        with asking(service, clients) as many:
            answers = [answer for _ in range(rounds) for answer in many.round()]
        grown = service.memory_bytes("VmHWM") - before
    seconds = sorted(answer["seconds"] for answer in answers)
    return {
        "clients": clients,
        "rounds": rounds,
        "classes": min(CLASSES, len(service.labels)),
        "target": target,
        "failed": sum(answer["status"] != 200 for answer in answers),
        "answer_bytes": max(answer["bytes"] for answer in answers),
        "alone_s": statistics.median(alone),
        "p50_s": statistics.median(seconds),
        "p99_s": statistics.quantiles(seconds, n=100, method="inclusive")[98] if len(seconds) > 1 else seconds[0],
        "slowest_s": seconds[-1],
        "peak_bytes": before + grown,
        "peak_extra_bytes": grown,
    }


def fill(bank: Path, rounds: int = ROUNDS, target: str = "onnxruntime:fp32") -> dict[str, Any]:
    """Fill a short queue; count refusals and time the slowest, in seconds."""
    with serving(bank, target, QUEUE) as service, asking(service, QUEUE + BESIDE) as many:
        answers = [answer for _ in range(rounds) for answer in many.round()]
    refused = [answer for answer in answers if answer["status"] == 503]
    return {
        "queue": QUEUE,
        "clients": QUEUE + BESIDE,
        "rounds": rounds,
        "answered": sum(answer["status"] == 200 for answer in answers),
        "refused": len(refused),
        "without_retry_after": sum(answer["retry_after"] is None for answer in refused),
        "other": sum(answer["status"] not in (200, 503) for answer in answers),
        "slowest_refusal_s": max((answer["seconds"] for answer in refused), default=None),
    }


def main(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    clients: Annotated[str, typer.Option(help="concurrent requests, comma-separated; one row each")] = "1,10,100",
    rounds: Annotated[int, typer.Option(min=1, help="rounds in which every client sends one request")] = ROUNDS,
    out: Annotated[Path | None, typer.Option(help="output file for the document; default: standard output")] = None,
) -> None:
    """Measure what a service answers when many ask at once."""
    document = {
        "schema_version": SCHEMA,
        "service": {**about(Bank.open(bank)), "generators": GENERATORS, "load_average": round(os.getloadavg()[0], 2)},
        "rows": [measure(bank, int(count), rounds) for count in clients.split(",")],
        "full_queue": fill(bank, rounds),
        "command": f"python -m studies.bench.rows.service BANK --clients {clients} --rounds {rounds}",
    }
    deliver(document, out)


if __name__ == "__main__":
    typer.run(main)
