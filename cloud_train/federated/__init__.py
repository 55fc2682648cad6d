"""Federated personalisation: many clients train together, photos stay on the clients."""

__all__ = [
    "checkpoint",
    "client",
    "client_data",
    "delivery",
    "deployment",
    "evaluate",
    "methods",
    "parameters",
    "programs",
    "rounds",
    "run",
    "server",
]
