"""Reports for people: terminal, HTML, the generated results page."""
