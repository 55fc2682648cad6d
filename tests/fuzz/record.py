"""What was run and what came of it: kept per area, added up in ``docs/results``, and shown in ``docs/robustness.md``.

Counts of one record are of one state of the source: when the code or the harness has changed, counting starts anew.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.fuzz.areas import AREAS, FAILURES, REPOSITORY, UNBOUNDED

PAGE = REPOSITORY / "docs" / "robustness.md"
RESULTS = REPOSITORY / "docs" / "results" / "robustness"
# Kind of kill -> kills of a whole run; "events" are the audit events of an update, and end with the last one.
KILLS = {"store": 1000, "update": 300, "events": 10_000, "album": 100, "improve": 100, "condense": 100}
_SOURCES = ("edge/**/*.py", "cloud_train/federated/**/*.py", "tests/fuzz/*.py", "tests/edge/**/*kills.py")
_HARMLESS = ("record.py", "test_robustness.py")  # they change no case
_LIBRARIES = ("numpy", "pillow", "msgspec", "onnxruntime", "onnx", "torch", "safetensors")
_KEPT_SEEDS = 5  # of one signature
_REPRODUCERS = 2


def source_digest() -> str:
    """SHA-256 over everything that decides what a case does."""
    digest = hashlib.sha256()
    for pattern in _SOURCES:
        for path in sorted(REPOSITORY.glob(pattern)):
            if path.parent.name != "fuzz" or path.name not in _HARMLESS:
                digest.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def commit() -> str:
    """The commit of the working tree, with a "+" where it was changed; "" outside a repository."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def versions() -> dict[str, str]:
    """Of Python and the libraries that read what is hostile."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


class Record:
    """The counts of one area of the fuzzer, or of one kind of kill.

    Attributes:
        done: ranges of seeds [first, last) that were run.
        kinds: by kind of case, how often each outcome came.
        errors: by exception type or complaint, how often; of refused cases and of failures.
        failures: by signature, the count and the first seeds.
    """

    def __init__(self, path: Path, what: str, area: str) -> None:
        self._path, self.what, self.area = path, what, area
        self.source, self.commit, self.versions = source_digest(), commit(), versions()
        self.done: list[list[int]] = []
        self.kinds: dict[str, dict[str, int]] = {}
        self.errors: dict[str, int] = {}
        self.failures: dict[str, dict[str, Any]] = {}
        self.slowest_seconds, self.peak_bytes = 0.0, 0

    @classmethod
    def load(cls, path: Path, what: str, area: str, tell: Callable[[str], None] = print) -> Record:
        """The record at a path, to be gone on with; a new one if there is none or the source has changed since."""
        record = cls(path, what, area)
        if not path.exists():
            return record
        kept = json.loads(path.read_text())
        if kept["source"] != record.source:
            tell(f"{area}: what was counted is of another state of the source ({kept['commit'][:12]}); starting anew")
            return record
        for name in ("commit", "done", "kinds", "errors", "failures", "slowest_seconds", "peak_bytes"):
            setattr(record, name, kept[name])
        return record

    def as_dict(self) -> dict[str, Any]:
        """The document of this record."""
        return {
            "area": self.area, "cases": self.cases, "outcomes": dict(sorted(self.outcomes().items())),
            "commit": self.commit, "source": self.source, "versions": self.versions, "done": self.done,
            "kinds": {kind: dict(sorted(counts.items())) for kind, counts in sorted(self.kinds.items())},
            "errors": dict(sorted(self.errors.items())), "failures": self.failures,
            "slowest_seconds": round(self.slowest_seconds, 3), "peak_bytes": self.peak_bytes,
        }  # fmt: skip

    def save(self) -> None:
        """Writes the record, by rename."""
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        temporary.replace(self._path)

    @property
    def cases(self) -> int:
        return sum(last - first for first, last in self.done)

    @property
    def failed(self) -> int:
        return sum(count for outcome, count in self.outcomes().items() if outcome in FAILURES)

    def outcomes(self) -> Counter[str]:
        """How often each outcome came."""
        found: Counter[str] = Counter()
        for counts in self.kinds.values():
            found.update(counts)
        return found

    def missing(self, first: int, last: int, chunk: int) -> Iterator[tuple[int, int]]:
        """The seeds of [first, last) that were not run, in ranges of at most ``chunk``."""
        gaps, position = [], first
        for begin, end in [*(list(part) for part in self.done), [last, last]]:
            if begin > position:
                gaps.append((position, min(begin, last)))
            position = max(position, end)
        for begin, end in gaps:
            for start in range(begin, end, chunk):
                yield start, min(start + chunk, end)

    def add(self, seed: int, kind: str, outcome: str, error: str = "", where: str = "", message: str = "",
            seconds: float = 0.0, peak: int = 0) -> None:  # fmt: skip
        """Counts one case."""
        self._mark(seed)
        counts = self.kinds.setdefault(kind, {})
        counts[outcome] = counts.get(outcome, 0) + 1
        if error:
            self.errors[error] = self.errors.get(error, 0) + 1
        self.slowest_seconds, self.peak_bytes = max(self.slowest_seconds, seconds), max(self.peak_bytes, peak)
        if outcome in FAILURES or outcome == UNBOUNDED:
            name = f"{outcome}: {error or kind} in {where}" if where else f"{outcome}: {error or kind}"
            found = self.failures.setdefault(name, {"count": 0, "seeds": [], "kind": kind, "message": message})
            found["count"] += 1
            if len(found["seeds"]) < _KEPT_SEEDS:
                found["seeds"].append(seed)

    def _mark(self, seed: int) -> None:
        """Adds a seed to the ranges that are done; nearly always it follows one."""
        for part in self.done:
            if part[0] <= seed < part[1]:
                return
            if part[1] == seed:
                part[1] += 1
                break
        else:
            self.done.append([seed, seed + 1])
        merged: list[list[int]] = []
        for begin, end in sorted(self.done):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            else:
                merged.append([begin, end])
        self.done = merged

    def is_new(self, seed: int) -> bool:
        """Whether a failure is among the first of its signature."""
        return any(seed in found["seeds"][:_REPRODUCERS] for found in self.failures.values())


# ---- documents and page


def take_up(what: str, work: Path, results: Path = RESULTS) -> None:
    """Puts the areas of ``docs/results`` that a work folder has no record of into it: a run goes on from there."""
    for area, found in _read(results / f"{what}.json").items():
        path = work / area / "record.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found, indent=1) + "\n")


def add_up(what: str, work: Path, results: Path = RESULTS) -> Path:
    """Writes ``docs/results/robustness/fuzz.json`` or ``kills.json`` from the records of a work folder."""
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(work.glob("*/record.json"))}
    path = results / f"{what}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 1, "what": what, "areas": found}, indent=1) + "\n")
    return path


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Writes the page from the documents."""
    page.write_text(page_of(results))


def page_of(results: Path = RESULTS) -> str:
    """The text of ``docs/robustness.md``, as the documents say."""
    fuzz, kills = (_read(results / f"{what}.json") for what in ("fuzz", "kills"))
    parts = [_INTRODUCTION, "## Hostile and damaged input", _FUZZ, *_table(fuzz, {a: n for a, (_, n) in AREAS.items()}),
             *_details(fuzz), "## Kills", _KILLS, *_table(kills, KILLS), *_details(kills)]  # fmt: skip
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """# Robustness

<!-- Generated from docs/results/robustness/fuzz.json and docs/results/robustness/kills.json by `make fuzz` and `make kills`; do not edit. -->

Refocus reads files that others made: bundles, photos, personal weights, messages of clients; and files that a disk or a
power cut may have damaged: a person's history. `make fuzz` runs mutated ones through the real code, `make kills` ends
processes with SIGKILL at random moments. Both go on where they stopped, take `AREA=` and `SEEDS=first:last`, and count
anew when the code has changed. One per cent of the cases, and a few kills of each kind, run in `make test-slow`."""

_FUZZ = """Each case is a function of its seed. *Right*: a known answer came out. *Accepted*: usable, without a known
answer. *Refused*: a typed error. A wrong answer, an exception of another type, a case above 5 seconds, a process above
1 GB, and a process that ended are failures. *Unbounded*: a program that was loaded, and then ran for ever or filled the
memory within the time limit for bundles of strangers; no format can exclude that, and it counts apart."""

_KILLS = """Each kill ends a process at a random moment, or at one event after the other. What was acknowledged before
must be there afterwards, the device must serve, nothing half-written may stand under a final name, and the same command
run again must end as if it had never been stopped."""


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())["areas"] if path.exists() else {}
    return found


def _table(areas: dict[str, Any], full: dict[str, int]) -> list[str]:
    if not areas:
        return ["No run is recorded."]
    columns = ("right", "accepted", "refused", UNBOUNDED, *FAILURES)
    lines = [f"| area | planned | run | {' | '.join(columns)} |", "|---" * (len(columns) + 3) + "|"]
    for area, count in full.items():
        if area in areas:
            got = areas[area]["outcomes"]
            cells = [f"{got.get(column, 0):,}" for column in columns]
            planned = "each" if area == "events" else f"{count:,}"
            lines.append(f"| {area} | {planned} | {areas[area]['cases']:,} | {' | '.join(cells)} |")
    return ["\n".join(lines)]


def _details(areas: dict[str, Any]) -> list[str]:
    return [_detail(area, found) for area, found in sorted(areas.items())]


def _detail(area: str, found: dict[str, Any]) -> str:
    libraries = ", ".join(f"{name} {number}" for name, number in found["versions"].items() if number != "none")
    lines = [f"### {area}", "", f"Commit `{found['commit'][:12]}`; {libraries}. Slowest case {found['slowest_seconds']:.1f} s,"
             f" largest process {found['peak_bytes'] / 1e6:.0f} MB.", "", "| kind | cases | outcomes |", "|---|---|---|"]  # fmt: skip
    for kind, counts in found["kinds"].items():
        said = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())
        lines.append(f"| {kind} | {sum(counts.values()):,} | {said} |")
    if found["failures"]:
        lines += ["", "| failure | cases | seeds |", "|---|---|---|"]
        lines += [f"| {name.replace('|', '/')} | {f['count']:,} | {', '.join(map(str, f['seeds']))} |"
                  for name, f in found["failures"].items()]  # fmt: skip
    return "\n".join(lines)
