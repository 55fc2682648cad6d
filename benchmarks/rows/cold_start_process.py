"""A process that starts, answers a few photos, and says what it cost. It imports nothing before its clock runs.

It opens a bundle, or one program of a suite alone.
"""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import contextlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

Load = Callable[[list[bytes]], tuple[Callable[[int], object], Callable[[], object]]]


def main() -> None:
    """The fresh process: is asked on standard input, answers with one line of JSON."""
    from refocus.edge.runtimes import RUNTIMES

    asked = json.load(sys.stdin)
    load = (_program if "program" in asked else _bundle)(asked)
    __import__(RUNTIMES[asked["target"][0]][0])
    imported, resident = time.perf_counter(), resident_bytes()
    contents = [Path(file).read_bytes() for file in asked.get("files", ())]
    before = time.perf_counter()
    answer, close = load(contents)
    loaded, with_bundle = time.perf_counter(), resident_bytes()
    moments = [time.perf_counter()]
    for photo in range(asked["photos"]):
        answer(photo)
        moments.append(time.perf_counter())
    close()
    said: dict[str, float] = {}
    if asked["what"] != "start":
        said |= {"imported_bytes": resident, "loaded_bytes": with_bundle, "peak_bytes": peak_bytes()}
    if asked["what"] != "memory":
        last = min(2, len(moments) - 1)
        said |= {
            "import": 1000 * (imported - BEGIN),
            "cold load": 1000 * (loaded - before),
            "first photo": 1000 * (moments[1] - moments[0]),
            "second photo": 1000 * (moments[last] - moments[last - 1]),
        }
    sys.stdout.write(json.dumps(said) + "\n")


def _bundle(asked: dict[str, Any]) -> Load:
    """Imports what recognises; what is returned opens the bundle for the given photos."""
    from refocus.edge.bundle import load_bundle
    from refocus.edge.recognize import Recognizer

    def load(contents: list[bytes]) -> tuple[Callable[[int], object], Callable[[], object]]:
        runtime, precision = asked["target"]
        device = Recognizer(
            load_bundle(Path(asked["bundle"])),
            Path(asked["profile"]),
            runtime,
            precision,
            **asked["options"],
        )
        number = time.time_ns()

        def answer(photo: int) -> object:
            content = contents[photo % len(contents)] + (number + photo).to_bytes(8, "big")
            return device.recognize(content, "photo")

        return answer, device.close

    return load


def _program(asked: dict[str, Any]) -> Load:
    """Imports what runs programs; what is returned loads the one that was asked for."""
    from refocus.benchmarks.rows.saved_program import load_saved, read_program

    def load(contents: list[bytes]) -> tuple[Callable[[int], object], Callable[[], object]]:
        folder = Path(asked["program"])
        run = load_saved(folder, read_program(folder))
        return lambda photo: run(), lambda: None

    return load


def resident_bytes() -> int:
    """Memory of this process now; its peak where the system does not say."""
    try:
        words = Path("/proc/self/statm").read_text().split()
    except OSError:
        return peak_bytes()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most memory this process ever had. Linux counts the parent's in ``ru_maxrss``; its own status does not."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
