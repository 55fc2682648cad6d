"""The ``refocus`` command: it finds its subcommands, and turns errors into one line and a status.

Every installed part of Refocus brings its own commands through the entry-point group ``refocus.commands``: a module
that imports little, with a function ``register(app)``. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main

from refocus.edge import __version__
from refocus.edge.commands.news import show_news
from refocus.edge.errors import RefocusError

GROUP = "refocus.commands"
# Panels of ``refocus --help``, in this order.
DEVICE, TRAIN, EXPORT, MEASURE, RELEASE = PANELS = ("Device", "Train", "Export", "Measure", "Release")
PARTLY = 3  # exit status: done, but for some photos or targets
MOST_THREADS = 256  # a runtime starts as many as it is told, and takes minutes for millions
_KEPT_LOGS = 20
_EXTRAS = {  # of refocus-edge, with the modules that they bring; other modules come with [cloud]
    "bench": ("matplotlib",),
    "export": ("onnx", "onnxscript"),
    "cpu": ("onnxruntime",),
    "flare": ("nvflare",),
    "serve": ("fastapi", "uvicorn"),
    "hub": ("huggingface_hub",),
    "track": ("tensorboard",),
    "pipeline": ("metaflow", "mlflow", "sqlalchemy", "alembic"),
    "argo": ("kubernetes",),
    "update": ("tuf", "securesystemslib", "cryptography", "urllib3"),
}

ThreadsOption = Annotated[
    int,
    typer.Option(
        "--threads", min=0, max=MOST_THREADS, help="threads inside one operator (intra-op); 0: the runtime's default"
    ),
]

app = typer.Typer(
    name="refocus",
    help="On-device image recognition, personalised from the owner's unlabelled photos.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


def _be_quiet(asked: bool) -> None:
    if asked:
        show_news(quiet=True)


@app.callback()
def _of_all(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", is_eager=True, callback=_print_version)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="suppress progress and notices on standard error", callback=_be_quiet)
    ] = False,
) -> None:
    """Options that stand before a subcommand; the callback of each does its work."""


def register_all() -> None:
    """Adds the subcommands of every installed part, in a stable order."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        entry.load()(app)


def command() -> Any:
    """``refocus`` with the subcommands of every installed part, to be called."""
    register_all()
    whole = callable_of(app)
    panels = {name: PANELS.index(each.rich_help_panel) for name, each in whole.commands.items()}
    whole.commands = {name: whole.commands[name] for name in sorted(panels, key=lambda name: panels[name])}
    return whole


def callable_of(group: typer.Typer) -> Any:
    """Return a group of commands, to be called; its own options may stand behind each of its commands."""
    whole: Any = typer.main.get_command(group)
    _refuse_empty_values(whole)
    for option in whole.params:
        if option.name == "quiet":
            _add_to_all(whole, option)
    for below in whole.commands.values():
        for option in below.params if hasattr(below, "commands") else ():
            if option.callback is not None:  # which does its work
                _add_to_all(below, option)
    return whole


def _add_to_all(group: Any, option: Any) -> None:
    """Lets an option of ``refocus`` itself, whose callback does its work, stand behind every subcommand too."""
    option.expose_value = False
    for subcommand in group.commands.values():
        if hasattr(subcommand, "commands"):
            _add_to_all(subcommand, option)
        else:
            subcommand.params.append(option)


def print_json(value: Any) -> None:
    """One JSON document on standard output, for programs.

    A file's name that is not UTF-8 holds ``\\udcXX`` for each such byte; ``os.fsencode`` gives the bytes back.
    """
    readable = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(value, ensure_ascii=not readable, indent=2) + "\n")


def print_result(value: Any, text: str | Iterable[str], as_json: bool) -> None:
    """Prints a result: as JSON for programs, or as one or more lines for people."""
    if as_json:
        print_json(value)
    else:
        for line in [text] if isinstance(text, str) else text:
            typer.echo(line)


def main() -> None:
    """Run ``refocus``."""
    run(command)


def run(make: Callable[[], Any]) -> None:
    """Run a command line, and turn errors into one line and a status.

    Status 0: done. 1: an error that was explained in one line. 2: wrong usage. 3: done, but for some photos or
    targets, which were named.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not be UTF-8
    show_news()
    try:
        make()()
    except RefocusError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] == "refocus":
            _fail_internally(error)
        _fail(f"this command needs {error.name}: pip install 'refocus-edge[{_extra_of(error.name)}]'")
    except OSError as error:  # a full disk, missing rights, a file where a folder should be
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}; check the path, its rights and the free space")
    except Exception as error:
        if type(error).__name__ == "SafetensorError" and "(os error " in str(error):  # raised where a file is written
            _fail(f"{error}; check the path, its rights and the free space")
        _fail_internally(error)


def _fail(line: str) -> None:
    sys.stderr.write(f"refocus: {line}\n")
    sys.exit(1)


def _fail_internally(error: Exception) -> None:
    """Writes the traceback into a new file that its owner alone can read, and says where it is."""
    report = f"refocus, Python {sys.version}, {sys.platform}\n{sys.argv}\n\n" + "".join(
        traceback.format_exception(type(error), error, error.__traceback__)
    )
    try:
        log = str(_new_log())
        Path(log).write_text(report, encoding="utf-8", errors="backslashreplace")
    except (OSError, RuntimeError):  # no disk, or no home
        log = "what it was given (no file for the traceback could be written)"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300].removesuffix(":")
    _fail(f"internal error ({what}); please report it with {log}")


def _refuse_empty_values(command: Any) -> None:
    """An empty string on the command line is an error, not an option that was left out: a script's variable was empty.

    Args:
        command: of typer; its subcommands are covered too.
    """
    for subcommand in getattr(command, "commands", {}).values():
        _refuse_empty_values(subcommand)
    for parameter in command.params:
        parameter.process_value = _not_empty(parameter, parameter.process_value)


def _not_empty(parameter: Any, convert: Any) -> Any:
    def checked(context: Any, value: Any) -> Any:
        source = context.get_parameter_source(parameter.name)
        given = value if isinstance(value, (list, tuple)) else [value]
        if source is not None and source.name == "COMMANDLINE" and "" in given:
            name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
            raise RefocusError(f"{name} is empty; give a value, or leave it out")
        return convert(context, value)

    return checked


def _new_log() -> Path:
    """An empty file of mode 0600 in the user's state folder, or else in the system's temporary one."""
    try:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "refocus" / "errors"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in sorted(folder.glob("*.txt"))[: 1 - _KEPT_LOGS]:
            old.unlink(missing_ok=True)
        descriptor, name = tempfile.mkstemp(".txt", time.strftime("%Y-%m-%d-%H%M%S-"), folder)
    except (OSError, RuntimeError):
        descriptor, name = tempfile.mkstemp(".txt", "refocus-error-")
    os.close(descriptor)
    return Path(name)


def _extra_of(module: str | None) -> str:
    """The extra of refocus-edge that brings a module."""
    name = str(module).split(".")[0]
    return next((extra for extra, modules in _EXTRAS.items() if name in modules), "cloud")
