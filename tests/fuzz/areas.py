"""What an area of the fuzzer is, how a case is judged, and the canaries that show reads outside a bundle.

A case is a function of its seed alone: the same seed always gives the same input. An area makes the input, hands it to
the code under test, and checks the answer; the worker process (``__main__.py``) says what came of it, and its parent
(``runner.py``) kills it where a case does not end.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from refocus.edge.errors import RefocusError

# Area -> module with a class ``Fuzzed``; cases of a whole run.
AREAS = {
    "bundles": ("tests.fuzz.bundles", 100_000),
    "photos": ("tests.fuzz.photos", 100_000),
    "profiles": ("tests.fuzz.profiles", 25_000),
    "wire": ("tests.fuzz.wire", 20_000),
    "files": ("tests.fuzz.files", 50_000),
}
# right: a known answer came out; accepted: usable, without a known answer; refused: a typed error.
GOOD = ("right", "accepted", "refused")
# wrong: an answer that must not be; uncaught: an exception of another type; hang: above 5 s; memory: above 1 GB; died:
# the process ended by itself.
FAILURES = ("wrong", "uncaught", "hang", "memory", "died")
# A program that was loaded and never ends, or fills the memory: no format can exclude it, and it is counted apart.
UNBOUNDED = "unbounded"
REPOSITORY = Path(__file__).parents[2]
if os.environ.get("FUZZ_SELF"):  # the fuzzer's own test, also in its workers
    AREAS["self"] = ("tests.fuzz.test_robustness", 9)
MARKER = 7777.25  # every number in a canary


class Wrong(Exception):
    """The code under test gave an answer that must not be."""


class Area(ABC):
    """One kind of hostile input.

    Args:
        material: folder with what :meth:`build` made.
        scratch: empty folder of this process.
    """

    typed: ClassVar[tuple[type[BaseException], ...]] = (RefocusError,)

    def __init__(self, material: Path, scratch: Path) -> None:
        self.material, self.scratch = material, scratch

    @staticmethod
    @abstractmethod
    def build(material: Path) -> None:
        """Makes the unharmed inputs, once, in an empty folder."""

    @abstractmethod
    def make(self, seed: int) -> tuple[str, Any]:
        """The kind and the input of one case."""

    @abstractmethod
    def judge(self, case: Any, run: Callable[[], None]) -> str:
        """Hands the input to the code under test.

        Args:
            run: to be called once everything is loaded and a program of the input is about to run.

        Returns:
            "right", "accepted" or "refused".

        Raises:
            Wrong: an answer that must not be.
            BaseException: whatever the code under test raises.
        """

    @abstractmethod
    def save(self, case: Any, folder: Path) -> None:
        """Writes the input as files, for people."""


def area_class(name: str) -> type[Area]:
    """The class of one area."""
    found: type[Area] = import_module(AREAS[name][0]).Fuzzed
    return found


def rng_of(area: str, seed: int) -> random.Random:
    """The random numbers of one case."""
    return random.Random(f"{area} {seed}")


def signature(error: BaseException) -> tuple[str, str]:
    """Type of an exception, and the innermost function of this repository that it came through."""
    ours = [f for f in traceback.extract_tb(error.__traceback__)
            if Path(f.filename).is_relative_to(REPOSITORY) and not Path(f.filename).is_relative_to(REPOSITORY / "tests")]  # fmt: skip
    place = ours[-1] if ours else None
    where = f"{Path(place.filename).relative_to(REPOSITORY)}:{place.name}" if place else "?"
    kind = type(error)
    name = (
        kind.__name__
        if kind.__module__ in ("builtins", "refocus.edge.errors")
        else f"{kind.__module__}.{kind.__name__}"
    )
    return name, where


def save_case(area: Area, name: str, seed: int, kind: str, case: Any, folder: Path) -> None:
    """Writes the input of a case into a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "about.txt").write_text(f"area {name}, seed {seed}: {kind}\n")
    area.save(case, folder)


class Canaries:
    """Files that nobody may open; ``touched`` says which were, by whatever library, since it was last asked."""

    _OPEN, _ACCESS, _EVENT = 0x20, 0x1, 16

    def __init__(self, *paths: Path) -> None:
        import numpy as np

        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_NONBLOCK)
        self._names = {}
        for path in paths:
            path.write_bytes(np.full(4096, MARKER, dtype=np.float32).tobytes())
            watch = self._libc.inotify_add_watch(self._inotify, os.fsencode(path), self._OPEN | self._ACCESS)
            if watch < 0:
                raise OSError(ctypes.get_errno(), "inotify is needed to watch canaries")
            self._names[watch] = path

    def touched(self) -> list[Path]:
        """The canaries that were opened or read since the last call."""
        try:
            events = os.read(self._inotify, 1 << 16)
        except BlockingIOError:
            return []
        watches = {int.from_bytes(events[at : at + 4], "little") for at in range(0, len(events), self._EVENT)}
        return [self._names[watch] for watch in sorted(watches) if watch in self._names]
