"""Measure the cost of switching people relative to a recognition.

Switches are measured by carrier, runtime and state of the caches. They use the device's own recogniser and cache, on
one thread, all candidates interleaved in one run. A recognition is encoder and head, from prepared pixels to an answer;
decoding and history are additional, so the reported shares are upper bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from refocus.benchmarks.measure.timer import Timings, interleave
from refocus.benchmarks.report.text import markdown_table
from refocus.edge.bundle import Artifact, Bundle, Carrier, NewWeights, PersonalWeights, model_of
from refocus.edge.personal import KEPT_MAPPED, PersonalPrograms, PersonalWeightStore, SessionPool
from refocus.edge.recognize import Recognizer, profile_path
from refocus.edge.runtimes import Program, load_program

SCHEMA = 2  # 1: Refocus 0.1; the same fields
WARM = 4  # sessions in the pool, as a recogniser keeps
PEOPLE = {"inputs": 1000, "weights": WARM, "whole": WARM}
FEW = 8  # of many people with inputs, those served again and again
CACHE_BYTES = 4 * 1024**3
_HEADINGS = (
    "network | runtime | carrier | a person's file | a recognition | switching | share of a recognition, 95 % | a"
    " switch"
)


def measure(bundle: Bundle, runtime: str, folder: Path, rounds: int, people: int = 0) -> dict[str, Any]:
    """Measure the switches of one bundle on one runtime.

    Args:
        bundle: bundle with a carrier of personal weights.
        runtime: name of the runtime.
        folder: empty folder for people's weights and histories.
        rounds: rounds of the interleaved run.
        people: number of people with their own weights; 0: the number that the carrier is intended for.
    """
    carrier = cast(Carrier, bundle.manifest.head().personalisation.carrier)
    encoder, head = (bundle.artifact(role, runtime) for role in ("encoder", "head"))
    count = people or PEOPLE[carrier]
    cache = _cache(folder)
    model, rng, size = model_of(encoder, head), np.random.default_rng(0), 0
    for number in range(count):
        weights = NewWeights(carrier, "random", _drawn(bundle, encoder, head, rng))
        size = cache.put(f"p{number}", model, weights).size_bytes
    pixels = np.zeros((1, 3, *[bundle.manifest.preprocessing.crop] * 2), dtype=np.float32)
    with Recognizer(bundle, None, runtime, threads=1, weights=cache) as device:
        switches = _as_inputs if carrier == "inputs" else _as_sessions
        timings = interleave(
            {
                "recognition": lambda: device.recognize_pixels(pixels, "photo", remember=False),
                **switches(bundle, runtime, folder, count),
            },
            rounds,
            warm_up=4,
        )
    left = {a.role: a.placement.fallbacks for a in (encoder, head) if a.placement is not None}
    return {
        "runtime": runtime,
        "carrier": carrier,
        "people": count,
        "person_bytes": size,
        "rounds": rounds,
        "left_to_the_processor": sorted({name for names in left.values() for name in names}),
        "recognition_ms": _spread(timings, "recognition"),
        "switches": _rows(timings),
    }


def _drawn(bundle: Bundle, encoder: Artifact, head: Artifact, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw one person's tensors with the shapes of a network's.

    Their values do not affect speed.
    """
    shapes = {n: value.shape for a in (encoder, head) for n, value in bundle.defaults(a).items()}
    shapes |= {t.name: t.shape for t in (encoder.personal.tensors if encoder.personal is not None else ())}
    return {name: 0.02 * rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def _as_inputs(bundle: Bundle, runtime: str, folder: Path, count: int) -> dict[str, Callable[[], object]]:
    """Prepare switches of personal tensors that are inputs of the program.

    One switch also closes a history file and opens another person's.
    """
    order = np.random.default_rng(1).permutation(count)
    few, many = itertools.cycle(range(min(FEW, count))), itertools.cycle(order.tolist())
    histories = itertools.cycle(range(min(FEW, count)))
    warm, cold = (_programs(bundle, runtime, folder) for _ in range(2))
    device = Recognizer(bundle, None, runtime, threads=1, weights=_cache(folder))
    assert count > KEPT_MAPPED or count <= FEW  # noqa: S101  # else some of the many would be mapped already
    return {
        f"among {min(FEW, count)} served lately": lambda: warm.of(f"p{next(few)}"),
        f"among {count:,} in any order": lambda: cold.of(f"p{next(many)}"),
        "with their history": lambda: device.switch(profile_path(folder, f"p{next(histories)}")),
    }


def _as_sessions(bundle: Bundle, runtime: str, folder: Path, count: int) -> dict[str, Callable[[], object]]:
    """Prepare switches between sessions of personal programs.

    The session is loaded already, or is created from a file that this process has not opened.
    """
    warm, turn, again = _programs(bundle, runtime, folder), itertools.cycle(range(count)), itertools.cycle(range(count))
    for _ in range(count):
        warm.of(f"p{next(turn)}")
    shared, before = warm.shared, SessionPool(1)

    def cold() -> None:
        nonlocal before
        before.close()  # a new session in a full pool evicts another one
        before = SessionPool(1)
        _programs(bundle, runtime, folder, before, shared).of(f"p{next(again)}")

    return {"to a warm session": lambda: warm.of(f"p{next(turn)}"), "to a cold session": cold}


def _programs(
    bundle: Bundle, runtime: str, folder: Path, sessions: SessionPool | None = None, shared: Program | None = None
) -> PersonalPrograms:
    """Create a recogniser's programs over a cache without opened files.

    Args:
        bundle: bundle with a carrier of personal weights.
        runtime: name of the runtime.
        folder: folder of the cache.
        sessions: pool of sessions; default: a new one of ``WARM`` sessions.
        shared: program without personal weights, if it is loaded already.
    """

    def load(*, personal: PersonalWeights | None = None) -> Program:
        if shared is not None and personal is None:
            return shared
        return load_program(bundle, "encoder", runtime, threads=1, personal=personal)

    encoder, head = (bundle.artifact(role, runtime) for role in ("encoder", "head"))
    own = head, bundle.defaults(head)
    return PersonalPrograms(
        load, _cache(folder), SessionPool(WARM) if sessions is None else sessions, bundle.defaults(encoder), own
    )


def _cache(folder: Path) -> PersonalWeightStore:
    return PersonalWeightStore(folder / "weights", CACHE_BYTES, sync=False)


def _rows(timings: Timings) -> list[dict[str, Any]]:
    return [
        {"what": name, "share": timings.ratio(name, "recognition").as_dict(), "ms": _spread(timings, name)}
        for name in timings.samples_ms
        if name != "recognition"
    ]


def _spread(timings: Timings, name: str) -> dict[str, float]:
    return {f"p{share}": timings.percentile(name, share) for share in (10, 50, 90)}


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Format the rows of a document as a Markdown table."""
    found = []
    for row in rows:
        about = f"`{row['backbone']}`, {row['method']}", row["runtime"], row["carrier"]
        sizes = f"{row['person_bytes'] / 1e6:.2f} MB", _ms(row["recognition_ms"])
        for switch in row["switches"]:
            mean, low, high = (_share(switch["share"][name]) for name in ("mean", "low", "high"))
            found.append((*about, *sizes, switch["what"], f"{mean} ({low} to {high})", _ms(switch["ms"])))
    return [*markdown_table(_HEADINGS, found)]


def _share(value: float) -> str:
    return f"{value:.0%}" if value > 1 else f"{value:.{2 if value > 0.01 else 3}%}"


def _ms(spread: dict[str, float]) -> str:
    digits = 3 if spread["p50"] < 1 else 0
    return f"{spread['p50']:.{digits}f} ms ({spread['p10']:.{digits}f} to {spread['p90']:.{digits}f})"
