"""What stands before the service: no token, no answer; not too often, not too much at once; and everything counted."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cloud_train.errors import UsageError

LEAST_TOKEN = 20  # characters
OPEN = {"/healthz"}  # the one path without a token; it says nothing but that the process lives
_KEPT = 4096  # newest times that percentiles are of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Bounds:
    """What one client, and all together, may ask for.

    Attributes:
        per_minute: requests per token, on average; as many at once.
        body_bytes: of one request.
        waiting: requests that may be in work or wait at once.
    """

    per_minute: int = 600
    body_bytes: int = 64 << 10
    waiting: int = 256


@dataclass
class Metrics:
    """Counts since the start, and the newest times in seconds."""

    answers: Counter[int] = field(default_factory=Counter)
    waiting: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def text(self) -> str:
        """In Prometheus' text format."""
        lines = ["# TYPE refocus_answers_total counter"]
        lines += [f'refocus_answers_total{{status="{status}"}} {n}' for status, n in sorted(self.answers.items())]
        lines += ["# TYPE refocus_waiting gauge", f"refocus_waiting {self.waiting}", "# TYPE refocus_seconds summary"]
        if self.seconds:
            found = np.percentile(list(self.seconds), [50, 99])
            lines += [f'refocus_seconds{{quantile="{q}"}} {v:.6f}' for q, v in zip((0.5, 0.99), found, strict=True)]
        return "\n".join(lines) + "\n"


class Guard:
    """An ASGI application around another one.

    Args:
        tokens: those who hold one of these are answered.
    """

    def __init__(self, inner: Application, tokens: Iterable[str], bounds: Bounds, metrics: Metrics) -> None:
        self._inner, self._bounds, self._metrics = inner, bounds, metrics
        self._tokens = [hashlib.sha256(token.encode()).digest() for token in tokens]
        self._left: dict[bytes, tuple[float, float]] = {}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers a request itself, or lets it through."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            status, why = refusal
            self._metrics.answers[status] += 1
            await _say(send, status, why)
            return
        self._metrics.waiting += 1
        started = time.perf_counter()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.answers[message["status"]] += 1
            await send(message)

        try:
            await self._inner(scope, receive, counting)
        finally:
            self._metrics.waiting -= 1
            self._metrics.seconds.append(time.perf_counter() - started)

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        if scope["path"] in OPEN:
            return None
        client = self._client(headers.get(b"authorization", b""))
        if client is None:
            return 401, "give a token: Authorization: Bearer TOKEN"
        if self._metrics.waiting >= self._bounds.waiting:
            return 503, f"{self._bounds.waiting} requests are waiting already; try again in a second"
        if not self._may(client):
            return 429, f"more than {self._bounds.per_minute} requests a minute; try again later"
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit():
            return 411, "say how long the body is: Content-Length"
        if int(length) > self._bounds.body_bytes:
            return 413, f"a body of {int(length)} bytes, at most {self._bounds.body_bytes} are read"
        return None

    def _client(self, header: bytes) -> bytes | None:
        kind, _, token = header.partition(b" ")
        found = hashlib.sha256(token).digest()
        # All are compared, each in constant time: the time tells nothing.
        known = [hmac.compare_digest(found, other) for other in self._tokens]
        return found if kind.lower() == b"bearer" and any(known) else None

    def _may(self, client: bytes) -> bool:
        """A token bucket per client."""
        most, now = float(self._bounds.per_minute), time.monotonic()
        left, when = self._left.get(client, (most, now))
        left = min(most, left + (now - when) * most / 60)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        return left >= 1


def read_tokens(path: Path) -> list[str]:
    """One token per line.

    Raises:
        UsageError: none, or one that could be guessed.
    """
    tokens = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not tokens or min(map(len, tokens)) < LEAST_TOKEN:
        wanted = f"one token per line, each of {LEAST_TOKEN} characters or more"
        raise UsageError(f"--tokens {path}: expected {wanted}; make one with: openssl rand -hex 32")
    return tokens


async def _say(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"retry-after", b"1")] if status in (429, 503) else []
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
