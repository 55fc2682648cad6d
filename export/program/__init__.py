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
from refocus.export.program.photo_signature import SIGNATURE, SignedEncoder, signature
from refocus.export.program.program import (
    NativeHead,
    Shape,
    TorchProgram,
    answers,
    head_without_history,
    photo_encoder,
    tensors,
)
from refocus.export.program.sources import RANDOM, Found, NetworkSettings, misfit, open_network

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
    "Shape",
    "SignedEncoder",
    "TorchProgram",
    "answers",
    "answers_without_history",
    "capture_freest",
    "checkpoint_of",
    "head_without_history",
    "load_checkpoint",
    "misfit",
    "open_network",
    "photo_encoder",
    "programs_of",
    "save_checkpoint",
    "signature",
    "split",
    "tensors",
    "weights_hash",
]
