"""Measured rows of a benchmark: stages, personal weights, cold start."""

__all__ = ["cold_start", "personal", "recorder", "stages"]
