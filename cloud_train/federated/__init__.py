"""Federated personalisation: many clients train together, nobody's photos leave them."""

__all__ = [
    "checkpoint",
    "client",
    "client_data",
    "deliver",
    "deployment",
    "evaluate",
    "methods",
    "parameters",
    "programs",
    "rounds",
    "run",
    "server",
]
