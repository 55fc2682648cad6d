"""Write result documents of the tools; ``python -m studies results`` draws those in ``docs/results``."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1


def write_document(
    out: Path, kind: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], command: str
) -> None:
    """Writes a document whole or not at all.

    Args:
        kind: the field by which the page knows it, as "android_start"; its value is ``about`` with the machine added.
        command: what was typed, from the repository's root.
    """
    document = {"schema_version": SCHEMA, kind: {**about, "machine": machine()}, "rows": rows, "command": command}
    out.parent.mkdir(parents=True, exist_ok=True)
    made = out.with_name(f".{out.name}.new")
    made.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    made.replace(out)


def machine() -> dict[str, Any]:
    """The processor, its cores, and how busy it is."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"processor": processor, "cores": os.cpu_count() or 1, "load": round(os.getloadavg()[0], 2)}


def manifest_sha256(bundle: Path) -> str:
    """Identity of a bundle: the SHA-256 of its manifest."""
    return hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
