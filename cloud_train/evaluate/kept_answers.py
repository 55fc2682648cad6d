"""Cache the answers of a study's rows in the run, so that it resumes.

    RUN/seed-S/answers/DIGEST.json    numbers, such as accuracies, and the trained networks that they belong to

A cached answer is valid while all files of trained networks that it was computed with, and the code of TAPER and of its
studies, are unchanged.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.methods import taper
from refocus.cloud_train.resume import SUFFIX
from refocus.cloud_train.runs.taper import TaperRun
from refocus.edge.files import write_file
from refocus.edge.taper import Bank


def kept_numbers(
    run: TaperRun, seed: int, asked: list[Any], answer: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return arrays by name, computed once from the networks of a seed.

    Args:
        run: the run with the cache.
        seed: seed of the networks.
        asked: values on which the arrays depend besides those networks, as JSON.
        answer: computes the arrays if they are not cached.
    """
    path = run.folder / f"seed-{seed}" / "answers" / f"{_digest(asked)}.json"
    try:
        found = json.loads(path.read_text())
        if all(_stamp(path.parents[1] / "stages" / name) == stamp for name, stamp in found["stages"].items()):
            return {name: np.array(numbers) for name, numbers in found["numbers"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        pass  # none, or a damaged one
    numbers = answer()
    trained = [file for file in sorted((path.parents[1] / "stages").glob("*.safetensors")) if SUFFIX not in file.name]
    stages = {file.name: _stamp(file) for file in trained}
    path.parent.mkdir(parents=True, exist_ok=True)
    lists = {name: values.tolist() for name, values in numbers.items()}
    write_file(path, json.dumps({"row": asked[0], "numbers": lists, "stages": stages}) + "\n")
    return numbers


def _digest(asked: list[Any]) -> str:
    """Hash the cache key together with the code that computes answers."""
    return hashlib.sha256(json.dumps([_code(), asked]).encode()).hexdigest()[:16]


@cache
def _code() -> str:
    """Hash the sources of TAPER in training, on devices and in evaluation."""
    sources = [str(taper.__file__), __file__, inspect.getfile(Bank)]
    folders = [Path(source).parent for source in sources]
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _stamp(file: Path) -> list[int]:
    about = file.stat()
    return [about.st_size, about.st_mtime_ns]
