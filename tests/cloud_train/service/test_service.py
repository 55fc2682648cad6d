"""The service answers tasks with signed bundles, many at once, and nobody without a token."""

from __future__ import annotations

import base64
import http.client
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.service.guard import Bounds, Guard, Metrics
from refocus.cloud_train.service.keys import public_key, read_tokens, signing_key
from refocus.edge.bundle.load import load_bundle
from refocus.edge.bundle.signed import Asked, new_request, unpack
from refocus.edge.errors import BundleError
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.taper.bank import Bank

TOKEN = "a-token-that-nobody-guesses"
TASK = {"classes": ["red fox", "grey fox"], "targets": ["onnxruntime:fp32"]}
SERVE = "import sys; from refocus.edge.commands.app import main; sys.argv = ['refocus', *sys.argv[1:]]; main()"


class Client:
    """Asks one server."""

    def __init__(self, port, process, folder):
        self.port, self.process, self.folder = port, process, folder

    def ask(self, method, path, body=None, token=TOKEN, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {"Authorization": f"Bearer {token}"} if token else {}
            content = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
            connection.request(method, path, content, {**sent, "Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served(bank_bundle, tmp_path_factory, free_port):
    """``refocus serve`` in a process of its own."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "tokens").write_text(f"{TOKEN}\nanother-token-of-somebody-else\n")
    (folder / "tokens").chmod(0o600)
    port = free_port()
    command = [sys.executable, "-c", SERVE, "serve", bank_bundle.folder, "--key", folder / "key.pem", "--tokens",
               folder / "tokens", "--port", port, "--scratch", folder, "--per-minute", 3000]  # fmt: skip
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    client = Client(port, process, folder)
    try:
        for _ in range(600):
            try:
                client.ask("GET", "/healthz", token=None)
                break
            except ConnectionRefusedError:
                assert process.poll() is None, "the server ended"
                time.sleep(0.1)
        yield client
    finally:
        process.kill()
        process.communicate()


def test_a_full_disk_is_a_503_and_the_next_request_is_answered(served):
    before = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)
    try:  # writes beyond the limit fail as those to a full disk do
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (1000, before[1]))
        status, body, headers = served.ask("POST", "/v1/condense", TASK)
    finally:
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, before)
    assert (status, headers["retry-after"]) == (503, "10")
    assert "no room" in json.loads(body)["detail"]
    assert not [path for path in served.folder.glob(".refocus-serve-*/*") if path.is_dir()]
    assert served.ask("POST", "/v1/condense", TASK)[0] == 200


def received(answer, folder, served):
    """The bundle of an answer, verified by the service's public key."""
    status, body, headers = answer
    assert status == 200, body
    folder.mkdir()
    (folder / "bundle.tar").write_bytes(body)
    signature = next(value for name, value in headers.items() if name.lower() == "refocus-signature")
    key = public_key(served.folder / "key.pem.pub")
    return signature, unpack(folder / "bundle.tar", signature, key, folder / "bundle")


def test_a_task_is_answered_by_a_signed_bundle_that_recognises_its_classes(served, bank_bundle, tmp_path):
    _, bundle = received(served.ask("POST", "/v1/condense", TASK), tmp_path / "a", served)
    assert set(bundle.manifest.task.classes) == set(TASK["classes"])
    bank = Bank.open(bank_bundle.folder)
    bank.condense(bank.task(TASK["classes"]), tmp_path / "here", TASK["targets"])
    assert bundle.manifest == load_bundle(tmp_path / "here").manifest, "what the command makes here"
    photo = (bank_bundle.folder / bank_bundle.manifest.self_test_photos[0].file).read_bytes()
    with Recognizer(bundle) as recognizer:
        assert set(recognizer.recognize(photo).labels[:2]) == set(TASK["classes"])


def test_an_answer_is_bound_to_its_request_and_its_bank(served, bank_bundle, tmp_path):
    asked = Asked(new_request(), bank_bundle.manifest.bank.sha256)
    status, body, headers = served.ask("POST", "/v1/condense", {**TASK, "request": asked.request})
    assert status == 200, body
    (tmp_path / "bundle.tar").write_bytes(body)
    statement, key = headers["refocus-statement"], public_key(served.folder / "key.pem.pub")
    unpack(tmp_path / "bundle.tar", statement, key, tmp_path / "bundle", asked)
    for other, words in (
        (Asked(new_request()), "answers another request"),
        (Asked(asked.request, "0" * 64), "from bank"),
    ):
        with pytest.raises(BundleError, match=words):
            unpack(tmp_path / "bundle.tar", statement, key, tmp_path / "bundle", other)
    with pytest.raises(BundleError, match="may be installed from"):
        unpack(tmp_path / "bundle.tar", statement, key, tmp_path / "bundle", asked, time.time() + 3700)
    with pytest.raises(BundleError, match="names no request"):
        unpack(tmp_path / "bundle.tar", headers["refocus-signature"], key, tmp_path / "bundle", asked)


def test_a_bundle_that_was_changed_or_signed_by_others_is_refused_and_the_earlier_one_stays(served, tmp_path):
    signature, bundle = received(served.ask("POST", "/v1/condense", TASK), tmp_path / "a", served)
    key, file = public_key(served.folder / "key.pem.pub"), tmp_path / "a" / "bundle.tar"
    stranger = signing_key(tmp_path / "stranger.pem").public_key()
    before = bundle.manifest
    for given, wrong_key in ((signature, stranger), ("?", key), (base64.b64encode(b"x" * 64).decode(), key)):
        with pytest.raises(BundleError, match="is not signed by the key"):
            unpack(file, given, wrong_key, tmp_path / "a" / "bundle")
    content = file.read_bytes()
    file.write_bytes(content[:-2000] + b"x" + content[-1999:])
    with pytest.raises(BundleError, match="is not signed by the key"):
        unpack(file, signature, key, tmp_path / "a" / "bundle")
    assert load_bundle(tmp_path / "a" / "bundle").manifest == before


@pytest.mark.parametrize("name", ["../out", "/etc/x", "a/../../x", "link"])
def test_a_signed_archive_that_leads_out_of_its_folder_is_refused(name, tmp_path):
    import io
    import tarfile

    from refocus.edge.bundle.signed import sign

    key = signing_key(tmp_path / "key.pem")
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = 1
        if name == "link":
            member.type, member.size, member.linkname = tarfile.SYMTYPE, 0, "/etc/passwd"
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(BundleError, match="holds no bundle"):
        unpack(tmp_path / "b.tar", sign(tmp_path / "b.tar", key), key.public_key(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("path", ["/v1/condense", "/v1/bank", "/metrics", "/openapi.json", "/nothing"])
@pytest.mark.parametrize("token", [None, "", "wrong-token-of-the-same-len", TOKEN + "x"])
def test_without_a_token_there_is_no_answer(path, token, served):
    status, body, headers = served.ask("POST" if path == "/v1/condense" else "GET", path, TASK, token)
    assert status == 401
    assert json.loads(body)["detail"] == "give a token: Authorization: Bearer TOKEN"
    assert headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"classes": ["unicorn"]}, 422, "unicorn"),
        ({"classes": []}, 422, ""),
        ({"classes": ["lion"], "targets": ["tensorrt:int4"]}, 422, "has no programs for tensorrt:int4"),
        ({"classes": ["lion"], "domain": "oil"}, 422, "trained for the domains"),
        ({"description": "pets"}, 422, "class names only"),
        ({"classes": ["lion"], "photos": []}, 422, "Extra inputs are not permitted"),
        (b"no json", 400, "no strict JSON"),
        ({"classes": ["lion"], "request": "short"}, 422, "should match pattern"),
        (b" " * 70_000, 413, "at most 65536 are read"),
    ],
)
def test_a_wrong_task_is_refused_with_what_to_do(body, status, words, served):
    found, answer, _ = served.ask("POST", "/v1/condense", body)
    assert found == status, answer
    assert words in answer.decode()


def test_a_body_without_length_is_refused(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as stream:
        stream.sendall(b"POST /v1/condense HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + TOKEN.encode() +
                       b"\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n")  # fmt: skip
        assert b" 411 " in stream.recv(4096)


def test_a_dozen_tasks_at_once_are_answered(served):
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: served.ask("POST", "/v1/condense", TASK), range(12)))
    assert {status for status, _, _ in answers} == {200}
    assert len({body for _, body, _ in answers}) == 1, "the same task, the same bytes"


@pytest.mark.slow
def test_a_hundred_tasks_at_once_are_answered_and_memory_stays_bounded(served):
    """The figures of the time go to the report, not into a limit: machines differ."""
    served.ask("POST", "/v1/condense", TASK)
    before = peak_kib(served.process.pid)

    def one(number):
        return served.ask("POST", "/v1/condense", {**TASK, "classes": ["lion", "lynx"] if number % 2 else ["coyote"]})

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(one, range(100)))
    assert {status for status, _, _ in answers} == {200}
    sizes = {len(body) for _, body, _ in answers}
    assert peak_kib(served.process.pid) - before < 64 * 1024 + max(sizes) // 1024
    text = served.ask("GET", "/metrics")[1].decode()
    assert int(re.search(r'refocus_answers_total\{status="200"\} (\d+)', text)[1]) >= 101
    assert float(re.search(r'quantile="0.99"\} ([0-9.]+)', text)[1]) > 0
    print(text)  # noqa: T201  # shown by pytest -rP
    for _ in range(50):
        left = list(served.folder.glob(".refocus-serve-*/*"))
        if not left:
            break
        time.sleep(0.1)
    assert not left, "bundles that were sent were left behind"


def peak_kib(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


def test_what_can_be_asked_for_is_told_and_the_interface_described(served, bank_bundle):
    status, body, _ = served.ask("GET", "/v1/bank")
    told = json.loads(body)
    assert (status, told["bank"]) == (200, bank_bundle.manifest.bank.sha256)
    assert "onnxruntime:fp32" in told["targets"]
    paths = json.loads(served.ask("GET", "/openapi.json")[1])["paths"]
    assert set(paths) == {"/healthz", "/metrics", "/v1/bank", "/v1/condense"}
    assert served.ask("GET", "/docs")[0] == 404, "pages that would load scripts from elsewhere"


@pytest.mark.slow
def test_schemathesis_finds_no_server_error(served):
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.checks import not_a_server_error

    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"http://127.0.0.1:{served.port}"
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers)
    statuses = set()

    for operation in schema.get_all_operations():

        @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.ok().as_strategy())
        def run(case):
            answer = case.call(base_url=url, headers=headers)
            statuses.add(answer.status_code)
            case.validate_response(answer, checks=[not_a_server_error])

        run()
    assert {200, 422} <= statuses
    assert served.process.poll() is None


def test_a_stopped_service_answers_what_it_has_begun(served):
    """Last of the file: the server is gone then."""
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(served.ask, "POST", "/v1/condense", TASK) for _ in range(8)]
        for _ in range(100):
            if re.search(r"refocus_waiting [2-9]", served.ask("GET", "/metrics")[1].decode()):
                break
        served.process.send_signal(signal.SIGTERM)
        done = [answer.exception() or answer.result()[0] for answer in answers]
    # A request that had not been accepted yet is refused by the system; none is cut in the middle.
    assert all(found == 200 or isinstance(found, ConnectionError) for found in done), done
    assert 200 in done
    assert served.process.wait(timeout=40) == 0 or served.process.returncode == -signal.SIGTERM


# ---- what stands before it


async def spoken(guard, **more):
    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "path": "/", "headers": headers, **more}
    await guard(scope, None, send)
    return sent[0]["status"]


async def inner(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_a_client_that_asks_too_often_waits_and_others_do_not():
    import asyncio

    guard = Guard(inner, [TOKEN, "b" * 20], Bounds(per_minute=3), Metrics())
    assert [asyncio.run(spoken(guard)) for _ in range(5)] == [200, 200, 200, 429, 429]
    other = [(b"authorization", b"bearer " + b"b" * 20)]
    assert asyncio.run(spoken(guard, headers=other)) == 200


def test_more_than_can_wait_are_sent_away():
    import asyncio

    metrics = Metrics(waiting=4)
    assert asyncio.run(spoken(Guard(inner, [TOKEN], Bounds(waiting=4), metrics))) == 503
    assert 'refocus_answers_total{status="503"} 1' in metrics.text()


def test_tokens_that_could_be_guessed_and_keys_that_are_none_are_refused(tmp_path):
    (tmp_path / "tokens").write_text("short\n")
    (tmp_path / "tokens").chmod(0o600)
    with pytest.raises(UsageError, match="each of 20 characters or more"):
        read_tokens(tmp_path / "tokens")
    (tmp_path / "key").write_text("no key")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(UsageError, match="not a private key in PEM"):
        signing_key(tmp_path / "key")
    signing_key(tmp_path / "made.pem")
    assert (tmp_path / "made.pem").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="not a public key in PEM"):
        public_key(tmp_path / "made.pem")


def test_the_public_half_of_a_key_is_made_where_it_is_missing(tmp_path):
    key = signing_key(tmp_path / "key.pem")
    (tmp_path / "key.pem.pub").unlink()
    assert signing_key(tmp_path / "key.pem").public_key() == key.public_key()
    assert public_key(tmp_path / "key.pem.pub") == key.public_key()
