"""Demonstrations: `refocus demo`, and a simulated fleet."""

__all__ = ["demo", "fleet"]
