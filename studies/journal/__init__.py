"""Measurement of the append journal that development versions of 0.2 had, beside SQLite alone."""
