"""Attacks on the service over real sockets: nobody is kept out, nothing ends in a traceback."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

TOKEN, OTHER = "a-token-that-nobody-guesses", "another-token-of-somebody-else"
TASK = {"classes": ["red fox", "grey fox"], "targets": ["onnxruntime:fp32"]}
SERVE = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256));"
    "from refocus.edge.commands.app import main; sys.argv = ['refocus', *sys.argv[1:]]; main()"
)
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "


def half_body(token):
    return (f"POST /v1/condense HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{").encode()  # fmt: skip


def ask(port, method, path, body=None, token=TOKEN, timeout=20):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        content = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextlib.contextmanager
def many(port, count, content):
    """Connections that send some bytes, then nothing more."""
    streams = []
    try:
        for _ in range(count):
            streams.append(socket.create_connection(("127.0.0.1", port), timeout=20))
            with contextlib.suppress(ConnectionError):
                streams[-1].sendall(content)
        yield streams
    finally:
        for stream in streams:
            stream.close()


def raw(port, content, timeout=10):
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as stream:
        stream.sendall(content)
        received = b""
        with contextlib.suppress(ConnectionError):
            while block := stream.recv(65536):
                received += block
        return received


def is_closed(stream):
    """Whether the server closed a connection, with a word (503) or, where it had read nothing yet, without."""
    try:
        received = stream.recv(4096)
    except ConnectionError:
        return True
    return not received or received.startswith(b"HTTP/1.1 503")


@pytest.fixture(scope="module")
def enough_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2048 and (hard == resource.RLIM_INFINITY or hard >= 2048):
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def served(bank_bundle, tmp_path_factory, enough_descriptors, free_port):
    """``refocus serve`` with 256 file descriptors: (port, file of its log)."""
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "tokens").write_text(f"{TOKEN}\n{OTHER}\n")
    (folder / "tokens").chmod(0o600)
    port = free_port()
    command = [sys.executable, "-c", SERVE, "serve", bank_bundle.folder, "--key", folder / "key.pem", "--tokens",
               folder / "tokens", "--port", port, "--scratch", folder, "--per-minute", 3000]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=log)
    try:
        for _ in range(600):
            with contextlib.suppress(ConnectionRefusedError):
                ask(port, "GET", "/healthz", token=None)
                break
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield port, folder / "log"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("count", [300, 900])
def test_half_headers_without_a_token_keep_nobody_out(served, count):
    port, log = served
    with many(port, count, HALF_HEAD):
        assert ask(port, "GET", "/healthz", token=None, timeout=5) == (200, b"ok")
        assert ask(port, "POST", "/v1/condense", TASK, timeout=10)[0] == 200
    assert "Traceback" not in log.read_text()


def test_bodies_that_never_come_starve_no_other_token(served):
    port, log = served
    with many(port, 260, half_body(TOKEN)):
        assert ask(port, "POST", "/v1/condense", TASK, OTHER, timeout=10)[0] == 200
        assert ask(port, "GET", "/healthz", token=None, timeout=5) == (200, b"ok")
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"classes": [NaN]}', "NaN is not a number"),
        (b'{"classes": ["lion"], "domain": Infinity}', "Infinity is not a number"),
        (b'{"classes": ["lion"], "domain": -Infinity}', "-Infinity is not a number"),
        (b'{"classes": ["lion"], "domain": 1e999}', "the number 1e999 is too large"),
        (b'{"classes": ["lion"], "classes": ["lynx"]}', "'classes' appears twice"),
        (b'{"classes": ["lion"], "a": {"b": 1, "b": 2}}', "'b' appears twice"),
        (b'{"classes": ["\\ud800"]}', "half of a surrogate pair"),
        (b'{"\\udfff": 1}', "half of a surrogate pair"),
        (b'{"classes": ["\xff"]}', "it is not UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 30_000, "it nests too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"classes": ["lion"]} x', "Extra data"),
        (b"no json", "no strict JSON"),
    ],
)
def test_json_that_readers_take_differently_is_refused_without_a_traceback(body, words, served):
    port, log = served
    status, answer = ask(port, "POST", "/v1/condense", body)
    assert status == 400, answer
    assert words in json.loads(answer)["detail"]
    assert "Traceback" not in log.read_text()


def test_names_of_a_large_object_are_not_each_compared_with_all_others():
    """A request of 64 kB, the last of whose 8000 names comes twice, would hold up everybody else for a second."""
    from refocus.cloud_train.service.strict_json import _unique

    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    names = [Name(number) for number in range(8000)]
    with pytest.raises(ValueError, match="the name '7999' appears twice in one object"):
        _unique([(name, 0) for name in [*names, Name(7999)]])
    assert compared < 10 * len(names)


def test_two_authorization_headers_are_refused(served):
    port, _ = served
    one, other = (f"Authorization: Bearer {token}\r\n" for token in (TOKEN, "wrong"))
    for first, second in ((one, other), (other, one), (one, one)):
        answer = raw(port, f"GET /v1/bank HTTP/1.1\r\nHost: x\r\n{first}{second}Connection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 400"), answer
        assert b"2 Authorization headers" in answer


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622])
@pytest.mark.parametrize("flag", ["--tokens", "--key"])
def test_secrets_that_others_can_read_or_change_are_refused(flag, mode, bank_bundle, refocus, tmp_path):
    """Through the functions that the command calls first: no bank is opened."""
    from refocus.cloud_train.errors import UsageError
    from refocus.cloud_train.service.keys import read_tokens, signing_key

    signing_key(tmp_path / "secret") if flag == "--key" else (tmp_path / "secret").write_text(f"{TOKEN}\n")
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(UsageError, match=f"{flag} .* has mode {mode:04o}, so other users .* chmod 600"):
        (signing_key if flag == "--key" else read_tokens)(tmp_path / "secret")


def test_a_secret_that_is_no_file_is_refused_at_once(tmp_path):
    import os

    from refocus.cloud_train.errors import UsageError
    from refocus.cloud_train.service.keys import read_tokens

    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(UsageError, match="expected a regular file"):
        read_tokens(tmp_path / "fifo")
    with pytest.raises(UsageError, match="cannot be read"):
        read_tokens(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff" * 30)
    (tmp_path / "bytes").chmod(0o600)
    with pytest.raises(UsageError, match="expected text in UTF-8"):
        read_tokens(tmp_path / "bytes")


# ---- deadlines and limits, on a server in this process


@contextlib.contextmanager
def running(answer=b"ok", bounds=None, **limits):
    """The guard and the connections of the service around an application that answers some bytes."""
    from refocus.cloud_train.service.connections import Limits, make_server
    from refocus.cloud_train.service.guard import Bounds, Guard, Metrics

    async def inner(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        assert (await receive())["type"] == "http.request"
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-length", str(len(answer)).encode())]})  # fmt: skip
        for start in range(0, len(answer), 65536):
            await send({"type": "http.response.body", "body": answer[start : start + 65536], "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(inner, [TOKEN, OTHER], bounds or Bounds(), Metrics())
    server, listener = make_server(guard, "127.0.0.1", 0, Limits(**limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()[1], guard.metrics
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def until(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    assert true()


def trickled(port, start, rest):
    """Sends one byte of the rest every 50 ms; what came back until the server closed the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
        stream.sendall(start)
        stream.settimeout(0.05)
        received = b""
        for place in range(len(rest)):
            with contextlib.suppress(TimeoutError):
                try:
                    stream.sendall(rest[place : place + 1])
                    block = stream.recv(65536)
                except ConnectionError:
                    return received
                if not block:
                    return received
                received += block
    raise AssertionError("the server never closed the connection")


def test_headers_that_trickle_are_given_up():
    with running(head_s=0.3) as (port, metrics):
        answer = trickled(port, HALF_HEAD, b"x" * 200)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert b"did not come within 0.3 seconds" in answer
        assert metrics.dropped["head late"] == 1


def test_a_body_that_trickles_is_given_up_and_never_counts_as_waiting():
    with running(body_s=0.3) as (port, metrics):
        answer = trickled(port, half_body(TOKEN), b"x" * 200)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert (metrics.dropped["body late"], metrics.waiting, len(metrics.seconds)) == (1, 0, 0)


def test_a_body_that_trickles_after_its_refusal_is_given_up():
    with running(body_s=0.3) as (port, metrics):
        answer = trickled(port, half_body("no-token-that-is-known"), b"x" * 200)
        assert answer.startswith(b"HTTP/1.1 401"), answer
        assert b"408" not in answer
        assert metrics.dropped["body late"] == 1


def test_a_client_that_does_not_read_its_answer_is_given_up():
    with running(b"x" * (32 << 20), write_s=0.3) as (port, metrics):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as stream:
            stream.sendall(f"GET /v1/bank HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            until(lambda: metrics.dropped["not read"] == 1)
            until(lambda: metrics.waiting == 0)
        assert len(ask(port, "GET", "/v1/bank")[1]) == 32 << 20


def test_connections_are_bounded_and_the_longest_waiting_goes_first():
    with running(connections=8, per_address=8) as (port, metrics), many(port, 8, HALF_HEAD) as streams:
        assert ask(port, "GET", "/healthz", token=None)[0] == 200
        until(lambda: metrics.dropped["evicted"] == 1)
        assert is_closed(streams[0])
        streams[7].sendall(b"\r\n\r\n")
        assert b"200 OK" in streams[7].recv(4096)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of the loopback")
def test_one_address_leaves_room_for_others():
    with running(connections=8, per_address=4) as (port, metrics), many(port, 8, HALF_HEAD) as streams:
        until(lambda: metrics.dropped["evicted"] == 4)
        with contextlib.closing(socket.create_connection(("127.0.0.1", port), 10, ("127.0.0.2", 0))) as other:
            other.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in other.recv(4096)
        assert metrics.dropped["evicted"] == 4, "the other address closed none of the first one's"
        assert all(map(is_closed, streams[:4]))


def test_a_connection_whose_request_is_in_work_is_not_closed_for_another():
    with running(b"x" * (32 << 20), connections=8, per_address=8) as (port, metrics):
        wanted = f"GET /v1/bank HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        with many(port, 8, wanted) as streams:
            until(lambda: metrics.waiting == 8)
            assert raw(port, b"").startswith(b"HTTP/1.1 503")
            received = 0
            while received < 32 << 20:
                received += len(streams[0].recv(1 << 20))
        assert metrics.dropped["refused"] == 1


def test_one_token_opens_only_so_many_requests_and_others_are_served():
    from refocus.cloud_train.service.guard import Bounds

    with running(bounds=Bounds(per_token=3)) as (port, _), many(port, 3, half_body(TOKEN)):
        until(lambda: ask(port, "GET", "/v1/bank")[0] == 429)
        assert "3 requests of this token are open" in json.loads(ask(port, "GET", "/v1/bank")[1])["detail"]
        assert ask(port, "GET", "/v1/bank", token=OTHER)[0] == 200


def test_guessing_tokens_is_slowed_down_per_address_and_those_who_have_one_are_served():
    from refocus.cloud_train.service.guard import Bounds

    with running(bounds=Bounds(strangers=3)) as (port, _):
        guesses = [ask(port, "GET", "/v1/bank", token=f"guess-{n}")[0] for n in range(5)]
        assert guesses == [401, 401, 401, 429, 429]
        assert ask(port, "GET", "/v1/bank")[0] == 200
        assert ask(port, "GET", "/healthz", token=None)[0] == 200


def test_requests_on_one_connection_each_get_their_own_time():
    with running(head_s=0.5) as (port, metrics):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        for _ in range(8):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok"
            time.sleep(0.1)
        connection.close()
        assert not metrics.dropped


def test_a_port_that_is_taken_is_one_clear_error():
    from refocus.cloud_train.errors import UsageError
    from refocus.cloud_train.service.connections import Limits, make_server
    from refocus.cloud_train.service.guard import Bounds, Guard, Metrics

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        guard = Guard(None, [TOKEN], Bounds(), Metrics())
        with pytest.raises(
            UsageError, match=rf"nothing can listen on 127\.0\.0\.1, port {port} \(Address already in use"
        ):
            make_server(guard, "127.0.0.1", port, Limits())
