"""The tests of a release, in a process of their own: a program that crashes takes nothing else with it.

How the process ends tells a release's fault from the device's. A finding, or a crash in each of ``CRASHES`` tries, is
the release's. A process that was killed, or had no memory, says nothing about the release.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from refocus.edge import files
from refocus.edge.bundle.load import load_bundle
from refocus.edge.errors import BundleError, RefocusError, RuntimeUnavailable, UpdateError
from refocus.edge.update.canary import Canary, compare, evaluate, is_shortage, self_test
from refocus.edge.update.loaded_releases import Settings
from refocus.edge.update.profile_rollout import histories
from refocus.edge.update.rules import printable

CRASHES = 3  # of as many tries
SECONDS = 3600.0  # after which the tests are stopped; that counts as an interruption
# Signals by which a program ends itself. SIGKILL and SIGTERM come from elsewhere.
_OWN = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS)
_MAX_ANSWER = 1 << 14


class Trial(msgspec.Struct, frozen=True):
    """What is to be tested.

    Attributes:
        folder: of the release's bundle.
        serving: folder of the bundle that serves; None: none.
        settings: how both run; newest photos of its profiles are recognised by both.
    """

    folder: Path
    serving: Path | None
    settings: Settings


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the tests ended.

    Attributes:
        why: the release must not serve; "" if it may.
        shortage: what the device lacked, so that nothing is known about the release; "" if nothing.
        shadow: the comparison on the owner's photos.
    """

    why: str = ""
    shortage: str = ""
    shadow: Canary = Canary()


def run(trial: Trial, seconds: float = SECONDS) -> TrialResult:
    """Tests a release: in a child process, unless the settings say otherwise or there is no interpreter to start.

    Raises:
        UpdateError: the tests were interrupted. Nothing is known about the release.
    """
    if not trial.settings.isolated or not sys.executable:
        return _finding(trial)
    names: list[str] = []
    while len(names) < CRASHES:
        code, answer = _child(trial, seconds)
        if code == 0 and answer:
            return msgspec.json.decode(answer, type=TrialResult)
        if -code not in _OWN:
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"status {code}"
            raise UpdateError(f"the tests of a release were interrupted ({how}); the next run tries again")
        names.append(signal.Signals(-code).name)
    return TrialResult(why=f"it crashed in {CRASHES} of {CRASHES} tests ({', '.join(names)})")


def _child(trial: Trial, seconds: float) -> tuple[int, bytes]:
    """Status and answer of one child.

    It ends when this process does: its standard input then does.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", "from refocus.edge.update.trial import main; main()"]
    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(  # noqa: S603
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    except OSError as error:
        raise UpdateError(f"the tests of a release cannot start ({error}); the next run tries again") from None
    assert child.stdin is not None and child.stdout is not None  # noqa: S101, PT018
    with child:
        try:
            with contextlib.suppress(BrokenPipeError):  # it is dead already, and its status says how
                child.stdin.write(msgspec.json.encode(trial, enc_hook=files.printable) + b"\n")
                child.stdin.flush()
            child.wait(seconds)
            return child.returncode, child.stdout.read(_MAX_ANSWER)
        except subprocess.TimeoutExpired:
            late = f"the tests of a release were not done in {seconds:.0f} s"
            raise UpdateError(f"{late}; the next run tries again") from None
        finally:
            child.kill()
            child.wait()
            with contextlib.suppress(OSError):
                child.stdin.close()


def main() -> None:
    """The child process: a :class:`Trial` from standard input, a :class:`TrialResult` to standard output."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what native libraries print is no answer
    asked = sys.stdin.buffer.readline()
    trial = msgspec.json.decode(asked, type=Trial, dec_hook=lambda _, text: files.original(text))  # of paths
    threading.Thread(target=_end_with_parent, daemon=True).start()
    found = msgspec.json.encode(_finding(trial))
    os.write(answer, found)
    os._exit(0)  # nothing of a release runs any more, its destructors included


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def _finding(trial: Trial) -> TrialResult:
    """The tests themselves."""
    try:
        return _test(trial)
    except Exception as error:
        if is_shortage(error):
            return TrialResult(shortage=printable(f"{type(error).__name__}: {error}"))
        return TrialResult(why=printable(str(error) if isinstance(error, RefocusError) else f"it fails: {error}"))


def _test(trial: Trial) -> TrialResult:
    settings, bundle = trial.settings, load_bundle(trial.folder)
    if why := self_test(bundle, settings.target, settings.threads):
        return TrialResult(why=printable(f"it fails its self-test: {why}"))
    if trial.serving is None:
        return TrialResult()
    try:
        serving = settings.recognizer(load_bundle(trial.serving))
    except (BundleError, RuntimeUnavailable):  # what is damaged here may be healed by this release
        return TrialResult()
    with serving, settings.recognizer(bundle) as coming:
        shadow = compare(serving, coming, histories(settings.profiles), settings.limits)
    return TrialResult(why=evaluate(shadow, settings.limits), shadow=shadow)
