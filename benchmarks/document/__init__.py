"""Result documents: their schema, read and written."""

from refocus.benchmarks.document.schema import Conditions, Counted, Document, Missing, Photos, write_document

__all__ = ["Conditions", "Counted", "Document", "Missing", "Photos", "write_document"]
