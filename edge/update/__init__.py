"""Signed updates: rules, repository client, installation, canary tests, rollout per profile, rollback, serving."""

from refocus.edge.update.agent import Settings, UpdateAgent
from refocus.edge.update.canary import Canary
from refocus.edge.update.device_state import Outcome, Slots, UpdateState, counted, files_of
from refocus.edge.update.repository import RepositoryClient, blob_path
from refocus.edge.update.rules import (
    CHANNEL,
    MAX_NUMBER,
    MAX_RELEASES,
    Channel,
    Program,
    Release,
    Report,
    bucket,
    check_whole,
    decode_channel,
    encode_channel,
    identity_of,
)
from refocus.edge.update.serving import Serving

__all__ = [
    "CHANNEL",
    "MAX_NUMBER",
    "MAX_RELEASES",
    "Canary",
    "Channel",
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
