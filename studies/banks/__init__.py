"""Studies of TAPER's banks: tables of the paper, growth by one basis."""

__all__ = ["evaluation", "growth", "kept_rows", "orders", "tables"]
