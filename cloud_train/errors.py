"""Errors of the cloud side, one type per reaction of the person who runs it."""

from refocus.edge.errors import RefocusError


class DataError(RefocusError):
    """The photos or their table are not what the command needs: fix the data."""


class UsageError(RefocusError):
    """A flag or its combination is wrong: call again, corrected."""


class ReleaseError(RefocusError):
    """A release cannot be signed or changed as asked: fix the flag, fetch the key, or take another bundle."""


class PipelineError(RefocusError):
    """A step of the pipeline failed: fix the cause that it names and resume, or read its log."""
