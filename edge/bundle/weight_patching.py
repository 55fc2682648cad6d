"""One person's tensors in the place of those that a shared program keeps in its weight file.

A person's file knows no runtime: it has each tensor once, as the network has it. Where a runtime's file has it, in
which pieces, order of axes and type, the bundle says; so one small file serves every runtime of a bundle, and nothing
that could run ever travels for one person.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refocus.edge.bundle.manifest import Artifact, PersonalFile, Piece
from refocus.edge.bundle.personal_weights import PersonalWeights
from refocus.edge.bundle.verified_files import Content
from refocus.edge.errors import BundleError


def check_tensors(weights: PersonalWeights, file: PersonalFile) -> None:
    """Exactly the tensors that are each person's own, of their shapes.

    Raises:
        PersonalWeightsError: one is missing, of another shape or type, or no such tensor is each person's own.
    """
    wanted = {tensor.name: tensor.shape for tensor in file.tensors}
    for name in sorted(wanted.keys() | weights.tensors.keys()):
        found = weights.tensors.get(name)
        if found is None or found.dtype != np.float32 or found.shape != wanted.get(name):
            has = "missing" if found is None else f"{found.dtype} {found.shape}"
            takes = f"float32 {wanted[name]}" if name in wanted else "no such tensor of each person"
            raise weights.does_not_fit(f"{name} is {has}, the program takes {takes}")


def check_places(artifact: Artifact, folder: Path) -> None:
    """Every piece of a person's tensors lies in the weight file of its program.

    Raises:
        BundleError: one lies outside it, or the file is not there.
    """
    if artifact.personal is None:
        return
    path = folder / artifact.file / artifact.personal.file
    size = path.stat().st_size if path.is_file() else 0
    for tensor in artifact.personal.tensors:
        for piece in tensor.pieces:
            numbers = (piece.last - piece.first) * math.prod(tensor.shape[1:])
            _end(piece, numbers, size, f"{path}: {tensor.name}")


def weight_file_of(weights: PersonalWeights, template: Content, file: PersonalFile) -> np.ndarray:
    """A program's weight file as it is for one person: (n,) bytes.

    Args:
        template: verified content of the bundle's own file.

    Raises:
        PersonalWeightsError: as of :func:`check_tensors`.
        BundleError: the bundle's own file is shorter than it says.
    """
    check_tensors(weights, file)
    return filled(template, file, weights.tensors, file.file)


def filled(template: Content, file: PersonalFile, tensors: Mapping[str, np.ndarray], where: str) -> np.ndarray:
    """A weight file with other numbers in it: (n,) bytes.

    Args:
        template: the bundle's own file.
        tensors: all that ``file`` lists, of their shapes.
        where: named in errors.

    Raises:
        BundleError: a piece lies outside the file.
    """
    content = np.frombuffer(template, dtype=np.uint8).copy()
    for tensor in file.tensors:
        for piece in tensor.pieces:
            rows = tensors[tensor.name][piece.first : piece.last].transpose(piece.axes)
            end = _end(piece, rows.size, len(content), f"{where}: {tensor.name}")
            content[piece.offset : end].view(piece.dtype).reshape(rows.shape)[...] = rows
    return content


def _end(piece: Piece, numbers: int, size: int, what: str) -> int:
    """Where a piece of so many numbers ends in a file of so many bytes.

    Raises:
        BundleError: beyond its end.
    """
    end = piece.offset + numbers * np.dtype(piece.dtype).itemsize
    if end > size:
        raise BundleError(f"{what} would end at byte {end} of {size}; export the bundle again")
    return end
