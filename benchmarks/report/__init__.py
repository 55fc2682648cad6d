"""Reports from result documents: HTML, charts, text."""
