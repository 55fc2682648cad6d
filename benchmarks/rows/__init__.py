"""Measured rows of a benchmark: stages, personal weights, cold start, switching, condensing, service."""

__all__ = ["cold_start", "condensing", "personal", "recorder", "service", "stages", "switching"]
