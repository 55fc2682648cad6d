"""Answers of photos, one after the other, as lines or as JSON: what every command that recognises has in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from refocus import edge
from refocus.edge.commands.app import PARTLY, print_json
from refocus.edge.commands.news import logger
from refocus.edge.errors import PhotoError, RefocusError

MOST_LISTED = 50  # photos that could not be used


def print_answers(
    photos: Sequence[Path],
    recognize: Callable[[Path], edge.Answer],
    tell: Callable[[Path, edge.Answer], tuple[dict[str, Any], str]],
    missing: Sequence[str],
    as_json: bool,
    told: str = "",
) -> list[str]:
    """Recognises photos and prints what they are; a photo that cannot be decoded does not end it, if it is not alone.

    Args:
        recognize: gives one photo's answer.
        tell: the row of an answer for JSON, and its line.
        missing: fields of a row, besides its photo and answer, that are null where a photo has no answer.
        told: a notice that the user has seen.

    Returns:
        Why each of the photos without an answer has none.

    Raises:
        RefocusError: nothing can be recognised; rows of photos that are remembered were printed.
    """
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for photo in photos:
        try:
            answer = recognize(photo)
        except PhotoError as error:
            if len(photos) == 1:
                raise
            failed.append(str(error))
            rows.append({"photo": str(photo), "answer": [], **dict.fromkeys(missing), "error": str(error)})
            continue
        except RefocusError:
            if as_json and rows:
                print_json(rows)
            raise
        for notice in answer.notices:
            if notice != told:
                logger.warning(f"{photo}: {notice}")
        row, line = tell(photo, answer)
        rows.append({**row, "error": None})
        if not as_json:
            typer.echo(line)
    if as_json:
        print_json(rows)
    return failed


def exit_if(failed: Iterable[str], photos: int) -> None:
    """Lists on standard error which of so many photos could not be used, and why; ends with status 3 if any could not.

    Raises:
        typer.Exit: there are some.
    """
    errors = list(failed)
    if not errors:
        return
    for error in errors[:MOST_LISTED]:
        typer.echo(f"not used: {error}", err=True)
    more = f", {len(errors) - MOST_LISTED} more than are listed" if len(errors) > MOST_LISTED else ""
    typer.echo(f"{len(errors)} of {photos} photos could not be used{more}", err=True)
    raise typer.Exit(PARTLY)
