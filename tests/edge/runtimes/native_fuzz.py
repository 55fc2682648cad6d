"""``python -m tests.edge.runtimes.native_fuzz LIBRARY FIRST END``: random heads through a library of the native head.

Each is compared with the reference in numpy, on every instruction set. Every array is exactly as large as it has to be,
so that a sanitizer sees a number that is read or written beside it. ``make fuzz-native`` builds such a library.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from refocus.edge.runtimes import native, native_format, native_library
from tests.edge.runtimes.native_reference import difference, random_case, random_config, source_of

TOLERANCE = 5e-5  # of float32 sums in another order


def run(library: Path, seeds: range) -> list[str]:
    """One line for each head that the library answers otherwise."""
    native._LIBRARY = native_library.NativeLibrary(library)
    native_format._own = lambda value: np.array(value, copy=True)
    wrong = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        case = random_case(random_config(rng), rng)
        for variant in native._LIBRARY.variants:
            off = difference(case, native.Loaded(source_of(case, variant)).run(**case.inputs))
            if not off <= TOLERANCE:
                wrong.append(f"seed {seed}, {variant}: {off:.2g} off; {case.config}")
    return wrong


if __name__ == "__main__":
    failures = run(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3])))
    sys.exit("\n".join(failures[:20]) or 0)
