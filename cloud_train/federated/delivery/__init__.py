"""Checkpoints of a federated run, and one file per client, from which bundles are exported."""

__all__ = ["deliver"]
