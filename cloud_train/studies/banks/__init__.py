"""Studies of TAPER's banks: every table of the paper, owners who are followed, a basis more, a bank on the device."""

__all__ = ["evaluation", "growth", "kept_answers", "orders", "replay", "self_improvement", "tables"]
