"""Refocus on the device: load a bundle, recognise photos, keep each person's feature history."""

from edge.bundle import Bundle, load_bundle, upgrade
from edge.check import check
from edge.errors import BundleError, HistoryError, PhotoError, RefocusError, RuntimeUnavailable
from edge.history import FeatureHistory
from edge.recognizer import Answer, Recognizer, profile_path

__version__ = "0.2.0.dev0"  # as in pyproject.toml

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
