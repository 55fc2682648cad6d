"""Access to the service: tokens, how often and how much at once, whole and strict bodies, and counts of it all."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refocus.cloud_train.service.strict_json import check_json

OPEN = {"/healthz"}  # the one path without a token; it says nothing but that the process lives
_KEPT = 4096  # newest times that percentiles are of
_ADDRESSES = 4096  # addresses whose refused requests are counted; the longest silent are forgotten

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Bounds:
    """What one client, and all together, may ask for.

    Attributes:
        per_minute: requests per token, on average; as many at once.
        body_bytes: of one request.
        waiting: requests that may be in work or wait at once. A request counts once its body is there.
        per_token: requests of one token that may be open at once, also while their bodies are on the way; 0: half of
            ``waiting``.
        strangers: requests without a known token per minute and address.
    """

    per_minute: int = 600
    body_bytes: int = 64 << 10
    waiting: int = 256
    per_token: int = 0
    strangers: int = 120


@dataclass
class Metrics:
    """Counts since the start, and the newest times in seconds.

    Attributes:
        answers: by status.
        dropped: connections that were closed, by reason.
        waiting: requests in work now.
        seconds: from a request's last byte to the end of its answer.
    """

    answers: Counter[int] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    waiting: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def text(self) -> str:
        """In Prometheus' text format."""
        lines = ["# TYPE refocus_answers_total counter"]
        lines += [f'refocus_answers_total{{status="{status}"}} {n}' for status, n in sorted(self.answers.items())]
        lines += ["# TYPE refocus_dropped_connections_total counter"]
        lines += [f'refocus_dropped_connections_total{{why="{w}"}} {n}' for w, n in sorted(self.dropped.items())]
        lines += ["# TYPE refocus_waiting gauge", f"refocus_waiting {self.waiting}", "# TYPE refocus_seconds summary"]
        if self.seconds:
            found = np.percentile(list(self.seconds), [50, 99])
            lines += [f'refocus_seconds{{quantile="{q}"}} {v:.6f}' for q, v in zip((0.5, 0.99), found, strict=True)]
        return "\n".join(lines) + "\n"


class _Refusal(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class _Gone(Exception):
    """The client closed the connection."""


class _Rates:
    """Token buckets: so many a minute on average, as many at once; the longest unused ones are forgotten."""

    def __init__(self, per_minute: int, kept: int) -> None:
        self._most, self._kept = float(per_minute), kept
        self._left: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def may(self, who: bytes) -> bool:
        now = time.monotonic()
        left, when = self._left.pop(who, (self._most, now))
        left = min(self._most, left + (now - when) * self._most / 60)
        self._left[who] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > self._kept:
            self._left.popitem(last=False)
        return left >= 1


class Guard:
    """An ASGI application around another one.

    Args:
        tokens: those who hold one of these are answered.
    """

    def __init__(self, inner: Application, tokens: Iterable[str], bounds: Bounds, metrics: Metrics) -> None:
        self._inner, self._bounds, self.metrics = inner, bounds, metrics
        self._tokens = [hashlib.sha256(token.encode()).digest() for token in tokens]
        self._rates = _Rates(bounds.per_minute, len(self._tokens))
        self._strangers = _Rates(bounds.strangers, _ADDRESSES)
        self._per_token = bounds.per_token or max(1, bounds.waiting // 2)
        self._open: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request itself, or lets it through."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        client = b""
        try:
            client = self._client(scope)
            self._open[client] += bool(client)
            try:
                body = await self._body(scope, receive)
                self._check_waiting(client)
                await self._answer(scope, _replayed(body, receive), send)
            finally:
                self._open[client] -= bool(client)
        except _Refusal as refusal:
            self.metrics.answers[refusal.status] += 1
            await _say(send, refusal.status, refusal.why)
        except _Gone:
            pass

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.waiting += 1
        started = time.perf_counter()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.answers[message["status"]] += 1
            await send(message)

        try:
            await self._inner(scope, receive, counting)
        finally:
            self.metrics.waiting -= 1
            self.metrics.seconds.append(time.perf_counter() - started)

    def _client(self, scope: Scope) -> bytes:
        """The digest of a request's token; b"" for a path that needs none."""
        if scope["path"] in OPEN:
            return b""
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        if len(given) > 1:
            raise _Refusal(400, f"{len(given)} Authorization headers; give one: Authorization: Bearer TOKEN")
        client = self._known(given[0]) if given else None
        if client is None:
            address = str((scope.get("client") or ("",))[0]).encode()
            if not self._strangers.may(address):
                raise _Refusal(429, f"more than {self._bounds.strangers} requests a minute without a known token")
            raise _Refusal(401, "give a token: Authorization: Bearer TOKEN")
        self._check_waiting(client)
        if not self._rates.may(client):
            raise _Refusal(429, f"more than {self._bounds.per_minute} requests a minute; try again later")
        if self._open[client] >= self._per_token:
            raise _Refusal(429, f"{self._per_token} requests of this token are open; wait for an answer")
        return client

    def _check_waiting(self, client: bytes) -> None:
        if client and self.metrics.waiting >= self._bounds.waiting:
            raise _Refusal(503, f"{self._bounds.waiting} requests are waiting already; try again in a second")

    def _known(self, header: bytes) -> bytes | None:
        kind, _, token = header.partition(b" ")
        found = hashlib.sha256(token).digest()
        # All are compared, each in constant time: the time tells nothing.
        known = [hmac.compare_digest(found, other) for other in self._tokens]
        return found if kind.lower() == b"bearer" and any(known) else None

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body; how long it may take is the connection's limit."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit():
            raise _Refusal(411, "say how long the body is: Content-Length")
        if int(length) > self._bounds.body_bytes:
            raise _Refusal(413, f"a body of {int(length)} bytes, at most {self._bounds.body_bytes} are read")
        body = bytearray()
        while len(body) < int(length):
            message = await receive()
            if message["type"] != "http.request":
                raise _Gone
            body += message.get("body", b"")
        try:
            if body:
                check_json(bytes(body))
        except ValueError as error:
            raise _Refusal(400, f"the body is no strict JSON: {error}") from None
        return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """``receive`` for whom the body has been read already."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again


async def _say(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"retry-after", b"1")] if status in (429, 503) else []
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
