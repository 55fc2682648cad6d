"""New photos in, a gated and signed release out: `refocus pipeline`."""

__all__ = ["argo", "rebuild", "run", "state"]
