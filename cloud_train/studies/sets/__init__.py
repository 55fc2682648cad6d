"""Runs on photos with several labels each, evaluated through the exported bundles."""

from refocus.cloud_train.studies.sets.evaluate import evaluate_sets

__all__ = ["evaluate_sets"]
