"""Measuring: timer, statistics, verdicts, the machine monitor, accuracy."""

from refocus.benchmarks.measure.accuracy import SCHEMA as ACCURACY_SCHEMA
from refocus.benchmarks.measure.accuracy import Photos, check_labels, evaluate, read_labelled, summarise, unseen_photos
from refocus.benchmarks.measure.label_sets import average_precision, mean_average_precision
from refocus.benchmarks.measure.statistics import bootstrap_mean, bootstrap_ratio, worst_tenth
from refocus.benchmarks.measure.timer import Timings, interleave

__all__ = [
    "ACCURACY_SCHEMA",
    "Photos",
    "Timings",
    "average_precision",
    "bootstrap_mean",
    "bootstrap_ratio",
    "check_labels",
    "evaluate",
    "interleave",
    "mean_average_precision",
    "read_labelled",
    "summarise",
    "unseen_photos",
    "worst_tenth",
]
