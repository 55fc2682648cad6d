"""Measuring: timer, statistics, verdicts, the machine monitor, accuracy."""

from refocus.benchmarks.measure.accuracy import SCHEMA as ACCURACY_SCHEMA
from refocus.benchmarks.measure.accuracy import Photos, check_labels, evaluate, read_labelled
from refocus.benchmarks.measure.statistics import bootstrap_mean, bootstrap_ratio, worst_tenth
from refocus.benchmarks.measure.timer import Timings, interleave

__all__ = [
    "ACCURACY_SCHEMA",
    "Photos",
    "Timings",
    "bootstrap_mean",
    "bootstrap_ratio",
    "check_labels",
    "evaluate",
    "interleave",
    "read_labelled",
    "worst_tenth",
]
