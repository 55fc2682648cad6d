"""Devices and their sensors: host, CUDA, Jetson, Android."""

from refocus.benchmarks.devices.machine import REFOCUS, describe, versions

__all__ = ["REFOCUS", "describe", "versions"]
