"""The results pages, generated from result documents."""

__all__ = ["pages", "results_page", "topics"]
