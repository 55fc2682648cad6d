"""Fixtures of the studies' tests."""

from tests.cloud_train.conftest import federated_run, photos  # noqa: F401
