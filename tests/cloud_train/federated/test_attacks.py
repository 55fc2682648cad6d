"""A hostile client harms its own part alone: its answer is refused by name, and the round goes on without it."""

from __future__ import annotations

import json
import random

import pytest
import torch
from safetensors.torch import save

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.federated.deployment.plan import packed
from refocus.cloud_train.federated.deployment.replies import ClientRefused, Limits, checked, outliers, said
from refocus.cloud_train.federated.deployment.wire import Stalled, Wire
from refocus.cloud_train.federated.server import MeanServer, Reply

GIVEN = {"a": torch.zeros(2, 3), "b": torch.full((4,), 10.0)}
HONEST = {"a": torch.full((2, 3), 0.5), "b": torch.full((4,), 10.5)}
FAR = {"a": torch.full((2, 3), 50.0), "b": torch.full((4,), 10.5)}


class Federation:
    """Honest clients and one that answers as it likes, by method."""

    def __init__(self, photos=10, **hostile) -> None:
        self.photos, self.hostile, self.asked = photos, hostile, []

    def __call__(self, method, arguments, timeout):
        self.asked += [(method, name) for name in arguments]
        answers = {name: self._honest(method, name) for name in arguments}
        if "mallory" in arguments and method in self.hostile:
            answers["mallory"] = self.hostile[method]
        return answers, {}

    def _honest(self, method, name):
        judged = {"name": name, "test": 4, "train": self.photos, "received": 1, "used": 2, "adapted": 3}
        reply = {"tensors": packed(HONEST), "photos": self.photos, "number": 7}
        found = {"begin": [], "join": self.photos, "train": reply, "validation": 0.5, "judged": judged}
        return {"busy": False} if method == "status" else {"answer": found[method]}


def round_of(*names, **hostile):
    """One round of a session; what came of it."""
    wire = Wire(Federation(**hostile), [*names, "mallory"])
    wire.begin(b"plan", {})
    return wire.train(7, [*names, "mallory"], lambda name: GIVEN), wire


def reply(tensors=HONEST, photos=10, **more):
    return {"answer": {"tensors": packed(tensors), "photos": photos, **more}}


@pytest.mark.parametrize(
    "photos",
    [10**18, 11, 0, -1, -(10**18), pytest.param(10**5000, id="5001 digits"), 10.0, 9.5, 1e308, float("inf"), -float("inf"), float("nan"), True, None,
     "10", b"10", [10], {}],
)  # fmt: skip
def test_a_number_of_photos_that_the_client_did_not_join_with_is_refused_by_name(photos):
    found, wire = round_of("anna", train=reply(photos=photos))
    assert list(found.replies) == ["anna"]
    assert "expected an integer from 1 to 10" in found.refused["mallory"]
    assert len(found.refused["mallory"]) < 300
    assert found.absent == ["mallory"]
    assert wire.late == {"mallory": found.refused["mallory"]}


@pytest.mark.parametrize("photos", [100_001, 10**18, 0, -1, 1.0, float("inf"), True, "1"])
def test_a_client_that_joins_with_an_impossible_number_of_photos_does_not_train(photos):
    found, wire = round_of("anna", join={"answer": photos})
    assert list(found.replies) == ["anna"]
    assert "expected an integer from 1 to 100000" in wire.late["mallory"]
    assert ("train", "mallory") not in wire.ask.asked
    assert wire.joined == {"anna": 10}


def test_one_client_with_a_huge_number_of_photos_does_not_become_the_mean():
    found, _ = round_of("anna", train=reply(FAR, 10**18))
    server = MeanServer({name: value.clone() for name, value in GIVEN.items()})
    server.aggregate(found.replies)
    torch.testing.assert_close(server.payload("")["a"], HONEST["a"])


@pytest.mark.parametrize("number", [3.4e38, -3.4e38, 1e30, 1e6, float("nan"), float("inf")])
def test_numbers_that_nobody_learns_are_refused_by_name_even_from_the_only_other_client(number):
    spoilt = {"a": HONEST["a"].clone(), "b": HONEST["b"].clone()}
    spoilt["a"][1, 2] = number
    found, _ = round_of("anna", train=reply(spoilt))
    assert list(found.replies) == ["anna"]
    assert ("not finite" if number != number or number == float("inf") else "a changed by") in found.refused["mallory"]


def test_a_change_far_above_the_rounds_median_is_refused_by_name():
    found, _ = round_of("anna", "ben", train=reply(FAR))
    assert list(found.replies) == ["anna", "ben"]
    assert "the round's median is" in found.refused["mallory"]


def test_of_two_replies_neither_is_an_outlier_and_one_that_changed_nothing_excludes_nobody():
    replies = {"anna": Reply(HONEST, 1), "mallory": Reply(FAR, 1)}
    assert outliers(replies, dict.fromkeys(replies, GIVEN), 30.0) == []
    silent = {name: Reply(GIVEN, 1) for name in ("x", "y")} | {"anna": Reply(HONEST, 1)}
    assert outliers(silent, dict.fromkeys(silent, GIVEN), 30.0) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "no tensors in bytes"),
        ({"photos": 10}, "no tensors in bytes"),
        ("tensors", "no tensors in bytes"),
        (None, "no tensors in bytes"),
        ({"tensors": "text", "photos": 10}, "no tensors in bytes"),
        ({"tensors": ["a"], "photos": 10}, "no tensors in bytes"),
        ({"tensors": b"", "photos": 10}, "other tensors came back"),
        ({"tensors": b"\x80\x04pickle", "photos": 10}, "holds no tensors"),
        ({"tensors": b"\xff" * 64, "photos": 10}, "holds no tensors"),
        ({"tensors": (8).to_bytes(8, "little") + b"[[[[[[[[", "photos": 10}, "holds no tensors"),
        ({"tensors": packed({"a": GIVEN["a"]}), "photos": 10}, "other tensors came back"),
        ({"tensors": packed({**HONEST, "c": torch.zeros(1)}), "photos": 10}, "other tensors came back"),
        ({"tensors": packed({"a": torch.zeros(3, 2), "b": HONEST["b"]}), "photos": 10}, "other tensors came back"),
        ({"tensors": packed({n: v.double() for n, v in HONEST.items()}), "photos": 10}, "other tensors came back"),
        ({"tensors": packed({n: v.long() for n, v in HONEST.items()}), "photos": 10}, "other tensors came back"),
        ({"tensors": packed(HONEST) + b" " * (1 << 20), "photos": 10}, "at most .* are read"),
        ({"tensors": save(HONEST, {"x": "y" * (1 << 20)}), "photos": 10}, "at most .* are read"),
        ({"tensors": packed(HONEST), "photos": 10, "number": 6}, "an answer to round 6, asked was 7"),
        ({"tensors": packed(HONEST), "photos": 10, "number": "7"}, "an answer to round 7, asked was 7"),
        ({"tensors": packed(HONEST), "photos": 10, "number": None}, "an answer to round None"),
    ],
)  # fmt: skip
def test_a_malformed_reply_is_refused_by_name_and_the_round_goes_on(answer, words):
    with pytest.raises(ClientRefused, match=f"^mallory: .*{words}") as caught:
        checked(answer, GIVEN, "mallory", 10, 7)
    assert caught.value.client == "mallory"
    found, _ = round_of("anna", train={"answer": answer})
    assert list(found.replies) == ["anna"]
    assert set(found.refused) == {"mallory"}


@pytest.mark.parametrize("answer", [None, 7, "x", b"x", [], {}, {"refused": "\x1b[2J" * 500}, {"refused": 10**5000}])
@pytest.mark.parametrize("method", ["begin", "join", "train", "validation", "judged", "status"])
def test_nonsense_in_place_of_any_answer_ends_nobodys_session(method, answer):
    found, wire = round_of("anna", **{method: answer})
    assert "anna" in found.replies
    assert wire.validation(7, lambda name: GIVEN) == 0.5
    assert wire.judged(8, lambda name: GIVEN, GIVEN)[0]["name"] == "anna"
    assert all(reason.isprintable() and len(reason) < 300 for reason in wire.late.values())


@pytest.mark.parametrize(
    "listed", [["0" * 64] * 2, ["0" * 64] * 100_000, ["1" * 64], ["../x"], "x", [["0"]], [None], {"0" * 64: 1}]
)
def test_a_client_that_asks_for_files_without_end_gets_none(listed, tmp_path):
    (tmp_path / "body").write_bytes(b"x")
    federation = Federation(begin={"answer": listed})
    Wire(federation, ["anna", "mallory"]).begin(b"plan", {"0" * 64: tmp_path / "body"})
    assert ("take", "mallory") not in federation.asked


@pytest.mark.parametrize(
    "change",
    [{"name": "anna"}, {"name": None}, {"used": 5}, {"used": -1}, {"used": 1.0}, {"used": float("nan")}, {"test": 0},
     {"test": 10**400}, {"train": "x"}, {"x": 1}, {"received": None}, {"base": 9}],
)  # fmt: skip
def test_a_judgement_that_is_none_is_not_in_the_result(change):
    judged = {"name": "mallory", "test": 4, "train": 10, "received": 1, "used": 2, "adapted": 3}
    federation = Federation(judged={"answer": {**judged, **change}})
    wire = Wire(federation, ["anna", "mallory"])
    rows = wire.judged(8, lambda name: GIVEN, GIVEN)
    assert [row["name"] for row in rows] == ["anna"]
    json.dumps(rows, allow_nan=False)
    federation.hostile["judged"] = {"answer": judged}
    assert len(wire.judged(8, lambda name: GIVEN, GIVEN)) == 2, "the next question is asked again"


def test_a_refused_client_is_asked_again_in_the_next_round():
    federation = Federation(train=reply(photos=10**18))
    wire = Wire(federation, ["anna", "mallory"])
    wire.begin(b"plan", {})
    assert set(wire.train(7, ["anna", "mallory"], lambda name: GIVEN).replies) == {"anna"}
    del federation.hostile["train"]
    assert set(wire.train(7, ["anna", "mallory"], lambda name: GIVEN).replies) == {"anna", "mallory"}


def test_a_round_of_hostile_clients_alone_is_a_typed_error_that_names_them():
    with pytest.raises(Stalled, match="mallory: a reply of inf photos"):
        round_of(train=reply(photos=float("inf")))


def test_a_thousand_mutated_replies_are_taken_or_refused_by_name():
    rng, taken, refused = random.Random(0), 0, []
    whole = packed(HONEST)
    for _ in range(1000):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            where = rng.randrange(len(content))
            kind = rng.random()
            if kind < 0.7:
                content[where] = rng.randrange(256)
            elif kind < 0.85:
                del content[where:]
            else:
                content[where:where] = rng.randbytes(rng.randint(1, 40))
            content = content or bytearray(b"x")
        try:
            found = checked({"tensors": bytes(content), "photos": 10}, GIVEN, "mallory", 10)
        except DataError as error:
            refused.append(str(error))
        else:
            taken += 1
            assert all(bool(torch.isfinite(value).all()) for value in found.tensors.values())
    assert 0 < taken < 500
    assert all(why.startswith("mallory: ") for why in refused)


def test_what_an_honest_client_sends_is_taken_as_it_is():
    found = checked({"tensors": packed(HONEST), "photos": 10, "number": 7}, GIVEN, "anna", 10, 7, Limits())
    assert found.photos == 10
    for name, value in HONEST.items():
        assert torch.equal(found.tensors[name], value)
    assert checked({"tensors": b"", "photos": 1}, {}).tensors == {}, "of a method that shares nothing"
    large = {"a": torch.full((3,), 1e7)}
    assert checked({"tensors": packed({"a": torch.full((3,), 5e8)}), "photos": 1}, large).photos == 1


def test_a_clients_words_are_one_short_line():
    assert said("a\x1b[31m\nb\ud800") == "a?[31m?b?"
    assert len(said("x" * 10**6)) == 201

    class Odd:
        def __str__(self):
            raise RuntimeError

    assert said(Odd()) == "something that cannot be shown (RuntimeError)"
