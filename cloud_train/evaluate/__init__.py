"""Evaluate trained heads, clients and banks through exported bundles.

Networks that devices do not use are evaluated in PyTorch. ``studies/`` computes the figures of the papers' tables with
this package; it is not installed.
"""

__all__ = [
    "bank_replay",
    "bank_tasks",
    "clients",
    "heads",
    "kept_answers",
    "label_sets",
    "page",
    "pairs",
    "report",
    "self_improvement",
]
