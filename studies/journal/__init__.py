"""Measurement of a removed append journal against SQLite alone.

Development versions of 0.2 had the journal.
"""

__all__ = ["measure", "worker"]
