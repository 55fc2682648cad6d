"""``refocus condense`` and ``refocus improve``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refocus.edge.commands import options
from refocus.edge.commands.app import print_json, print_result
from refocus.edge.errors import PhotoError, RefocusError, TaskError
from refocus.edge.files import read_file

if TYPE_CHECKING:
    import numpy as np

    from refocus.edge.taper.self_improvement import SelfImprovement, Step

MAX_TASK_BYTES = 16 << 20


def condense(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    out: Annotated[Path, typer.Option(help="folder of the personal bundle")],
    task: Annotated[str, typer.Option(help="class names, separated by commas")] = "",
    task_file: Annotated[Path | None, typer.Option(help="file with one class name per line")] = None,
    describe: Annotated[
        str, typer.Option(help="task description in free text (needs the extras cpu, cloud and text)")
    ] = "",
    domain: Annotated[str, typer.Option(help="image domain of the task: one of the bank's domain names")] = "",
    to: Annotated[
        str, typer.Option(help="comma-separated targets, such as onnxruntime:fp32; default: all targets of the bank")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Make a personal bundle for a task, without training, from a bank."""
    from refocus.edge.taper.bank import Bank
    from refocus.edge.taper.description import describe_task

    names = read_names(task, task_file, bool(describe))
    opened = Bank.open(bank)
    if describe:
        vector = describe_task(describe, domain, opened.card)
        opened.check_description(vector, describe, domain)
        asked = opened.task(vector, domain, names, describe)
    else:
        asked = opened.task(names, domain)
    started = time.perf_counter()
    done = opened.condense(asked, out, [target for target in to.split(",") if target])
    milliseconds = (time.perf_counter() - started) * 1000
    found = {
        "bundle": str(out),
        "classes": asked.labels,
        "merged": asked.merged,
        "domain": asked.domain,
        "bank": opened.card.sha256,
        "mixers": asked.mixers.tolist(),
        "condense_ms": milliseconds,
        "weights_bytes": done.weights_bytes,
    }
    lines = [f"named more than once, taken once: {', '.join(asked.merged)}"] if asked.merged else []
    count = f"{len(asked.labels)} of {len(opened.labels)} classes"
    print_result(found, [*lines, f"{out}: {count} ({_first(asked.labels, 10)}), {milliseconds:.0f} ms"], as_json)


def improve(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    photos: Annotated[list[Path], typer.Argument(help="photo files and folders of photos, processed in order of name")],
    out: Annotated[Path, typer.Option(help="folder of the estimates and of the condensed bundle 'personal'")],
    batch: Annotated[int, typer.Option(min=8, help="batch size, in photos")] = 32,
    to: Annotated[str, typer.Option(help="target, such as onnxruntime:fp32")] = "onnxruntime:fp32",
    threads: options.Threads = 0,
    as_json: options.Json = False,
) -> None:
    """Find the classes that an owner meets in their unlabelled photos, and make a personal bundle for these.

    Status 3: done, but some photos could not be used; they are listed.
    """
    from refocus.edge.commands.answers import exit_if
    from refocus.edge.recognize.album import find_photos
    from refocus.edge.taper.bank import Bank
    from refocus.edge.taper.self_improvement import CALM, SelfImprovement

    files, failed, known = find_photos(photos), list[str](), list[Path]()
    steps = []
    with SelfImprovement(Bank.open(bank), out, to, threads) as improvement:
        for probabilities, numbers in _batches(improvement, files, batch, failed, known):
            step = improvement.learn(probabilities, numbers)
            steps.append(step)
            if not as_json:
                typer.echo(_told(step))
            if step.settled and len(steps) >= CALM:
                break
    if as_json:
        print_json([_as_dict(step) for step in steps])
    else:
        if known:
            typer.echo(f"{len(known)} photos were learned from before: left out")
        typer.echo(_end(steps, out, improvement.by))
    exit_if(failed, len(files))


def _batches(
    improvement: SelfImprovement, files: list[Path], batch: int, failed: list[str], known: list[Path]
) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Probabilities (n, C) and numbers of new photos, n at a time; adds to ``failed`` why others cannot be used, and to
    ``known`` which were learned from before, or stand here twice."""
    import numpy as np

    from refocus.edge.photos.preprocess import read_photo
    from refocus.edge.taper.self_improvement import photo_number

    judged: dict[int, np.ndarray] = {}
    for path in files:
        try:
            content = read_photo(path)
            if improvement.knows(content) or photo_number(content) in judged:
                known.append(path)
                continue
            judged[photo_number(content)] = improvement.judge(content, str(path))
        except PhotoError as error:
            failed.append(str(error))
        if len(judged) == batch:
            yield np.array([*judged.values()]), [*judged]
            judged = {}
    if judged:
        yield np.array([*judged.values()]), [*judged]


def _end(steps: list[Step], out: Path, by: str) -> str:
    """The last line of the output: the bundle, or why there is none."""
    if by == "generic":
        return "this bank serves its generic model: its training found nothing that is better for owners"
    if not steps:
        return "no new photos: nothing was learned"
    if steps[-1].personal:
        return f"bundle: {out / 'personal'}"
    if all(math.isnan(step.evidence) for step in steps):
        return (
            f"{steps[-1].photos} photos in one batch are too few to tell, as a batch is judged by those before it; give"
            " more photos, or a smaller --batch"
        )
    return "these photos are of no few classes: the generic model, the bank itself, stays the better one"


def _as_dict(step: Step) -> dict[str, object]:
    evidence = None if math.isnan(step.evidence) else step.evidence
    found = {"photos": step.photos, "evidence": evidence, "classes": step.labels}
    return {**found, "changed": step.changed, "settled": step.settled}


def _told(step: Step) -> str:
    what = f"{len(step.labels)} classes ({_first(step.labels, 6)})" if step.personal else "generic model"
    bears_out = "" if math.isnan(step.evidence) else f", new photos {step.evidence:+.2f} nats"
    return f"{step.photos} photos{bears_out}: {what}{', settled' if step.settled else ''}"


def _first(labels: tuple[str, ...], count: int) -> str:
    """The first labels, and how many more there are."""
    return ", ".join(labels[:count]) + (f" and {len(labels) - count} more" if len(labels) > count else "")


def read_names(task: str, task_file: Path | None, described: bool) -> list[str]:
    """Class names of ``--task`` and ``--task-file``; none are fine beside a description.

    Raises:
        RefocusError: the file cannot be read, is larger than ``MAX_TASK_BYTES``, or is not text.
        TaskError: neither flag was given.
    """

    names = options.words(task)
    if task_file is not None:
        try:
            text = read_file(task_file, MAX_TASK_BYTES, "a text with one class name per line").decode("utf-8-sig")
            names += [line.strip() for line in text.splitlines() if line.strip()]
        except UnicodeDecodeError:
            raise RefocusError(f"--task-file {task_file}: expected text in UTF-8, one class name per line") from None
    if not names and not described:
        raise TaskError("the task is empty: give --task 'NAME, NAME', --task-file FILE or --describe 'words'")
    return names
