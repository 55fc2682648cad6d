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

from refocus.cloud_train.federated.deployment.plan import packed
from refocus.cloud_train.federated.deployment.replies import (
    ClientRefused,
    Limits,
    checked,
    count,
    is_judgement,
    outliers,
    said,
)
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.federated.rounds import Trained
from refocus.edge.errors import RefocusError

SILENT = "silent"  # why nothing came of a client that does not even say how it is


class Stalled(RefocusError):
    """Too few clients answer: wait for them and begin another session."""


class Ask(Protocol):
    """Calls one method of several clients at once, each with its own arguments."""

    def __call__(
        self, method: str, arguments: Mapping[str, Mapping[str, Any]], timeout: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
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
        limits: of what a client's reply may weigh and change.
        joined: photos that clients stated when they joined the session; None before it began.
        late: those whose last answer did not come, and why.
        lost: those who do not even say how they are, and since when (seconds of the clock).
    """

    ask: Ask
    present: Sequence[str]
    deadline: float = 600.0
    fewest: int = 1
    patience: float = 10.0
    limits: Limits = field(default_factory=Limits)
    joined: dict[str, int] | None = None
    late: dict[str, str] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)

    def begin(self, plan: bytes, files: Mapping[str, Path]) -> int:
        """Tells everybody the plan, sends what they have not got, and asks on how many photos each will train.

        Returns the bytes of plan and files.

        Args:
            files: by SHA-256.

        Raises:
            Stalled: too few take part.
        """
        sent = 0

        def are_files(client: str, answer: Any) -> bool:
            listed = isinstance(answer, (list, tuple)) and all(isinstance(name, str) for name in answer)
            return listed and len(set(answer)) == len(answer) and set(answer) <= set(files)

        begun = self._asked("begin", {name: {"plan": plan} for name in self.present}, are_files)
        for name, missing in begun.items():
            sent += len(plan)
            for sha in missing:
                content = files[sha].read_bytes()
                if name not in self.late and self._asked("take", {name: {"content": content}}):
                    sent += len(content)
        self.joined = {}
        self._join([name for name in begun if name not in self.late])
        self._enough(self.free())
        return sent

    def _join(self, names: Sequence[str]) -> list[str]:
        """Those of some clients that have joined; those that have not yet are asked to state their photos."""
        if self.joined is None:
            return list(names)
        new = [name for name in names if name not in self.joined]
        for name, answer in self._asked("join", {name: {} for name in new}).items() if new else ():
            try:
                self.joined[name] = count(answer, name, self.limits.photos)
            except ClientRefused as error:
                self.late[name] = error.why
        return [name for name in names if name in self.joined]

    def free(self) -> list[str]:
        """Who can be asked; those that were late are asked how they are first."""
        answers, silent = self.ask("status", {name: {} for name in self.late}, self.patience) if self.late else ({}, {})
        for name, answer in answers.items():
            if isinstance(answer, Mapping) and not answer.get("busy"):
                self.late.pop(name, None)
        for name in silent:
            self.late.pop(name, None)
            self.lost[name] = time.time()
        return [name for name in self.present if name not in self.late and name not in self.lost]

    def train(self, number: int, chosen: Sequence[str], payload: Callable[[str], Tensors]) -> Trained:
        """Lets those of the chosen who are here train; if none of them is, everybody who is here.

        Raises:
            Stalled: too few answer; the round does not count.
        """
        here = self._join(self.free())
        given = {name: payload(name) for name in [n for n in chosen if n in here] or here}
        messages = {name: packed(tensors) for name, tensors in given.items()}
        arguments = {name: {"number": number, "payload": message} for name, message in messages.items()}
        found = Trained(bytes_down=sum(map(len, messages.values())))
        answers = self._asked("train", arguments)
        for name, answer in answers.items():
            most = self.limits.photos if self.joined is None else self.joined[name]
            try:
                found.replies[name] = checked(answer, given[name], name, most, number, self.limits)
            except ClientRefused as error:
                found.refused[name] = self.late[name] = error.why
        for far in outliers(found.replies, given, self.limits.outlier):
            del found.replies[far.client]
            found.refused[far.client] = self.late[far.client] = far.why
        found.bytes_up = sum(len(answers[name]["tensors"]) for name in found.replies)
        self._enough(found.replies)
        found.asked = len(messages)
        found.absent = [name for name in dict.fromkeys([*chosen, *given]) if name not in found.replies]
        return found

    def validation(self, number: int, payload: Callable[[str], Tensors]) -> float:
        here = self.free()
        arguments = {n: {"number": number, "payload": packed(payload(n))} for n in here}
        # One client's nonsense must not become everybody's mean.
        found = self._asked("validation", arguments, lambda _, share: type(share) in (int, float) and 0 <= share <= 1)
        self._enough(found)
        return float(np.mean([found[name] for name in here if name in found]))

    def judged(self, after: int, payload: Callable[[str], Tensors], base: Tensors) -> list[dict[str, Any]]:
        """How everybody who is here is served."""
        here, common = self.free(), packed(base)
        found = self._asked(
            "judged",
            {name: {"after": after, "payload": packed(payload(name)), "base": common} for name in here},
            lambda client, answer: is_judgement(answer, client),
        )
        return [found[name] for name in here if name in found]

    def _asked(
        self,
        method: str,
        arguments: Mapping[str, Mapping[str, Any]],
        fits: Callable[[str, Any], bool] = lambda client, answer: True,
    ) -> dict[str, Any]:
        """What was answered; who did not, refused, or gave an answer that does not fit, is late."""
        answers, failed = self.ask(method, arguments, self.deadline)
        now = time.time()
        self.lost |= {name: now for name, reason in failed.items() if reason == SILENT}
        failed = {name: said(reason) for name, reason in failed.items() if reason != SILENT}
        refused = {name: why for name, answer in answers.items() if (why := _refusal(name, answer, fits))}
        self.late |= failed | refused
        return {name: answers[name]["answer"] for name in arguments if name in answers and name not in refused}

    def _enough(self, who: Sequence[str] | Mapping[str, Any]) -> None:
        if len(who) < max(1, self.fewest):
            reasons = dict.fromkeys(self.lost, "is silent") | self.late
            why = "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items())) or "nobody is here"
            raise Stalled(f"{len(who)} clients answer, {max(1, self.fewest)} are needed ({why})")


def _refusal(client: str, answer: Any, fits: Callable[[str, Any], bool]) -> str:
    """Why an answer is not taken; "" for one that is."""
    if isinstance(answer, Mapping) and "refused" in answer:
        return f"refused: {said(answer['refused'])}"
    if not isinstance(answer, Mapping) or "answer" not in answer or not fits(client, answer["answer"]):
        return "answers what was not asked; install the same version of refocus on both"
    return ""
