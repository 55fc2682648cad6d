"""Engines that a device built for itself, kept under the key of everything that decides them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path


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
    """A folder of engines, each with its key beside it.

    Args:
        folder: default: ``refocus/engines`` below the user's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = folder or cache / "refocus" / "engines"

    def get(self, key: EngineKey, build: Callable[[], bytes], say: Callable[[str], object]) -> bytes:
        """The engine of that key, from disk or built now.

        An engine is stored with its SHA-256: one that was cut short by a full disk or a kill is built again.

        Args:
            build: makes the engine; takes minutes.
            say: is told, in one sentence, that an engine is built and why.
        """
        engine, card = self.folder / f"{key.digest}.engine", self.folder / f"{key.digest}.json"
        why = self._why(key, engine, card)
        if not why:
            return engine.read_bytes()
        say(f"refocus: building a TensorRT engine, which takes minutes and happens once: {why}\n")
        content = build()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {**asdict(key), "sha256": hashlib.sha256(content).hexdigest()}
        for path, data in ((engine, content), (card, json.dumps(about, indent=2).encode())):
            temporary = path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(data)
            temporary.replace(path)
        return content

    def _why(self, key: EngineKey, engine: Path, card: Path) -> str:
        """Why the engine must be built; "" if it is there."""
        if engine.exists() and card.exists():
            about = _read(card)
            whole = hashlib.sha256(engine.read_bytes()).hexdigest() == about.get("sha256")
            return "" if whole else f"{engine} is damaged"
        for other in sorted(self.folder.glob("*.json")):
            about = _read(other)
            if about.get("program") == key.program:
                changed = {k: (about.get(k), v) for k, v in asdict(key).items() if about.get(k) != v}
                return "the one that is here was built for " + ", ".join(
                    f"{name} '{old}', this is '{new}'" for name, (old, new) in changed.items()
                )
        return "there is none for this program yet"


def _read(card: Path) -> dict[str, str]:
    try:
        about = json.loads(card.read_text())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}
