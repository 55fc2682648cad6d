"""Federated methods on several machines: NVFlare carries the messages; photos and own parts stay with clients."""
