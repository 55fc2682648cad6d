"""Exceptions of the device runtime, one type per reaction of the caller, not per cause."""


class RefocusError(Exception):
    """Base of all errors that a person can act on; commands print its one line and exit with status 1."""


class PhotoError(RefocusError):
    """The photo cannot be used: skip it or give another one. Nothing was stored."""


class BundleError(RefocusError):
    """The bundle cannot be trusted or understood: fetch it again, or update refocus. Nothing was loaded."""


class RuntimeUnavailable(RefocusError):
    """The inference runtime is missing or refused: install the named extra."""


class HistoryError(RefocusError):
    """The history cannot be read or written: the disk, the folder's rights or the file need attention."""


class PersonalWeightsError(RefocusError):
    """A person's weights cannot be used or kept: fetch them again, or make room. Older ones were left as they were."""


class TaskError(RefocusError):
    """Nothing can be condensed for what was asked: name other classes, describe it otherwise, or take another bank."""


class UpdateError(RefocusError):
    """The update cannot be fetched, verified or used now: try again later. The installed release keeps serving."""
