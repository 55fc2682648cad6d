"""Studies of TAPER's banks: the tables of the paper, and a bank that gets one more basis."""

__all__ = ["evaluation", "growth", "kept_rows", "orders", "tables"]
