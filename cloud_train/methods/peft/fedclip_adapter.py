"""AttAI: the adapter over CLIP's image features that FedCLIP learns (Lu et al., 2023, section 3.3).

Notation: B photos, D width of both embeddings, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class AttAI(nn.Module):
    """Image features (B, D) -> the features weighted by attention over their numbers (eq. 5).

    Linear, tanh, linear, softmax: 2 (D^2 + D) parameters, 525,312 for D = 512. At the start the attention is nearly
    even and cancels when features are normalised, so learning begins at zero-shot CLIP.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, features: Tensor) -> Tensor:
        return features * self.layers(features).softmax(dim=1)  # type: ignore[no-any-return]


class TextClassifier(nn.Module):
    """Image features (B, D) -> logits (B, C): cosines to the classes' sentences, scaled (eq. 6 and 7).

    Attributes:
        texts: (C, D), of unit length.
        scale: of the cosines, as CLIP learned it; about 100.
    """

    texts: Tensor

    def __init__(self, texts: Tensor, scale: float) -> None:
        super().__init__()
        self.register_buffer("texts", functional.normalize(texts, dim=1))
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * functional.normalize(features, dim=1) @ self.texts.T


class AdaptedTextClassifier(nn.Module):
    """The same with an adapter over the sentences too (FedCLIP Fig. 3a).

    Args:
        plain: the classifier without one.
    """

    def __init__(self, plain: TextClassifier) -> None:
        super().__init__()
        self.plain, self.adapter = plain, AttAI(plain.texts.shape[1])

    @property
    def texts(self) -> Tensor:
        """(C, D) of unit length."""
        return functional.normalize(self.adapter(self.plain.texts), dim=1)

    @property
    def scale(self) -> float:
        return self.plain.scale

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * functional.normalize(features, dim=1) @ self.texts.T


def contrastive_loss(logits: Tensor, label: Tensor) -> Tensor:
    """The published code's loss: every photo against the sentence of every photo of the batch, both ways (eq. 8).

    Two photos of one class share a sentence and are still called a mismatch; cross-entropy over classes has no such
    pairs. Kept to compare with.

    Args:
        logits: (B, C).
        label: (B,).
    """
    pairs, own = logits[:, label], torch.arange(len(label), device=logits.device)
    return (functional.cross_entropy(pairs, own) + functional.cross_entropy(pairs.T, own)) / 2
