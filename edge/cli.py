"""The ``refocus`` command: it finds its subcommands, and turns errors into one line and a status.

Every installed part of Refocus brings its own commands through the entry-point group ``refocus.commands``: a module
that imports little, with a function ``register(app)``. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from typing import Any

import typer

from edge.errors import RefocusError

GROUP = "refocus.commands"

app = typer.Typer(
    name="refocus",
    help="Image recognition on the device that gets better for its owner, from the owner's own unlabelled photos.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def register_all() -> None:
    """Adds the subcommands of every installed part, in a stable order."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        entry.load()(app)


def print_json(value: Any) -> None:
    """One JSON document on standard output, for programs."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def main() -> None:
    """Runs ``refocus``. Status 0: done. 1: an error that was explained in one line. 2: wrong usage."""
    register_all()
    try:
        app()
    except RefocusError as error:
        sys.stderr.write(f"refocus: {error}\n")
        sys.exit(1)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"refocus: this command needs {error.name}: pip install 'refocus[{_extra_of(error.name)}]'\n")
        sys.exit(1)
    except OSError as error:  # a full disk, missing rights, a file where a folder should be
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"refocus: {where}{error.strerror or error}; check the path, its rights and the free space\n")
        sys.exit(1)


def _extra_of(module: str | None) -> str:
    update = dict.fromkeys(("tuf", "securesystemslib", "cryptography", "urllib3"), "update")
    return {
        "onnx": "export",
        "onnxscript": "export",
        "onnxruntime": "cpu",
        "nvflare": "flare",
        "fastapi": "serve",
        "uvicorn": "serve",
        **dict.fromkeys(("metaflow", "mlflow", "sqlalchemy", "alembic"), "pipeline"),
        "kubernetes": "argo",
        **update,
    }.get(str(module).split(".")[0], "cloud")
