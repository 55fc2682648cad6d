"""Hostile messages of a federated training: one client among honest ones, or the server, says whatever it likes.

Rounds run in the real :class:`Wire` and server; what a refused client sent must leave no trace in the server's state.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from refocus.cloud_train.federated.checkpoint import CheckpointStore, RoundCheckpoint
from refocus.cloud_train.federated.client import Recipe
from refocus.cloud_train.federated.deployment import session
from refocus.cloud_train.federated.deployment.plan import Plan, decode_plan, packed, unpacked
from refocus.cloud_train.federated.deployment.site import Site
from refocus.cloud_train.federated.deployment.wire import Wire
from refocus.cloud_train.federated.rounds import run_rounds
from refocus.cloud_train.federated.run import FederatedConfig, Rates
from refocus.cloud_train.federated.server import GeneratorRecipe, MeanServer, PromptServer, Server
from tests.fuzz.areas import Area, Wrong, rng_of
from tests.fuzz.onnx_mutations import scrambled

HONEST, LIAR = ("anna", "bert", "cleo"), "mallory"
PHOTOS = 20
FILE = "0" * 64  # what the run is made from
_SHAPES = {"body.weight": (6, 4), "body.bias": (6,)}
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 10**18, 2**63, 2**200, 0.5, -0.0, 1e308, math.inf, -math.inf, math.nan, "", "x", "1", "\0",
    "\ud800", "x" * 10_000, b"", b"x", [], [[]], {}, {"answer": None}, {"refused": "no"}, {"refused": None}, (), object(),
    np.float64("nan"), np.array([1, 2]), np.array(3), torch.tensor(1.0), torch.zeros(3), {1: 2}, range(3), Ellipsis,
)  # fmt: skip
METHODS = {"begin": 1, "take": 1, "join": 2, "status": 2, "train": 10, "validation": 2, "judged": 2}  # and how often


@dataclass
class Case:
    """A round in which the last of the clients, asked for ``method``, answers with ``answer``; or a message to a client.

    Attributes:
        server: "mean" or "prompts".
        side: "server" where a client lies; "plan", "payload" or "file" for a client that the server lies to.
        fair: the answer is one that an honest client may give.
    """

    side: str
    method: str
    answer: Any
    server: str = "mean"
    fair: bool = False


class Fuzzed(Area):
    """Rounds with a client that lies."""

    @staticmethod
    def build(material: Path) -> None:
        """Nothing: everything is made from the seed."""

    def __init__(self, material: Path, scratch: Path) -> None:
        super().__init__(material, scratch)
        torch.set_num_threads(1)
        config = FederatedConfig(source="", classes=("a", "b"))
        self._plan = Plan("fedavg", 0, Rates(0.1), config, "training", {"body.safetensors": "0" * 64})

    # ---- cases

    def make(self, seed: int) -> tuple[str, Case]:
        rng = rng_of("wire", seed)
        side = rng.choices(["server", "plan", "payload", "file"], [80, 12, 6, 2])[0]
        if side != "server":
            return f"to a client: {side}", self._to_client(side, rng)
        server, method = rng.choice(["mean", "prompts"]), rng.choices([*METHODS], [*METHODS.values()])[0]
        fair = rng.random() < 0.05
        answer = self._fair(method, server) if fair else self._odd(method, server, rng)
        return f"from a client: {method}", Case("server", method, answer, server, fair)

    def _to_client(self, side: str, rng: random.Random) -> Case:
        if side == "plan":
            return Case(side, "begin", self._odd_plan(rng))
        content = packed(self._tensors(0))
        return Case(side, side, scrambled(content, rng))

    def _odd_plan(self, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return scrambled(self._plan.encoded, rng)
        document = json.loads(self._plan.encoded)
        for _ in range(rng.randint(1, 3)):
            inside = rng.choice([document, document["config"], document["rates"], document["files"]])
            if not isinstance(inside, dict):
                continue
            values = [
                None,
                True,
                0,
                -1,
                2**70,
                1e308,
                "",
                "../x",
                "/etc/passwd",
                "x" * 9999,
                [],
                {},
                [[]],
                "0" * 64,
                ["a"] * 99,
            ]
            key = rng.choice([*inside, "../../x.safetensors", "a.safetensors", "pretrained", "checkpoint_path"])
            inside[key] = rng.choice(values)
            document = {key: value for key, value in document.items() if rng.random() < 0.98}
            document.setdefault("config", {})
            document.setdefault("rates", {})
            document.setdefault("files", {})
        return json.dumps(document).encode()

    def _fair(self, method: str, server: str) -> Any:
        return self._honest(LIAR, method, self._given(server))

    def _odd(self, method: str, server: str, rng: random.Random) -> Any:
        """An answer that is odd somewhere, or altogether."""
        if rng.random() < 0.15:
            return rng.choice(_ODD)
        fair = self._fair(method, server)
        if rng.random() < 0.1:
            return {rng.choice(["answer", "refused", "Answer", 1]): rng.choice(_ODD)}
        if method != "train":
            inside = rng.choice([[*_ODD], [["x" * 64] * rng.choice([1, 300])], [{"busy": rng.choice(_ODD)}],
                                 [{"right": rng.choice(_ODD)}]])  # fmt: skip
            return {**fair, "answer": rng.choice(inside)}
        return {**fair, "answer": self._odd_reply(fair["answer"], server, rng)}

    def _odd_reply(self, answer: dict[str, Any], server: str, rng: random.Random) -> Any:
        match rng.randrange(6):
            case 0:
                return {**answer, "photos": rng.choice(_ODD)}
            case 1:
                return {**answer, "tensors": rng.choice(_ODD)}
            case 2:
                return {**answer, "tensors": scrambled(answer["tensors"], rng)}
            case 3:
                return {key: value for key, value in answer.items() if rng.random() < 0.5}
            case 4:
                return {**answer, "tensors": packed(self._odd_tensors(self._given(server), rng))}
        return rng.choice([[answer], (answer,), json.dumps(list(answer)), {**answer, "more": rng.choice(_ODD)}])

    def _odd_tensors(self, given: dict[str, torch.Tensor], rng: random.Random) -> dict[str, torch.Tensor]:
        """Of other names, shapes, types or numbers."""
        found = dict(given)
        name = rng.choice([*found])
        value = found[name]
        changed: list[Callable[[], torch.Tensor]] = [
            lambda: value.double(), lambda: value.half(), lambda: value.to(torch.int64), lambda: value[None],
            lambda: value.reshape(-1)[:1], lambda: torch.full_like(value, rng.choice([math.nan, math.inf, 3.4e38, -3.4e38, 1e20, 1e-45])),
            lambda: value * 1e6, lambda: value.bool(), lambda: torch.zeros(0), lambda: value.to(torch.bfloat16),
            lambda: torch.complex(value, value),
        ]  # fmt: skip
        match rng.randrange(4):
            case 0:
                del found[name]
            case 1:
                found[rng.choice(["new", "", "x" * 1000, "../x"])] = value.clone()
            case _:
                found[name] = rng.choice(changed)()
        return found

    # ---- what everybody knows

    def _tensors(self, number: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        return {name: torch.randn(shape, generator=generator) / 10 for name, shape in _SHAPES.items()}

    def _server(self, kind: str) -> Server:
        if kind == "mean":
            return MeanServer(self._tensors(0))
        tokens = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(1))
        return PromptServer("prompts", tokens, [*HONEST, LIAR], "attention", GeneratorRecipe(inner=8), 0)

    def _given(self, kind: str) -> dict[str, torch.Tensor]:
        """What the liar is given in the first round."""
        return dict(self._server(kind).payload(LIAR))

    def _honest(self, name: str, method: str, given: dict[str, torch.Tensor]) -> Any:
        """What an honest client answers; its tensors are a little beside those it was given."""
        step = 0.01 + 0.001 * [*HONEST, LIAR].index(name)
        answers: dict[str, Any] = {
            "begin": [], "join": PHOTOS, "take": "0" * 64, "validation": 0.5, "judged": {"right": 1, "photos": 2},
            "train": {"tensors": packed({n: v + step for n, v in given.items()}), "photos": PHOTOS},
        }  # fmt: skip
        return {"busy": False} if method == "status" else {"answer": answers[method]}

    # ---- running them

    def save(self, case: Case, folder: Path) -> None:
        (folder / "case.txt").write_text(f"{case!r}\n"[:100_000], errors="replace")

    def judge(self, case: Case, run: Callable[[], None]) -> str:
        if case.side == "server":
            return self._round(case)
        if case.side == "plan":
            plan = decode_plan(case.answer)
            site = Site("anna", self.scratch / "site", lambda run: None)  # type: ignore[arg-type,return-value]
            site.begin(case.answer)
            if plan.encoded != self._plan.encoded and not isinstance(plan.identity, str):
                raise Wrong("a plan without an identity")
            return "accepted"
        if case.side == "payload":
            found = unpacked(case.answer)
            return "right" if all(isinstance(value, torch.Tensor) for value in found.values()) else "accepted"
        shutil.rmtree(self.scratch / "site", ignore_errors=True)
        Site("anna", self.scratch / "site", lambda run: None).take(case.answer)  # type: ignore[arg-type,return-value]
        if [path.read_bytes() for path in (self.scratch / "site" / "files").iterdir()] != [case.answer]:
            raise Wrong("a file that was taken is another")
        return "right"

    def _round(self, case: Case) -> str:
        """A whole session of one round with the liar, and one without."""
        place = self.scratch / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        names = [*HONEST, LIAR]
        wire = Wire(partial(self._asked, case), names, deadline=1.0, fewest=1, patience=0.1)
        server, kept = self._server(case.server), RoundCheckpoint()
        (place / "file").write_bytes(b"a file of the run")
        wire.begin(self._plan.encoded, {FILE: place / "file"})
        if case.method == "status":
            wire.late[LIAR] = "before"
        run_rounds([1], server, kept, CheckpointStore(place), wire, names, Recipe(rounds=1), 0)
        members = wire.judged(2, server.payload, self._given(case.server))
        session.write_result(place, members, kept, 1.0)
        session._note(place, wire)
        json.loads((place / "result.json").read_text())
        for value in server.state().values():
            if not torch.isfinite(value).all():
                raise Wrong("the server's state is not finite")
        took_part = kept.log[0]["clients"] == len(names)
        if case.fair and not took_part and case.method == "train":
            raise Wrong("a fair client is refused")
        if case.method == "train" and not took_part:
            self._untouched(case, server)
            if LIAR not in kept.log[0].get("absent", ()):
                raise Wrong("a client is refused and not named")
            return "refused"
        if case.method == "train":
            self._bounded(case, server)
        return "right" if case.fair else "refused" if LIAR in wire.late else "accepted"

    def _asked(self, case: Case, method: str, arguments: Mapping[str, Mapping[str, Any]], timeout: float
               ) -> tuple[dict[str, Any], dict[str, str]]:  # fmt: skip
        found = {name: self._honest(name, method, self._given_to(case, given)) for name, given in arguments.items()}
        if method == "begin" and case.method == "take" and LIAR in found:
            found[LIAR] = {"answer": [FILE]}
        if method == case.method and LIAR in found and not case.fair:
            found[LIAR] = case.answer
        return found, {}

    def _given_to(self, case: Case, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return unpacked(arguments["payload"]) if "payload" in arguments else self._given(case.server)

    def _alone(self, case: Case) -> Server:
        """The server after a round of the honest clients alone."""
        server, names = self._server(case.server), [*HONEST]
        place = self.scratch / "alone"
        shutil.rmtree(place, ignore_errors=True)
        wire = Wire(partial(self._asked, case), names, deadline=1.0, fewest=1, patience=0.1)
        run_rounds([1], server, RoundCheckpoint(), CheckpointStore(place), wire, names, Recipe(rounds=1), 0)
        return server

    def _untouched(self, case: Case, server: Server) -> None:
        expected, found = self._alone(case).state(), server.state()
        if expected.keys() != found.keys() or not all(torch.equal(expected[name], found[name]) for name in expected):
            raise Wrong("a refused client changed the server's state")

    def _bounded(self, case: Case, server: Server) -> None:
        """One of four may move a mean by a fair share of what it sends, not to where it likes."""
        if case.server != "mean":
            return
        start, honest, found = self._tensors(0), self._alone(case).state(), server.state()
        for name, value in found.items():
            moved = float((value - honest[name]).abs().max())
            if moved > 10 * max(1.0, float(start[name].abs().max())):
                raise Wrong("one client moved the mean beyond all bounds")
