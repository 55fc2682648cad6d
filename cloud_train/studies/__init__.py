"""Studies: what a run is worth, by whole tables: accuracy, ablations, histories, federated orders."""

__all__ = [
    "bank_replay",
    "decoding",
    "evaluate",
    "federated",
    "federated_orders",
    "federated_programme",
    "growth",
    "history_policies",
    "iciia",
    "page",
    "self_improvement",
    "sensitivity",
    "taper",
]
