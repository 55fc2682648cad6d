"""Refocus on the device: load a bundle, recognise photos, keep each person's feature history."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from refocus import __version__ as __version__
from refocus.edge.errors import BundleError, HistoryError, PhotoError, RefocusError, RuntimeUnavailable

if TYPE_CHECKING:
    from refocus.edge.bundle import Bundle, load_bundle, upgrade
    from refocus.edge.history import FeatureHistory
    from refocus.edge.recognize import Answer, Recognizer, check, profile_path

# Loaded when they are asked for: the command line needs none of them for its help.
_LAZY = {
    "Answer": "recognize",
    "Bundle": "bundle",
    "FeatureHistory": "history",
    "Recognizer": "recognize",
    "check": "recognize",
    "load_bundle": "bundle",
    "profile_path": "recognize",
    "upgrade": "bundle",
}

__all__ = [
    "Answer",
    "Bundle",
    "BundleError",
    "FeatureHistory",
    "HistoryError",
    "PhotoError",
    "Recognizer",
    "RefocusError",
    "RuntimeUnavailable",
    "check",
    "load_bundle",
    "profile_path",
    "upgrade",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'refocus.edge' has no attribute '{name}'")
    return getattr(importlib.import_module(f"refocus.edge.{_LAZY[name]}"), name)
