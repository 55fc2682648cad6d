"""Studies: what a run is worth, by whole tables: accuracy, ablations, histories, federated orders."""

__all__ = [
    "attention",
    "banks",
    "decoding",
    "evaluate",
    "federated",
    "federated_orders",
    "federated_programme",
    "history_policies",
    "iciia",
    "page",
    "pairs",
    "sensitivity",
]
