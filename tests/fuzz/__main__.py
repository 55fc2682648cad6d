"""``python -m tests.fuzz fuzz`` and ``python -m tests.fuzz kills``: what ``make fuzz`` and ``make kills`` call.

``python -m tests.fuzz worker AREA FOLDER SCRATCH`` is a process that runs cases, as ``fuzz`` starts it.
"""

from __future__ import annotations

import argparse
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

from tests.fuzz.areas import AREAS, FAILURES, REPOSITORY, Area, Wrong, area_class, save_case, signature
from tests.fuzz.record import KILLS, RESULTS, add_up, take_up, write_page

WORK = REPOSITORY / "runs"
MEMORY_LIMIT = 1 << 30  # of a process, resident
DATA_LIMIT = 3 << 30  # what it can allocate at all, so that a runaway case does not take the machine with it
_SAVED = 2  # inputs of each signature
_PEAK = re.compile(rb"VmHWM:\s+(\d+) kB")


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    found = _PEAK.search(Path("/proc/self/status").read_bytes())
    return int(found[1]) * 1024 if found else 0


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
            outcome, error = "memory", error or "above 1 GB"
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


def main() -> int:
    if sys.argv[1:2] == ["worker"]:
        run_worker(*sys.argv[2:])
        return 0
    asked = _parser().parse_args()
    whole = {name: count for name, (_, count) in AREAS.items()} if asked.what == "fuzz" else KILLS
    if asked.area and asked.area not in whole:
        print(f"AREA={asked.area}: expected one of {', '.join(whole)}", file=sys.stderr)  # noqa: T201
        return 2
    work, failed = asked.work / asked.what, 0
    take_up(asked.what, work, asked.results)
    for name in [asked.area] if asked.area else whole:
        first, last = _seeds(asked.seeds) if asked.seeds else (0, asked.count or whole[name])
        failed += _run(asked.what, name, first, last, work, asked.workers)
    print(f"written: {add_up(asked.what, work, asked.results)}")  # noqa: T201
    if asked.results == RESULTS:
        write_page()
    return int(failed > 0)


def _run(what: str, name: str, first: int, last: int, work: Path, workers: int) -> int:
    """Runs one area or kind; returns how many failures its record has."""
    if what == "fuzz":
        from tests.fuzz.runner import fuzz, outcomes

        record = fuzz(name, first, last, work, workers, _tell)
    else:
        from tests.fuzz.kills import kill
        from tests.fuzz.runner import outcomes

        record = kill(name, first, last, work, _tell)
    _tell(outcomes(record))
    for failure, found in record.failures.items():
        _tell(f"  {found['count']} x {failure}; seeds {found['seeds']} {found['message'][:120]}")
    return record.failed


def _tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    return int(first), int(last)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("what", choices=["fuzz", "kills"])
    parser.add_argument("--area", default="", help=f"{', '.join(AREAS)}; of kills {', '.join(KILLS)}; default: all")
    parser.add_argument("--seeds", default="", help="FIRST:LAST, the last not among them; default: a whole run")
    parser.add_argument("--count", type=int, default=0, help="the seeds 0 to COUNT - 1")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", type=Path, default=WORK, help="records, failures and logs; a run goes on from there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for fuzz.json and kills.json")
    return parser


def run_worker(name: str, home: str, scratch: str) -> None:
    """Runs the seeds that come in on standard input; one line of JSON goes out per case."""
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
    sys.exit(main())
