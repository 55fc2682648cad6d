"""A bound run reads memory of the caller's, who may let go of it."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from refocus.edge.runtimes import load_program


def test_a_bound_run_keeps_the_arrays_that_it_reads(bundle):
    encoder = load_program(bundle, "encoder", "onnxruntime", threads=1)
    shape = [size if isinstance(size, int) else 1 for size in encoder.artifact.inputs[0].shape]
    photo = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    wanted, given = encoder.run(photo=photo)["feature"].copy(), weakref.ref(photo)
    run = encoder.bind({"photo": photo})
    del photo
    gc.collect()
    assert given() is not None  # it would be read all the same
    np.testing.assert_array_equal(run()["feature"], wanted)
    del run
    gc.collect()
    assert given() is None
