"""Moving a profile from one encoder to another: stages, the move itself, and recognising meanwhile."""

from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.migration.migration import Migration
from refocus.edge.migration.stages import read_record

__all__ = ["DualWriteRecognizer", "Migration", "read_record"]
