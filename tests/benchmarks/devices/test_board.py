"""A board over SSH: a real server on the loopback address, a lost connection, and nothing left behind."""

from __future__ import annotations

import json
import threading
import time
import zipfile

import pytest

from refocus.benchmarks.devices import board as boards
from refocus.benchmarks.devices.board import Board, measure, own_source, safe_name
from refocus.benchmarks.document.schema import BenchError
from tests.ssh_server import Server, needs_sshd, packages_of_a_board

QUICK = ["--quick", "--only", "stages", "--runtime", "onnxruntime", "--precision", "fp32"]


@pytest.fixture
def server(tmp_path):
    running = []

    def start(**more):
        running.append(Server(tmp_path / f"board-{len(running)}", **more))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    return packages_of_a_board(tmp_path_factory.mktemp("packages"))


@pytest.mark.slow
@needs_sshd
def test_a_board_measures_loses_its_connection_and_keeps_nothing(bundle, server, packages, refocus, tmp_path):
    there = server(packages=packages)
    lost = threading.Event()

    def unplug():
        """Once, while the run is under way."""
        while not [*there.home.glob(f"{boards.PLACE}/*/log")]:
            time.sleep(0.05)
        there.stop()
        lost.set()
        time.sleep(2 * boards.LOOK_S + 1)  # longer than between two looks: nobody would notice it
        there.start()

    threading.Thread(target=unplug, daemon=True).start()
    done = refocus(
        "bench", bundle.folder, *QUICK, "--host", there.host, "--ssh", " ".join(there.options), "--json",
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert lost.is_set()
    assert "the connection was lost" in done.stderr
    document = json.loads(done.stdout)
    assert {row["name"] for row in document["rows"]} >= {"encoder", "whole"}
    assert document["ran"][0]["bundle"] == bundle.folder.name
    assert there.left() == []
    (file,) = (tmp_path / "out").glob("*.json")
    assert json.loads(file.read_text())["rows"] == document["rows"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return own_source(tmp_path_factory.mktemp("source"))


@pytest.mark.slow
@needs_sshd
def test_a_run_whose_host_command_died_is_taken_up_again(bundle, server, packages, source):
    there = server(packages=packages)
    words, files = [safe_name(bundle.folder), *QUICK], {safe_name(bundle.folder): bundle.folder}
    said = []

    def give_up(line):
        said.append(line)
        if "stages" in line:
            there.stop()

    with pytest.raises(BenchError, match="does not answer"):
        measure(Board(there.host, there.options, 2.0, give_up), words, files, source, "", "", False)
    assert there.left(), "the run goes on there"
    there.start()
    again = []
    document = measure(Board(there.host, there.options, 30.0, again.append), words, files, source, "", "", False)
    assert document.rows
    assert [line for line in said if "pushing" in line]
    assert not [line for line in again if "pushing" in line]
    assert there.left() == []


@pytest.mark.slow
@needs_sshd
def test_a_run_that_fails_on_the_board_says_why_and_leaves_nothing(bundle, server, packages, source):
    there = server(packages=packages)
    files = {"b": bundle.folder}
    with pytest.raises(BenchError, match="the run failed there.*tegrastats is not here"):
        measure(Board(there.host, there.options), ["b", *QUICK, "--device", "jetson"], files, source, "", "", False)
    assert there.left() == []


STAND_IN = """#!/bin/sh
echo "$(basename $0) $@" >> {log}
case "$*" in
-q) printf 'NV Power Mode: 15W\\n2\\n';;
"--store "*) touch "$2";;
esac
"""


@pytest.mark.slow
@needs_sshd
def test_a_power_mode_is_set_back_also_after_a_failed_run(bundle, server, packages, source, tmp_path):
    tools, log = tmp_path / "tools", tmp_path / "tools.log"
    tools.mkdir()
    for name in ("nvpmodel", "jetson_clocks"):
        (tools / name).write_text(STAND_IN.format(log=log))
        (tools / name).chmod(0o755)
    there = server(packages=packages, path=f"{tools}:")
    with pytest.raises(BenchError, match="the run failed there"):
        measure(
            Board(there.host, there.options), ["b", "--device", "jetson"], {"b": bundle.folder}, source, "", "0", False
        )
    calls = log.read_text().splitlines()
    assert [call for call in calls if "-q" not in call] == [
        "jetson_clocks --store clocks", "nvpmodel -m 0", "jetson_clocks ", "jetson_clocks --restore clocks",
        "nvpmodel -m 2",
    ]  # fmt: skip
    assert there.left() == []


@needs_sshd
def test_a_board_that_lacks_something_is_named_before_anything_is_copied(server, tmp_path, monkeypatch):
    wheel = tmp_path / "refocus_edge-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("refocus/__init__.py", "")

    def refused(there, mode=""):
        with pytest.raises(BenchError) as error:
            measure(Board(there.host, there.options, 1.0), [], {}, wheel, "", mode, False)
        assert there.left() == []
        return str(error.value)

    there = server()
    monkeypatch.setattr(boards, "SPARE_BYTES", 1 << 60)
    assert "GB free" in refused(there)
    monkeypatch.undo()
    assert "lacks nvpmodel" in refused(there, mode="0")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tools / "python3").chmod(0o755)
    assert "has no python3 with venv" in refused(server(path=f"{tools}:"))
    there.stop()
    assert "does not answer" in refused(there)


def test_a_phone_is_not_reached_by_ssh(bundle, refocus):
    done = refocus("bench", bundle.folder, "--host", "user@phone", "--device", "android")
    assert "a phone is reached by adb" in done.stderr
