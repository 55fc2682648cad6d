"""Load generator of :mod:`studies.bench.rows.service`.

It runs in a separate process and reads a plan from its first line of input. For each further line it sends all of the
plan's requests at once, and prints their results as a line of JSON. The answers are read in pieces and thrown away. It
needs the standard library alone.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_PIECE = 1 << 16
_PATIENCE_S = 600.0


def ask(port: int, token: str, body: str) -> dict[str, Any]:
    """Send a request and return its status, size and times.

    ``status`` is 0 for a broken connection, ``bytes`` is the size of the answer; the times are seconds to the headers
    and to the last byte.
    """
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    started = time.perf_counter()
    found: dict[str, Any] = {"status": 0, "bytes": 0, "first_s": 0.0, "retry_after": None}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    try:
        connection.request("POST", "/v1/condense", body, headers)
        answer = connection.getresponse()
        found["first_s"] = time.perf_counter() - started
        while piece := answer.read(_PIECE):
            found["bytes"] += len(piece)
        found |= {"status": answer.status, "retry_after": answer.getheader("Retry-After")}
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()
    return {**found, "seconds": time.perf_counter() - started}


def send_all(port: int, token: str, bodies: Sequence[str], pool: ThreadPoolExecutor) -> list[dict[str, Any]]:
    """Send all requests at once.

    Each thread is ready before the first request is sent.
    """
    ready = threading.Barrier(len(bodies))

    def one(body: str) -> dict[str, Any]:
        ready.wait()
        return ask(port, token, body)

    return list(pool.map(one, bodies))


def main() -> None:
    """Read a plan, and send its requests for every further line of input."""
    plan = json.loads(sys.stdin.readline())
    with ThreadPoolExecutor(len(plan["bodies"])) as pool:
        for _ in sys.stdin:
            found = send_all(plan["port"], plan["token"], plan["bodies"], pool)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
