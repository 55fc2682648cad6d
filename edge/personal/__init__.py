"""Personal weights: the store on the device, files received from the cloud, and programs that run with them."""

from refocus.edge.personal.programs import Load, PersonalPrograms, SessionPool
from refocus.edge.personal.received_files import (
    BY_DIGEST,
    CHECKPOINT,
    FORMAT,
    FORMAT_VERSION,
    METHOD,
    PERSON,
    file_name,
    read_personal,
)
from refocus.edge.personal.store import KEPT_MAPPED, PersonalWeightStore

__all__ = [
    "BY_DIGEST",
    "CHECKPOINT",
    "FORMAT",
    "FORMAT_VERSION",
    "KEPT_MAPPED",
    "METHOD",
    "PERSON",
    "Load",
    "PersonalPrograms",
    "PersonalWeightStore",
    "SessionPool",
    "file_name",
    "read_personal",
]
