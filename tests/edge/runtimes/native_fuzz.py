"""``python -m tests.edge.runtimes.native_fuzz LIBRARY FIRST END``: random heads and class shares through a library.

Each is compared with the reference in numpy, on every instruction set. Every array is exactly as large as it has to be,
so that a sanitizer sees a number that is read or written beside it. ``make fuzz-native`` builds such a library.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from refocus.edge.recognize.class_shares import ClassShares, ShareSettings
from refocus.edge.recognize.rejection import KnownScores
from refocus.edge.runtimes import native, native_format, native_library, native_shares
from tests.edge.runtimes.native_reference import difference, random_case, random_config, source_of

TOLERANCE = 5e-5  # of float32 sums in another order
SHARES_TOLERANCE = 3e-5  # of logarithms of small shares, whose responsibilities are kept as float32
SHOWN = 40  # photos of a person whose shares are compared


def run(library: Path, seeds: range) -> list[str]:
    """One line for each head that the library answers otherwise."""
    native._LIBRARY = native_library.NativeLibrary(library)
    native_format.room = native.room = lambda size: np.empty(size, dtype=np.uint8)
    wrong = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        case = random_case(random_config(rng), rng)
        for variant in native._LIBRARY.variants:
            off = difference(case, native.Loaded(source_of(case, variant)).run(**case.inputs))
            if not off <= TOLERANCE:
                wrong.append(f"seed {seed}, {variant}: {off:.2g} off; {case.config}")
    native_shares._FUNCTIONS = native_shares.load(library)
    for seed in seeds:
        off = shares_difference(np.random.default_rng(seed))
        if not off <= SHARES_TOLERANCE:
            wrong.append(f"seed {seed}: class shares {off:.2g} off")
    return wrong


def shares_difference(rng: np.random.Generator) -> float:
    """Largest difference of answers and shares between C and numpy, over one person's photos, some of them erased."""
    classes, expected = int(rng.choice([2, 3, 17, 100])), bool(rng.random() < 0.3)
    base = rng.dirichlet(np.full(classes, 3.0)) if rng.random() < 0.5 else ()
    vectors = rng.random() < 0.5
    rejection = float(rng.choice([-math.inf, 3.0]))
    quantiles = tuple(np.linspace(3.0, rng.uniform(4, 12), 10).tolist()) if rng.random() < 0.5 else ()
    known = KnownScores(rejection, quantiles)
    settings = ShareSettings(
        temperature=float(rng.uniform(0.5, 2)),
        scale=tuple(rng.uniform(0.5, 2, classes)) if vectors else (),
        bias=tuple(rng.normal(size=classes)) if vectors else (),
        with_head=float(rng.uniform(0, 1)),
        gated=bool(rng.random() < 0.5),
        support=float(rng.choice([0.0, 0.05, 0.5])),
        base=tuple(np.maximum(base, 1e-4) / np.maximum(base, 1e-4).sum()) if len(base) else (),
        strength=float(rng.uniform(0.5, 20)),
        half_life=float(rng.choice([0.0, 3.0, 8.0, 50.0])),
        evidence_half_life=float(rng.choice([0.0, 8.0, 34.0])),
        no_shift=float(rng.uniform(0.05, 0.95)),
        penalty=float(rng.choice([0.0, 0.1])),
        top=int(rng.integers(1, classes + 2)),
        capacity=int(rng.integers(9, 60)),
    )
    fast, slow = (ClassShares(settings, classes, one, expected, known) for one in (True, False))
    worst = 0.0
    for number in range(SHOWN):
        (logits, head), length = rng.normal(size=(2, classes)) * 3, float(rng.uniform(0.5, 2))
        for one, other in zip(*(_said(state, logits, head, length) for state in (fast, slow)), strict=True):
            worst = max(worst, float(np.abs(np.asarray(one) - np.asarray(other)).max()))
        row = slow.row(logits, length)
        if row.value != fast.row(logits, length).value:
            return np.inf
        erased = number - int(rng.integers(0, 5)) if number % 7 == 6 else -1
        for state in (fast, slow):
            state.add(row, number)
            state.forget(erased)
    return worst


def _said(state: ClassShares, logits: np.ndarray, head: np.ndarray, length: float) -> list[Any]:
    """Every number of an answer by the classifier and by a head beside it."""
    alone, (beside, mixed) = state.answer(logits, length), state.answer_beside(logits, head, length)
    fields = "logits", "plain_logits", "shift", "alone", "trust", "moved"
    found = [getattr(answer, name) for answer in (alone, beside) for name in fields]
    return [*found, mixed, *alone.estimate[:3], *alone.row, *beside.row]


if __name__ == "__main__":
    failures = run(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3])))
    sys.exit("\n".join(failures[:20]) or 0)
