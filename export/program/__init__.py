"""What is exported: checkpoints, programs (modules with named inputs and outputs), captured graphs."""

from refocus.export.program.capture import capture_freest
from refocus.export.program.checkpoint import Card, Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from refocus.export.program.program import TorchProgram

__all__ = [
    "Card",
    "Checkpoint",
    "CheckpointError",
    "TorchProgram",
    "capture_freest",
    "load_checkpoint",
    "save_checkpoint",
]
