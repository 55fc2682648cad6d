"""What the server takes of a client's answers: a client may be wrong or hostile, and must harm its own part alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.federated.deployment.plan import unpacked
from refocus.cloud_train.federated.parameters import Tensors
from refocus.cloud_train.federated.server import Reply

MOMENTS = ("received", "used", "adapted", "base")  # of a judgement; "base" where the method has one
MEDIAN_OF = 3  # replies without which a round has no median to compare with
_EXTRA_BYTES = 64 << 10  # by which a reply may be larger than what was given: a header in another order or spacing
_SAID = 200  # characters of a client's words that are kept


class ClientRefused(DataError):
    """A client's answer is not used: look at the client's log, or install the same version of refocus on both.

    Attributes:
        client: its name.
        why: the reason without the name.
    """

    def __init__(self, client: str, why: str) -> None:
        super().__init__(f"{client}: {why}")
        self.client, self.why = client, why


@dataclass(frozen=True)
class Limits:
    """What a reply may weigh and change.

    Attributes:
        photos: of one client at most. A client states its number when it joins a session, and cannot count for more.
        change: largest root mean square by which a tensor may change in a round, as a multiple of its own root mean
            square before, or of 1 where that is smaller. It bounds what nobody learns: 3.4e38, a diverged client.
        outlier: largest norm of a client's change as a multiple of the median over the round's clients, from three
            replies on. Clients with more photos take more steps, so it is no measure of honesty.
    """

    photos: int = 100_000
    change: float = 1000.0
    outlier: float = 30.0


def checked(
    answer: Any,
    given: Tensors,
    client: str = "a client",
    most: int = Limits.photos,
    number: int = 0,
    limits: Limits | None = None,
) -> Reply:
    """A client's reply to a round, if it is of the kind that it was asked for.

    Args:
        given: what the client was sent.
        most: photos that the client counts for at most.
        number: of the round, which the answer must name if it names one; 0: any.

    Raises:
        ClientRefused: a message of another form or round, other tensors than were given, numbers that are not finite or
            have changed beyond the limit, or a number of photos that is none or above ``most``.
    """
    if not isinstance(answer, Mapping) or not isinstance(answer.get("tensors"), (bytes, bytearray)):
        raise ClientRefused(client, "an answer is no reply to a round (no tensors in bytes)")
    photos = count(answer.get("photos"), client, most)
    if number and answer.get("number", number) != number:
        raise ClientRefused(client, f"an answer to round {said(answer['number'])}, asked was {number}")
    tensors = _tensors(bytes(answer["tensors"]), given, client)
    for name, value in given.items():
        _check_change(client, name, value, tensors[name], (limits or Limits()).change)
    return Reply({name: tensors[name] for name in given}, photos)


def count(value: Any, client: str, most: int) -> int:
    """A client's number of photos.

    Raises:
        ClientRefused: no integer from 1 to ``most``.
    """
    if type(value) is not int or not 1 <= value <= most:
        raise ClientRefused(client, f"a reply of {said(value)} photos; expected an integer from 1 to {most}")
    return value


def _tensors(message: bytes, given: Tensors, client: str) -> Tensors:
    """Tensors of the names, shapes and types that were given, all finite."""
    most = sum(value.numel() * value.element_size() for value in given.values()) + _EXTRA_BYTES
    if len(message) > most:
        raise ClientRefused(client, f"a message of {len(message)} bytes, at most {most} are read")
    try:
        tensors = unpacked(message)
    except Exception as error:  # whatever the library makes of hostile bytes
        raise ClientRefused(client, said(error)) from None
    if _shapes(tensors) != _shapes(given):
        raise ClientRefused(client, "other tensors came back than were given")
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise ClientRefused(client, "numbers that are not finite")
    return tensors


def _shapes(tensors: Tensors) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()}


def _check_change(client: str, name: str, before: torch.Tensor, after: torch.Tensor, most: float) -> None:
    changed, was = _root_mean_square(after.double() - before.double()), _root_mean_square(before.double())
    allowed = most * max(1.0, was)
    if changed > allowed:
        raise ClientRefused(client, f"{name} changed by {changed:.3g} (root mean square), at most {allowed:.3g}")


def _root_mean_square(value: torch.Tensor) -> float:
    return math.sqrt(float(value.square().mean())) if value.numel() else 0.0


def change_of(reply: Reply, given: Tensors) -> float:
    """Euclidean norm of the difference between a reply and the tensors that were sent."""
    return math.sqrt(sum(float((reply.tensors[n].double() - v.double()).square().sum()) for n, v in given.items()))


def outliers(replies: Mapping[str, Reply], given: Mapping[str, Tensors], most: float) -> list[ClientRefused]:
    """Replies whose change is far above the median of the round; none where there are too few to tell."""
    if len(replies) < MEDIAN_OF:
        return []
    changes = {name: change_of(reply, given[name]) for name, reply in replies.items()}
    middle = statistics.median_low(changes.values())
    if not middle:
        return []
    why = f"the round's median is {middle:.3g}, at most {most:g} times that is taken"
    return [
        ClientRefused(name, f"a change of norm {changed:.3g}; {why}")
        for name, changed in changes.items()
        if changed > most * middle
    ]


def is_judgement(answer: Any, client: str) -> bool:
    """Whether an answer is a client's counts, as of :func:`refocus.cloud_train.federated.evaluate.evaluate_client`."""
    if not isinstance(answer, Mapping) or answer.get("name") != client:
        return False
    counts = {key: value for key, value in answer.items() if key != "name"}
    if not {"test", "train", *MOMENTS[:3]} <= set(counts) <= {"test", "train", *MOMENTS}:
        return False
    if not all(type(value) is int and 0 <= value < 2**53 for value in counts.values()):
        return False
    return counts["test"] > 0 and all(counts[key] <= counts["test"] for key in MOMENTS if key in counts)


def said(words: Any) -> str:
    """A client's words for a log: one line of bounded length, without control characters."""
    try:
        text = words if isinstance(words, str) else str(words) if type(words) is not int else _digits(words)
    except Exception as error:
        text = f"something that cannot be shown ({type(error).__name__})"
    text = "".join(letter if letter.isprintable() else "?" for letter in text[: _SAID + 1])
    return text if len(text) <= _SAID else f"{text[:_SAID]}…"


def _digits(number: int) -> str:
    return str(number) if abs(number) < 10**40 else f"an integer of {number.bit_length()} bits"
