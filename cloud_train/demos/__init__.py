"""The demonstration `refocus demo`."""

__all__ = ["demo"]
