"""Personalisation methods on streams of pseudo-people.

Contains the protocol, trained heads, and trade-offs.
"""

__all__ = ["camera_roll", "few_people", "heads", "judging", "methods", "pages", "points", "stream", "trade_off"]
