"""What ``refocus serve`` answers when many ask at once: how long each waits, and how much memory it takes.

The server is a process of its own on the loopback, started here; each client is a thread with a connection of its own.
A round sends all requests at once, for different tasks; the time of a request runs from before it connects to its last
byte.
"""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from refocus.benchmarks.rows.condensing import about, deliver
from refocus.edge.errors import RefocusError
from refocus.edge.taper import Bank

SCHEMA = 2  # 1: Refocus 0.1; the same fields
ROUNDS, CLASSES = 5, 20
_START_S = 120.0
_SERVE = "import sys; from refocus.edge.commands.app import main; sys.argv = ['refocus', *sys.argv[1:]]; main()"


@dataclass(frozen=True)
class Service:
    """A running server."""

    port: int
    token: str
    process: subprocess.Popen[bytes]

    def condense(self, classes: Sequence[str], target: str) -> tuple[int, int, float]:
        """One task -> status, bytes of the answer, seconds."""
        content = json.dumps({"classes": list(classes), "targets": [target]})
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        started = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request("POST", "/v1/condense", content, headers)
            answer = connection.getresponse()
            return answer.status, len(answer.read()), time.perf_counter() - started
        finally:
            connection.close()

    def peak_bytes(self) -> int:
        """The most memory that the process has had (Linux)."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


@contextmanager
def serving(bank: Path) -> Iterator[Service]:
    """``refocus serve`` with its defaults, but that nobody asks too often.

    Raises:
        RefocusError: it does not come up.
    """
    with tempfile.TemporaryDirectory(dir=bank.parent, prefix=".service-") as folder:
        token, tokens = secrets.token_hex(16), Path(folder) / "tokens"
        tokens.write_text(f"{token}\n", encoding="utf-8")
        tokens.chmod(0o600)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = {"key": Path(folder) / "key.pem", "tokens": tokens, "port": port, "scratch": folder}
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-c", _SERVE, "serve", bank, *flags, "--per-minute", 1_000_000]
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL)  # noqa: S603  # our own command
        try:
            _await(port, process)
            yield Service(port, token, process)
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
    """Percentiles in seconds over all requests of all rounds, failures, and the server's memory."""
    labels = Bank.open(bank).labels
    ways = min(CLASSES, len(labels))
    tasks = [[labels[(start + offset) % len(labels)] for offset in range(ways)] for start in range(clients)]
    with serving(bank) as service, ThreadPoolExecutor(clients) as pool:
        alone = [service.condense(tasks[0], target)[2] for _ in range(10)]
        before = service.peak_bytes()
        answers = [a for _ in range(rounds) for a in pool.map(lambda task: service.condense(task, target), tasks)]
        grown = service.peak_bytes() - before
    seconds = sorted(took for _, _, took in answers)
    return {
        "clients": clients,
        "rounds": rounds,
        "classes": ways,
        "target": target,
        "failed": sum(status != 200 for status, _, _ in answers),
        "answer_bytes": max(size for _, size, _ in answers),
        "alone_s": statistics.median(alone),
        "p50_s": statistics.median(seconds),
        "p99_s": statistics.quantiles(seconds, n=100)[98],
        "slowest_s": seconds[-1],
        "peak_extra_bytes": grown,
    }


def main(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    clients: Annotated[int, typer.Option(min=2, help="concurrent requests")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="rounds in which every client sends one request")] = ROUNDS,
    out: Annotated[Path | None, typer.Option(help="output file for the document; default: standard output")] = None,
) -> None:
    """Measure what a service answers when many ask at once."""
    document = {
        "schema_version": SCHEMA,
        "service": about(Bank.open(bank)),
        "rows": [measure(bank, clients, rounds)],
        "command": f"python -m refocus.benchmarks.rows.service BANK --clients {clients} --rounds {rounds}",
    }
    deliver(document, out)


if __name__ == "__main__":
    typer.run(main)
