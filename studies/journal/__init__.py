"""Measurement of the append journal that development versions of 0.2 had, next to SQLite alone."""

__all__ = ["measure", "worker"]
