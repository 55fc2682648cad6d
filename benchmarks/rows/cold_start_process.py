"""A process that starts, recognises a few photos, and says what it cost. It imports nothing before its clock runs."""

from __future__ import annotations

import time

BEGIN = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402


def main() -> None:
    """The fresh process: is asked on standard input, answers with one line of JSON."""
    from refocus.edge.bundle import load_bundle
    from refocus.edge.recognize import Recognizer
    from refocus.edge.runtimes import RUNTIMES

    asked = json.load(sys.stdin)
    __import__(RUNTIMES[asked["target"][0]][0])
    imported, resident = time.perf_counter(), resident_bytes()
    contents = [Path(file).read_bytes() for file in asked["files"]]
    before = time.perf_counter()
    runtime, precision = asked["target"]
    device = Recognizer(
        load_bundle(Path(asked["bundle"])),
        Path(asked["profile"]),
        runtime,
        precision,
        asked["threads"],
        asked["head"],
        asked["provider"],
        asked["allow_fallback"],
    )
    loaded, with_bundle = time.perf_counter(), resident_bytes()
    number = time.time_ns()
    moments = [time.perf_counter()]
    for photo in range(asked["photos"]):
        device.recognize(contents[photo % len(contents)] + (number + photo).to_bytes(8, "big"), "photo")
        moments.append(time.perf_counter())
    device.close()
    if asked["what"] == "memory":
        said: dict[str, float] = {"imported": resident, "loaded": with_bundle, "peak": peak_bytes()}
    else:
        last = min(2, len(moments) - 1)
        said = {
            "import": 1000 * (imported - BEGIN),
            "cold load": 1000 * (loaded - before),
            "first photo": 1000 * (moments[1] - moments[0]),
            "second photo": 1000 * (moments[last] - moments[last - 1]),
        }
    sys.stdout.write(json.dumps(said) + "\n")


def resident_bytes() -> int:
    """Memory of this process now; its peak where the system does not say."""
    try:
        words = Path("/proc/self/statm").read_text().split()
    except OSError:
        return peak_bytes()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
