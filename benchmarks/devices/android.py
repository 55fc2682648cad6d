"""A phone over adb: push the bundle, the photos and a runner, run it, and take in what it prints, line by line.

The runner is a folder with ``run.sh`` that brings everything it needs; none is shipped yet. It is called as
``sh run.sh BUNDLE PHOTOS PLAN.json`` and prints one JSON object per line, each as soon as it is known:

- ``{"event": "begin", "protocol": 1}``
- ``{"event": "ran", …}`` with the fields of :class:`refocus.benchmarks.document.schema.Ran` but ``bundle``
- ``{"event": "row", …}``: of :class:`refocus.benchmarks.document.schema.Row` target, group, name, at, photos,
  samples_ms, starts_s and observations
- ``{"event": "memory", …}`` with the fields of :class:`refocus.benchmarks.document.schema.Memory` but ``bundle``
- ``{"event": "missing", "what": …, "why": …}``
- ``{"event": "end"}``

Percentiles and verdicts are made here, from the samples. A phone that is lost after some rows leaves these.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from refocus.benchmarks.devices.machine import memory_bytes, new_document, read_fields
from refocus.benchmarks.document.schema import (
    BenchError,
    Document,
    Energy,
    Machine,
    Memory,
    Missing,
    Observation,
    Ran,
    Reason,
    Row,
    Start,
    Verdict,
)
from refocus.benchmarks.measure.machine_monitor import StartBelow, wait_until_cool
from refocus.benchmarks.measure.target import read_album
from refocus.benchmarks.measure.timer import Series
from refocus.benchmarks.rows.recorder import Rows
from refocus.edge.bundle import load_bundle

PROTOCOL = 1
PLACE = "/data/local/tmp/refocus-bench"
RUNNER = "run.sh"
MAX_LINE_BYTES = 64 * 1024**2
THERMAL = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
_TEMPERATURE = re.compile(r"Temperature\{mValue=(-?[\d.]+), mType=(-?\d+), mName=([^,]*), mStatus=(\d+)\}")
_PART_TYPES = {0, 1, 9}  # CPU, GPU, NPU: the parts that compute


# ---- what a phone says


@dataclass(frozen=True)
class Battery:
    """``dumpsys battery``; charge in microampere hours, None where the phone does not count."""

    level_percent: int
    voltage_v: float
    temperature_c: float
    charge_uah: int | None
    charging: bool


def parse_battery(text: str) -> Battery:
    """The battery's state.

    Raises:
        BenchError: the text does not say level, voltage and temperature.
    """
    said = read_fields(text.lower())
    try:
        charge = int(said.get("charge counter", "0"))
        volts = int(said["voltage"])
        return Battery(
            level_percent=int(said["level"]),
            voltage_v=volts / 1000 if volts > 100 else float(volts),  # millivolts, but some say volts
            temperature_c=int(said["temperature"]) / 10,
            charge_uah=charge or None,
            charging=any(said.get(f"{source} powered") == "true" for source in ("ac", "usb", "wireless", "dock")),
        )
    except (KeyError, ValueError) as error:
        said_so = f"dumpsys battery printed '{text.strip()[:80]}'"
        raise BenchError(f"{said_so}, which lacks {error}; is this a phone?") from None


@dataclass(frozen=True)
class Thermal:
    """``dumpsys thermalservice``: the throttling status, and temperatures of the parts that compute."""

    status: str
    temperatures_c: dict[str, float]


def parse_thermal(text: str) -> Thermal:
    """Temperatures as the hardware says them now where it does, else as they were last cached.

    Raises:
        BenchError: the text says no status.
    """
    status = re.search(r"Thermal Status: (\d+)", text)
    if not status or int(status[1]) >= len(THERMAL):
        raise BenchError(f"dumpsys thermalservice printed '{text.strip()[:80]}', expected a thermal status")
    cached, _, now = text.partition("Current temperatures from HAL:")
    found = _TEMPERATURE.findall(now) or _TEMPERATURE.findall(cached)
    return Thermal(
        THERMAL[int(status[1])], {name: float(value) for value, kind, name, _ in found if int(kind) in _PART_TYPES}
    )


# ---- adb


class Lost(BenchError):
    """The phone does not answer any more: plug it in again and allow debugging."""


@dataclass(frozen=True)
class Adb:
    """One phone.

    Attributes:
        serial: which, where several are attached; "" for the only one.
    """

    program: str = "adb"
    serial: str = ""

    @classmethod
    def find(cls, serial: str = "") -> Adb:
        """The phone that is attached.

        Raises:
            BenchError: adb is missing, or no phone or several are ready.
        """
        program = shutil.which("adb")
        if program is None:
            raise BenchError("--device android: adb is not here; Debian and Ubuntu: apt install adb")
        adb = cls(program, serial)
        ready = parse_devices(cls(program).run("devices"))
        if serial and serial not in ready:
            raise BenchError(f"--serial {serial}: adb sees {', '.join(ready) or 'no phone'}")
        if not serial and len(ready) != 1:
            none = "no phone; plug it in, switch USB debugging on and allow this computer"
            several = f"{len(ready)} phones ({', '.join(ready)}); choose with --serial"
            raise BenchError(f"--device android: adb sees {several if ready else none}")
        return adb

    def run(self, *words: str) -> str:
        """What one adb command prints.

        Raises:
            Lost: it failed.
        """
        done = subprocess.run(self._command(words), capture_output=True, text=True, check=False)  # noqa: S603  # adb
        if done.returncode:
            raise Lost(f"adb {' '.join(words)[:80]}: {(done.stderr or done.stdout).strip()[:200]}")
        return done.stdout

    def lines(self, *words: str) -> Iterator[str]:
        """The lines that a command prints, as it prints them.

        Raises:
            Lost: behind the last line, if the command failed.
        """
        # Errors go to a file: a pipe that nobody reads fills up, and the runner would wait for ever.
        with tempfile.TemporaryFile() as errors:
            with subprocess.Popen(  # noqa: S603  # adb
                self._command(words), stdout=subprocess.PIPE, stderr=errors, encoding="utf-8", errors="replace"
            ) as process:
                yield from process.stdout or ()
            errors.seek(0)
            error = errors.read().decode("utf-8", "replace").strip()[-200:]
        if process.returncode:
            raise Lost(f"the phone was lost: {error or f'status {process.returncode}'}")

    def _command(self, words: Sequence[str]) -> list[str]:
        return [self.program, *(["-s", self.serial] if self.serial else []), *words]


def parse_devices(text: str) -> list[str]:
    """Serial numbers of the phones that are ready, from ``adb devices``."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return [row[0] for row in rows if len(row) >= 2 and row[1] == "device"]


# ---- what the runner prints


@dataclass
class Session(Rows):
    """Events of a run received so far; each names its own target.

    Attributes:
        start: the wait for a cool phone before the run.
    """

    start: Start | None = None
    begun: bool = False
    ended: bool = False

    def take(self, line: str, number: int) -> None:
        """One line.

        Raises:
            BenchError: it is not of the protocol; the number of the line is named.
        """
        if not line.strip():
            return
        try:
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{len(line)} characters")
            said = json.loads(line)
            event = said.pop("event")
            if not self.begun and event != "begin":
                raise ValueError("expected the event begin first")
            self._take(event, said)
        except (ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
            text = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise BenchError(
                f"line {number} of the runner is not of protocol {PROTOCOL} ({text}): '{line.strip()[:80]}'; use the"
                " runner of this version of refocus"
            ) from None

    def _take(self, event: str, said: dict[str, Any]) -> None:
        if event == "begin":
            if said["protocol"] != PROTOCOL:
                raise ValueError(f"it speaks protocol {said['protocol']}")
            self.begun = True
        elif event == "ran":
            self.ran.append(msgspec.convert({**said, "bundle": self.bundle}, Ran))
        elif event == "row":
            self.rows.append(self._row(said))
        elif event == "memory":
            self.memory.append(msgspec.convert({**said, "bundle": self.bundle}, Memory))
        elif event == "missing":
            self.missing.append(msgspec.convert(said, Missing))
        elif event == "end":
            self.ended = True
        else:
            raise ValueError(f"unknown event {event}")

    def _row(self, said: dict[str, Any]) -> Row:
        samples = np.array(msgspec.convert(said.pop("samples_ms"), list[float]))
        starts = np.array(msgspec.convert(said.pop("starts_s"), list[float]))
        if not len(samples) or len(samples) != len(starts) or not np.isfinite(samples).all() or samples.min() < 0:
            raise ValueError(f"{len(samples)} samples and {len(starts)} starts, expected as many, and times")
        seen = tuple(msgspec.convert(said.pop("observations", []), list[Observation]))
        return msgspec.convert({**said, **self.measured(Series(samples, starts, seen, self.start))}, Row)

    def lose(self, why: str) -> None:
        """Marks every row: the phone was lost, so nobody knows how it was in the end."""
        reason = Reason(code="lost", detail=why, advice="plug it in again, keep it awake, and measure again")
        self.rows = [_with_reason(row, reason) for row in self.rows]
        self.missing.append(Missing(what=f"{self.bundle}: the rest of the run", why=why))


def _with_reason(row: Row, reason: Reason) -> Row:
    verdict = Verdict(valid=False, reasons=(*row.verdict.reasons, reason), notes=row.verdict.notes)
    return msgspec.structs.replace(row, verdict=verdict)


def take_all(session: Session, lines: Iterable[str]) -> None:
    """Every line of a run. A phone that is lost, or a runner that stops early, leaves what was measured.

    Raises:
        BenchError: a line that is not of the protocol, or nothing was measured before the phone was lost.
    """
    why = "the runner stopped before its end"
    try:
        for number, line in enumerate(lines, 1):
            session.take(line, number)
    except Lost as error:
        why = str(error)
    if session.ended:
        return
    if not session.rows:
        raise BenchError(f"{why}; nothing had been measured yet")
    session.lose(why)


# ---- the whole run


def run(
    folder: Path, runner: Path, plan: Any, command: str, adb: Adb, say: Callable[[str], object] = lambda _: None
) -> Document:
    """Pushes a bundle and the runner, runs it, and makes the document.

    Args:
        folder: of the bundle.
        runner: folder with ``run.sh``.
        plan: :class:`refocus.benchmarks.run.Plan`.

    Raises:
        BenchError: no runner, no phone, or nothing was measured.
    """
    if not (runner / RUNNER).is_file():
        raise BenchError(f"--runner {runner}: expected a folder with {RUNNER}; none is shipped yet")
    bundle = load_bundle(folder)
    album = read_album(bundle, plan.photos)
    start = _cooled(adb, plan.start_below) if plan.start_below else None
    began = time.perf_counter()
    machine, before = describe(adb), parse_battery(adb.run("shell", "dumpsys", "battery"))
    say(f"pushing {folder.name} to {machine.cpu}")
    _push(adb, folder, runner, album.contents, plan)
    session = Session(folder.resolve().name, "", machine, plan.conditions, start=start)
    take_all(session, adb.lines("shell", f"sh {PLACE}/runner/{RUNNER} {PLACE}/bundle {PLACE}/photos {PLACE}/plan.json"))
    session.energy.append(_energy(session, adb, before))
    return session.added_to(new_document(command, plan.mode, machine, album.about, began))


def _cooled(adb: Adb, limit: StartBelow) -> Start:
    """The wait for a cool phone, once before the whole run."""

    def warmest() -> float | None:
        return max(parse_thermal(adb.run("shell", "dumpsys", "thermalservice")).temperatures_c.values(), default=None)

    return wait_until_cool(limit, warmest)


def describe(adb: Adb) -> Machine:
    """The phone."""

    def said(name: str) -> str:
        return adb.run("shell", "getprop", f"ro.{name}").strip()

    cores = adb.run("shell", "nproc").strip()
    thermal, extra = None, {"fingerprint": said("build.fingerprint")}
    try:
        thermal = parse_thermal(adb.run("shell", "dumpsys", "thermalservice"))
        extra["thermal status"] = thermal.status
    except BenchError as error:
        extra["thermal status"] = str(error)
    chip = said("soc.model") or said("board.platform")
    cpu = f"{said('product.manufacturer')} {said('product.model')} ({chip})"
    return Machine(
        device="android",
        id=hashlib.sha256(f"{cpu} {cores}".encode()).hexdigest()[:16],
        system=f"Android {said('build.version.release')}",
        python="",
        cpu=cpu,
        cores=int(cores) if cores.isdigit() else 0,
        memory_bytes=memory_bytes(adb.run("shell", "cat", "/proc/meminfo")),
        temperature_c=max(thermal.temperatures_c.values(), default=None) if thermal else None,
        extra=extra,
    )


def _push(adb: Adb, folder: Path, runner: Path, contents: Sequence[bytes], plan: Any) -> None:
    adb.run("shell", f"rm -rf {PLACE} && mkdir -p {PLACE}")
    with tempfile.TemporaryDirectory() as temporary:
        photos, asked = Path(temporary) / "photos", Path(temporary) / "plan.json"
        photos.mkdir()
        for number, content in enumerate(contents):
            (photos / f"{number:03}").write_bytes(content)
        wanted = {name: getattr(plan, name) for name in ("mode", "conditions", "head", "threads", "provider", "only")}
        asked.write_bytes(msgspec.json.encode({"protocol": PROTOCOL, **wanted}))
        for source, target in ((folder, "bundle"), (runner, "runner"), (photos, "photos"), (asked, "plan.json")):
            adb.run("push", str(source), f"{PLACE}/{target}")


def _energy(session: Session, adb: Adb, before: Battery) -> Energy:
    """Of the whole run, from the battery's own counter."""
    target = session.rows[0].target if session.rows else ""
    found: dict[str, Any] = {}
    try:
        after = parse_battery(adb.run("shell", "dumpsys", "battery"))
    except BenchError as error:
        source = f"not measured: {error}"
    else:
        if before.charging or after.charging:
            source = "not measured: the phone is charging; connect adb over Wi-Fi and unplug it"
        elif before.charge_uah is None or after.charge_uah is None:
            source = "not measured: this phone does not count its charge"
        else:
            source = "battery, the whole phone with its screen, during the whole run"
            coulombs = (before.charge_uah - after.charge_uah) * 3.6e-3
            joules = coulombs * (before.voltage_v + after.voltage_v) / 2
            photos = sum(row.summary.count * row.photos for row in session.rows if row.name == "whole")
            found = {"joules": joules, "joules_per_photo": joules / photos if photos else None}
    return Energy(bundle=session.bundle, target=target, source=source, **found)
