"""Measurements whose rows are published and that no command of ``refocus bench`` needs."""

__all__ = ["condensing", "service", "service_client", "switching"]
