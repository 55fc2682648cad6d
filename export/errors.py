"""Errors of export, one type per reaction."""

from refocus.edge.errors import RefocusError


class ParityError(RefocusError):
    """The exported program does not compute what PyTorch computes: nothing was written. Do not ship; investigate."""


class ExportError(RefocusError):
    """The export cannot start or finish as asked: fix the flags or the checkpoint."""


class TargetUnavailable(ExportError):
    """The library of one target is not installed: the other targets can be exported."""


def told(error: BaseException) -> str:
    """Type and first line of what a library raised, of which torch and the converters write pages."""
    return f"{type(error).__name__}: {(str(error).strip() or type(error).__name__).splitlines()[0]}"


class NothingToQuantise(ExportError):
    """The program has no layer to quantise: export it in another precision."""
