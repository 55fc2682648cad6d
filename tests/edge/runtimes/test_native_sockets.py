"""No native library that recognising loads opens a socket or leaves an identifier in the user's folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.native_sockets import TELEMETRY, observe

TRY = ["unshare", "--net", "strace", "-qq", "-o", os.devnull, "true"]
ALLOWED = bool(shutil.which("unshare") and shutil.which("strace")) and subprocess.run(TRY, check=False).returncode == 0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ALLOWED, reason="needs strace, and the right to make a network namespace"),
]


def test_recognising_opens_no_native_socket_and_leaves_no_identifier(bundle, photo_file, tmp_path):
    code = (
        "import time; from pathlib import Path; from refocus import Recognizer, load_bundle\n"
        f"recognizer = Recognizer(load_bundle(Path({str(bundle.folder)!r})), Path({str(tmp_path / 'p.sqlite3')!r}))\n"
        f"recognizer.recognize(Path({str(photo_file)!r}).read_bytes())\n"
        "time.sleep(45)"  # telemetry of ONNX Runtime 1.29 first asks for its server after half a minute
    )
    seen = observe([sys.executable, "-c", code], tmp_path / "home", {"PYTHONDONTWRITEBYTECODE": "1"})
    assert seen["status"] == 0, seen["said"]
    assert seen["sockets"] == 0
    assert not [name for name in seen["files"] if not name.startswith(".cache/refocus/")]


def test_the_observation_sees_a_socket_and_a_file(tmp_path):
    code = "import socket, pathlib; socket.socket(socket.AF_INET); (pathlib.Path.home() / 'id').write_text('x')"
    seen = observe([sys.executable, "-c", code], tmp_path / "home", {TELEMETRY: "1"})
    assert (seen["sockets"], seen["files"]) == (1, ["id"])
