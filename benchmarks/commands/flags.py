"""Flags for labelled photos, which several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Person = Annotated[str, typer.Option(help="column with the person (client) of each photo")]
Label = Annotated[str, typer.Option(help="column with the label")]
Split = Annotated[str, typer.Option(help="use only rows of this value in column 'split'; default: all")]
PhotosPerStream = Annotated[
    int, typer.Option(min=2, help="photos per stream; further photos of a person form another stream of theirs")
]
