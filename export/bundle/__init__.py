"""Writing bundles: export, merge, first divergence, the worker process."""

from refocus.export.bundle.artifacts import Export
from refocus.export.bundle.merge import merge_bundles
from refocus.export.bundle.write import export_bundle

__all__ = ["Export", "export_bundle", "merge_bundles"]
