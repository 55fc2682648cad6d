"""The gates of a retraining: each judges what earlier steps measured, says value, limit and why, and stops the release.

People first, before anything is exported; then the programs; then what they cost. None of this needs PyTorch.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refocus.benchmarks.measure import Photos
from refocus.cloud_train.pipeline.state import current_bundle, parity_photos, read_state, write_state
from refocus.cloud_train.release.evidence import latency_ratio, parity_of, size_bytes
from refocus.cloud_train.release.gates import (
    COST,
    PEOPLE,
    Evidence,
    Gate,
    GateLimits,
    accuracy,
    evaluate_gates,
    never_worse,
    worst_decile,
)
from refocus.cloud_train.release.gates import parity as parity_rule
from refocus.edge.bundle import load_bundle

# Of a first release nobody can be worse off than today; it is compared with the plain classifier.
FIRST = (accuracy, worst_decile, never_worse)
JUDGED = ("gate", "parity", "benchmark")


def people_gate(work: Path) -> bool:
    """Gate on the accuracy per person of the candidate release."""
    found = read_state(work, "evaluate")
    if "mismatch" in found:  # what does not compute what was trained is not shown to people
        return _write_gates(work, "gate", [Gate("parity", 1.0, 0.0, passed=False, why=found["mismatch"])])
    photos, current, candidate, plain = (np.array(found[name]) for name in ("photos", "current", "candidate", "plain"))
    rules = PEOPLE if read_state(work, "current") else FIRST
    return _write_gates(
        work, "gate", evaluate_gates(Evidence(photos, current, candidate, plain), limits_of(work), rules)
    )


def parity_gate(work: Path) -> bool:
    """Judges whether every program computes what PyTorch computes."""
    mismatch = read_state(work, "merge")["mismatch"]
    found = dict.fromkeys(mismatch, False) if mismatch else parity_of(load_bundle(work / "bundle"))
    [result] = evaluate_gates(_of_nobody(work, parity=found), limits_of(work), [parity_rule])
    return _write_gates(work, "parity", [replace(result, why="; ".join([result.why, *mismatch.values()]))])


def benchmark_gate(work: Path) -> bool:
    """Judges size and time against the current release; a first release has nothing to be slower than."""
    current, candidate = current_bundle(work), load_bundle(work / "bundle")
    state: dict[str, Any] = {"bytes": size_bytes(candidate)}
    if current is None:
        return _write_gates(work, "benchmark", [], **state)
    runtime, precision = read_state(work, "evaluate")["runs"]
    rounds = read_state(work, "pipeline")["judging"]["rounds"]
    ratio = latency_ratio(current, candidate, _some_photos(work), (runtime, precision), rounds)
    evidence = _of_nobody(work, current_bytes=size_bytes(current), candidate_bytes=state["bytes"], latency_ratio=ratio)
    state |= {"current_bytes": evidence.current_bytes, "latency_ratio": list(ratio)}
    return _write_gates(work, "benchmark", evaluate_gates(evidence, limits_of(work), COST), **state)


def judged_gates(work: Path) -> list[dict[str, Any]]:
    """Every gate that was judged so far."""
    return [found for name in JUDGED for found in read_state(work, name).get("gates", [])]


def limits_of(work: Path) -> GateLimits:
    """The limits of a run."""
    return msgspec.convert(read_state(work, "pipeline")["limits"], GateLimits)


def _write_gates(work: Path, name: str, gates: list[Gate], **more: Any) -> bool:
    passed = all(found.passed for found in gates)
    write_state(work, name, {**more, "passed": passed, "gates": [asdict(found) for found in gates]})
    return passed


def _of_nobody(work: Path, **more: Any) -> Evidence:
    """Evidence for gates that do not ask about people."""
    none = np.zeros(limits_of(work).least_people)
    return Evidence(none, none, none, none, **more)


def _some_photos(work: Path) -> Photos:
    """The photos of one person, whose time is taken; labels do not matter to it."""
    person = min(path for path in parity_photos(work).iterdir() if path.is_dir())
    files = sorted(str(path) for path in person.iterdir())
    return Photos(person.name, "", {person.name: [(file, "") for file in files]}, lambda file: Path(file).read_bytes())
