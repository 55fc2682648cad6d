"""Moving a profile from one encoder to another: stages, the move itself, and recognising meanwhile."""

from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.migration.migration import Migration

__all__ = ["DualWriteRecognizer", "Migration"]
