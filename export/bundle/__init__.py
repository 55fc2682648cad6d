"""Writing bundles: export, merge, first divergence, the worker process."""

from refocus.export.bundle.artifacts import Export
from refocus.export.bundle.attempt import Exported
from refocus.export.bundle.merge import merge_bundles
from refocus.export.bundle.write import export_bundle, export_targets

__all__ = ["Export", "Exported", "export_bundle", "export_targets", "merge_bundles"]
