"""Signed updates: rules, repository client, installation, canary tests, rollout per profile, rollback, serving."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refocus.edge.update.agent import UpdateAgent
from refocus.edge.update.canary import Canary
from refocus.edge.update.device_state import Outcome, Slots, UpdateState, counted, files_of
from refocus.edge.update.loaded_releases import Settings
from refocus.edge.update.rules import (
    CHANNEL,
    MAX_NUMBER,
    MAX_RELEASES,
    Channel,
    ClassName,
    Program,
    Release,
    Report,
    blob_path,
    bucket,
    check_whole,
    decode_channel,
    encode_channel,
    identity_of,
)
from refocus.edge.update.serving import Serving

if TYPE_CHECKING:
    from refocus.edge.update.repository import RepositoryClient

__all__ = [
    "CHANNEL",
    "MAX_NUMBER",
    "MAX_RELEASES",
    "Canary",
    "Channel",
    "ClassName",
    "Outcome",
    "Program",
    "Release",
    "Report",
    "RepositoryClient",
    "Serving",
    "Settings",
    "Slots",
    "UpdateAgent",
    "UpdateState",
    "blob_path",
    "bucket",
    "check_whole",
    "counted",
    "decode_channel",
    "encode_channel",
    "files_of",
    "identity_of",
]


def __getattr__(name: str) -> Any:
    """Loads the client when it is asked for: it needs python-tuf, and serving does not."""
    if name != "RepositoryClient":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from refocus.edge.update.repository import RepositoryClient

    return RepositoryClient
