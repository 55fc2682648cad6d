"""From a federated run to devices: checkpoints, one file per client, and each client's accuracy through the bundle."""

__all__ = ["bundle_accuracy", "deliver"]
