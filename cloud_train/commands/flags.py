"""Flags that several commands have, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MadeRun = Annotated[Path, typer.Argument(help="folder of a run made by refocus train")]
Seeds = Annotated[str, typer.Option(help="comma-separated random seeds, such as 0,1,2; one training per seed")]
AsDocument = Annotated[bool, typer.Option("--json", help="print the results document")]
