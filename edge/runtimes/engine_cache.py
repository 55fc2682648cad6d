"""Engines that a device built for itself, kept under the key of everything that decides them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from refocus.edge.errors import RefocusError, RuntimeUnavailable
from refocus.edge.files import cache_folder, reason, write_file


@dataclass(frozen=True)
class EngineKey:
    """What an engine depends on.

    Attributes:
        version: of TensorRT.
        gpu: name and compute capability.
        precision: as in the manifest.
        calibration: SHA-256 of the calibration photos; "" where there were none.
        program: SHA-256 of the ONNX file.
    """

    version: str
    gpu: str
    precision: str
    calibration: str
    program: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


class EngineCache:
    """A folder of engines, each with its key beside it; those that were not used for longest are removed.

    Args:
        folder: default: ``refocus/engines`` below the user's cache folder.
        max_engines: engines kept.
        max_bytes: of all engines together; the newest is kept whatever its size.

    Raises:
        RuntimeUnavailable: no folder is given, and the user has no home.
    """

    def __init__(self, folder: Path | None = None, max_engines: int = 16, max_bytes: int = 4 << 30) -> None:
        if folder is None:
            cache = cache_folder()
            if cache is None:
                raise RuntimeUnavailable("this user has no home folder to keep engines in; set XDG_CACHE_HOME or HOME")
            folder = cache / "engines"
        self.folder = folder
        self.max_engines, self.max_bytes = max_engines, max_bytes

    def get(self, key: EngineKey, build: Callable[[], bytes], say: Callable[[str], object]) -> bytes:
        """The engine of that key, from disk or built now.

        An engine is stored with its SHA-256: one that was cut short by a full disk or a kill is built again. An engine
        that cannot be stored is used all the same.

        Args:
            build: makes the engine; takes minutes.
            say: is told, in one sentence, that an engine is built and why; or that it could not be stored.
        """
        engine = self.folder / f"{key.digest}.engine"
        content, why = self._stored(key, engine)
        if content is not None:
            with contextlib.suppress(OSError):
                os.utime(engine)
            return content
        say(f"building a TensorRT engine, which takes minutes and happens once: {why}")
        content = build()
        try:
            self._store(key, engine, content)
            self._remove_oldest(engine)
        except (OSError, RefocusError) as error:
            say(f"the engine cannot be kept in {self.folder} ({reason(error)}) and will be built again")
        return content

    def _store(self, key: EngineKey, engine: Path, content: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {**asdict(key), "sha256": hashlib.sha256(content).hexdigest()}
        card = json.dumps(about, indent=2).encode()
        write_file(engine, content)
        write_file(engine.with_suffix(".json"), card)

    def _remove_oldest(self, newest: Path) -> None:
        others = [path for path in self.folder.glob("*.engine") if path != newest]
        others.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        size = newest.stat().st_size
        for number, path in enumerate(others, 1):
            size += path.stat().st_size
            if number >= self.max_engines or size > self.max_bytes:
                path.unlink(missing_ok=True)
                path.with_suffix(".json").unlink(missing_ok=True)

    def _stored(self, key: EngineKey, engine: Path) -> tuple[bytes | None, str]:
        """The engine, read once and compared with its card; or why it must be built."""
        card = engine.with_suffix(".json")
        if engine.exists() and card.exists():
            with contextlib.suppress(OSError):
                content = engine.read_bytes()
                if hashlib.sha256(content).hexdigest() == _read(card).get("sha256"):
                    return content, ""
            return None, f"{engine} is damaged"
        for other in sorted(self.folder.glob("*.json")):
            about = _read(other)
            if about.get("program") == key.program:
                changed = {k: (about.get(k), v) for k, v in asdict(key).items() if about.get(k) != v}
                return None, "the one that is here was built for " + ", ".join(
                    f"{name} '{old}', this is '{new}'" for name, (old, new) in changed.items()
                )
        return None, "there is none for this program yet"


def _read(card: Path) -> dict[str, str]:
    try:
        about = json.loads(card.read_text())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}
