"""Training runs: settings, checkpoints and features of one experiment, resumable."""
