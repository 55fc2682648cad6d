"""Measured rows of a benchmark: stages, personal weights, cold start, switching, condensing, service."""
