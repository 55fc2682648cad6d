"""Programs of ExecuTorch run on as many threads as were asked for, or say that they do not."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from refocus.edge.runtimes.library_news import without_native_lines, without_warning

# One process forks a fresh one for each order of loads: what comes first decides for all of a process.
ORDERS = """
import json, os, sys, time
from pathlib import Path
from types import SimpleNamespace
import msgspec, numpy as np
from refocus.benchmarks.devices import describe
from refocus.benchmarks.document.schema import Conditions
from refocus.benchmarks.rows import stages
from refocus.benchmarks.rows.recorder import Table
from refocus.edge.bundle import Artifact
from refocus.edge.runtimes import executorch, load_artifact
portable_lib = executorch.portable_lib

folder, photo = Path(sys.argv[1]), {"photo": np.ones((1, 3, 96, 96), np.float32)}
artifact = msgspec.json.decode((folder / "artifact.json").read_bytes(), type=Artifact)

def share(program):
    '''CPU time of the process over that of its main thread.'''
    program.run(**photo)
    process, thread = time.process_time(), time.thread_time()
    for _ in range(12):
        program.run(**photo)
    return (time.process_time() - process) / (time.thread_time() - thread)

def loaded(*orders):
    for threads in orders:
        program = load_artifact(folder, artifact, threads)
        pool = portable_lib._threadpool_get_thread_count()
        yield {"asked": threads, "threads": program.threads, "pool": pool, "share": share(program),
               "ran_on": program.ran_on(), "path": program.numeric_path()}

def row(threads):
    '''What the group "threads" of refocus bench has after a first program.'''
    kept = load_artifact(folder, artifact, threads)
    target = SimpleNamespace(name="b", target_name="executorch:fp32", pair=("executorch", "fp32"), threads=threads,
                             pixels=[photo["photo"]], bundle=SimpleNamespace(defaults=lambda _: {}),
                             encoder=lambda count: load_artifact(folder, artifact, count))
    table = Table(target, describe(), Conditions(min_queries=4, min_seconds=0.0))
    stages.os.cpu_count = lambda: 2
    stages.threads(table)
    return {"at": [row.at for row in table.rows], "missing": [f"{lack.what}: {lack.why}" for lack in table.missing]}

for work in json.loads(sys.argv[2]):
    reading, writing = os.pipe()
    if not (child := os.fork()):
        found = row(work) if isinstance(work, int) else [*loaded(*work)]
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        print(answer.read().decode() or json.dumps(f"ended by {os.waitpid(child, 0)[1]}"))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Threads after several orders of loads, each in a process of its own, by order."""
    pytest.importorskip("executorch.runtime")
    import msgspec
    import torch
    from torch import nn

    from refocus.edge.bundle import Tensor
    from refocus.export.program import TorchProgram, capture_freest
    from refocus.export.targets import Settings
    from refocus.export.targets.single_program import artifact_of, write_single

    folder = tmp_path_factory.mktemp("threads")
    network = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 4, 3))
    photo, feature = Tensor("photo", "float32", (1, 3, 96, 96)), Tensor("feature", "float32", (1, 4, 90, 90))
    with torch.no_grad():
        program, captured = capture_freest(
            TorchProgram("encoder", network.eval(), (photo,), (feature,), identity="threads")
        )
        written, path = write_single("executorch:fp32", program, captured, Settings("fp32"), folder)
    (folder / "artifact.json").write_bytes(msgspec.json.encode(artifact_of("executorch:fp32", written, path)))
    orders = [[1, 3, 0], [3, 3], [0, 7], 1]
    command = [sys.executable, "-c", ORDERS, str(folder), json.dumps(orders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ})
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {str(order): answer for order, answer in zip(orders, answers, strict=True)} | {"stderr": done.stderr}


@pytest.mark.slow
def test_a_program_that_was_asked_for_one_thread_does_not_run_on_all_cores(found):
    first, *_ = found["[1, 3, 0]"]
    assert (first["threads"], first["pool"]) == (1, 1)
    assert first["share"] < 1.2
    assert first["ran_on"] == "XnnpackBackend"
    assert [(one["threads"], one["pool"], one["ran_on"]) for one in found["[3, 3]"]] == [(3, 3, "XnnpackBackend")] * 2


@pytest.mark.slow
def test_a_later_program_says_that_it_does_not_run_on_the_threads_it_asked_for(found):
    _, more, default = found["[1, 3, 0]"]
    assert (more["threads"], more["pool"]) == (1, 1)
    assert more["share"] < 1.2
    assert more["ran_on"].startswith("XnnpackBackend (ExecuTorch runs all programs of a process on as many")
    assert "1 here, not the 3 that were asked for" in more["ran_on"]
    assert more["path"] == default["path"], "a feature is the same on any number of threads"
    assert (default["threads"], default["ran_on"]) == (1, "XnnpackBackend")
    assert "1 here, not the 3 that were asked for" in found["stderr"]


@pytest.mark.slow
def test_threads_that_are_left_to_executorch_are_told_and_never_changed_under_a_program(found):
    default, other = found["[0, 7]"]
    assert default["threads"] == default["pool"] == other["threads"] == other["pool"] != 7
    assert default["ran_on"] == "XnnpackBackend"
    assert "not the 7 that were asked for" in other["ran_on"]


@pytest.mark.slow
def test_what_the_library_says_of_itself_is_not_said(found):
    for words in ("cpuinfo", "threadpool", "register_constant"):
        assert words not in found["stderr"]


def test_lines_of_native_code_that_nobody_knows_are_kept(capfd):
    with pytest.raises(ValueError, match="broken"), without_native_lines(rb"\[cpuinfo\] |\[pool\] Resetting "):
        os.write(2, b"[cpuinfo] no such file\n[pool] Resetting to 1\n[pool] no memory\nand why")
        raise ValueError("broken")
    os.write(2, b"; later\n")
    assert capfd.readouterr().err == "[pool] no memory\nand why; later\n"


def test_a_warning_is_left_out_by_its_words_and_others_are_not(caplog):
    def warn():
        logging.getLogger("some.library").warning("this call is deprecated")

    with without_warning("some.library", "is deprecated"):
        warn()
        logging.getLogger("some.library").warning("something is wrong")
    warn()
    assert caplog.messages == ["something is wrong", "this call is deprecated"]


@pytest.mark.slow
def test_the_bench_has_no_row_for_threads_on_which_nothing_ran(found):
    assert found["1"] == {
        "at": ["1"],
        "missing": ["b executorch:fp32: threads, 2: executorch runs on 1 in this process"],
    }
