"""A board over SSH: push Refocus and the bundles, measure there, collect the document, leave nothing behind.

Everything on the board lies in one folder, whose name follows from what is measured. A run goes on when the connection
is lost, and the same command takes it up again. The board needs an SSH server, tar and Python 3.10 or newer with venv.
"""

from __future__ import annotations

import hashlib
import io
import re
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from refocus.benchmarks.document.schema import MAX_DOCUMENT_BYTES, BenchError, Document, decode_document

PLACE = ".cache/refocus-bench"  # below the user's home on the board
ALIVE_S = 5  # between two questions to a silent server; the third without an answer ends the connection
LOOK_S = 1.0
RECONNECT_S = 600.0
SPARE_BYTES = 1_500_000_000  # for the environment: Python packages and a runtime
_NOT_INSTALLED = ("tests", "docs", "android_demo", "runs", "demo", "demo-pipeline", "build", "dist")
_LOST = 255  # ssh's own exit status

# Runs on the board, apart from the connection. A power mode that it sets is set back however it ends.
_RUN = """
cd {place} || exit 1
sudo_() {{ [ "$(id -u)" = 0 ] && "$@" || sudo -n "$@"; }}
restore() {{
  [ -f clocks ] && sudo_ jetson_clocks --restore clocks
  [ -s mode ] && sudo_ nvpmodel -m "$(cat mode)"
  rm -f clocks mode
}}
mode={mode}
if [ -n "$mode" ]; then
  trap restore EXIT
  trap 'exit 1' INT TERM HUP
  nvpmodel -q | tail -n 1 > mode && sudo_ jetson_clocks --store clocks &&
    sudo_ nvpmodel -m "$mode" && sudo_ jetson_clocks || {{ echo "the power mode cannot be set" >&2; exit 1; }}
fi
env/bin/python -m refocus bench run {arguments} --out out
"""


@dataclass
class Board:
    """A machine that SSH reaches.

    Attributes:
        host: as ``user@board``.
        options: of ``ssh``, as ``-p 2222 -i key``.
        reconnect_s: how long a lost connection is tried again.
        say: is told what happens.
        reached: whether it has answered; before that, nothing is tried again.
    """

    host: str
    options: Sequence[str] = ()
    reconnect_s: float = RECONNECT_S
    say: Callable[[str], object] = field(default=lambda _: None, repr=False)
    reached: bool = field(default=False, init=False)

    def _ssh(self, script: str) -> list[str]:
        alive = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", f"ServerAliveInterval={ALIVE_S}"]
        return ["ssh", *alive, "-o", "ServerAliveCountMax=3", *self.options, self.host, script]

    def run(self, script: str, content: bytes = b"", what: str = "") -> bytes:
        """Runs a shell script on the board, again after a lost connection, and returns what it prints.

        Args:
            script: one that does no harm if it runs twice.
            content: its standard input.
            what: names the step in the error.

        Raises:
            BenchError: the board cannot be reached, or the script fails.
        """
        end, wait = time.monotonic() + self.reconnect_s, 1.0
        while True:
            done = subprocess.run(self._ssh(script), input=content, capture_output=True, check=False)  # noqa: S603
            said = done.stderr.decode(errors="replace").strip()[-800:]
            if done.returncode == 0:
                return done.stdout
            if done.returncode != _LOST and "closed by remote host" not in said:
                raise BenchError(f"{self.host}: {what or 'a command'} failed ({said or f'status {done.returncode}'})")
            if not self.reached or time.monotonic() + wait > end:
                raise BenchError(
                    f"--host {self.host} does not answer ({said}); check the name, the key and the network"
                )
            self.say(f"{self.host}: the connection was lost ({said[-120:]}); trying again in {wait:.0f} s")
            time.sleep(wait)
            wait = min(2 * wait, 30.0)

    def push(self, place: str, name: str, source: Path) -> None:
        """Copies a file or folder into the board's folder; what arrived before is not sent again."""
        done = f"{place}/.pushed-{name}"
        if self.run(f"[ -f {done} ] && echo yes || true").strip():
            return
        self.say(f"{self.host}: pushing {name}")
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.add(source.resolve(), name)
        script = f"rm -rf {place}/{name} && tar -x -f - -C {place} && touch {done}"
        self.run(script, stream.getvalue(), f"copying {name}")


def measure(
    board: Board, arguments: Sequence[str], files: Mapping[str, Path], refocus: Path, extras: str, mode: str, kept: bool
) -> Document:
    """Measures on a board.

    Args:
        arguments: of ``refocus bench run`` there; files by their names in ``files``.
        files: what is pushed, by its name there.
        refocus: its wheel, or its source tree, which the board builds for its own processor.
        extras: of it that are installed, as "[cpu]".
        mode: number of the power mode (nvpmodel) to set for the run; "" leaves it.
        kept: leave the folder on the board, so that another run need not push and install again.

    Raises:
        BenchError: the board cannot be reached or lacks something, or the run failed there. Nothing is left there
            unless the connection is lost: then the run goes on, and the same command takes it up.
    """
    words = " ".join(map(shlex.quote, arguments))
    place = f"{PLACE}/{_identity(words, mode, [refocus, *files.values()])}"
    _check(board, sum(map(_size, [refocus, *files.values()])), bool(mode))
    with _cleaned(board, place, kept):
        board.run(f"mkdir -p {place} && chmod 700 {PLACE}")
        for name, source in {refocus.name: refocus, **files}.items():
            board.push(place, name, source)
        board.say(f"{board.host}: making the environment")
        newer = "import setuptools; assert int(setuptools.__version__.split('.')[0]) >= 77"  # else pip fetches it
        install = (
            f'env/bin/python -c "{newer}" 2> /dev/null && own=--no-build-isolation;'
            " env/bin/python -m pip install --quiet --disable-pip-version-check --cache-dir .pip $own"
            f" './{refocus.name}{extras}'"
        )
        board.run(
            f"cd {place} && [ -f .installed ] || ("
            f"python3 -m venv --system-site-packages env && {{ {install}; }} && touch .installed)",
            what="making the environment",
        )
        script = _RUN.format(place=shlex.quote(place), mode=shlex.quote(mode), arguments=words)
        board.run(f"cat > {place}/run.sh", script.encode())
        # A run that ended leaves its status; one that was killed with the board does not, and begins again.
        board.run(
            f"[ -f {place}/status ] || kill -0 $(cat {place}/pid 2>/dev/null) 2>/dev/null || {{"
            f" rm -rf {place}/out {place}/log;"
            f" setsid nohup sh -c 'sh {place}/run.sh > {place}/log 2>&1; echo $? > {place}/status'"
            f" < /dev/null > /dev/null 2>&1 & echo $! > {place}/pid; }}"
        )
        _follow(board, place)
        content = board.run(f"cat {place}/out/*.json | head -c {MAX_DOCUMENT_BYTES + 1}", what="reading the document")
    return decode_document(content, f"{board.host}'s document")


def _follow(board: Board, place: str) -> None:
    """Passes on what the run says until it has ended.

    Raises:
        BenchError: it failed, or the board was restarted.
    """
    offset, log = 1, b""
    alive = f"kill -0 $(cat {place}/pid) 2>/dev/null && echo runs"
    while True:
        found = board.run(f"(cat {place}/status 2>/dev/null || {alive} || echo gone); tail -c +{offset} {place}/log")
        state, _, more = found.partition(b"\n")
        offset, log = offset + len(more), (log + more)[-4000:]
        for line in more.decode(errors="replace").splitlines():
            board.say(f"{board.host}: {line}")
        if state == b"0":
            return
        if state != b"runs":
            why = "it was restarted or the run was killed" if state == b"gone" else _last(log)
            raise BenchError(f"{board.host}: the run failed there: {why}")
        time.sleep(LOOK_S)


def _last(log: bytes) -> str:
    lines = [line for line in log.decode(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-3:])[-600:] or "it said nothing"


@contextmanager
def _cleaned(board: Board, place: str, kept: bool) -> Iterator[None]:
    """Stops what runs and removes the folder in the end, unless the connection was lost or it shall stay."""
    try:
        yield
    except BenchError as error:
        if "does not answer" not in str(error):
            _remove(board, place)
        raise
    except BaseException:  # Ctrl-C
        _remove(board, place)
        raise
    if kept:
        board.run(f"rm -rf {place}/out {place}/status {place}/log {place}/pid")
    else:
        _remove(board, place)


def _remove(board: Board, place: str) -> None:
    """The run's children go with it: ``setsid`` made them one group."""
    end = f"pid=$(cat {place}/pid 2>/dev/null) && kill -TERM -- -$pid 2>/dev/null && sleep 1"
    board.run(f"({end}); rm -rf {place}; rmdir {PLACE} 2>/dev/null; true")


def _check(board: Board, size: int, sets_mode: bool) -> None:
    """Checks Python, free space and the rights to set the power mode on the board, before anything is copied.

    Raises:
        BenchError: no answer, no Python, no space, no right to set the power mode.
    """
    tools = "command -v nvpmodel jetson_clocks > /dev/null && { [ $(id -u) = 0 ] || sudo -n true 2>/dev/null; }"
    said = board.run(
        "python3 -c 'import sys, venv, ensurepip; print(sys.version_info >= (3, 10))' 2>/dev/null || echo none;"
        f" df -Pk . | awk 'NR == 2 {{ print $4 }}'; ({tools}) && echo mode || echo -"
    )
    board.reached = True
    python, free, mode = said.decode(errors="replace").split()[:3]
    if python != "True":
        what = "has no python3 with venv" if python == "none" else "has an older python3"
        raise BenchError(f"--host {board.host} {what}; install Python 3.10 or newer (Debian: apt install python3-venv)")
    if int(free) * 1024 < 2 * size + SPARE_BYTES:
        needed = (2 * size + SPARE_BYTES) / 1e9
        raise BenchError(
            f"--host {board.host} has {int(free) / 1e6:.1f} GB free, {needed:.1f} GB are needed; make room"
        )
    if sets_mode and mode != "mode":
        raise BenchError(
            f"--power-mode: {board.host} lacks nvpmodel and jetson_clocks, or sudo asks for a password there; allow"
            " both commands in sudoers, or set the mode by hand and leave it out"
        )


def _identity(words: str, mode: str, sources: Sequence[Path]) -> str:
    """Of what is measured: the same command finds its own run again."""
    digest = hashlib.sha256(f"{words}\n{mode}".encode())
    for source in sources:
        told = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in _files(source)]
        digest.update("\n".join(told).encode())
    return digest.hexdigest()[:16]


def _size(source: Path) -> int:
    return sum(path.stat().st_size for path in _files(source))


def _files(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]


def safe_name(path: Path) -> str:
    """A file's name in letters that a shell takes as they are."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).lstrip("-") or "file"


def own_source(folder: Path) -> Path:
    """A copy of the source tree that this Refocus was installed from, without what no installation needs.

    Raises:
        BenchError: it was not installed from one.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").exists():
        raise BenchError("this refocus was not installed from a source tree; give its wheel with --wheel FILE")
    left_out = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", *_NOT_INSTALLED)
    return Path(shutil.copytree(root, folder / "refocus-source", symlinks=True, ignore=left_out))
