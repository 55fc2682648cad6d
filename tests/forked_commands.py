"""Commands in processes that need not import PyTorch first: they are forked from one that did.

A new Python takes five to fifteen seconds to import PyTorch, timm and ExecuTorch; most tests of commands want a line of
refusal. Here a server imports these packages, and nothing of ``refocus``; every command is a fork of it, with its own
standard streams, folder and environment, and imports ``refocus`` itself. What depends on a new Python (what a command
imports, what it opens, when it starts) is tested with one: ``subprocess`` and the installed script.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
# None of them starts a thread when it is imported: a fork would lose it. CoreMLTools does.
HEAVY = ("numpy", "PIL.Image", "torch", "timm", "onnx", "onnxruntime", "onnxscript", "executorch.exir")


class ForkedCommands:
    """Runs ``refocus`` as ``subprocess.run`` would; the first call waits for the imports.

    Args:
        module: of the function ``main`` that runs.
    """

    def __init__(self, module: str = "refocus.edge.commands.app") -> None:
        self._module = module
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(HEAVY))
        self._python = _python_settings(os.environ)

    def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str = "",  # noqa: A002  # as subprocess calls it
        timeout: float = 3000,
    ) -> subprocess.CompletedProcess[str]:
        environment = dict(os.environ if env is None else env)
        script = str(Path(sys.executable).parent / "refocus")
        command = [script, *arguments]
        if self._module.startswith("studies"):
            command = [sys.executable, "-m", "studies", *arguments]
        if _python_settings(environment) != self._python:  # read by Python as it starts
            return subprocess.run(command, cwd=cwd, env=environment, input=input, timeout=timeout,
                                  capture_output=True, text=True)  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            (Path(folder) / "in").write_text(input, encoding="utf-8")
            process = self._context.Process(
                target=_run, args=(self._module, command, str(cwd or Path.cwd()), environment, folder)
            )
            process.start()
            process.join(timeout)
            if process.exitcode is None:
                process.kill()
                process.join()
                raise subprocess.TimeoutExpired(command, timeout, _text(out), _text(err))
            return subprocess.CompletedProcess(command, process.exitcode, _text(out), _text(err))


def _python_settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _run(module: str, command: list[str], folder: str, environment: dict[str, str], streams: str) -> None:
    """The child: takes over the streams, runs the command and ends as a Python that came to its end."""
    for number, (name, mode) in enumerate((("in", "rb"), ("out", "wb"), ("err", "wb"))):
        with (Path(streams) / name).open(mode) as file:
            os.dup2(file.fileno(), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = command[command.index("studies") :] if module.startswith("studies") else command
    sys.path.insert(0, str(ROOT))
    sys.exit(_ended(import_module(module).main))


def _ended(main: Callable[[], int | None]) -> int:
    """The exit status of a command that ran to its end, with what it does then done."""
    status: int | str | None
    try:
        status = main()
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    if isinstance(status, str):
        sys.stderr.write(f"{status}\n")
        status = 1
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return status or 0
