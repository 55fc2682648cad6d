"""Settings of ``refocus export`` as one typed object: the command line fills it, and so may any program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refocus.export.errors import ExportError

PERSONALISE = "", "head", "shares"  # values of ``ExportSettings.personalise``


@dataclass(frozen=True)
class ExportSettings:
    """Settings of one export; each is the option of the same name. Paths may be text, and ``to`` too,
    comma-separated targets.

    Attributes:
        models: head checkpoints (.safetensors) of one encoder, or one bank's; or one network: ``timm:NAME``,
            ``package.module:function`` or ``FILE.pt2``.
        out: folder of the bundle.
        to: targets, as ``onnx:w8a8`` (docs/precision.md).
        photos: real photos for parity and the self-test: one folder per person, or of a network any folder, or one per
            class; None: the run's own.
        calibration: real photos for calibrated ranges; None: the run's own, or of a network ``photos``.
        opset: of ONNX files: a number, or jetpack5, jetpack6, jetpack7.
        name: of the bundle; "": that of the checkpoint or network.
        form: how heads get the history: "streaming" or "window"; "": streaming where attention is causal.
        window: photos that a head's attention spans, the one that is answered among them; 0: as many as in training.
        head_only: leave the encoder out.
        allow_mismatch: write what failed parity too, marked as such.
        require_full_delegation: a target fails where an operator falls back.
        max_deviation: limits of parity in the place of the table's, as ``onnx:w8a8:disagreement=0.3``.
        pretrained, checkpoint, backbone_arguments, labels: of a network, see
            :class:`refocus.export.program.NetworkSettings`.
        side: of a network, pixels of its square input; 0: as it states.
        mean, std: of a network, of the pixels' R, G and B in 0..1; None: as it states.
        personalise: "shares": devices estimate which classes a person meets, too; "head": they do not, and a trained
            head is exported as it is; "": of a trained head what served its validation people best, of others "head".
    """

    models: tuple[str, ...]
    out: Path
    to: tuple[str, ...] = ("onnx:fp32",)
    photos: Path | None = None
    calibration: Path | None = None
    opset: str = "18"
    name: str = ""
    form: str = ""
    window: int = 0
    head_only: bool = False
    allow_mismatch: bool = False
    require_full_delegation: bool = False
    max_deviation: str = ""
    pretrained: bool = False
    checkpoint: Path | None = None
    backbone_arguments: Mapping[str, Any] = field(default_factory=dict)
    labels: Path | None = None
    side: int = 0
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    personalise: str = ""

    def __post_init__(self) -> None:
        models = (self.models,) if isinstance(self.models, str | Path) else self.models
        object.__setattr__(self, "models", tuple(map(str, models)))
        object.__setattr__(self, "to", tuple(self.to.split(",") if isinstance(self.to, str) else self.to))
        for name in ("out", "photos", "calibration", "checkpoint", "labels"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, Path(getattr(self, name)))


def is_network(text: str) -> bool:
    """Return whether an argument of ``refocus export`` names a network.

    Others name a checkpoint of ``refocus train``.
    """
    return text.endswith(".pt2") or (":" in text and not Path(text).exists())


def parse_arguments(text: str, flag: str = "--backbone-arguments") -> dict[str, Any]:
    """Parse keyword arguments from ``pad_type=same,drop_rate=0.1`` or JSON.

    Numbers and booleans are converted.

    Raises:
        ExportError: a part is not NAME=VALUE.
    """
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise ExportError(f"{flag} {text}: not a JSON object ({error})") from None
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not all(name and sign for name, sign, _ in pairs):
        raise ExportError(f"{flag} {text}: expected NAME=VALUE pairs separated by commas")
    return {name: _value(text) for name, _, text in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
