"""Methods that personalise on streams of pseudo-people: the protocol, trained heads in it, and trade-offs."""

__all__ = ["few_people", "heads", "judging", "methods", "pages", "points", "stream", "trade_off"]
