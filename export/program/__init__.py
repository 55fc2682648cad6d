"""What is exported: checkpoints, networks from outside, programs (modules with named inputs and outputs), captures."""

from refocus.export.program.capture import capture_freest
from refocus.export.program.checkpoint import (
    PLAIN_FORM,
    TAUGHT_BY,
    Card,
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from refocus.export.program.network import (
    Network,
    OwnClassifier,
    answers_without_history,
    checkpoint_of,
    programs_of,
    split,
    weights_hash,
)
from refocus.export.program.photo_signature import SIGNATURE, signature
from refocus.export.program.program import NativeHead, TorchProgram
from refocus.export.program.sources import RANDOM, Found, NetworkSettings, misfit, open_network, parse_arguments

__all__ = [
    "PLAIN_FORM",
    "RANDOM",
    "SIGNATURE",
    "TAUGHT_BY",
    "Card",
    "Checkpoint",
    "CheckpointError",
    "Found",
    "NativeHead",
    "Network",
    "NetworkSettings",
    "OwnClassifier",
    "TorchProgram",
    "answers_without_history",
    "capture_freest",
    "checkpoint_of",
    "load_checkpoint",
    "misfit",
    "open_network",
    "parse_arguments",
    "programs_of",
    "save_checkpoint",
    "signature",
    "split",
    "weights_hash",
]
