"""Devices and their sensors: host, CUDA, Jetson, Android."""

from refocus.benchmarks.devices.machine import describe, new_document, versions

__all__ = ["describe", "new_document", "versions"]
