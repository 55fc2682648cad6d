"""Bundles on a model hub: upload with a model card, download with verification by hash."""

from refocus.export.hub.transfer import HubError, Place, parse_place, pull_bundle, push_bundle

__all__ = ["HubError", "Place", "parse_place", "pull_bundle", "push_bundle"]
