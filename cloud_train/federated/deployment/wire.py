"""The engine that reaches clients by messages, whatever carries them: who is asked, who answered, what that weighed.

A client that does not answer in time is asked how it is before the next round: one that is still busy is left alone
until it is done, one that says nothing is lost until the next session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from cloud_train.errors import DataError
from cloud_train.federated.deployment.plan import packed, unpacked
from cloud_train.federated.network import Tensors
from cloud_train.federated.runner import Trained
from cloud_train.federated.server import Reply
from edge.errors import RefocusError

SILENT = "silent"  # why nothing came of a client that does not even say how it is


class Stalled(RefocusError):
    """Too few clients answer: wait for them and begin another session."""


class Ask(Protocol):
    """Calls one method of several clients at once, each with its own arguments."""

    def __call__(self, method: str, arguments: Mapping[str, Mapping[str, Any]], timeout: float
                 ) -> tuple[dict[str, Any], dict[str, str]]:  # fmt: skip
        """Returns what was answered and, of the others, why it was not: ``SILENT`` if they do not even answer
        ``status``. Takes ``timeout`` seconds at most."""


@dataclass
class Wire:
    """The engine.

    Attributes:
        ask: how a client is called.
        present: who takes part in this session.
        deadline: seconds a client has for a round.
        fewest: clients that have to answer for a round to count.
        late: those whose last answer did not come, and why.
        lost: those who do not even say how they are, and since when (seconds of the clock).
    """

    ask: Ask
    present: Sequence[str]
    deadline: float = 600.0
    fewest: int = 1
    patience: float = 10.0
    late: dict[str, str] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)

    def begin(self, plan: bytes, files: Mapping[str, Path]) -> int:
        """Tells everybody the plan, and sends what they have not got. Returns the bytes of that.

        Args:
            files: by SHA-256.

        Raises:
            Stalled: too few take part.
        """
        sent = 0
        begun = self._asked("begin", {name: {"plan": plan} for name in self.present}, _are_names)
        for name, missing in begun.items():
            sent += len(plan)
            for sha in missing:
                content = files[sha].read_bytes() if sha in files else b""
                if name not in self.late and self._asked("take", {name: {"content": content}}):
                    sent += len(content)
        self._enough(self.free())
        return sent

    def free(self) -> list[str]:
        """Who can be asked; those that were late are asked how they are first."""
        answers, silent = self.ask("status", {name: {} for name in self.late}, self.patience) if self.late else ({}, {})
        for name, answer in answers.items():
            if isinstance(answer, Mapping) and not answer.get("busy"):
                del self.late[name]
        for name in silent:
            self.late.pop(name)
            self.lost[name] = time.time()
        return [name for name in self.present if name not in self.late and name not in self.lost]

    def train(self, number: int, chosen: Sequence[str], payload: Callable[[str], Tensors]) -> Trained:
        """Lets those of the chosen who are here train; if none of them is, everybody who is here.

        Raises:
            Stalled: too few answer; the round does not count.
        """
        here = self.free()
        given = {name: payload(name) for name in [n for n in chosen if n in here] or here}
        messages = {name: packed(tensors) for name, tensors in given.items()}
        arguments = {name: {"number": number, "payload": message} for name, message in messages.items()}
        found = Trained(bytes_down=sum(map(len, messages.values())))
        for name, answer in self._asked("train", arguments).items():
            try:
                found.replies[name] = checked(answer, given[name])
                found.bytes_up += len(answer["tensors"])
            except DataError as error:
                self.late[name] = str(error)
        self._enough(found.replies)
        found.asked = len(messages)
        found.absent = [name for name in dict.fromkeys([*chosen, *given]) if name not in found.replies]
        return found

    def validation(self, number: int, payload: Callable[[str], Tensors]) -> float:
        here = self.free()
        arguments = {n: {"number": number, "payload": packed(payload(n))} for n in here}
        found = self._asked("validation", arguments, _is_share)
        self._enough(found)
        return float(np.mean([found[name] for name in here if name in found]))

    def judged(self, after: int, payload: Callable[[str], Tensors], base: Tensors) -> list[dict[str, Any]]:
        """How everybody who is here is served."""
        here, common = self.free(), packed(base)
        found = self._asked(
            "judged",
            {name: {"after": after, "payload": packed(payload(name)), "base": common} for name in here},
            lambda answer: isinstance(answer, Mapping),
        )
        return [found[name] for name in here if name in found]

    def _asked(self, method: str, arguments: Mapping[str, Mapping[str, Any]],
               fits: Callable[[Any], bool] = lambda answer: True) -> dict[str, Any]:  # fmt: skip
        """What was answered; who did not, refused, or gave an answer that does not fit, is late."""
        answers, failed = self.ask(method, arguments, self.deadline)
        now = time.time()
        self.lost |= {name: now for name, reason in failed.items() if reason == SILENT}
        failed = {name: reason for name, reason in failed.items() if reason != SILENT}
        refused = {name: why for name, answer in answers.items() if (why := _refusal(answer, fits))}
        self.late |= failed | refused
        return {name: answers[name]["answer"] for name in arguments if name in answers and name not in refused}

    def _enough(self, who: Sequence[str] | Mapping[str, Any]) -> None:
        if len(who) < max(1, self.fewest):
            reasons = dict.fromkeys(self.lost, "is silent") | self.late
            why = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items())) or "nobody is here"
            raise Stalled(f"{len(who)} clients answer, {max(1, self.fewest)} are needed ({why})")


def _refusal(answer: Any, fits: Callable[[Any], bool]) -> str:
    """Why an answer is not taken; "" for one that is."""
    if isinstance(answer, Mapping) and "refused" in answer:
        return f"refused: {answer['refused']}"
    if not isinstance(answer, Mapping) or "answer" not in answer or not fits(answer["answer"]):
        return "answers what was not asked; install the same version of refocus on both"
    return ""


def _are_names(answer: Any) -> bool:
    return isinstance(answer, (list, tuple)) and all(isinstance(name, str) for name in answer)


def _is_share(answer: Any) -> bool:
    """One client's nonsense must not become everybody's mean."""
    return isinstance(answer, (int, float)) and 0 <= answer <= 1


def checked(answer: Mapping[str, Any], given: Tensors) -> Reply:
    """A client's reply, if it is of the kind that it was asked for: nobody may spoil what all share.

    Raises:
        DataError: other tensors than were given, numbers that are not finite, or no photos.
    """
    try:
        tensors, photos = unpacked(answer["tensors"]), int(answer["photos"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"an answer is no reply to a round ({error})") from None
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}
    if shapes != {name: (tuple(value.shape), value.dtype) for name, value in given.items()}:
        raise DataError("other tensors came back than were given")
    if photos < 1 or not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise DataError(f"a reply of {photos} photos, or with numbers that are not finite")
    return Reply({name: tensors[name] for name in given}, photos)
