"""Parity with PyTorch on photo sequences, and calibration data for quantisation."""

from refocus.export.parity.photos import FEWEST_PHOTOS, read_streams, write_labels

__all__ = ["FEWEST_PHOTOS", "read_streams", "write_labels"]
