"""Parity with PyTorch on photo sequences, and calibration data for quantisation."""

from refocus.export.parity.photos import read_streams, write_labels

__all__ = ["read_streams", "write_labels"]
