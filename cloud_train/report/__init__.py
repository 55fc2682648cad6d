"""Reports for people: terminal, HTML, the generated results page."""

__all__ = ["run_report"]
