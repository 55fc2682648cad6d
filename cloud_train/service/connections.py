"""Connections of the service: how many are open, and how long a client may take to send a request or read an answer.

uvicorn limits neither the time for headers and bodies nor the time in which a client reads, so its HTTP/1.1 protocol
is extended here.
"""

from __future__ import annotations

import asyncio
import functools
import json
import resource
import socket
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.service.guard import Guard, Metrics

HEAD_BYTES = 16 << 10  # of a request line with all headers
BURST = 16  # connections that are accepted before the event loop does anything else
BACKLOG = 1024  # connections that the system keeps until they are accepted
_RESERVED = 64  # file descriptors of everything but connections
_LEAST = 8


@dataclass(frozen=True)
class Limits:
    """Limits of connections.

    Attributes:
        connections: open at once.
        per_address: of these, from one address; 0: half of all.
        head_s: seconds from connecting, or from the answer before, until the headers are complete.
        body_s: seconds from the headers until the body is complete.
        write_s: seconds in which a client has to take the next 48 KiB of an answer.
    """

    connections: int = 1024
    per_address: int = 0
    head_s: float = 10.0
    body_s: float = 20.0
    write_s: float = 30.0


def room_for(limits: Limits) -> tuple[int, int]:
    """Connections in all and per address, as many of ``limits`` as the process' file descriptors allow.

    A request needs two descriptors at a time, and a burst of new connections needs some before any is closed. The
    process' soft limit is raised as far as it may be.
    """
    wanted = 2 * limits.connections + _RESERVED + 3 * BURST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    few = soft != resource.RLIM_INFINITY and soft < wanted
    most = max(_LEAST, (soft - _RESERVED - 3 * BURST) // 2) if few else limits.connections
    return most, min(most, limits.per_address or max(1, most // 2))


class Connections:
    """The open connections of a server.

    Where a new connection finds no room, the one that has waited longest for the rest of its request is closed: clients
    that never finish their requests keep nobody out. A connection whose request is in work is never closed for another;
    if there are only such, the new one is answered with 503.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._most, self._per_address = room_for(limits)
        self._open: set[BoundedProtocol] = set()
        self._of: Counter[str] = Counter()
        self._waiting: dict[BoundedProtocol, None] = {}  # the longest waiting first

    def admit(self, connection: BoundedProtocol) -> bool:
        """Makes room for a connection; False if there is none."""
        if self._of[connection.address] >= self._per_address and not self._evict(connection.address):
            return False
        if len(self._open) >= self._most and not self._evict(""):
            return False
        self._open.add(connection)
        self._of[connection.address] += 1
        return True

    def waits(self, connection: BoundedProtocol, waits: bool) -> None:
        """Notes whether a connection waits for a request, from now on."""
        self._waiting.pop(connection, None)
        if waits and connection in self._open:
            self._waiting[connection] = None

    def leave(self, connection: BoundedProtocol) -> None:
        """Forgets a connection."""
        self._waiting.pop(connection, None)
        if connection in self._open:
            self._open.remove(connection)
            self._of[connection.address] -= 1
            self._of += Counter()  # drops zeros

    def _evict(self, address: str) -> bool:
        oldest = next((other for other in self._waiting if not address or other.address == address), None)
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.drop(503, "too many connections are open; try again in a second", "evicted")
        return True


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with a deadline for every phase in which the server waits for the client.

    The deadline of a phase is set when it begins and is not moved by bytes that trickle in.
    """

    def __init__(self, *arguments: Any, connections: Connections, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._connections, self.address = connections, ""
        self._phase, self._heard = "", False
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if self._connections.admit(self):
            self._follow()
        else:
            self._phase = "head"
            self._heard = True
            self.drop(503, "too many connections are open; try again in a second", "refused")

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        for timer in (self._deadline, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._phase, self._heard = "", False
        self._follow()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self._connections.limits.write_s, self.drop, 0, "", "not read")

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def drop(self, status: int, why: str, counted: str) -> None:
        """Closes the connection at once; says why where no answer has begun."""
        self._connections.metrics.dropped[counted] += 1
        began = self._phase == "body" and self.cycle is not None and self.cycle.response_started
        if status and self._heard and self._phase in ("head", "body") and not began:
            self._connections.metrics.answers[status] += 1
            self.transport.write(_answer(status, why))  # what the system does not take at once is not sent
        self.transport.abort()

    def _follow(self) -> None:
        """Sets a deadline where a new phase has begun."""
        phase = self._current_phase()
        if phase == self._phase:
            return
        self._phase, limits = phase, self._connections.limits
        self._connections.waits(self, phase in ("head", "body"))
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        seconds = {"head": limits.head_s, "body": limits.body_s, "closing": limits.write_s}.get(phase)
        if seconds is not None:
            late = f"the rest of the request did not come within {seconds:g} seconds"
            self._deadline = self.loop.call_later(seconds, self.drop, 408, late, f"{phase} late")

    def _current_phase(self) -> str:
        if self.transport.is_closing():
            return "closing"
        return {h11.IDLE: "head", h11.SEND_BODY: "body"}.get(self.conn.their_state, "work")


def _answer(status: int, why: str) -> bytes:
    body = json.dumps({"detail": why}).encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:  # asyncio takes one number for this and for how many it accepts in a row
            listener.listen(BACKLOG)


def make_server(app: Guard, host: str, port: int, limits: Limits) -> tuple[uvicorn.Server, socket.socket]:
    """A server, and the socket on which it will listen: ``server.run(sockets=[socket])``.

    The client's address is that of the connection: headers in which a proxy names another are not read.

    Raises:
        UsageError: nothing can listen there.
    """
    protocol = functools.partial(BoundedProtocol, connections=Connections(limits, app.metrics))
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=30,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=cast(type[asyncio.Protocol], protocol),
        backlog=BURST,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        where = f"{host}, port {port} ({error.strerror or error})"
        raise UsageError(f"nothing can listen on {where}; choose another --port or --host") from None
    listening.set_inheritable(True)
    return _Server(config), listening
