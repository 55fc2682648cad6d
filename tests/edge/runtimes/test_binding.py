"""Bound programs: what is answered is of what the arrays hold at each call, wherever the program runs."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from refocus.edge.runtimes import load_program
from refocus.edge.runtimes import onnxruntime as ours


class CopiedWhenBound:
    """A session's binding as that of a GPU is: inputs are copied to the device once, when they are bound."""

    def __init__(self, binding):
        self._binding, self._iobinding, self._copies = binding, binding._iobinding, []

    def bind_ortvalue_input(self, name, value):
        self._copies.append(value.numpy().copy())
        self._binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(self._copies[-1]))

    def __getattr__(self, name):
        return getattr(self._binding, name)


@pytest.fixture
def other_provider(monkeypatch):
    """The name of a provider that takes nothing, in sessions whose bindings copy."""
    if "AzureExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build has the CPU alone")
    monkeypatch.setitem(ours.PROVIDERS, "azure", "AzureExecutionProvider")
    whole = onnxruntime.InferenceSession.io_binding
    monkeypatch.setattr(onnxruntime.InferenceSession, "io_binding", lambda session: CopiedWhenBound(whole(session)))
    return "azure"


def test_a_bound_program_off_the_cpu_answers_what_its_inputs_hold_now_and_not_when_it_was_bound(bundle, other_provider):
    program = load_program(bundle, "head", "onnxruntime", threads=1, provider=other_provider)
    assert all(isinstance(size, int) for tensor in program.artifact.outputs for size in tensor.shape)
    inputs = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in program.artifact.inputs}
    bound = program.bind(inputs)
    before = {name: value.copy() for name, value in bound().items()}
    inputs["feature"][:] = np.random.default_rng(0).standard_normal(inputs["feature"].shape)
    found, wanted = bound(), program.run(**inputs)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)
    assert any(not np.array_equal(found[name], before[name]) for name in before)
    program.close()
    with pytest.raises(ValueError, match="was closed"):
        bound()
