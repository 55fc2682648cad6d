"""A fleet of simulated devices: processes of their own, that take releases from a repository over loopback HTTP.

Who watches may look into every device's folder; who releases sees no more than in the field: the counts that devices
send whose owners agreed to that.
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
    """Serves a repository on the loopback, with ranges, and takes counts.

    Counts come by ``PUT /counts/NAME``, under a random name that a device was given for that alone: a later list
    replaces an earlier one, and nothing says which device it is.

    Attributes:
        url: of the repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.counts, self.lock = folder.resolve(), dict[str, list[Report]](), threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def reports(self) -> list[Report]:
        """The newest counts of every device that sends them."""
        with self.lock:
            return [report for reports in self.counts.values() for report in reports]

    def close(self) -> None:
        """Ends; devices go on with what they have."""
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
    """Somebody who has a device.

    Attributes:
        person: of the glyphs; nobody that a model was trained or judged with.
        labels: whether they say what their photos show.
        tells: whether they let the device send its counts.
        photos: that they take; then they show the device the first ones again.
    """

    person: int
    labels: bool
    tells: bool
    photos: int = 96

    @property
    def name(self) -> str:
        return f"owner-{self.person:05d}"

    @property
    def script(self) -> str:
        return glyphs.hand_of(0, self.person).script


@dataclass(frozen=True)
class Pace:
    """How fast time goes for a fleet: seconds between photos and between looks."""

    photo_s: float = 1.0
    look_s: float = 3.0


class Fleet:
    """Devices with their owners, alive from ``with`` on.

    Args:
        folder: for the devices' own folders.
        root: the metadata in which all their trust begins.
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
        """Starts a device, or starts it again."""
        folder = self.folder / owner.name
        command = [sys.executable, str(Path(__file__).with_name("device.py")), str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # many share the cores, as they would not in the field
        with (folder / "errors.txt").open("ab") as errors:
            self._processes[owner.name] = subprocess.Popen(command, stderr=errors, env=environment)  # noqa: S603

    def kill(self, owner: Owner) -> None:
        """Takes the power from a device."""
        self._processes[owner.name].kill()
        self._processes[owner.name].wait()

    # ---- what is seen from outside the field

    def records(self) -> dict[str, UpdateState]:
        """What is the case on every device."""
        return {owner.name: Slots(self.folder / owner.name).read() for owner in self.owners}

    def answers(self, owner: Owner) -> list[Answered]:
        """Every photo that a device has recognised, or could not."""
        return read_log(self.folder / owner.name / ANSWERS, Answered)

    def news(self, owner: Owner) -> list[News]:
        """What updates did on a device."""
        return read_log(self.folder / owner.name / NEWS, News)

    def wait(self, ready: Callable[[UpdateState], bool], what: str, limit_s: float) -> None:
        """Until every device is ready.

        Raises:
            ReleaseError: a device's process died, or the time is over.
        """
        ended = time.monotonic() + limit_s
        for _ in track(self._ready(ready, what, ended), what, len(self.owners)):
            pass

    def _ready(self, ready: Callable[[UpdateState], bool], what: str, ended: float) -> Iterator[str]:
        """Devices by name, as they become ready."""
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
