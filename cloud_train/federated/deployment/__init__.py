"""Federated methods on several machines: NVFlare carries the messages; photos and own parts stay with clients."""

__all__ = ["kits", "processes", "replies", "serve", "session", "sites"]
