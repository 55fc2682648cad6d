"""Signed delivery: a repository of releases that devices trust, staged roll-out, and the rule that stops one."""

__all__ = ["evidence", "gates", "keys", "repository", "stages"]
