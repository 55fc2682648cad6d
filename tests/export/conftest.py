"""What every test of export starts from: the tiny run's head, and two people's photos."""

from __future__ import annotations

import hashlib
import os
import shutil

import onnx
import pytest
import torch

import refocus.edge.bundle.load
from refocus.export.parity.photos import read_streams
from refocus.export.program.checkpoint import load_checkpoint
from refocus.export.targets import onnx as onnx_target


@pytest.fixture(scope="module")
def head(tiny_run):
    return load_checkpoint(tiny_run.head_path(0, "iciia_t"))


@pytest.fixture(scope="module")
def streams(tiny_run):
    people = read_streams(tiny_run.parity_photos())
    return {name: photos[:20] for name, photos in list(people.items())[:2]}


@pytest.fixture
def durably_replaced(monkeypatch):
    """Says of a bundle that took another's place whether all of it was on the disk before, and its name before the
    other one was removed."""
    done = []
    sync, swap, remove = os.fsync, refocus.edge.bundle.load.exchange, shutil.rmtree

    def noting(kind, call, about):
        return lambda *given, **named: done.append((kind, about(given[0]))) or call(*given, **named)

    monkeypatch.setattr(os, "fsync", noting("sync", sync, lambda descriptor: os.fstat(descriptor).st_ino))
    monkeypatch.setattr(refocus.edge.bundle.load, "exchange", noting("exchange", swap, str))
    monkeypatch.setattr(shutil, "rmtree", noting("remove", remove, str))

    def judge(out):
        kinds = [kind for kind, _ in done]
        swapped = kinds.index("exchange")
        removed = kinds.index("remove", swapped)
        files = {path.stat().st_ino for path in (out, *out.rglob("*"))}
        return (
            files <= {file for _, file in done[:swapped]}
            and out.parent.stat().st_ino in dict(done[swapped:removed]).values()
        )

    return judge


@pytest.fixture(scope="session", autouse=True)
def _each_graph_is_converted_once():
    """Most tests here export the same encoder, whose conversion to ONNX is most of their time. What a graph becomes is
    a function of its operators, its tensors, their names and the opset, so that it is kept for the others that have all
    of these the same."""
    convert, kept = onnx_target._converted, {}

    def converted(program, captured, settings):
        key = _key_of(program, captured, settings)
        if key not in kept:
            kept[key] = convert(program, captured, settings).SerializeToString()
        return onnx.load_from_string(kept[key])

    onnx_target._converted = converted
    yield
    onnx_target._converted = convert


def _key_of(program, captured, settings) -> str:
    digest = hashlib.sha256()
    names = [[tensor.name for tensor in tensors] for tensors in (program.inputs, program.outputs)]
    told = (captured.graph, captured.graph_signature, captured.range_constraints, names, settings.opset)
    digest.update("\n".join(map(str, told)).encode())
    for name, tensor in sorted({**captured.state_dict, **captured.constants}.items()):
        digest.update(name.encode())
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.detach().numpy().tobytes())
        else:
            digest.update(repr(tensor).encode())
    return digest.hexdigest()
