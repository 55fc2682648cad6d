"""What a fresh process says of itself is its own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system tells no more than its own count")
def test_the_most_memory_of_a_process_is_not_that_of_the_one_that_started_it():
    held = np.ones(300_000_000, dtype=np.uint8)
    ask = "from refocus.benchmarks.rows.cold_start_process import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert int(done.stdout) < held.nbytes
