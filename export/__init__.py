"""From a trained program to a bundle that a device can trust."""

from refocus.export.run import bisect, export
from refocus.export.settings import ExportSettings

__all__ = ["ExportSettings", "bisect", "export"]
