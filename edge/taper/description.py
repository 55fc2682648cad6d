"""A task in words: class names as people write them -> labels of a model; free words -> a vector."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np

from refocus.edge.bundle.manifest import BankCard
from refocus.edge.errors import RuntimeUnavailable, TaskError

SUGGESTIONS = 3
MAX_NAMED = 5  # unknown names that one error speaks of
MAX_SHOWN = 60  # characters of each
DESCRIBERS_GROUP = "refocus.describers"  # (text, encoder, prompts) -> (E,) float32, of an installed sentence encoder
DESCRIBER = "default"
_NEAR = 0.6  # similarity below which a suggestion is none


@dataclass(frozen=True)
class Chosen:
    """Classes of a model that were asked for.

    Attributes:
        classes: their numbers, each once, in the order asked.
        merged: names that were given more than once.
    """

    classes: tuple[int, ...]
    merged: tuple[str, ...]


def plain(name: str) -> str:
    """A name without its case and with single spaces: what two names are compared by."""
    return " ".join(name.casefold().split())


def choose(asked: Iterable[str], labels: Sequence[str]) -> Chosen:
    """Names in any case and spacing -> classes.

    Raises:
        TaskError: none were given, or some are not labels; near ones are suggested for each.
    """
    exact = {label: number for number, label in enumerate(labels)}
    # Of labels that differ in case alone the first, unless one is meant exactly.
    roughly = {plain(label): number for number, label in reversed([*enumerate(labels)])}
    names = [name for name in asked if name.strip()]
    if not names:
        raise TaskError("the task names no class; give --task 'NAME, NAME' or --task-file with one name per line")
    unknown = [name for name in names if name not in exact and plain(name) not in roughly]
    if unknown:
        raise TaskError(_unknown(list(dict.fromkeys(unknown)), labels))
    found = [exact[name] if name in exact else roughly[plain(name)] for name in names]
    classes = tuple(dict.fromkeys(found))
    merged = tuple(labels[number] for number in classes if found.count(number) > 1)
    return Chosen(classes, merged)


def _unknown(names: list[str], labels: Sequence[str]) -> str:
    shown = [name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}…" for name in names[:MAX_NAMED]]
    told = "; ".join(f"'{short}'{_suggestion(name, labels)}" for short, name in zip(shown, names, strict=False))
    more = f"; and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"the bank knows {len(labels)} classes, not these: {told}{more}; refocus inspect BANK --json lists them all"


def _suggestion(name: str, labels: Sequence[str]) -> str:
    by_plain = {plain(label): label for label in labels}
    near = difflib.get_close_matches(plain(name)[:MAX_SHOWN], by_plain, SUGGESTIONS, _NEAR)
    near += [known for known in by_plain if known not in near and plain(name) in known.replace(",", " ").split()]
    return f" (did you mean {' or '.join(by_plain[known] for known in near[:SUGGESTIONS])}?)" if near else ""


def describe_task(text: str, domain: str, card: BankCard) -> np.ndarray:
    """The vector (E,) of free words, by the sentence encoder that the bank was trained with.

    Raises:
        TaskError: there are no words.
        RuntimeUnavailable: no installed package describes.
    """
    if not text.strip():
        raise TaskError("the description is empty: say in words what is on the photos, or name the classes")
    found = [entry for entry in entry_points(group=DESCRIBERS_GROUP) if entry.name == DESCRIBER]
    if not found:
        raise RuntimeUnavailable(
            "--describe needs a sentence encoder: pip install 'refocus-edge[cpu,cloud,text]', or name"
            " the classes with --task"
        )
    words = f"{domain} {text}".strip()
    return np.asarray(found[0].load()(words, card.text_encoder, list(card.prompts)), dtype=np.float32)
