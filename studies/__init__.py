"""Experiments that compute the published results; not part of the installed packages.

python -m studies --help
"""

__all__ = ["banks", "bench", "commands", "experiment", "federated", "iciia", "report", "streams"]
