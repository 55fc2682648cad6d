"""One exported program outside a bundle, run by the device's own code: for bisection, sweeps and tests."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import torch

from refocus.edge.bundle import Artifact
from refocus.edge.runtimes import Program, load_artifact
from refocus.export.errors import ExportError
from refocus.export.program.program import TorchProgram
from refocus.export.targets import Settings, Written, find_target


def write_single(
    name: str, program: TorchProgram, captured: torch.export.ExportedProgram, settings: Settings, folder: Path
) -> tuple[Written, Path]:
    """Writes a program for a target, as ``onnx:fp32``.

    Raises:
        ExportError: the target has no form for it.
    """
    target, _ = find_target(name)
    path = folder / f"program{target.SUFFIX}"
    # In one file: nobody's tensors are to be put in the place of others.
    return target.write(replace(program, personal={}, probed=None), captured, settings, path), path


def load_single(name: str, written: Written, path: Path, profile: Path | None = None) -> Program:
    """Loads what :func:`write_single` wrote.

    Args:
        profile: as of :func:`refocus.edge.runtimes.load_artifact`.

    Raises:
        ExportError: it cannot run on this machine.
    """
    return load_artifact(path.parent, artifact_of(name, written, path), 1, profile=profile)


def artifact_of(name: str, written: Written, path: Path) -> Artifact:
    """What the device loads a single program by; it stands in no manifest.

    Raises:
        ExportError: it cannot run on this machine.
    """
    if written.parity_note:
        raise ExportError(f"{name}: {written.parity_note}")
    target, precision = find_target(name)
    content = path.read_bytes()
    digest, role = hashlib.sha256(content).hexdigest(), written.program.role
    return Artifact(
        role=role,
        runtime=target.RUNTIME,
        precision=precision,  # type: ignore[arg-type]  # find_target allows only the manifest's own values
        file=path.name,
        sha256=digest,
        size_bytes=len(content),
        inputs=written.program.inputs,
        outputs=written.program.outputs,
        min_runtime_version="0",
        producer=written.producer,
        feature_space=digest if role == "encoder" else None,  # of its own: nothing else meets its features
        accepts=(digest,) if role == "head" else (),
        head="head" if role == "head" else "",
        placement=written.placement,
    )
