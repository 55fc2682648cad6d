"""Cache the rows of a study of banks in its run, so that it resumes.

A stopped study continues after the last row of a seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from refocus.cloud_train.evaluate.bank_tasks import Evaluation, Shares
from refocus.cloud_train.evaluate.kept_answers import kept_numbers
from refocus.cloud_train.runs.taper import TaperRun


def kept(run: TaperRun, seed: int, row: str, evaluation: Evaluation, answer: Callable[[int], Shares]) -> Shares:
    """Return the accuracy per task (K,) of a row, computed once.

    Args:
        run: the run with the cache.
        seed: seed of the networks.
        row: name and network of the row, unique in a run.
        evaluation: tasks and photos.
        answer: computes the accuracies of a seed if they are not cached.
    """
    tasks = [[list(task.classes), int(task.domain)] for task in evaluation.tasks]
    key = [row, tasks, [rows.tolist() for rows in evaluation.rows], _code()]
    return kept_numbers(run, seed, key, lambda: {"shares": answer(seed)})["shares"]


@cache
def _code() -> str:
    """Return the digest of the sources that compute rows."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
