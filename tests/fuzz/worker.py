"""A process that runs cases of one area: seeds come in on standard input, one line of JSON goes out per case.

    python -m tests.fuzz.worker AREA FOLDER SCRATCH
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.areas import FAILURES, Area, Wrong, area_class, signature

MEMORY_LIMIT = 1 << 30  # of a process, resident
DATA_LIMIT = 3 << 30  # what it can allocate at all, so that a runaway case does not take the machine with it
_SAVED = 2  # inputs of each signature
_PEAK = re.compile(rb"VmHWM:\s+(\d+) kB")


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    found = _PEAK.search(Path("/proc/self/status").read_bytes())
    return int(found[1]) * 1024 if found else 0


def save_case(area: Area, name: str, seed: int, kind: str, case: Any, folder: Path) -> None:
    """Writes the input of a case into a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "about.txt").write_text(f"area {name}, seed {seed}: {kind}\n")
    area.save(case, folder)


class Worker:
    """Runs cases and reports them; of each failure the first inputs are written down."""

    def __init__(self, area: Area, name: str, folder: Path, out: int) -> None:
        self._area, self._name, self._failures, self._out = area, name, folder / "failures", out
        self._seen: Counter[tuple[str, str]] = Counter()

    def say(self, *words: Any) -> None:
        """One line to the parent."""
        os.write(self._out, json.dumps(words).encode() + b"\n")

    def run(self, seed: int) -> bool:
        """Runs one case; False if this process has grown too large to go on."""
        kind, case = self._area.make(seed)
        self.say("start", seed, kind)
        started = time.monotonic()
        outcome, error, where, message = self._judged(case)
        peak = peak_bytes()
        if peak > MEMORY_LIMIT:
            outcome = "memory"
        if outcome in FAILURES:
            self._seen[error, where] += 1
            if self._seen[error, where] <= _SAVED:
                save_case(self._area, self._name, seed, kind, case, self._failures / f"seed-{seed}")
        self.say("done", seed, kind, outcome, error, where, message, time.monotonic() - started, peak)
        return peak <= MEMORY_LIMIT

    def _judged(self, case: Any) -> tuple[str, str, str, str]:
        try:
            return self._area.judge(case, lambda: self.say("run")), "", "", ""
        except Wrong as error:
            return "wrong", str(error), signature(error)[1], ""
        except self._area.typed as error:
            return "refused", signature(error)[0], "", ""
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return "uncaught", *signature(error), str(error)[:300]


def main() -> None:
    name, home, scratch = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not come between the lines
    warnings.simplefilter("ignore")
    folder = Path(scratch)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    worker = Worker(area_class(name)(Path(home, "material"), folder), name, Path(home), out)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_LIMIT, DATA_LIMIT))
    worker.say("ready")
    for line in sys.stdin:
        first, last = map(int, line.split())
        if not all(worker.run(seed) for seed in range(first, last)):
            worker.say("leaving")
            return
        worker.say("idle")


if __name__ == "__main__":
    main()
