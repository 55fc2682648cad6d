"""Commands of ``python -m studies``."""

__all__ = ["app", "cost", "publish", "study"]
