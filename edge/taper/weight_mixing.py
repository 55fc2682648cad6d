"""One network mixed from a bank: predict the mixers, mix, fold, then lay out as a weight file has it.

Nothing of the size of a network is ever in memory: vectors (norms, biases) are mixed at once, everything else block by
block, each block while it is in the processor's cache. Batch normalisation is folded into the convolution before it;
that is not linear in the statistics, so networks are mixed first and folded then.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Semaphore, Thread

import numpy as np

from refocus.edge.bundle.manifest import BankCard, Column, Fold, PlacedTensor, WeightFile

BLOCK = 1 << 17  # numbers mixed at once: 0.5 MB, of which several stay in a processor's cache until they are written
AHEAD = 3  # blocks that may wait for the writer
MASKED = -1e4  # logit of a class that is not in the task: its probability is 0, and fp16 holds it
NORM = ("weight", "bias", "running_mean", "running_var")
# The mixer predictor: linear layers, the norm of each is the next number; epsilon of its norms.
HIDDEN_LAYERS, LAST_LAYER, EPS = (0, 3, 6), 9, 1e-5
Finish = Callable[[], "np.ndarray | memoryview"]  # gives one piece of a weight file
_FP16_MAX = float(np.finfo(np.float16).max)
_LEAST_SCALE = np.finfo(np.float32).tiny  # of a row of zeros


def scale_and_shift(
    gamma: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    eps: float,
    bias: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """What a convolution takes over from the norm behind it: the one definition, for export and device alike.

    Args:
        gamma, beta, mean, variance: (O,) of the norm, O channels.
        bias: (O,) of the convolution.

    Returns:
        (O,) factor of the kernels of each output channel, and (O,) the bias of the folded convolution, float32.
    """
    scale = gamma / np.sqrt(variance.astype(np.float64) + eps)
    return scale.astype(np.float32), (beta + (bias - mean) * scale).astype(np.float32)


def predict_mixers(weights: Mapping[str, np.ndarray], description: np.ndarray, mixers: int) -> np.ndarray:
    """The mixers of one task, by TAPER's mixer predictor: what part each base has in each block.

    A 4-layer perceptron with batch norm and ReLU between, then a softmax over the bases. In numpy: a device has no
    torch.

    Args:
        weights: of the predictor, by name: ``layers.0.weight`` and so on.
        description: (E,).
        mixers: M.

    Returns:
        (M, Q) float32, each row on the simplex.
    """
    value = description.astype(np.float32)
    for number in HIDDEN_LAYERS:
        gamma, beta, mean, variance = (weights[f"layers.{number + 1}.{name}"] for name in NORM)
        scale, shift = scale_and_shift(gamma, beta, mean, variance, EPS)
        value = np.maximum(weights[f"layers.{number}.weight"] @ value * scale + shift, 0)
    scores = weights[f"layers.{LAST_LAYER}.weight"] @ value + weights[f"layers.{LAST_LAYER}.bias"]
    scores = scores.reshape(mixers, -1)
    parts = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: np.ndarray = (parts / parts.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


class MixedNetwork:
    """The folded tensors of one mixture, by name.

    Args:
        card: the bank's.
        rows: (Q, n) float32.
        mixers: (M, Q), on the simplex; to take one network as it is, (M, 1) ones for its one row.
        shift: (C,) what is added to the classifier's bias: :data:`MASKED` for classes that are not in the task.
    """

    def __init__(self, card: BankCard, rows: np.ndarray, mixers: np.ndarray, shift: np.ndarray | None = None) -> None:
        self._rows, self._mixers = rows, np.ascontiguousarray(mixers, dtype=np.float32)
        self._columns = {column.name: column for column in card.columns}
        self.vectors = {c.name: self._mix(c, c.start, c.stop) for c in card.columns if len(c.shape) < 2}
        self._scales: dict[str, np.ndarray] = {}
        self._of_int8: dict[str, list[np.ndarray]] = {}
        for fold in card.folds:
            self._fold(fold)
        bias = self._bias = f"{card.classifier}.bias"
        self.vectors.setdefault(bias, np.zeros(self._columns[f"{card.classifier}.weight"].shape[0], np.float32))
        if shift is not None:
            self.vectors[bias] = np.maximum(self.vectors[bias] + shift, MASKED).astype(np.float32)

    def _fold(self, fold: Fold) -> None:
        gamma, beta, mean, variance = (self.vectors.pop(f"{fold.norm}.{name}", None) for name in NORM)
        if mean is None or variance is None:
            raise ValueError(f"the norm behind {fold.layer} has no statistics in the bank")  # a bug of the exporter
        gamma = np.ones_like(mean) if gamma is None else gamma
        beta = np.zeros_like(mean) if beta is None else beta
        name = f"{fold.layer}.bias"
        scale, self.vectors[name] = scale_and_shift(
            gamma, beta, mean, variance, fold.eps, self.vectors.get(name, np.zeros_like(mean))
        )
        self._scales[f"{fold.layer}.weight"] = scale

    def _mix(self, column: Column, start: int, stop: int, out: np.ndarray | None = None) -> np.ndarray:
        # Not matmul: the threads of a BLAS wait in a loop for the next product, on the processor that hashes and writes
        # the last one, and condensing takes 1.5 times as long.
        out = np.empty(stop - start, np.float32) if out is None else out
        mixed: np.ndarray = np.einsum("q,qn->n", self._mixers[column.mixer], self._rows[:, start:stop], out=out)
        return mixed

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a folded tensor."""
        return self.vectors[name].shape if name in self.vectors else self._columns[name].shape

    def check(self, classes: int) -> None:
        """Raises ValueError where folds, columns and classes do not fit together."""
        for name, scale in self._scales.items():
            if name not in self._columns or self._columns[name].shape[:1] != scale.shape:
                raise ValueError(f"the norm behind {name[:80]} scales {len(scale)} rows, which it does not have")
        if len(self.vectors[self._bias]) != classes:
            raise ValueError(f"the classifier has {len(self.vectors[self._bias])} classes, there are {classes} labels")

    @property
    def names(self) -> list[str]:
        """All folded tensors: vectors first, then the others in the bank's order."""
        return [*self.vectors, *(name for name, column in self._columns.items() if len(column.shape) > 1)]

    def tensor(self, name: str) -> np.ndarray:
        """One folded tensor, whole."""
        if name in self.vectors:
            return self.vectors[name]
        return self.block(name, 0, self.shape(name)[0], np.empty(math.prod(self.shape(name)), np.float32))

    def block(self, name: str, first: int, last: int, out: np.ndarray) -> np.ndarray:
        """Rows ``first`` to ``last`` of a folded tensor, along its first axis, in the memory of ``out`` (flat)."""
        return self._fold_rows(name, first, self._mix_rows(name, first, last, out))

    def _mix_rows(self, name: str, first: int, last: int, out: np.ndarray) -> np.ndarray:
        column = self._columns[name]
        width = math.prod(column.shape[1:])
        flat = out[: (last - first) * width]
        self._mix(column, column.start + first * width, column.start + last * width, flat)
        return flat.reshape(last - first, *column.shape[1:])

    def _fold_rows(self, name: str, first: int, block: np.ndarray) -> np.ndarray:
        """Scales mixed rows, from ``first`` on, by what the norm behind them does, in place."""
        if name in self._scales:
            by_row = block.reshape(len(block), -1)
            by_row *= self._scales[name][first : first + len(block), None]
        return block

    def rows_at_once(self, placed: PlacedTensor) -> int:
        """Along its first axis, how much of a tensor is made at once: all where the file has another axis first."""
        shape = self.shape(placed.name)
        if placed.axes[:1] != (0,):
            return shape[0]
        return min(shape[0], max(1, BLOCK // max(1, math.prod(shape[1:]))))

    def blocks(self, placed: PlacedTensor, buffers: Iterator[np.ndarray], scratch: np.ndarray) -> Iterator[Finish]:
        """A tensor as its file has it, in pieces, each mixed but not finished: the caller finishes them in order.

        Mixing waits for memory; folding and placing compute. So the two may run in two threads.

        Args:
            buffers: where pieces are mixed; each piece is good until its buffer comes round again.
            scratch: where pieces are placed that the file has in another order or format; good until the next one.
        """
        if placed.name in self.vectors:
            vector = self.vectors[placed.name]
            yield lambda: _place(vector.copy(), placed, np.empty_like(vector))
            return
        count, step = self.shape(placed.name)[0], self.rows_at_once(placed)
        self._of_int8[placed.name] = []
        for first in range(0, count, step):
            mixed = self._mix_rows(placed.name, first, min(first + step, count), next(buffers))
            yield partial(self._finish, placed, first, mixed, scratch)

    def _finish(self, placed: PlacedTensor, first: int, mixed: np.ndarray, scratch: np.ndarray) -> np.ndarray:
        block = self._fold_rows(placed.name, first, mixed)
        if placed.dtype == "int8":
            self._of_int8[placed.name].append(_to_int8(block))
        return _place(block, placed, scratch) if _moves(placed) else block

    def scales_of(self, name: str) -> np.ndarray:
        """What the int8 values of a tensor's rows are multiplied by, once its blocks were made."""
        return np.concatenate(self._of_int8.pop(name))


def mask(classes: Sequence[int], count: int) -> np.ndarray:
    """(C,) shift that leaves the given of ``count`` classes alone."""
    shift = np.full(count, 2 * MASKED, dtype=np.float32)  # no bias lifts it above the mask
    shift[list(classes)] = 0
    return shift


def _to_int8(block: np.ndarray) -> np.ndarray:
    """Turns rows into whole numbers from -127 to 127, in place, and returns what each row is multiplied by."""
    rows = block.reshape(len(block), -1)
    scales: np.ndarray = np.maximum(np.maximum(rows.max(axis=1), -rows.min(axis=1)) / 127, _LEAST_SCALE)
    rows /= scales[:, None]
    np.rint(rows, out=rows)
    return scales


def _moves(placed: PlacedTensor) -> bool:
    """Whether a file has a tensor in another order of axes, or in another format, than it is mixed in."""
    return placed.dtype != "float32" or placed.axes != tuple(sorted(placed.axes))


def _place(value: np.ndarray, placed: PlacedTensor, out: np.ndarray) -> np.ndarray:
    """A tensor in the file's order and format, in the memory of ``out``: a new array would cost more than the copy."""
    if placed.dtype == "float16":
        np.clip(value, -_FP16_MAX, _FP16_MAX, out=value)
    moved = value.transpose(placed.axes)
    there = out.view(placed.dtype)[: value.size].reshape(moved.shape)
    np.copyto(there, moved, casting="unsafe")
    return there


def size_bytes(network: MixedNetwork, placed: PlacedTensor) -> int:
    """Bytes of one tensor in its file."""
    return math.prod(network.shape(placed.name)) * np.dtype(placed.dtype).itemsize


def places(network: MixedNetwork, file: WeightFile) -> list[tuple[int, int, PlacedTensor, bool]]:
    """Byte ranges of a weight file that condensing overwrites: (start, end, tensor, is_scales), sorted by start."""
    found = []
    for placed in file.tensors:
        found.append((placed.offset, placed.offset + size_bytes(network, placed), placed, False))
        if placed.scales is not None:
            found.append((placed.scales, placed.scales + 4 * network.shape(placed.name)[0], placed, True))
    return sorted(found, key=lambda place: place[0])


def pieces(network: MixedNetwork, file: WeightFile, template: memoryview) -> Iterator[Finish]:
    """A whole weight file in order: mixed tensors where they are placed, and between them what the template has.

    Each piece is a function that gives it, to be called in order; :data:`AHEAD` of them may wait for that.

    Args:
        template: the same file of the bank.
    """
    largest = max(
        (
            network.rows_at_once(p) * math.prod(network.shape(p.name)[1:])
            for p in file.tensors
            if p.name not in network.vectors
        ),
        default=0,
    )
    # One is being filled, some wait, one is being written.
    buffers = itertools.cycle([np.empty(largest, np.float32) for _ in range(AHEAD + 2)])
    scratch = np.empty(largest if any(map(_moves, file.tensors)) else 0, np.float32)
    position = 0
    for start, end, placed, of_scales in places(network, file):
        if start > position:
            yield partial(_part, template, position, start)
        if of_scales:
            yield partial(network.scales_of, placed.name)
        else:
            yield from network.blocks(placed, buffers, scratch)
        position = end
    yield partial(_part, template, position, len(template))


def _part(template: memoryview, start: int, end: int) -> memoryview:
    return template[start:end]


def write_shifted(file: WeightFile, bias: str, shift: np.ndarray, template: memoryview, out: Path) -> str:
    """Writes one weight file as the bank has it, a shift (C,) added to the classifier's bias; returns its SHA-256.

    Raises:
        OSError: the disk is full, or not writable.
    """
    digest, position = hashlib.sha256(), 0
    with out.open("xb") as stream:
        for placed in sorted(file.tensors, key=lambda placed: placed.offset):
            if placed.name == bias:
                before = np.frombuffer(template, placed.dtype, len(shift), placed.offset)
                parts = template[position : placed.offset], np.maximum(before + shift, MASKED).astype(before.dtype).data
                position = placed.offset + before.nbytes
                for part in parts:
                    stream.write(part)
                    digest.update(part)
        stream.write(template[position:])
        digest.update(template[position:])
    return digest.hexdigest()


def write_weights(network: MixedNetwork, file: WeightFile, template: memoryview, out: Path) -> str:
    """Writes one weight file in one pass, and returns its SHA-256. Mixing overlaps with folding, hashing and writing.

    Raises:
        OSError: the disk is full, or not writable.
    """
    digest, failed = hashlib.sha256(), list[BaseException]()
    # Not an executor: its futures cost a tenth of the time of small pieces.
    waiting, room = SimpleQueue[Finish | None](), Semaphore(AHEAD + 1)

    def take(finish: Finish) -> None:
        piece = finish()
        view = piece.data.cast("B") if isinstance(piece, np.ndarray) else piece
        digest.update(view)
        while view:
            view = view[os.write(stream, view) :]

    def write() -> None:
        try:
            while (finish := waiting.get()) is not None:
                take(finish)
                room.release()
        except BaseException as error:
            failed.append(error)
            room.release(AHEAD + 1)  # whoever mixes may wait

    stream = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    writer = Thread(target=write, name="weights")
    try:
        writer.start()
        for piece in pieces(network, file, template):
            room.acquire()
            if failed:
                break
            waiting.put(piece)
    finally:
        waiting.put(None)
        writer.join()
        os.close(stream)
    if failed:
        raise failed[0]
    return digest.hexdigest()
