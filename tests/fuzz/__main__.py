"""``python -m tests.fuzz fuzz`` and ``python -m tests.fuzz kills``: what ``make fuzz`` and ``make kills`` call."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.fuzz.areas import AREAS, REPOSITORY
from tests.fuzz.record import KILLS, RESULTS, add_up, write_page

WORK = REPOSITORY / "runs"


def main() -> int:
    asked = _parser().parse_args()
    whole = {name: count for name, (_, count) in AREAS.items()} if asked.what == "fuzz" else KILLS
    if asked.area and asked.area not in whole:
        print(f"AREA={asked.area}: expected one of {', '.join(whole)}", file=sys.stderr)  # noqa: T201
        return 2
    work, failed = asked.work / asked.what, 0
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
    for signature, found in record.failures.items():
        _tell(f"  {found['count']} x {signature}; seeds {found['seeds']} {found['message'][:120]}")
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


if __name__ == "__main__":
    sys.exit(main())
