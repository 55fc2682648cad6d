"""Federated personalisation: many clients train together, nobody's photos leave them."""
