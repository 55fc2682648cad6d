"""What the tests of updates share: bundles to release, a repository behind a real web server, devices."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import shutil
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper
from tuf.api.metadata import Metadata

from refocus.cloud_train.release.keys import KeyRing
from refocus.cloud_train.release.repository import Repository
from refocus.cloud_train.release.stages import publish
from refocus.edge.bundle.load import write_manifest
from refocus.edge.bundle.manifest import SelfTest
from refocus.edge.bundle.verified_files import tree_sha256
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.recognize.self_test import answer_all, expected_answer
from refocus.edge.update.agent import UpdateAgent
from refocus.edge.update.device_state import Slots
from refocus.edge.update.loaded_releases import Settings
from refocus.edge.update.repository import RepositoryClient

NOW = datetime.now(timezone.utc)


def variant(bundle, folder, role, name, noise=0.02, seed=0):
    """As a new training would bring it: other weights of the encoder or of the head alone, and answers to check."""
    shutil.copytree(bundle.folder, folder)
    changed = bundle.artifact(role, "onnxruntime")
    file = folder / changed.file
    model, random = onnx.load(file), np.random.default_rng(seed)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim == (4 if role == "encoder" else 2):
            factors = 1 + noise * random.normal(size=values.shape).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values * factors, tensor.name))
    onnx.save(model, file)
    digest, artifacts = hashlib.sha256(file.read_bytes()).hexdigest(), []
    for artifact in bundle.manifest.artifacts:
        if artifact.target != "onnxruntime:fp32":
            continue
        changes = {"sha256": digest, "size_bytes": file.stat().st_size} if artifact.role == role else {}
        if role == "encoder":
            changes |= {"feature_space": digest} if artifact.role == "encoder" else {"accepts": (digest,)}
        artifacts.append(msgspec.structs.replace(artifact, **changes))
    manifest = msgspec.structs.replace(bundle.manifest, name=name, artifacts=tuple(artifacts))
    return with_true_answers(write_manifest(folder, manifest))


def with_folder_program(bundle, folder, role):
    """The fp32 programs of a bundle, one of which is a folder of the role's name."""
    made = variant(bundle, folder, role, "folder")
    artifact = made.artifact(role, "onnxruntime")
    (folder / role).mkdir()
    (folder / artifact.file).rename(folder / role / "program.onnx")
    sha256, size = tree_sha256(folder / role)
    changed = msgspec.structs.replace(artifact, file=role, sha256=sha256, size_bytes=size)
    artifacts = tuple(changed if other == artifact else other for other in made.manifest.artifacts)
    return with_true_answers(write_manifest(folder, msgspec.structs.replace(made.manifest, artifacts=artifacts)))


def with_true_answers(bundle):
    """The bundle with the self-test that this machine's answers pass."""
    heads = []
    for head in bundle.manifest.heads:
        with Recognizer(bundle, None, head=head.name) as recognizer:
            found = tuple(expected_answer(head.labels, answer.logits) for answer in answer_all(bundle, recognizer))
        test = SelfTest(answers={"eager": found}, tolerance=head.self_test.tolerance)
        heads.append(msgspec.structs.replace(head, self_test=test))
    return write_manifest(bundle.folder, msgspec.structs.replace(bundle.manifest, heads=tuple(heads)))


class Server:
    """A web server over a folder on the loopback, with ranges, whose answers a test may spoil.

    Attributes:
        asked: (path, Range header) of every request.
        spoil: takes path and content, and returns what is sent instead; None closes the connection.
        cut: of every answer below ``targets/files``, at most so many bytes are sent, though more were promised.
        trickle: seconds before each byte of a body; 0 sends all at once.
        trickle_headers: seconds before each byte of an answer that is nothing but a status line and headers.
        endless: what is sent again and again in the place of an answer.
    """

    def __init__(self, folder, ranges=True):
        self.folder, self.asked, self.spoil, self.cut = Path(folder), [], None, None
        self.trickle, self.trickle_headers, self.endless = 0.0, 0.0, b""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self, ranges)

            def log_message(self, *given):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, handler, ranges):
        path, wanted = handler.path.lstrip("/"), handler.headers.get("Range", "")
        self.asked.append((path, wanted))
        if self.endless or self.trickle_headers:
            self.never_end(handler.wfile)
            return
        file = self.folder / path
        content = file.read_bytes() if file.is_file() else None
        if self.spoil is not None:
            content = self.spoil(path, content)
        if content is None:
            handler.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and ranges else 0
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        body = content[start:]
        if self.cut is not None and path.startswith("targets/files/"):
            handler.wfile.write(body[: self.cut])
            handler.wfile.flush()
            handler.close_connection = True
            return
        if self.trickle:
            with contextlib.suppress(OSError):  # the device has hung up
                for byte in body:
                    time.sleep(self.trickle)
                    handler.wfile.write(bytes([byte]))
            return
        handler.wfile.write(body)

    def never_end(self, file):
        head = b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 50) for n in range(90))
        with contextlib.suppress(OSError):  # the device has hung up
            while self.endless:
                file.write(self.endless)
            for byte in head:
                time.sleep(self.trickle_headers)
                file.write(bytes([byte]))

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class Shared(Recognizer):
    """A recogniser whose programs outlive those that use it in turns."""

    def close(self):
        self.leave()


class Kept(Settings):
    """Settings that load each bundle once for all tests; it is still verified each time."""

    loaded: ClassVar[dict] = {}

    def recognizer(self, bundle, weights=None):
        assert weights is None, "one loaded recogniser serves all tests"
        name = (bundle.folder / "manifest.json").read_bytes()
        if name not in self.loaded:
            self.loaded[name] = Shared(bundle, None, threads=1)
        return self.loaded[name]


class Fleet:
    """A repository with its keys, its server, and devices that trust it."""

    def __init__(self, folder, first, made=None):
        self.folder = folder
        if made is None:
            Repository.create(folder / "repository", KeyRing(folder / "keys"), ["phone", "jetson"])
            publish(self.repository, first.folder, "phone", 100)
        else:
            shutil.copytree(made, folder, dirs_exist_ok=True)
        self.server = Server(folder / "repository")
        if made is not None:
            Slots(folder / "device").change(lambda record: msgspec.structs.replace(record, url=self.server.url))

    @property
    def repository(self):
        return Repository(self.folder / "repository", KeyRing(self.folder / "keys"))

    def publish(self, bundle, percent=100):
        return publish(self.repository, bundle.folder, "phone", percent)

    def slots(self, name="device", device_class="phone"):
        folder = self.folder / name
        if not (folder / "record.json").exists():
            Slots.create(folder, device_class, self.server.url, self.repository.first_root)
        return Slots(folder)

    def settings(self, name="device", **more):
        (self.folder / name / "profiles").mkdir(parents=True, exist_ok=True)
        more = {"isolated": False, **more}  # a child per update would double the time of most tests
        return Settings(profiles=self.folder / name / "profiles", threads=1, **more)

    def device(self, name="device", **more):
        slots = self.slots(name)
        source = RepositoryClient(
            slots.folder / "metadata", self.server.url, slots.root, slots.read().device_class, seconds=5
        )
        return UpdateAgent(slots, self.settings(name, **more), source)


# ---- attacks on metadata


def rewrite(path, change=lambda signed: None, signers=(), to=None):
    """Metadata that an attacker has changed, and signed with what keys they have."""
    found = Metadata.from_file(str(path))
    change(found.signed)
    found.signatures.clear()
    for signer in signers:
        found.sign(signer, append=True)
    (to or path).write_bytes(found.to_bytes())


def version(number):
    return lambda signed: setattr(signed, "version", number)


def expired(signed):
    signed.expires = (NOW - timedelta(days=1)).replace(microsecond=0)


def late(fleet, days):
    """The repository as somebody would sign it whose clock is that many days behind."""
    return Repository(fleet.repository.folder, fleet.repository.keys, lambda: NOW - timedelta(days=days))


def newest(metadata, role):
    return max(metadata.glob(f"*.{role}.json"), key=lambda path: int(path.name.split(".")[0]))


def copy_of(folder, to):
    return shutil.copytree(folder, to)
