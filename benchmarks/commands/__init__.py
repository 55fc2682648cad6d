"""The commands `refocus bench` and `refocus accuracy`."""

__all__ = ["accuracy", "bench"]
