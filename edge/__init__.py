"""Refocus on the device: load a bundle, recognise photos, keep each person's feature history."""

from refocus import __version__ as __version__
from refocus.edge.bundle.load import Bundle, load_bundle, upgrade
from refocus.edge.errors import BundleError, HistoryError, PhotoError, RefocusError, RuntimeUnavailable
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.recognize.check import check
from refocus.edge.recognize.recognizer import Answer, Recognizer, profile_path

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
