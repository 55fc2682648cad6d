"""Memory that a program needs: what is read stays, what loading needed goes."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

from refocus.edge.runtimes import load_program

# Prints how much the process grew by loading an encoder, and the size of the encoder's file.
GROWTH = """
import sys
from pathlib import Path
import onnxruntime
from refocus.edge.bundle import load_bundle
from refocus.edge.runtimes import load_program
def resident():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])
bundle = load_bundle(Path(sys.argv[1]))
load_program(bundle, "head", "onnxruntime", threads=1)
before = resident()
encoder = load_program(bundle, "encoder", "onnxruntime", threads=1)
print(resident() - before, encoder.artifact.size_bytes)
"""


def test_a_bound_run_keeps_the_arrays_that_it_reads(bundle):
    encoder = load_program(bundle, "encoder", "onnxruntime", threads=1)
    shape = [size if isinstance(size, int) else 1 for size in encoder.artifact.inputs[0].shape]
    photo = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    wanted, given = encoder.run(photo=photo)["feature"].copy(), weakref.ref(photo)
    run = encoder.bind({"photo": photo})
    del photo
    gc.collect()
    assert given() is not None  # it would be read all the same
    np.testing.assert_array_equal(run()["feature"], wanted)
    del run
    gc.collect()
    assert given() is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_a_program_leaves_little_more_than_its_weights(bundle):
    command = [sys.executable, "-c", GROWTH, str(bundle.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, size = map(int, done.stdout.split())
    assert grown < 2 * size, (grown, size)
