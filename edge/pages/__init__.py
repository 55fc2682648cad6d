"""Self-contained HTML pages: one look for albums, benchmarks, demos and runs."""

from refocus.edge.pages.page import data_uri, page, style

__all__ = ["data_uri", "page", "style"]
