"""Digest of the PyTorch calls that a network makes for one photo: it tells networks apart by their computation.

Weights and the printed modules do not say it all: ``forward`` may call ``torch.relu`` or ``torch.sin``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakTensorKeyDictionary

_SAID = (bool, int, float, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.Size,
         torch.memory_format)  # fmt: skip


def trace_digest(module: nn.Module, photo: Tensor) -> str:
    """SHA-256 over the calls of one forward pass: functions, what each is given, and constants that no weight holds.

    The same on every machine: calls are noted before PyTorch chooses a kernel.

    Args:
        photo: (1, 3, side, side).
    """
    plain: nn.Module = getattr(module, "_orig_mod", module)  # of torch.compile, whose calls cannot be seen
    with torch.no_grad(), _Calls(plain, photo) as calls:
        plain(photo)
    return str(calls.digest.hexdigest())


def _name_of(func: Callable[..., Any]) -> str:
    """A name that is the same in every process: a function's text may hold its address in memory."""
    return str(resolve_name(func) or getattr(func, "__qualname__", type(func).__name__))


class _Calls(TorchFunctionMode):
    """Notes every call; a tensor is named by the call that made it, by its name in the network, or by its content."""

    def __init__(self, module: nn.Module, photo: Tensor) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self._count = 0
        self._names = WeakTensorKeyDictionary()
        for name, tensor in module.state_dict(keep_vars=True).items():
            self._names[tensor] = name
        self._names[photo] = "photo"

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = tree_map(self._named, (args, dict(kwargs or {})))
        found = func(*args, **(kwargs or {}))
        self._count += 1
        tree_map(self._note, found)
        self.digest.update(f"{_name_of(func)} {given}\n".encode())
        return found

    def _note(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value not in self._names:  # in it where a call changes what it was given
            self._names[value] = f"of call {self._count}"
        return value

    def _named(self, value: Any) -> str:
        if isinstance(value, slice):
            return f"slice {[self._named(part) for part in (value.start, value.stop, value.step)]}"
        if not isinstance(value, Tensor):
            return str(value) if isinstance(value, _SAID) else type(value).__name__
        if value not in self._names:
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            self._names[value] = f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content).hexdigest()}"
        return str(self._names[value])
