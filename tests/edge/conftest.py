"""Shared pieces: processes to kill, and a second bundle."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import msgspec
import pytest


@pytest.fixture(scope="session")
def new_bundle(bundle, tmp_path_factory):
    """As a new training would bring it: other encoder weights, and so another feature space. One target only."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    from refocus.edge.bundle.load import write_manifest

    folder = tmp_path_factory.mktemp("new") / "bundle"
    shutil.copytree(bundle.folder, folder)
    file = folder / bundle.artifact("encoder", "onnxruntime").file
    model, random = onnx.load(file), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim == 4:  # kernels of convolutions
            noise = random.normal(size=values.shape).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values * (1 + 0.05 * noise), tensor.name))
    onnx.save(model, file)
    content = file.read_bytes()
    digest, artifacts = hashlib.sha256(content).hexdigest(), []
    for artifact in bundle.manifest.artifacts:
        if artifact.target == "onnxruntime:fp32":
            encoder = artifact.role == "encoder"
            changes = {"sha256": digest, "size_bytes": len(content), "feature_space": digest}
            artifacts.append(msgspec.structs.replace(artifact, **changes if encoder else {"accepts": (digest,)}))
    manifest = msgspec.structs.replace(bundle.manifest, name="new", artifacts=tuple(artifacts))
    return write_manifest(folder, manifest)


@contextlib.contextmanager
def nursery(code, *arguments):
    """A warm process that forks one writer per line it reads: starting Python costs a hundred times what a photo does,
    so kills would otherwise all hit the start."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "warm\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def killed_writer(process, order, lines, delay):
    """Starts a writer, kills it ``delay`` seconds after it has printed so many lines, and returns all it printed."""
    process.stdin.write(f"{order}\n")
    process.stdin.flush()
    ready, pid = process.stdout.readline().split()
    assert ready == "ready"
    printed = []
    for _ in range(lines):
        printed.append(process.stdout.readline())
        assert printed[-1] != "gone\n", "the writer ended by itself"
    time.sleep(delay)
    os.kill(int(pid), signal.SIGKILL)
    return [line.split() for line in [*printed, *iter(process.stdout.readline, "gone\n")]]


@pytest.fixture(scope="session")
def killing():
    """Processes that fork writers, and the end of these."""
    return SimpleNamespace(nursery=nursery, killed_writer=killed_writer)


@pytest.fixture(scope="session")
def other_head(bundle, updating, tmp_path_factory):
    """A new head on the same encoder."""
    return updating.variant(bundle, tmp_path_factory.mktemp("head") / "bundle", "head", "other head")


@pytest.fixture(scope="session")
def other_encoder(bundle, updating, tmp_path_factory):
    """Another encoder, and so another feature space."""
    return updating.variant(bundle, tmp_path_factory.mktemp("encoder") / "bundle", "encoder", "other encoder")


@pytest.fixture(scope="session")
def first_fleet(bundle, updating, stream, tmp_path_factory):
    """A repository with one release, and a device that has it and has served a person; made once, to be copied."""
    from refocus.edge.update.serving import Serving

    folder = tmp_path_factory.mktemp("fleet")
    fleet = updating.Fleet(folder, bundle)
    device = fleet.device()
    device.look()
    device.run()
    with Serving(device.slots, device.settings, device.settings.profiles / "anna.history.sqlite3") as serving:
        serving.recognize(stream[0])  # which ends the trial
    fleet.server.close()
    return folder


@pytest.fixture
def fleet(first_fleet, bundle, updating, tmp_path):
    """A repository behind a web server, and a device with its first release."""
    made = updating.Fleet(tmp_path / "fleet", bundle, first_fleet)
    yield made
    made.server.close()


@pytest.fixture
def serves(fleet, stream, updating):
    """Asserts that the device still answers, with its first release."""

    from refocus.edge.update.serving import Serving

    def check():
        device = fleet.device()
        settings = updating.Kept(device.settings.profiles, threads=1)
        with Serving(device.slots, settings, settings.profiles / "anna.history.sqlite3") as serving:
            assert serving.release.number == 1
            assert serving.recognizer.history.count(serving.release.space) == 1
            before = serving.recognize(stream[0], remember=False)  # the photo that it has seen
            assert before.labels == serving.recognize(stream[0], remember=False).labels

    return check


@pytest.fixture
def refused(fleet, serves):
    """Asserts that the device refuses what it is shown now, saying some words, and goes on as before."""
    from refocus.edge.errors import UpdateError

    def check(*words):
        before = fleet.device().slots.read()
        with pytest.raises(UpdateError) as error:
            fleet.device().look()
        for word in words:
            assert word in str(error.value)
        assert fleet.device().slots.read() == before
        serves()

    return check


@pytest.fixture
def metadata(fleet):
    return fleet.folder / "repository" / "metadata"


@pytest.fixture
def keys(fleet):
    """The private keys, by name."""
    from refocus.cloud_train.release.keys import KeyRing

    ring = KeyRing(fleet.folder / "keys")
    return lambda *names: [ring._read(ring._path(name)) for name in names]
