"""Measurements that say how much they can be trusted."""

__all__ = ["choose", "commands", "devices", "document", "measure", "modes", "report", "rows", "run", "suite"]
