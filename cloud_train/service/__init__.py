"""Personal models as a service: the description of a task in, a condensed and signed bundle out."""

__all__ = ["app", "connections", "guard", "keys"]
