"""Commands of ``python -m studies``."""

__all__ = ["app", "cost", "parsing", "publish", "study"]
