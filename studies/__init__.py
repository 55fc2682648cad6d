"""Experiments that compute the published results.

Run them from a clone; the installed packages do not contain them::

    python -m studies --help
"""

__all__ = ["banks", "bench", "commands", "experiment", "federated", "iciia", "report", "streams"]
