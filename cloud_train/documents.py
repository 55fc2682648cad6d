"""Write results documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refocus.edge.files import write_file


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """Write a results document as JSON, stable in form."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(results, ensure_ascii=False, indent=2) + "\n")
