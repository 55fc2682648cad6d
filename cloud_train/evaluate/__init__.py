"""Evaluation of trained heads, clients and banks, through exported bundles where devices use them.

The figures of the papers' tables are computed by ``studies/``, which uses this package and is not installed.
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
