"""Fleet of simulated devices and their repository server.

Devices are separate processes that take releases over loopback HTTP. The report may read every device's folder. The
roll-out sees no more than with real devices: the counts that devices send with their owner's consent.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from examples.fleet.device import ANSWERS, NEWS, Answered, News, Plan, read_log, write_plan
from examples.fleet.letters import photos_of
from refocus.cloud_train.data import glyphs
from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.progress import track
from refocus.edge.update import Report, Slots, UpdateState

_MOST_COUNTS_BYTES = 1 << 16
_STEP_S = 0.25
Row = TypeVar("Row", Answered, News)


class LoopbackServer(http.server.ThreadingHTTPServer):
    """Loopback server of a repository, with ranges, that accepts counts.

    Counts arrive by ``PUT /counts/NAME``. The random name serves this purpose alone: a later list replaces an earlier
    one, and the device stays anonymous.

    Attributes:
        url: URL of the repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.counts, self.lock = folder.resolve(), dict[str, list[Report]](), threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def reports(self) -> list[Report]:
        """Return the newest counts of every device that sends them."""
        with self.lock:
            return [report for reports in self.counts.values() for report in reports]

    def close(self) -> None:
        """Stop the server; devices keep their release."""
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: LoopbackServer

    def do_GET(self) -> None:
        path = (self.server.folder / self.path.split("?")[0].lstrip("/")).resolve()
        if not path.is_relative_to(self.server.folder) or not path.is_file():
            self.send_error(404)
            return
        wanted = self.headers.get("Range", "").removeprefix("bytes=").partition("-")[0]
        start = int(wanted) if wanted.isdecimal() else 0
        with path.open("rb") as file, contextlib.suppress(ConnectionError):  # a device that was stopped
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(max(0, path.stat().st_size - start)))
            self.end_headers()
            file.seek(start)
            shutil.copyfileobj(file, self.wfile)

    def do_PUT(self) -> None:
        size = self.headers.get("Content-Length", "")
        if not self.path.startswith("/counts/") or not size.isdecimal() or int(size) > _MOST_COUNTS_BYTES:
            self.send_error(400)
            return
        try:
            reports = msgspec.json.decode(self.rfile.read(int(size)), type=list[Report])
        except msgspec.DecodeError:
            self.send_error(400)
            return
        with self.server.lock:
            self.server.counts[self.path] = reports
        self.send_response(204)
        self.end_headers()

    def log_message(self, *given: object) -> None:
        pass


@dataclass(frozen=True)
class Owner:
    """Owner of a device.

    Attributes:
        person: number of the person of the glyphs, who is in no training or evaluation photos.
        labels: whether they label their photos.
        tells: whether they allow the device to send its counts.
        photos: number of different photos; then the first ones are shown again.
    """

    person: int
    labels: bool
    tells: bool
    photos: int = 96

    @property
    def name(self) -> str:
        """Name of the owner and of the device's folder."""
        return f"owner-{self.person:05d}"

    @property
    def script(self) -> str:
        """Script that the owner writes."""
        return glyphs.hand_of(0, self.person).script


@dataclass(frozen=True)
class Pace:
    """Pace of a fleet: seconds between photos and between update checks."""

    photo_s: float = 1.0
    look_s: float = 3.0


class Fleet:
    """Devices with their owners, which run inside ``with``.

    Args:
        folder: folder for the folders of devices.
        owners: owners of the devices.
        server: server of the repository.
        root: root metadata that the devices trust.
        device_class: device class of the releases.
        pace: seconds between photos and between update checks.
    """

    def __init__(
        self,
        folder: Path,
        owners: Sequence[Owner],
        server: LoopbackServer,
        root: bytes,
        device_class: str,
        pace: Pace | None = None,
    ) -> None:
        self.folder, self.owners, self._server, self.pace = folder, list(owners), server, pace or Pace()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for owner in track(self.owners, "preparing devices", len(self.owners)):
            self._prepare(owner, root, device_class)

    def _prepare(self, owner: Owner, root: bytes, device_class: str) -> None:
        folder, photos = self.folder / owner.name, []
        (folder / "photos").mkdir(parents=True)
        shown = photos_of(owner.person, owner.photos)
        for number, name in enumerate(shown):
            photos.append(folder / "photos" / f"{number:03d}.png")
            photos[-1].write_bytes(glyphs.read(name))
        Slots.create(folder, device_class, self._server.url, root)
        write_plan(
            folder,
            Plan(
                photos=tuple(map(str, photos)),
                labels=tuple(shown.values()) if owner.labels else (),
                tells=f"{self._server.url}/counts/{secrets.token_hex(8)}" if owner.tells else "",
                photo_s=self.pace.photo_s,
                look_s=self.pace.look_s,
            ),
        )

    def __enter__(self) -> Fleet:
        for owner in track(self.owners, "starting devices", len(self.owners)):
            self.start(owner)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, owner: Owner) -> None:
        """Start a device, or start it again."""
        folder = self.folder / owner.name
        command = [sys.executable, str(Path(__file__).with_name("device.py")), str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # many devices share the cores
        with (folder / "errors.txt").open("ab") as errors:
            self._processes[owner.name] = subprocess.Popen(command, stderr=errors, env=environment)  # noqa: S603

    def kill(self, owner: Owner) -> None:
        """Kill the process of a device, as a power cut does."""
        self._processes[owner.name].kill()
        self._processes[owner.name].wait()

    # ---- observation of devices, which a real fleet does not allow

    def records(self) -> dict[str, UpdateState]:
        """Return the update state of every device."""
        return {owner.name: Slots(self.folder / owner.name).read() for owner in self.owners}

    def answers(self, owner: Owner) -> list[Answered]:
        """Return a device's answers to photos, errors included."""
        return read_log(self.folder / owner.name / ANSWERS, Answered)

    def news(self, owner: Owner) -> list[News]:
        """Return the changes by updates on a device."""
        return read_log(self.folder / owner.name / NEWS, News)

    def wait(self, ready: Callable[[UpdateState], bool], what: str, limit_s: float) -> None:
        """Wait until every device is ready.

        Raises:
            ReleaseError: a device's process ended, or the time limit passed.
        """
        ended = time.monotonic() + limit_s
        for _ in track(self._ready(ready, what, ended), what, len(self.owners)):
            pass

    def _ready(self, ready: Callable[[UpdateState], bool], what: str, ended: float) -> Iterator[str]:
        """Yield the names of devices as they become ready."""
        waiting = {owner.name for owner in self.owners}
        while waiting:
            for name in sorted(waiting):
                if ready(Slots(self.folder / name).read()):
                    waiting.remove(name)
                    yield name
                elif self._processes[name].poll() is not None:
                    said = (self.folder / name / "errors.txt").read_text(errors="replace").strip().splitlines()
                    why = said[-1] if said else "without a word"
                    raise ReleaseError(f"the device {name} ended ({why}); its folder is {self.folder / name}")
            if waiting and time.monotonic() > ended:
                raise ReleaseError(
                    f"{what}: {len(waiting)} of {len(self.owners)} devices were not ready in time, such as"
                    f" {min(waiting)}; see {self.folder}"
                )
            time.sleep(_STEP_S)
