"""The native head built otherwise than for an installation: with sanitizers, for another processor, for a phone.

``python -m tests.edge.runtimes.native_builds fuzz COUNT`` is what ``make fuzz-native`` calls.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "edge/runtimes/native_head/head.c"
SHARES = SOURCE.with_name("shares.c")
DRIVER = Path(__file__).with_name("native_driver.c")
FLAGS = ["-std=c11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Wno-psabi"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]


def build(compiler: str, out: Path, flags: Sequence[str], sources: Sequence[Path] = (SOURCE, SHARES)) -> Path:
    """Compiles, with warnings as errors."""
    command = [compiler, *FLAGS, "-Werror", *flags, f"-I{SOURCE.parent}", *map(str, sources), "-lm", "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def sanitized(folder: Path) -> Path:
    """A shared library with the address and the undefined-behaviour sanitizer."""
    return build("gcc", folder / "sanitized.so", ["-shared", "-fPIC", *SANITIZERS])


def start_fuzz(library: Path, first: int, end: int) -> subprocess.Popen[str]:
    """A process that runs random heads through a sanitized library."""
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = os.environ | {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.edge.runtimes.native_fuzz", str(library), str(first), str(end)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def fuzz(count: int) -> int:
    """Random heads from seed 0 on, in as many processes as there are cores; 1 where one failed."""
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        library = sanitized(Path(folder))
        ends = [count * n // workers for n in range(workers + 1)]
        running = [start_fuzz(library, first, end) for first, end in itertools.pairwise(ends)]
        said = [process.communicate()[0] for process in running]
    failed = [text for text, process in zip(said, running, strict=True) if process.returncode]
    sys.stdout.write(
        ("\n".join(failed) or f"{count} random heads: as the reference, and clean in the sanitizers") + "\n"
    )
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(fuzz(int(sys.argv[2])))
