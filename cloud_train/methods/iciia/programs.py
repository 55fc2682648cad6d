"""Builders of exportable programs from checkpoints: the group ``refocus.models``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from refocus.cloud_train.backbones import clip
from refocus.cloud_train.backbones.backbone import Backbone, create_backbone, preprocessing_of
from refocus.cloud_train.backbones.bundle_encoder import BUILDER, backbone_beside
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, WarmUpGate, mix
from refocus.cloud_train.methods.iciia.native import native_head
from refocus.cloud_train.methods.iciia.streaming import SLOTS, StreamingHead, cache_shapes
from refocus.cloud_train.methods.iciia.windowed import DeviceWindowHead
from refocus.edge.bundle import State
from refocus.export.program import (
    PLAIN_FORM,
    SIGNATURE,
    Checkpoint,
    OwnClassifier,
    Shape,
    TorchProgram,
    answers,
    head_without_history,
    photo_encoder,
    tensors,
)

# Targets that want ICIIA's projections as grouped convolutions.
GROUPED = ("executorch", "executorch-coreml", "coreml")


def backbone_of(checkpoint: Checkpoint) -> Backbone:
    """The backbone of an encoder checkpoint, with its weights."""
    if checkpoint.card.builder == BUILDER:
        return backbone_beside(checkpoint)
    if checkpoint.card.builder == clip.BUILDER:
        return clip.clip_backbone_of(checkpoint)
    config = checkpoint.card.config
    backbone = create_backbone(config["name"], config["classes"], preprocessing_of(config), **config["arguments"])
    backbone.network.load_state_dict(checkpoint.weights)
    return backbone


def encoder_program(checkpoint: Checkpoint) -> TorchProgram:
    """``timm_encoder``: photo (B, 3, side, side) -> feature with signature (B, D + S); ``clip_encoder``: the same of
    clips (B, T, 3, side, side)."""
    backbone = backbone_of(checkpoint)
    stated, row, identity = backbone.preprocessing, backbone.row, checkpoint.identity
    return photo_encoder(backbone.encoder, stated, row, identity, quantisable=("network",), signed=True)


class WindowHead(nn.Module):
    """Everything after the encoder: the plain classifier, ICIIA over the history with its classifier, and the gate.

    Recomputes the whole window for each photo, as the paper does. With causal attention the window is the receptive
    field, N(W - 1) + 1 photos, so the answer is exactly that of the stream. The gate reads one row of traits per
    history photo: kept by the device between photos (the streaming form), or computed from the history when none are
    given (the full-window form).

    Args:
        several: photos have several labels, and each logit is of its label alone.
    """

    def __init__(
        self,
        plain: nn.Linear,
        personal: IciiaClassifier,
        gate: StatisticsGate | WarmUpGate,
        several: bool = False,
    ) -> None:
        super().__init__()
        self.several = several
        self.plain, self.personal, self.gate = plain, personal, gate

    @property
    def causal(self) -> bool:
        """Whether a photo's answer depends on the photos before it alone, in their order."""
        config = self.personal.iciia.config
        return config.attention == "causal" and config.window > 1

    def forward(
        self, feature: Tensor, history: Tensor, history_length: Tensor, traits: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """feature (B, D + S), history (B, L, D + S) with its newest row last, history_length (B,), traits (B, L, K);
        without traits they are computed from the history.

        Returns plain logits, calibrated logits and delivered logits, each (B, C), attention (B, L + 1) with the photo
        itself last, trust (B,), and with a gate on statistics the traits of the photo (B, K).
        """
        slots, width = history.shape[1], self.plain.in_features
        valid = torch.arange(slots + 1, device=history_length.device) >= slots - history_length[:, None]
        window = torch.cat([history, feature[:, None]], dim=1)[..., :width]
        calibrated, attention = self.personal.last(window, valid)
        plain = self.plain(feature[:, :width])
        if isinstance(self.gate, WarmUpGate):
            trust = self.gate(history_length)
            return plain, calibrated, mix(plain, calibrated, trust, self.several), attention, trust
        own = self.gate.traits(feature)
        past = self.gate.traits(history) if traits is None else traits
        trust = self.gate(plain, calibrated, attention, own, past, valid[:, :slots])
        return plain, calibrated, mix(plain, calibrated, trust, self.several), attention, trust, own


def make_gate(config: dict[str, Any], row: int, several: bool = False) -> StatisticsGate | WarmUpGate:
    """An untrained gate from a card's settings, for stored rows of D + S numbers."""
    return WarmUpGate(int(config["count"])) if "count" in config else StatisticsGate(row, several=several)


def iciia_head(checkpoint: Checkpoint) -> WindowHead:
    """The head of an ICIIA checkpoint, in eval mode."""
    card = checkpoint.card
    config = IciiaConfig(**card.config["iciia"])
    plain = nn.Linear(config.width, len(card.labels))
    several = bool(thresholds_of(checkpoint))
    gate = make_gate(card.config["gate"], config.width + SIGNATURE, several)
    head = WindowHead(plain, IciiaClassifier(config, len(card.labels), plain), gate, several)
    head.load_state_dict(checkpoint.weights)
    return head.eval()


def thresholds_of(checkpoint: Checkpoint) -> tuple[float, ...]:
    """(C,) least probability of each label of a head for photos with several labels; empty for any other head."""
    return tuple(checkpoint.card.config.get("thresholds", ()))


def iciia_program(checkpoint: Checkpoint) -> TorchProgram:
    """``iciia_head``: a feature and its history -> three logits, attention and trust.

    A head with causal attention is exported in its streaming form, any other over its whole window, unless the
    checkpoint was loaded for another form.

    Raises:
        UsageError: a form that there is not, or that the head's attention does not allow.
    """
    head = iciia_head(checkpoint)
    form = checkpoint.form or ("streaming" if head.causal else "window")
    if form not in FORMS:
        raise UsageError(f"--form {form}: expected {' or '.join(FORMS)}")
    return FORMS[form](checkpoint, head)


def window_program(checkpoint: Checkpoint, head: WindowHead) -> TorchProgram:
    """The head that is given the newest features themselves."""
    config, gate = head.personal.iciia.config, head.gate
    row, slots = config.width + SIGNATURE, config.receptive_field - 1
    state = [State(name="history", source="feature", dtype="float32", shape=(slots, row), update="append")]
    outputs = answers(len(checkpoint.card.labels), slots + 1)
    if isinstance(gate, StatisticsGate):
        outputs["trait"] = (1, gate.directions.shape[1])
        state.append(
            State(
                name="traits", source="trait", dtype="float32", shape=(slots, gate.directions.shape[1]), update="append"
            )
        )
    inputs: dict[str, Shape] = {s.name: (1, *s.shape) for s in state}
    definition = _head_program(checkpoint, head, head, inputs, outputs, state, "window")
    if config.attention != "full":
        return definition
    module = DeviceWindowHead(head.plain, head.personal, gate, several=head.several).eval()
    grouped = DeviceWindowHead(head.plain, head.personal, gate, "grouped", head.several).eval()
    return replace(definition, module=module, layouts=dict.fromkeys(GROUPED, grouped), definition=definition)


def streaming_program(checkpoint: Checkpoint, head: WindowHead) -> TorchProgram:
    """The head that is given what it left behind at the photos before; it must agree with the whole stream."""
    config, gate = head.personal.iciia.config, head.gate
    window = config.receptive_field - 1
    outputs = answers(len(checkpoint.card.labels), config.window)
    state = []
    for name, shape in cache_shapes(config).items():
        source = name.replace("keys", "key").replace("values", "value")
        state.append(State(name=name, source=source, dtype="float32", shape=shape, update="ring", axis=SLOTS))
        outputs[source] = (config.heads, 1, config.width // config.heads)
    if isinstance(gate, StatisticsGate):
        traits = gate.directions.shape[1]
        state.append(State(name="traits", source="trait", dtype="float32", shape=(window, traits), update="ring"))
        outputs["trait"] = (1, traits)
    module = StreamingHead(head.plain, head.personal, gate, window, several=head.several).eval()
    program = _head_program(checkpoint, head, module, {s.name: s.shape for s in state}, outputs, state, "streaming")
    grouped = StreamingHead(head.plain, head.personal, gate, window, "grouped", head.several).eval()
    whole = window_program(checkpoint, head)
    return replace(
        program,
        layouts=dict.fromkeys(GROUPED, grouped),
        definition=whole.definition or whole,
    )


def plain_program(checkpoint: Checkpoint, head: WindowHead) -> TorchProgram:
    """The plain classifier alone, where no history helps, or class shares alone do."""
    classes, row, module = head.plain.out_features, head.plain.in_features + SIGNATURE, OwnClassifier(head.plain)
    method = {"method": "plain"}
    more: dict[str, Any] = {"quantisable": ("layer",), "thresholds": thresholds_of(checkpoint)}
    return head_without_history(module, classes, row, checkpoint.identity, method, **more)


FORMS = {"window": window_program, "streaming": streaming_program, PLAIN_FORM: plain_program}


def _head_program(
    checkpoint: Checkpoint,
    trained: WindowHead,
    module: nn.Module,
    state_inputs: Mapping[str, Shape],
    outputs: dict[str, Shape],
    state: Sequence[State],
    form: str,
) -> TorchProgram:
    """What every form of a head has in common."""
    config, gate = trained.personal.iciia.config, trained.gate
    window = {name: shape for name, shape in state_inputs.items() if name == "history"}
    inputs: dict[str, Shape] = {"feature": (1, config.width + SIGNATURE), **window, "history_length": (1,)}
    inputs |= {name: shape for name, shape in state_inputs.items() if name not in window}
    parts: dict[str, nn.Module] = {"iciia": trained.personal.iciia, "plain_classifier": trained.plain, "gate": gate}
    if config.classifier != "shared":
        parts["calibrated_classifier"] = trained.personal.classifier
    return TorchProgram(
        role="head",
        module=module,
        inputs=tensors(inputs),
        outputs=tensors(outputs),
        identity=checkpoint.identity,
        state=tuple(state),
        personalisation={
            "method": "iciia",
            "window": config.receptive_field - 1,
            "gate": "statistics" if isinstance(gate, StatisticsGate) else f"warm-up of {gate.count} photos",
            "form": form,
        },
        parts=parts,
        # ICIIA's stacks of tiny matrices are no layers that runtimes have in w8a8, and the gate sums likelihoods.
        quantisable=("plain", "personal.classifier", "classifier"),
        native=native_head(trained.plain, trained.personal, gate, form, trained.several),
        thresholds=thresholds_of(checkpoint),
    )
