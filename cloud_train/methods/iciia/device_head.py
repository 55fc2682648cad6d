"""What both forms of a head do once ICIIA has calibrated the photo: two answers, their trust, the mixture."""

from __future__ import annotations

from torch import Tensor, nn

from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.gate import StatisticsGate, WarmUpGate
from refocus.cloud_train.methods.iciia.layout import both_logits
from refocus.cloud_train.methods.iciia.lean_gate import LeanGate


class DeviceHead(nn.Module):
    """Everything after the encoder, for one photo; a form adds how its block is given the history.

    Args:
        plain, personal, gate: as of :class:`refocus.cloud_train.methods.iciia.programs.WindowHead`.
        iciia: the block of ``personal``, laid out for a device.
        several: photos have several labels.
    """

    def __init__(
        self,
        plain: nn.Linear,
        personal: IciiaClassifier,
        gate: StatisticsGate | WarmUpGate,
        iciia: nn.Module,
        several: bool = False,
    ) -> None:
        super().__init__()
        self.config: IciiaConfig = personal.iciia.config
        self.plain, self.iciia = plain, iciia
        self.classifier = personal.classifier if self.config.classifier != "shared" else None
        self.several = several
        self.gate = LeanGate(gate) if isinstance(gate, StatisticsGate) else gate

    def answers(
        self,
        feature: Tensor,
        calibrated: Tensor,
        attention: Tensor,
        length: Tensor,
        past: tuple[Tensor, ...],
        kept: Tensor,
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """The head's answers, and with a gate on statistics the photo's traits.

        Args:
            feature: (1, D + S).
            calibrated: (1, D).
            attention: the photo itself last.
            length: (1,), photos seen before it.
            past: with a gate on statistics, traits of the history, (L, K); else nothing.
            kept: (L, 1) bool, which of these rows are there.

        Returns:
            plain, calibrated and delivered logits, each (1, C), attention and trust (1,); and the traits, (1, K).
        """
        both = both_logits(self.plain, self.classifier, self.config, feature[:, : self.config.width], calibrated)
        log = both if self.several else both.log_softmax(dim=1)
        rows: list[Tensor] = []
        if isinstance(self.gate, LeanGate):
            rows = [self.gate.trait(feature)]
            trust = self.gate(log, attention, rows[0], past[0], kept.to(feature.dtype), length)
        else:
            trust = self.gate(length)
        delivered = log[:1] + trust[:, None] * (log[1:] - log[:1])
        return (both[:1], both[1:], delivered, attention, trust), rows
