"""Result documents as HTML, charts and text; two of them compared."""

__all__ = ["compare", "report", "text", "track"]
