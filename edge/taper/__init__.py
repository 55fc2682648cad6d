"""TAPER on the device: condensing a bank into a small network for a task, and self-improvement."""

from refocus.edge.taper.bank import ROWS, WORDS, Bank, Task
from refocus.edge.taper.description import describe_task
from refocus.edge.taper.self_improvement import SelfImprovement, class_shares, common_classes, shift_of
from refocus.edge.taper.weight_mixing import NORM, MixedNetwork, scale_and_shift, write_weights

__all__ = [
    "NORM",
    "ROWS",
    "WORDS",
    "Bank",
    "MixedNetwork",
    "SelfImprovement",
    "Task",
    "class_shares",
    "common_classes",
    "describe_task",
    "scale_and_shift",
    "shift_of",
    "write_weights",
]
