"""Methods that personalise on streams of pseudo-people: the protocol, trained heads in it, and trade-offs."""

__all__ = ["ceilings", "few_people", "heads", "judging", "pages", "points", "protocol", "trade_off"]
