"""TAPER: bank of bases, tasks, task descriptions, three training stages."""

__all__ = ["bank", "descriptions", "growth", "tasks", "train"]
