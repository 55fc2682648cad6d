"""Photos of an album decoded in other processes, in order, while the caller computes something else.

A worker is a process of this module. It is told photos through its standard input, the next one while it decodes, so
that it never waits for the caller; leaves the pixels of each in turn in one of two places in memory that both processes
share; and says the rest through its standard output. When its input ends, as it does when the caller is killed, so does
the worker. A worker that dies costs the photo at which it died, and nothing else: another one takes its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from refocus.edge.bundle.manifest import Preprocessing
from refocus.edge.errors import PhotoError, RefocusError
from refocus.edge.files import printable
from refocus.edge.photos.clip import frame_files
from refocus.edge.photos.decode import MAX_DECODED_BYTES
from refocus.edge.photos.header import capture_time
from refocus.edge.photos.preprocess import folder_identity, preprocess, preprocess_folder, read_photo

PHOTOS_FOR_A_WORKER = 8  # fewer are decoded sooner than another process has started
AHEAD = 8  # photos for each worker that may be decoded before their turn, while the caller encodes a batch
_TOLD = 2  # photos that a worker is told of at once
_LENGTH = struct.Struct("<Q")
_CODE = "import sys; sys.path[:] = sys.argv[1:]; from refocus.edge.photos.workers import main; main()"


class PreparedPhoto(msgspec.Struct, frozen=True):
    """A file of an album, or a folder of frames.

    Attributes:
        identity: SHA-256 of its bytes, or over those of its frames; "" where they could not be read.
        taken: as :func:`refocus.edge.photos.header.capture_time` says.
        error: why it cannot be used; "" if it can.
        pixels: (1, 3, crop, crop), or of a clip (1, T, 3, crop, crop), as :func:`preprocess` gives them; None where
            there is an error, and of photos whose features are known.
    """

    identity: str = ""
    taken: str = ""
    error: str = ""
    pixels: np.ndarray | None = None


class _Settings(msgspec.Struct, frozen=True):
    """Settings of a decoding worker, sent to it before the first photo.

    Attributes:
        contract: how to prepare photos.
        known: identities of those that need no pixels.
        memory: descriptor of the file whose memory takes the pixels of ``_TOLD`` photos.
    """

    contract: Preprocessing
    known: frozenset[str]
    memory: int = -1

    @property
    def pixel_bytes(self) -> int:
        """Bytes of one photo's pixels."""
        return math.prod(self.contract.input_shape) * np.dtype(np.float32).itemsize

    @property
    def memory_bytes(self) -> int:
        """Bytes of the memory: the pixels of ``_TOLD`` photos."""
        return _TOLD * self.pixel_bytes


class _Worker:
    """A process that decodes, and the memory in which it leaves pixels.

    Attributes:
        told: photos that it was told of; its lane's lock guards it.
        answered: those of them that it has answered; photos are answered in the order of their telling.
        dead: whether it ended with photos unanswered.
        turn: guards ``answered`` and ``dead``.

    Raises:
        OSError: it cannot be started, or there is no room for the memory.
    """

    def __init__(self, settings: _Settings, said: IO[bytes]) -> None:
        self.told, self.answered, self.dead, self.turn = 0, 0, False, threading.Condition()
        pipe, size = subprocess.PIPE, settings.memory_bytes
        with tempfile.TemporaryFile() as file:
            file.write(bytes(size))  # a full disk shows here, and not as a signal when the memory is used
            file.flush()
            self.pixels = mmap.mmap(file.fileno(), size)
            self.settings = msgspec.structs.replace(settings, memory=file.fileno())
            command = [sys.executable, "-c", _CODE, *sys.path]
            alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy would start threads that have nothing to do
            self.process = subprocess.Popen(  # noqa: S603  # ourselves
                command, stdin=pipe, stdout=pipe, stderr=said, pass_fds=[file.fileno()], env=alone
            )

    def tell(self, file: Path) -> int:
        """Has it prepare a photo; returns the number of that photo. That it has ended shows in the answer alone."""
        with contextlib.suppress(OSError):
            _send(self.process.stdin, os.fsencode(file))
        self.told += 1
        return self.told - 1

    def answer(self, number: int) -> PreparedPhoto | None:
        """The photo of that number, once those before it are answered; None if the worker died at one of those.

        Raises:
            EOFError, OSError: it died at this one.
        """
        with self.turn:
            self.turn.wait_for(lambda: self.answered == number or self.dead)
            if self.dead:
                return None
            try:
                found = msgspec.msgpack.decode(_receive(self.process.stdout), type=_Answer)
            except BaseException:
                self.dead = True
                raise
            finally:
                self.answered += 1
                self.turn.notify_all()
            size = self.settings.pixel_bytes
            place = memoryview(self.pixels)[number % _TOLD * size :][:size]
            pixels = np.frombuffer(place, np.float32).reshape(found.shape).copy() if found.shape else None
        return PreparedPhoto(found.identity, found.taken, found.error, pixels)

    def end(self) -> None:
        """Kills the process, and frees what it had."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # what was not sent yet has no reader
                if stream is not None:
                    stream.close()
        self.pixels.close()


def prepare_file(file: Path, contract: Preprocessing, known: frozenset[str] = frozenset()) -> PreparedPhoto:
    """Reads one photo or clip, and decodes it unless it is one of ``known``; what is wrong with it is said, not raised.

    Args:
        file: of a clip also the folder of its frames.
    """
    found = PreparedPhoto()
    try:
        if contract.of_clips and file.is_dir():
            return _prepare_frames(file, contract, known)
        content = read_photo(file)
        found = PreparedPhoto(hashlib.sha256(content).hexdigest(), capture_time(content))
        if found.identity in known:
            return found
        return msgspec.structs.replace(found, pixels=preprocess(content, contract, str(file)))
    except PhotoError as error:
        return msgspec.structs.replace(found, error=str(error))


def _prepare_frames(folder: Path, contract: Preprocessing, known: frozenset[str]) -> PreparedPhoto:
    """A folder of frames, which is taken when its first frame is."""
    first = frame_files(folder)[0]
    found = PreparedPhoto(folder_identity(folder) if known else "", capture_time(read_photo(first)))
    if found.identity in known:
        return found
    pixels, identity = preprocess_folder(folder, contract, str(folder))
    return PreparedPhoto(identity, found.taken, pixels=pixels)


def prepare_files(
    files: Sequence[Path], contract: Preprocessing, known: frozenset[str] = frozenset(), workers: int = 0
) -> Generator[PreparedPhoto, None, None]:
    """Every file as :func:`prepare_file` gives it, in order; with several workers, some ahead of their turn.

    Close the iterator where it is not read to its end: that ends the workers.

    Args:
        known: identities of photos that need no pixels.
        workers: processes that decode; 1: this one, in turn with the caller; 0: :func:`default_workers`.

    Raises:
        RefocusError: no other process can be started.
    """
    workers = min(workers or default_workers(), -(-len(files) // PHOTOS_FOR_A_WORKER))
    if workers <= 1 or not sys.executable:  # embedded: there is no program to start
        yield from (prepare_file(file, contract, known) for file in files)
        return
    with _Workers(_Settings(contract, known), workers) as pool:
        yield from pool.in_order(files)


def default_workers() -> int:
    """As many as the cores that this process may use, and as the free memory allows, one large photo each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, StopIteration, ValueError):  # not Linux
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
        return max(1, min(cores, free // MAX_DECODED_BYTES))
    return cores


class _Lane:
    """One worker after another, for the threads that tell it photos and wait for the answers."""

    def __init__(self) -> None:
        self.telling = threading.Lock()
        self.worker: _Worker | None = None


class _Workers(contextlib.AbstractContextManager["_Workers"]):
    """Worker processes, each with ``_TOLD`` threads that wait for its answers, and started again where it ended.

    Args:
        settings: of every worker.
        count: how many.
    """

    def __init__(self, settings: _Settings, count: int) -> None:
        self._settings, self._count = settings, count
        lanes = itertools.cycle([_Lane() for _ in range(count)])
        self._mine = threading.local()
        self._threads = ThreadPoolExecutor(_TOLD * count, "decode", lambda: setattr(self._mine, "lane", next(lanes)))
        self._running: set[_Worker] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed on exit; what workers write on standard error

    def in_order(self, files: Sequence[Path]) -> Iterator[PreparedPhoto]:
        """At most ``AHEAD`` photos for each worker wait for their turn, whatever the caller does meanwhile."""
        waiting: deque[Future[PreparedPhoto]] = deque()
        for file in files:
            waiting.append(self._threads.submit(self._prepare, file))
            if len(waiting) > AHEAD * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _prepare(self, file: Path) -> PreparedPhoto:
        """By the worker of this thread's lane."""
        lane: _Lane = self._mine.lane
        while True:
            with lane.telling:
                if lane.worker is None or lane.worker.dead:
                    lane.worker = self._start()
                worker = lane.worker
                number = worker.tell(file)
            try:
                found = worker.answer(number)
            except (EOFError, OSError):
                return PreparedPhoto(error=f"{file} {self._ended(worker)}")
            if found is not None:
                return found

    def _start(self) -> _Worker:
        """A worker that is ready.

        Raises:
            RefocusError: it does not become ready.
        """
        with self._lock:
            if self._stopped:
                raise RefocusError("decoding was stopped")
            try:
                worker = _Worker(self._settings, self._said)
            except OSError as error:
                raise RefocusError(f"no process can be started ({error.strerror}); give --workers 1") from None
            self._running.add(worker)
        try:
            _send(worker.process.stdin, msgspec.msgpack.encode(worker.settings))
            _receive(worker.process.stdout)
        except (EOFError, OSError):
            self._ended(worker)
            raise RefocusError(f"a decoding process does not start ({self._last_words()}); give --workers 1") from None
        return worker

    def _ended(self, worker: _Worker) -> str:
        """Why a worker's photo has no pixels."""
        with self._lock:
            self._running.discard(worker)
        worker.end()
        code = worker.process.returncode
        how = f"signal {-code}" if code < 0 else f"status {code}"
        return f"ended the process that decoded it ({how}); convert it to JPEG, or free memory"

    def _last_words(self) -> str:
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - 400))
        return (self._said.read().decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._stopped, running = True, list(self._running)
        for worker in running:
            worker.process.kill()  # its thread waits for an answer
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in running:
            worker.end()
        self._said.close()


class _Answer(msgspec.Struct, frozen=True):
    identity: str
    taken: str
    error: str
    shape: tuple[int, ...]


def _send(stream: IO[bytes] | None, content: bytes) -> None:
    assert stream is not None  # noqa: S101  # a pipe
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def _receive(stream: IO[bytes] | None) -> bytes:
    """Raises:
    EOFError: the other side has ended.
    """
    assert stream is not None  # noqa: S101  # a pipe
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return content


def main() -> None:
    """A worker: settings, then paths, from standard input; answers to standard output, until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who ends this process
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what native libraries print is no answer
    with contextlib.suppress(EOFError, BrokenPipeError):
        settings = msgspec.msgpack.decode(_receive(asked), type=_Settings)
        memory = mmap.mmap(settings.memory, settings.memory_bytes)
        places = np.frombuffer(memory, dtype=np.float32).reshape(_TOLD, -1)
        _send(answers, b"ready")
        for number in itertools.count():
            found = prepare_file(Path(os.fsdecode(_receive(asked))), settings.contract, settings.known)
            pixels = found.pixels
            shape = pixels.shape if pixels is not None else ()
            if pixels is not None:
                places[number % _TOLD] = pixels.reshape(-1)
            _send(answers, msgspec.msgpack.encode(_Answer(found.identity, found.taken, printable(found.error), shape)))
    os._exit(0)  # nothing is buffered any more, and the caller may be gone
