"""Measure the device install and compare it with bare ONNX Runtime.

The results are bytes on disk, start and first answer, and resident memory. Both answer a photo in fresh processes,
alternately (:mod:`studies.bench.rows.install_process`), once with their files in the page cache and once after they
were dropped from it, as after a reboot. Until all processes have run, this module imports only Python's own modules:
files that a running process has mapped cannot be dropped.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import mmap
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import refocus
from refocus.edge.errors import RefocusError
from studies.bench.rows.install_process import BARE, REFOCUS

SCHEMA = 1
CLONE = str(Path(__file__).parents[3])
DISTRIBUTION, EXTRAS = "refocus-edge", ("cpu",)
TIMES = ("import_ms", "load_ms", "first_answer_ms", "whole_ms")
SIZES = ("imported_bytes", "answered_bytes", "peak_bytes")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


def measure(
    bundle: Path,
    photo: Path,
    rounds: int,
    machine: Callable[[], Any],
    say: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Measure the install and return the document.

    Args:
        bundle: folder with programs for ``onnxruntime:fp32``.
        photo: a file that the bundle's preprocessing takes.
        rounds: pairs of processes, with and without the page cache each.
        machine: describes this machine; called after all processes have run.
        say: shows progress.

    Raises:
        RefocusError: the system cannot drop files, the bundle or photo cannot be used, or the two answer differently.
    """
    if not hasattr(os, "posix_fadvise"):
        raise RefocusError(f"install: {platform.system()} cannot drop files from the page cache; measure on Linux")
    if rounds < 2:
        raise RefocusError(f"--rounds {rounds}: expected 2 or more")
    for path, name in ((bundle / "manifest.json", "bundle"), (photo, "photo")):
        if not path.is_file():
            raise RefocusError(f"{path} is not a file; give a {name}")
    installed = distributions()
    files = [*installed_files(installed), *_files_below(Path(sysconfig.get_path("stdlib"))), *_files_below(bundle)]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory(prefix="refocus-install-") as temporary:
        scratch = Path(temporary)
        labels = {program: _run(program, bundle, photo, scratch, 0)["label"] for program in (REFOCUS, BARE)}
        if len({*labels.values()}) > 1:
            raise RefocusError(
                f"{photo} is {labels[REFOCUS]} for Refocus and {labels[BARE]} for bare ONNX Runtime; give another"
            )
        os.sync()  # pages that are not written yet cannot be dropped
        drop(files)
        still = resident_share(files)
        for state in ("dropped", "cached"):
            kept = found[state] = {REFOCUS: [], BARE: []}
            for number in range(1, rounds + 1):
                say(f"files {state}: round {number} of {rounds}")
                for program in (REFOCUS, BARE) if number % 2 else (BARE, REFOCUS):
                    if state == "dropped":
                        drop(files)
                    kept[program].append(_run(program, bundle, photo, scratch, number))
    return _document(installed, found, still, rounds, machine())


def _run(program: str, bundle: Path, photo: Path, scratch: Path, number: int) -> dict[str, Any]:
    """Run one fresh process on a new photo with the given file's pixels."""
    copy = scratch / f"{number}{photo.suffix}"
    copy.write_bytes(photo.read_bytes() + os.urandom(8))
    # The clone comes last: the measured package is the installed one.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sorted(filter(None, sys.path), key=CLONE.__eq__))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an install has its bytecode
    command = [sys.executable, "-m", "studies.bench.rows.install_process", program, bundle, copy, scratch]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment)  # noqa: S603  # ours
    copy.unlink()
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RefocusError(f"install: {program} ended with status {done.returncode}: {last}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def distributions(name: str = DISTRIBUTION, extras: Sequence[str] = EXTRAS) -> dict[str, str]:
    """Return the distributions that an install brings, with versions.

    The distribution itself comes first; only installed ones are returned.

    Raises:
        RefocusError: the distribution is not installed.
    """
    found: dict[str, str] = {}
    waiting = [(name, tuple(extras))]
    while waiting:
        asked, of = waiting.pop(0)
        key = asked.lower().replace("_", "-")
        if key in found:
            continue
        try:
            about = importlib.metadata.distribution(asked)
        except importlib.metadata.PackageNotFoundError:
            if not found:
                raise RefocusError(f"{asked} is not installed; pip install '{asked}[cpu]'") from None
            continue  # for another system or Python
        found[key] = about.version
        for requirement in about.requires or ():
            extra, needed = _EXTRA.search(requirement), _NAME.match(requirement)
            if needed is not None and (extra is None or extra[1] in of):
                waiting.append((needed[0], ()))
    return found


def installed_files(names: Iterable[str]) -> list[Path]:
    """Return every file of the distributions."""
    return [path for name in names for path in _files_of(name)]


def _files_of(name: str) -> Iterator[Path]:
    if name == DISTRIBUTION:  # an editable install does not list its files
        yield from _files_below(Path(refocus.__file__).parent)
        return
    for file in importlib.metadata.distribution(name).files or ():
        path = Path(str(file.locate()))
        if path.is_file():
            yield path


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders that it links to.

    Other installed packages are skipped.
    """
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages", "test")]
        yield from (Path(place) / name for name in names if (Path(place) / name).is_file())


def bytes_on_disk(name: str) -> int:
    """Return the size of a distribution without bytecode.

    Bytecode is written on the machine that runs it.
    """
    return sum(path.stat().st_size for path in {*_files_of(name)} if path.suffix != ".pyc")


def drop(files: Iterable[Path]) -> None:
    """Drop files from the page cache.

    Pages that a running process has mapped stay.
    """
    for path in files:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(files: Iterable[Path]) -> float:
    """Return the share of the files' bytes in the page cache (mincore)."""
    library, page = ctypes.CDLL(None, use_errno=True), os.sysconf("SC_PAGE_SIZE")
    pages = there = 0
    for path in {*files}:
        size = path.stat().st_size
        if not size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
            count = -(-size // page)
            vector = (ctypes.c_ubyte * count)()
            first = ctypes.c_char.from_buffer(mapped)
            failed = library.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), vector)
            del first  # the mapping cannot be closed while it is referred to
            if not failed:
                pages, there = pages + count, there + sum(flag & 1 for flag in vector)
    return there / pages if pages else 0.0


def _document(
    installed: Mapping[str, str],
    found: Mapping[str, Mapping[str, list[dict[str, Any]]]],
    still: float,
    rounds: int,
    machine: Any,
) -> dict[str, Any]:
    import numpy as np

    from refocus.benchmarks.measure.statistics import bootstrap_median

    rows, ratios = [], {}
    for state, of_state in found.items():
        for program, runs in of_state.items():
            times = {name: bootstrap_median(np.array([run[name] for run in runs]), 1).as_dict() for name in TIMES}
            sizes = {name: int(np.median([run[name] for run in runs])) for name in SIZES}
            counts = {name: max(run[name] for run in runs) for name in ("opened", "modules")}
            samples = {"samples_ms": [round(run["whole_ms"], 3) for run in runs]}
            rows.append({"files": state, "program": program, **times, **sizes, **counts, **samples})
        pairs = zip(of_state[REFOCUS], of_state[BARE], strict=True)
        ratios[state] = bootstrap_median(np.array([a["whole_ms"] / b["whole_ms"] for a, b in pairs]), 1).as_dict()
    return {
        "schema_version": SCHEMA,
        "device_install": {
            "rounds": rounds,
            "python": platform.python_version(),
            "cpu": machine.cpu,
            "cores": machine.cores,
            "system": machine.system,
            "load_average": machine.load_average,
            "still_cached_share": still,
        },
        "disk": [{"distribution": n, "version": v, "bytes": bytes_on_disk(n)} for n, v in installed.items()],
        "rows": rows,
        "ratio": ratios,
        "torch_loaded": any(run["torch"] for of in found.values() for runs in of.values() for run in runs),
    }


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _print(document: dict[str, Any]) -> None:
    for state, ratio in document["ratio"].items():
        _say(f"files {state}: {ratio['mean']:.2f} times bare ONNX Runtime ({ratio['low']:.2f} to {ratio['high']:.2f})")
    for row in document["rows"]:
        memory = f"{row['imported_bytes'] / 1e6:.0f} MB, {row['answered_bytes'] / 1e6:.0f} MB after the answer"
        _say(f"{row['files']} {row['program']}: {row['whole_ms']['mean']:.0f} ms to the first answer, {memory}")
    size = sum(one["bytes"] for one in document["disk"])
    _say(f"{size / 1e6:.0f} MB on disk in {len(document['disk'])} distributions")


def main(bundle: Path, photo: Path, rounds: int, out: Path) -> None:
    """Measure the install of this Python and write its document.

    The figures are printed too.
    """

    def machine() -> Any:
        from refocus.benchmarks.devices import describe

        return describe()

    document = measure(bundle, photo, rounds, machine, _say)
    document["command"] = f"python -m studies.bench.rows.install BUNDLE {photo.name} {rounds} OUT"
    from refocus.edge.files import write_file

    write_file(out, json.dumps(document, indent=1) + "\n")
    _print(document)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
