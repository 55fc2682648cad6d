"""Training runs: settings, checkpoints and features of one experiment, resumable."""

__all__ = ["folder", "iciia", "taper"]
