"""Rejection thresholds in the manifest."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from refocus.edge.bundle import Head, Personalisation
from refocus.export.bundle.rejection import with_rejection


@pytest.mark.parametrize(("scale", "has"), [(1.0, True), (1e5, False)])
def test_logits_beyond_the_range_of_the_manifest_leave_the_threshold_out(scale, has):
    head = Head("plain", ("a", "b"), Personalisation("plain", 0, "none", "none"))
    logits = scale * np.array([[3.0, 1.0], [2.0, 4.0]], dtype=np.float32)
    answers = [SimpleNamespace(outputs={"plain_logits": row}, feature=np.ones(4)) for row in logits]
    steps = [SimpleNamespace(path=Path(f"{number}.png"), label=None) for number in range(2)]
    found = with_rejection(head, SimpleNamespace(steps=steps, answers=answers))
    assert isinstance(found.rejection, float) == has
    msgspec.convert(msgspec.to_builtins(found), Head)
