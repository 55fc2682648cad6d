"""JSON that every reader understands in the same way (RFC 8259, I-JSON)."""

from __future__ import annotations

import json
import math
from typing import Any


def check_json(content: bytes) -> None:
    """Checks a document that another reader will parse.

    Raises:
        ValueError: it is not JSON in UTF-8, nests too deeply, or holds a name twice in one object, a number that is not
            finite, or half of a surrogate pair.
    """
    try:
        found = json.loads(
            content.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite
        )
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("a string holds half of a surrogate pair") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"the name {name[:40]!a} appears twice in one object")
        seen.add(name)
    return dict(pairs)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"the number {text[:40]} is too large")
    return found
