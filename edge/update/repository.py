"""Where releases come from: a TUF repository behind a URL. The only file of the device that opens a socket."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import urllib3
from tuf.api.exceptions import DownloadError, DownloadHTTPError, ExpiredMetadataError, RepositoryError
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from refocus.edge.errors import UpdateError
from refocus.edge.files import file_sha256
from refocus.edge.update.device_state import TrustedVersions
from refocus.edge.update.rules import (
    CHANNEL,
    MAX_CHANNEL_BYTES,
    MAX_NUMBER,
    PART,
    Channel,
    File,
    blob_path,
    decode_channel,
    printable,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SECONDS = 30.0  # for the status line and all headers; and without a byte before a connection is given up
LEAST_RATE = 1024.0  # bytes a second of a body, over as long: a server that trickles would hold an update without end
_CHUNK = 1 << 16
_HEADERS = {"User-Agent": "refocus", "Accept-Encoding": "identity"}


class _Pace:
    """The limits in time of one request after another; every connection asks before it waits for bytes.

    The status line and the headers have ``seconds`` together. After them at least ``LEAST_RATE`` bytes a second must
    come over each ``seconds``; and the whole request ends at the deadline that follows from its largest body.

    Args:
        seconds: limit of the headers, and of a wait for one byte.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begin(0)

    def begin(self, most_bytes: int) -> None:
        """Starts the clock of a request whose body has at most so many bytes."""
        self._window, self._limit = time.monotonic(), self.seconds + most_bytes / LEAST_RATE
        self._deadline = self._window + self._limit
        self._received, self._in_headers = 0, True

    def headers_end(self) -> None:
        """Starts the clock of the body."""
        self._window, self._received, self._in_headers = time.monotonic(), 0, False

    def wait_s(self) -> float:
        """Seconds that the connection may wait for the next byte.

        Raises:
            HTTPError: the request has taken too long.
        """
        now = time.monotonic()
        took = now - self._window
        late = self._received < LEAST_RATE * took or self._in_headers
        if took >= self.seconds and late:
            what = "headers not done" if self._in_headers else f"sent {self._received} bytes"
            raise urllib3.exceptions.HTTPError(f"{what} in {took:.0f} s")
        if now >= self._deadline:
            raise urllib3.exceptions.HTTPError(f"not done in {self._limit:.0f} s")
        if took >= self.seconds:
            self._window, self._received = now, 0
        return min(self.seconds, self._deadline - now, self.seconds - took if self._in_headers else self.seconds)

    def took(self, count: int) -> None:
        """Counts bytes that came."""
        self._received += count


class _Paced(io.RawIOBase):
    """The bytes of a socket, each wait for which is limited by a :class:`_Pace`."""

    def __init__(self, raw: io.RawIOBase, connection: socket.socket, pace: _Pace) -> None:
        self._raw, self._connection, self._pace = raw, connection, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._connection.settimeout(self._pace.wait_s())
        count = self._raw.readinto(buffer) or 0
        self._pace.took(count)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _connections(pace: _Pace) -> urllib3.PoolManager:
    """Connections whose requests keep to a pace, without retries and redirects."""

    class Response(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *given: object, **more: object) -> None:
            super().__init__(sock, *given, **more)  # type: ignore[arg-type]
            self.fp = io.BufferedReader(_Paced(self.fp.detach(), sock, pace))

        def begin(self) -> None:
            super().begin()
            pace.headers_end()

    def pool(kind: type, connection: type) -> type:
        return type("Pool", (kind,), {"ConnectionCls": type("Connection", (connection,), {"response_class": Response})})

    manager = urllib3.PoolManager(timeout=pace.seconds, retries=False)
    manager.pool_classes_by_scheme = {
        "http": pool(urllib3.HTTPConnectionPool, urllib3.connection.HTTPConnection),
        "https": pool(urllib3.HTTPSConnectionPool, urllib3.connection.HTTPSConnection),
    }
    return manager


class _Fetcher(FetcherInterface):
    """Fetches metadata with the source's own connections and limits."""

    def __init__(self, pool: urllib3.PoolManager, pace: _Pace) -> None:
        self._pool, self._pace = pool, pace

    def _fetch(self, url: str) -> Iterator[bytes]:
        self._pace.begin(MAX_CHANNEL_BYTES)  # python-tuf's limits of metadata are lower
        response = self._pool.request("GET", url, headers=_HEADERS, preload_content=False)
        if response.status != 200:
            response.close()
            raise DownloadHTTPError(f"{url}: status {response.status}", response.status)
        return self._blocks(response)

    def _blocks(self, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        try:
            while block := response.read1(_CHUNK, decode_content=False):
                yield block
        finally:
            response.close()


class RepositoryClient:
    """A repository, as one device trusts it.

    Args:
        folder: for trusted metadata; on storage that lasts.
        url: of the repository; below it ``metadata/`` and ``targets/``.
        root: the metadata in which all trust begins, as it came with the device.
        seconds: limit of the headers of a response, and of a wait for one byte of its body.
    """

    def __init__(self, folder: Path, url: str, root: bytes, device_class: str, seconds: float = SECONDS) -> None:
        self._folder, self._url, self._root, self._class = folder, url.rstrip("/"), root, device_class
        self._pace = _Pace(seconds)
        self._pool = _connections(self._pace)

    def refresh(self, seen: TrustedVersions, now: datetime | None = None) -> tuple[Channel, TrustedVersions]:
        """The newest list of releases, verified, and what has now been seen.

        Beyond what TUF checks, nothing may be older than what this device has seen before, even if its metadata was
        wiped; and what has expired by the latest time this device knows counts as expired, even if its clock was set
        back.

        Raises:
            UpdateError: offline, expired, replayed, or not signed by whom it should be.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in self._folder.glob("tmp*"):  # by a kill while metadata was written
                left.unlink(missing_ok=True)
            return self._refresh(seen, now or datetime.now(timezone.utc))
        except ExpiredMetadataError as error:
            why = f"{printable(str(error))}; its owner must sign it again, or this device's clock is wrong"
            raise UpdateError(f"{self._url}: {why}") from None
        except RepositoryError as error:
            raise UpdateError(f"{self._url} cannot be trusted: {printable(str(error))}") from None
        except (DownloadError, urllib3.exceptions.HTTPError) as error:
            why = printable(str(error))
            raise UpdateError(f"{self._url} cannot be reached ({why}); try again later") from None
        except OSError as error:
            raise UpdateError(f"{self._folder} cannot be written ({error}); make room and try again") from None
        finally:
            self._pool.clear()

    def _refresh(self, seen: TrustedVersions, now: datetime) -> tuple[Channel, TrustedVersions]:
        updater = Updater(
            str(self._folder),
            f"{self._url}/metadata/",
            str(self._folder / "targets"),
            f"{self._url}/targets/",
            fetcher=_Fetcher(self._pool, self._pace),
            config=UpdaterConfig(),
            bootstrap=self._root,
        )
        updater.refresh()
        target = updater.get_targetinfo(f"{self._class}/{CHANNEL}")
        if target is None:
            raise UpdateError(f"{self._url} has nothing for devices of the class {self._class}; check the class")
        if target.length > MAX_CHANNEL_BYTES:
            raise UpdateError(f"{self._url}: its list has {target.length} bytes, at most {MAX_CHANNEL_BYTES} are read")
        now_seen = self._compare(seen, now)
        path = updater.find_cached_target(target) or updater.download_target(target)
        channel = decode_channel(Path(path).read_bytes(), self._url)
        if channel.device_class != self._class:
            raise UpdateError(f"{self._url}: its list is for the class {channel.device_class}, not {self._class}")
        return channel, now_seen

    def _compare(self, seen: TrustedVersions, now: datetime) -> TrustedVersions:
        """Versions and clock after a refresh.

        Raises:
            UpdateError: something is older than what was seen before, or expired by then.
        """
        root = Metadata[Root].from_file(str(self._folder / "root.json")).signed
        timestamp = Metadata[Timestamp].from_file(str(self._folder / "timestamp.json")).signed
        snapshot = Metadata[Snapshot].from_file(str(self._folder / "snapshot.json")).signed
        targets = Metadata[Targets].from_file(str(self._folder / "targets.json")).signed
        own = Metadata[Targets].from_file(str(self._folder / f"{self._class}.json")).signed
        roles = targets.delegations.roles if targets.delegations else None
        keys = {"root": "", **{name: _joined(root.roles[name].keyids) for name in ("timestamp", "snapshot", "targets")}}
        keys[self._class] = _joined(roles[self._class].keyids) if roles and self._class in roles else ""
        found = {"root": root, "timestamp": timestamp, "snapshot": snapshot, "targets": targets, self._class: own}
        floor = max(now, seen.clock) if seen.clock else now
        for role, signed in found.items():
            version, key = seen.versions.get(role, (0, ""))
            if signed.version > MAX_NUMBER:
                raise UpdateError(f"{self._url}: {role} has a version above {MAX_NUMBER}; its key may be stolen")
            if signed.version < version and key == keys[role]:
                raise UpdateError(
                    f"{self._url}: {role} has version {signed.version}, this device has seen {version};"
                    " an old state is being replayed"
                )
            if signed.is_expired(floor):
                raise UpdateError(
                    f"{self._url}: {role} expired on {signed.expires:%Y-%m-%d}, and this device knows of"
                    f" {floor:%Y-%m-%d}: its clock was set back, or an old state is shown"
                )
        return TrustedVersions(
            versions={role: (signed.version, keys[role]) for role, signed in found.items()}, clock=floor
        )

    def download(self, file: File, into: Path) -> None:
        """Downloads one file by its SHA-256, resuming an interrupted download; synced to disk on return.

        Raises:
            UpdateError: it cannot be reached, was cut, or is not what was signed.
        """
        part = into.with_name(into.name + PART)
        with part.open("ab") as stream:
            if stream.tell() > file.size_bytes:
                stream.truncate(0)
            if stream.tell() < file.size_bytes:
                for block in self._blocks(file, stream.tell()):
                    stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        size = part.stat().st_size
        if size < file.size_bytes:
            how = f"was cut after {size} of {file.size_bytes} bytes; the next attempt resumes there"
            raise UpdateError(f"{self._url}: {file.path} {how}")
        if file_sha256(part) != file.sha256:
            part.unlink()
            raise UpdateError(
                f"{self._url}: {file.path} is not the file that was signed; the next attempt starts again"
            )
        part.replace(into)

    def _blocks(self, file: File, start: int) -> Iterator[bytes]:
        """The bytes from ``start`` on, no more than there should be."""
        url, left = f"{self._url}/targets/{blob_path(file.sha256)}", file.size_bytes - start
        headers = {**_HEADERS, "Range": f"bytes={start}-"}
        self._pace.begin(file.size_bytes)
        try:
            with self._pool.request("GET", url, headers=headers, preload_content=False) as response:
                if response.status not in (200, 206):
                    raise UpdateError(f"{url} cannot be had (status {response.status}); try again later")
                skip = start if response.status == 200 else 0  # a server without ranges begins at the beginning
                while block := response.read1(_CHUNK, decode_content=False):
                    skipped, skip = block[skip:], max(0, skip - len(block))
                    yield skipped[:left]
                    left -= min(left, len(skipped))
                    if not left:
                        return
        except urllib3.exceptions.HTTPError as error:
            raise UpdateError(f"{url}: {printable(str(error))}; the next attempt resumes there") from None


def _joined(keys: list[str]) -> str:
    return hashlib.sha256(" ".join(sorted(keys)).encode()).hexdigest()
