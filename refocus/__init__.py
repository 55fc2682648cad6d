"""Refocus: image recognition on the device that gets better for its owner, without labels or on-device training.

The names of everyday use are here, and are loaded when they are asked for; everything else is in :mod:`refocus.edge`,
:mod:`refocus.export`, :mod:`refocus.benchmarks` and :mod:`refocus.cloud_train`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refocus.edge import (
        BundleError,
        HistoryError,
        PhotoError,
        Recognizer,
        RefocusError,
        RuntimeUnavailable,
        load_bundle,
    )
    from refocus.edge.recognize import check

__version__ = "0.2.0.dev0"  # as in pyproject.toml

__all__ = [
    "BundleError",
    "HistoryError",
    "PhotoError",
    "Recognizer",
    "RefocusError",
    "RuntimeUnavailable",
    "__version__",
    "check",
    "load_bundle",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'refocus' has no attribute '{name}'")
    import refocus.edge

    return getattr(refocus.edge, name)


def __dir__() -> list[str]:
    return sorted(__all__)
