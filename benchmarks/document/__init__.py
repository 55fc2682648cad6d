"""Result documents: schema and comparison."""

from refocus.benchmarks.document.schema import Conditions, Counted, Document, Missing, Photos, write_document

__all__ = ["Conditions", "Counted", "Document", "Missing", "Photos", "write_document"]
