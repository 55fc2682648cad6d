"""Networks for the benchmark suite, and which networks export to which runtime."""

__all__ = ["compatibility", "suite"]
