"""A torch program with the names and shapes that every export target uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from refocus.edge.bundle import Bundle, Preprocessing, State
from refocus.edge.bundle import Tensor as TensorSpec
from refocus.edge.runtimes import NativeConfig

_DTYPES = {"float32": torch.float32, "int64": torch.int64}
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class NativeHead:
    """A head as the native runtime computes it.

    Attributes:
        config: what is computed; its precision is chosen later.
        tensors: float32, by the names of :func:`refocus.export.targets.native.pack`.
    """

    config: NativeConfig
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class TorchProgram:
    """What a model builder returns and :mod:`export` turns into artifacts.

    Attributes:
        role: "encoder" or "head".
        module: takes the inputs in order, returns the outputs in order.
        inputs, outputs: a dimension given by name is free at run time.
        identity: SHA-256 of everything that decides what the program computes: weights and architecture.
        preprocessing: of an encoder.
        state: of a head, what is kept between photos.
        personalisation: of a head, the fields of the manifest's section.
        parts: modules whose size is worth stating apart, by name.
        layouts: the same computation laid out for a target that wants it otherwise, by name of the target.
        definition: what the program must agree with, photo by photo, if that is another program (a streaming head and
            the pass over the whole stream); None: itself.
        quantisable: names of the modules whose weights may be quantised; the rest stays in floating point.
        defaults: inputs that are each person's own, by name, as they are for somebody who has none.
        external: names of tensors that lie in a file beside the program, and their names there; none: all inside.
        personal: tensors of the module that are each person's own, by the names that a person's file has, as they are
            for somebody who has none. They lie in a file beside the program.
        probed: the same program with probes (:mod:`refocus.export.targets.external_weights`) for ``personal``, from
            which it is written.
        source: bundle that holds the program as it was exported and measured before: it is copied, not written. The
            module then runs one of these.
        signed: of an encoder, whether its rows end in the photo's signature
            (:mod:`refocus.export.program.photo_signature`).
        native: of a head, what the native runtime needs; None: it has no such form.
        thresholds: (C,) of a head for photos with several labels, the least probability of each; empty of any other.
    """

    role: Literal["encoder", "head"]
    module: nn.Module
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    identity: str
    preprocessing: Preprocessing | None = None
    state: tuple[State, ...] = ()
    personalisation: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, nn.Module] = field(default_factory=dict)
    layouts: Mapping[str, nn.Module] = field(default_factory=dict)
    definition: TorchProgram | None = None
    quantisable: tuple[str, ...] = ()
    external: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Tensor] = field(default_factory=dict)
    personal: Mapping[str, Tensor] = field(default_factory=dict)
    probed: TorchProgram | None = None
    source: Bundle | None = None
    signed: bool = False
    native: NativeHead | None = None
    thresholds: tuple[float, ...] = ()

    def laid_out_for(self, target: str) -> TorchProgram:
        """The program in the layout of a target, as ``executorch`` or ``executorch:fp32``."""
        module = self.layouts.get(target.partition(":")[0])
        if module is None:
            return self
        probed = self.probed and self.probed.laid_out_for(target)
        return replace(self, module=module, layouts={}, probed=probed)

    def fixed(self) -> TorchProgram:
        """The same program for one photo at a time: phones plan their memory ahead."""
        inputs, outputs = (
            tuple(
                TensorSpec(name=s.name, dtype=s.dtype, shape=tuple(1 if isinstance(n, str) else n for n in s.shape))
                for s in specs
            )
            for specs in (self.inputs, self.outputs)
        )
        return replace(self, inputs=inputs, outputs=outputs)

    def example_inputs(self) -> Iterator[Tensor]:
        """Distinct example tensors; a free dimension is 2, because 1 would be taken for a constant."""
        generator = torch.Generator().manual_seed(0)
        for spec in self.inputs:
            shape = [2 if isinstance(size, str) else size for size in spec.shape]
            if _DTYPES[spec.dtype] == torch.int64:
                yield torch.ones(shape, dtype=torch.int64)
            else:
                yield torch.randn(shape, generator=generator)

    def dynamic_shapes(self) -> Iterator[dict[int, Any]]:
        """The free dimensions, in the form ``torch.export`` takes."""
        named: dict[str, Any] = {}
        for spec in self.inputs:
            free = {axis: size for axis, size in enumerate(spec.shape) if isinstance(size, str)}
            yield {axis: named.setdefault(name, torch.export.Dim(name)) for axis, name in free.items()}

    def parts_bytes(self, precision: str = "fp32") -> dict[str, int]:
        """Bytes of the weights of each part; w8 and w8a8 have one per weight of a layer they may take,
        fp16 and w16 two."""
        return {
            name: sum(self._bytes(module, p, precision) for p in module.parameters())
            for name, module in self.parts.items()
        }

    def _bytes(self, module: nn.Module, parameter: nn.Parameter, precision: str) -> int:
        names = {id(inner): name for name, inner in self.module.named_modules()}
        quantised = names.get(id(module), "").startswith(self.quantisable) if self.quantisable else False
        if precision.startswith("w8") and quantised and parameter.dim() > 1:
            return parameter.numel()
        return parameter.numel() * (2 if precision in ("fp16", "w16") else parameter.element_size())


def tensors(shapes: Mapping[str, Shape]) -> tuple[TensorSpec, ...]:
    """Inputs or outputs by name: ``history_length`` is int64, all others are float32."""
    return tuple(
        TensorSpec(name=name, dtype="int64" if name == "history_length" else "float32", shape=shape)
        for name, shape in shapes.items()
    )


def answers(classes: int, photos: int = 1) -> dict[str, Shape]:
    """Outputs that every head has: three times logits (1, C), attention to ``photos``, trust (1,)."""
    logits = dict.fromkeys(("plain_logits", "calibrated_logits", "logits"), (1, classes))
    return {**logits, "attention": (1, photos), "trust": (1,)}


def photo_encoder(
    module: nn.Module,
    preprocessing: Preprocessing,
    row: int,
    identity: str,
    given: Mapping[str, Tensor] | None = None,
    **more: Any,
) -> TorchProgram:
    """photo (B, 3, side, side) or clip (B, T, 3, side, side), and what is given of each person -> feature (B, ``row``).

    Args:
        given: inputs beside the photo, as they are for somebody who has none.
        more: further attributes of the program.
    """
    given = given or {}
    return TorchProgram(
        role="encoder",
        module=module.eval(),
        inputs=tensors({"photo": ("batch", *preprocessing.input_shape), **_shapes(given)}),
        outputs=tensors({"feature": ("batch", row)}),
        identity=identity,
        preprocessing=preprocessing,
        defaults=given,
        **more,
    )


def head_without_history(
    module: nn.Module,
    classes: int,
    row: int,
    identity: str,
    personalisation: Mapping[str, Any],
    given: Mapping[str, Tensor] | None = None,
    **more: Any,
) -> TorchProgram:
    """feature (1, ``row``), and what is given of each person -> answers of the photo alone.

    Args:
        module: gives :func:`answers` (:func:`refocus.export.program.answers_without_history`).
        personalisation: fields of the manifest's section beside those that say that there is no history.
        given, more: as of :func:`photo_encoder`.
    """
    given = given or {}
    return TorchProgram(
        role="head",
        module=module.eval(),
        inputs=tensors({"feature": (1, row), **_shapes(given)}),
        outputs=tensors(answers(classes)),
        identity=identity,
        personalisation={"window": 0, "gate": "none", "form": "none", **personalisation},
        defaults=given,
        **more,
    )


def _shapes(given: Mapping[str, Tensor]) -> dict[str, Shape]:
    return {name: tuple(value.shape) for name, value in given.items()}
