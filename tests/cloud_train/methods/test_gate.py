"""The gate: who is trusted, who is not, and that its two forms and its arithmetic agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from refocus.cloud_train.backbones.feature_cache import FeatureCache
from refocus.cloud_train.data.glyphs import glyphs
from refocus.cloud_train.data.partitions import mixed
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.methods.iciia.block import IciiaClassifier, IciiaConfig
from refocus.cloud_train.methods.iciia.gate import STATISTICS, StatisticsGate, WarmUpGate, mix
from refocus.cloud_train.methods.iciia.programs import WindowHead
from refocus.cloud_train.methods.iciia.train_gate import (
    GateRecipe,
    answer_windows,
    draw_windows,
    fit_traits,
    gate_for,
    short_more_often,
    train_gate,
)
from refocus.export.program import SIGNATURE

WIDTH, SLOTS = 16, 7


def people_bank(seed: int, clients: int = 30, each: int = 16) -> FeatureCache:
    """People who differ from each other in four directions of the feature, more than their photos do."""
    rng = np.random.default_rng(seed)
    table = glyphs(seed, {"train": clients}, each)
    table = replace(table, label=rng.integers(0, 3, len(table)), client=np.char.add(f"{seed}-", table.client))
    features = rng.normal(size=(len(table), WIDTH)).astype(np.float32)
    features[:, :4] += 3 * np.repeat(rng.normal(size=(clients, 4)), each, axis=0)
    features[np.arange(len(table)), 8 + table.label] += 2
    rows = np.hstack([features, np.zeros((len(table), SIGNATURE), np.float32)])
    return FeatureCache(table, rows, "people", np.arange(len(table)))


def fitted(bank: FeatureCache, traits: int = 8) -> StatisticsGate:
    gate = StatisticsGate(bank.features.shape[1], traits)
    for name, value in zip(("centre", "directions", "between"), fit_traits(bank, traits), strict=True):
        getattr(gate, name).copy_(value)
    return gate


def log_likelihood(values: np.ndarray, between: float) -> float:
    """Of photos of one person, by the covariance matrix written out: 1 on the diagonal, ``between`` everywhere."""
    covariance = np.eye(len(values)) + between
    _, determinant = np.linalg.slogdet(covariance)
    return -0.5 * (values @ np.linalg.solve(covariance, values) + determinant)


def test_evidence_is_the_ratio_of_the_two_gaussian_likelihoods():
    rng, gate = np.random.default_rng(0), StatisticsGate(WIDTH, 1)
    for between in (0.3, 5.0):
        gate.between.fill_(between)
        photo, past = rng.normal(size=1), rng.normal(size=5)
        same, one = gate.evidence(torch.tensor(photo[None]), torch.tensor(past[None, :, None]),
                                  torch.ones(1, 5, dtype=torch.bool))  # fmt: skip
        apart = log_likelihood(past, between) + log_likelihood(photo, between)
        assert float(same) == pytest.approx(log_likelihood(np.append(past, photo), between) - apart, abs=1e-5)
        strangers = sum(log_likelihood(past[n : n + 1], between) for n in range(5))
        assert float(one) == pytest.approx((log_likelihood(past, between) - strangers) / 5, abs=1e-5)


def test_evidence_in_float32_is_that_of_float64_where_people_differ_enormously():
    rng, gate = np.random.default_rng(1), StatisticsGate(WIDTH, 4)
    gate.between.copy_(torch.tensor([6000.0, 500.0, 1.0, 0.0]))
    person = rng.normal(size=(64, 1, 4)) * gate.between.numpy() ** 0.5
    photos = torch.tensor(person + rng.normal(size=(64, 9, 4)))
    valid = torch.ones(64, 8, dtype=torch.bool)
    exact = gate.double().evidence(photos[:, 0], photos[:, 1:], valid)
    single = gate.float().evidence(photos[:, 0].float(), photos[:, 1:].float(), valid)
    for a, b in zip(exact, single, strict=True):
        np.testing.assert_allclose(b.double(), a, atol=2e-3)


def test_photos_of_one_person_speak_for_it_and_photos_of_others_against():
    gate, judged = fitted(people_bank(0, 60)), people_bank(1)
    rng = np.random.default_rng(0)
    evidence = {}
    for content in ("own", "mixed", "foreign"):
        rows = draw_windows(judged.table, content, SLOTS, 8, rng)
        traits = gate.traits(torch.from_numpy(judged.take_rows(rows.ravel())).view(*rows.shape, -1))
        valid = torch.ones(len(rows), SLOTS, dtype=torch.bool)
        same, one = gate.evidence(traits[:, -1], traits[:, :-1], valid)
        evidence[content] = float(same.mean()), float(one.mean())
    assert evidence["own"][0] > 1 > 0 > evidence["foreign"][0]
    assert evidence["own"][1] > 0.5 > 0 > evidence["mixed"][1]


def test_without_a_history_there_is_no_evidence_and_no_trust():
    gate, generator = StatisticsGate(WIDTH, 4), torch.Generator().manual_seed(0)
    logits, traits, past = (torch.randn(*shape, generator=generator) for shape in ((3, 5), (3, 4), (3, SLOTS, 4)))
    nothing = torch.zeros(3, SLOTS, dtype=torch.bool)
    assert [float(value.abs().max()) for value in gate.evidence(traits, past, nothing)] == [0, 0]
    attention = torch.zeros(3, SLOTS + 1)
    attention[:, -1] = 1
    assert gate(logits, -logits, attention, traits, past, nothing).tolist() == [0, 0, 0]


def test_mixing_gives_either_answer_at_the_ends_and_probabilities_between():
    plain, personal = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.0, 0.0, 5.0]])
    torch.testing.assert_close(mix(plain, personal, torch.zeros(1)).softmax(-1), plain.softmax(-1))
    torch.testing.assert_close(mix(plain, personal, torch.ones(1)).softmax(-1), personal.softmax(-1))
    between = mix(plain, personal, torch.tensor([0.5])).softmax(-1)
    assert plain.softmax(-1)[0, 2] < between[0, 2] < personal.softmax(-1)[0, 2]


@pytest.fixture(scope="module")
def head():
    torch.manual_seed(0)
    config = IciiaConfig(width=WIDTH, layers=2, partitions=4, heads=2, window=SLOTS + 1)
    gate = fitted(people_bank(0))
    return WindowHead(torch.nn.Linear(WIDTH, 3), IciiaClassifier(config, 3), gate).eval()


@torch.no_grad()
def test_rows_kept_between_photos_give_the_answer_of_the_whole_window(head):
    """The streaming form, fed with what it returned before, against the full-window form, photo by photo."""
    stored = torch.from_numpy(people_bank(2).take_rows(np.arange(16)))
    history, traits = torch.zeros(1, SLOTS, stored.shape[1]), torch.zeros(1, SLOTS, 8)
    for number, row in enumerate(stored):
        length = torch.tensor([min(number, SLOTS)])
        streamed = head(row[None], history, length, traits)
        for a, b in zip(streamed, head(row[None], history, length), strict=True):
            torch.testing.assert_close(a, b)
        history = torch.cat([history[:, 1:], row[None, None]], dim=1)
        traits = torch.cat([traits[:, 1:], streamed[-1][:, None]], dim=1)
    assert float(streamed[4]) > 0


@torch.no_grad()
def test_what_stands_in_the_padding_changes_nothing(head):
    stored = torch.from_numpy(people_bank(2).take_rows(np.arange(SLOTS + 1)))
    history = stored[None, :SLOTS].clone()
    wanted = head(stored[-1:], history, torch.tensor([3]))
    history[:, : SLOTS - 3] = 1e3
    for a, b in zip(head(stored[-1:], history, torch.tensor([3])), wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_a_fixed_warm_up_trusts_all_or_nothing():
    assert WarmUpGate(3)(torch.tensor([0, 2, 3, 15])).tolist() == [0, 0, 1, 1]


# --- training --------------------------------------------------------------------------------------------------


class Confused(torch.nn.Module):
    """A personal head that is right when its history is of the photo's person, and wrong when it is not.

    The first four numbers of a feature are the person; the label stands in the three from the ninth on.
    """

    def __init__(self, config: IciiaConfig) -> None:
        super().__init__()
        self.iciia = torch.nn.Module()
        self.iciia.config = config

    def last(self, features, valid):
        kept = valid[:, :-1, None].float()
        past = (features[:, :-1, :4] * kept).sum(1) / kept.sum(1).clamp(min=1)
        stranger = ((features[:, -1, :4] - past) ** 2).sum(-1) > 16
        right = 4 * features[:, -1, 8:11]
        attention = valid.float() / valid.float().sum(1, keepdim=True)
        return torch.where(stranger[:, None], right.roll(1, -1), right), attention


@pytest.fixture(scope="module")
def judged():
    """A trained gate on people it never met: trust and right answers by content."""
    plain, confused = torch.nn.Linear(WIDTH, 3), Confused(IciiaConfig(WIDTH, 1, 4, 2, SLOTS + 1))
    with torch.no_grad():
        plain.weight.zero_()
        plain.weight[torch.arange(3), 8 + torch.arange(3)] = 0.5
        plain.weight[torch.arange(3), 11 + torch.arange(3)] = 0.7  # noise, which the history lets one see through
        plain.bias.zero_()
    gate = train_gate(people_bank(0, 60), people_bank(1, 40), plain, confused, GateRecipe(windows=3000, epochs=20))
    test, rng, found = people_bank(2, 40), np.random.default_rng(0), {}
    for content in ("own", "mixed", "foreign"):
        windows = draw_windows(test.table, content, SLOTS, 20, rng)
        answers = answer_windows(plain, confused, gate, test, windows, np.full(len(windows), SLOTS))
        with torch.no_grad():
            trust = gate.trust(answers.statistics, answers.valid)
        right = {
            name: float((logits.argmax(-1) == answers.labels).double().mean())
            for name, logits in (("plain", answers.plain), ("personal", answers.personal),
                                 ("delivered", mix(answers.plain, answers.personal, trust)))
        }  # fmt: skip
        found[content] = float(trust.mean()), right
    return found


def test_a_gate_trusts_ones_own_history_and_not_a_strangers(judged):
    assert judged["own"][0] > 3 * judged["foreign"][0]  # personal logits are large here: a third of them decides
    right = judged["own"][1]
    assert right["delivered"] - right["plain"] > 0.8 * (right["personal"] - right["plain"]) > 0.05


def test_a_history_that_would_hurt_does_not(judged):
    for content in ("mixed", "foreign"):
        right = judged[content][1]
        assert right["personal"] < right["plain"] - 0.1  # or there would be nothing to protect from
        assert right["delivered"] > right["plain"] - 0.03


def test_statistics_are_what_they_are_called(head):
    gate, stored = head.gate, torch.from_numpy(people_bank(3).take_rows(np.arange(SLOTS + 1)))[None]
    plain, personal = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 3.0, 0.0]])
    attention = torch.full((1, SLOTS + 1), 1 / (SLOTS + 1))
    traits = gate.traits(stored)
    valid = torch.ones(1, SLOTS, dtype=torch.bool)
    row = gate.statistics(plain, personal, attention, traits[:, -1], traits[:, :-1], valid)[0]
    named = dict(zip(STATISTICS, row.tolist(), strict=True))
    p, q = plain.softmax(-1)[0], personal.softmax(-1)[0]
    assert named["log_length"] == pytest.approx(np.log1p(SLOTS), abs=1e-6)
    assert named["entropy_plain"] == pytest.approx(float(-(p * p.log()).sum()), abs=1e-6)
    assert named["top_personal"] == pytest.approx(float(q.max()), abs=1e-6)
    assert named["divergence_personal_plain"] == pytest.approx(float((q * (q / p).log()).sum()), abs=1e-5)
    assert named["plain_of_personal_choice"] == pytest.approx(float(p[1]), abs=1e-6)
    assert named["overlap"] == pytest.approx(float((p * q).sqrt().sum()), abs=1e-6)
    assert named["agree"] == 0
    assert named["attention_entropy"] == pytest.approx(np.log(SLOTS + 1), abs=1e-5)


def test_few_gate_clients_leave_the_gate_to_class_shares():
    bank = people_bank(0, clients=30)
    alone = bank.rows(bank.table.client == bank.table.client[0])
    assert gate_for(GateRecipe(), alone, SLOTS + 1).kind == "shares"
    assert gate_for(GateRecipe(fewest=31), bank, SLOTS + 1).kind == "shares"
    assert gate_for(GateRecipe(), bank, SLOTS + 1).kind == "statistics"
    assert gate_for(GateRecipe("warm_up"), alone, SLOTS + 1).kind == "warm_up"
    with pytest.raises(DataError, match="a gate needs at least two.*gate shares or warm_up"):
        gate_for(GateRecipe(fewest=0), alone, SLOTS + 1)


def test_short_histories_are_met_more_often_and_none_is_empty():
    lengths = short_more_often(15, 10_000, np.random.default_rng(0))
    assert lengths.min() == 1
    assert lengths.max() == 15
    assert (lengths == 1).mean() > 0.2 > 0.05 > (lengths == 15).mean()


# --- mixed content ---------------------------------------------------------------------------------------------

CLIENTS = np.repeat([f"client {n:02d}" for n in range(20)], 12)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_mixing_clients_moves_photos_and_loses_none(share):
    order, client = mixed(CLIENTS, share, seed=3)
    assert sorted(order) == list(range(len(CLIENTS)))
    untouched = ~np.char.startswith(client, "mixed/")
    assert len(np.unique(client[untouched])) == round(share * 20)
    assert (client[untouched] == CLIENTS[order[untouched]]).all()
    assert set(np.unique(client, return_counts=True)[1]) == {12}


def test_a_mixed_clients_photos_have_nothing_in_common():
    order, client = mixed(CLIENTS, 0.0, seed=0)
    for name in np.unique(client):
        assert len(np.unique(CLIENTS[order[client == name]])) > 6
    neighbours = CLIENTS[order[:-1]] == CLIENTS[order[1:]]
    assert neighbours.mean() < 0.15  # in their order too: a window is no more alike than a stream


def test_an_impossible_share_of_clients_is_refused():
    with pytest.raises(UsageError, match="heterogeneity 2: expected a share"):
        mixed(CLIENTS, 2, seed=0)


def test_each_content_is_what_its_name_says():
    bank, rng = people_bank(0), np.random.default_rng(0)
    own, strange, any_ = (draw_windows(bank.table, c, SLOTS, 3, rng) for c in ("own", "foreign", "mixed"))
    client = bank.table.client
    assert (client[own] == client[own[:, -1:]]).all()
    assert (client[strange[:, :-1]] == client[strange[:, :1]]).all()
    assert (client[strange[:, 0]] != client[strange[:, -1]]).all()
    homes = bank.table.domain
    assert (homes[strange[:, 0]] != homes[strange[:, -1]]).all()
    assert len(np.unique(client[any_[0]])) > 3


def test_a_mixed_history_never_holds_the_photo_that_is_asked_about():
    table = people_bank(0).table
    for part in (table, table.rows(np.isin(table.client, np.unique(table.client)[:2]))):
        drawn = draw_windows(part, "mixed", SLOTS, 200, np.random.default_rng(0))
        assert not (drawn[:, :-1] == drawn[:, -1:]).any()
        assert len(np.unique(drawn[:, :-1])) == len(part)  # every other one may be in it
