"""What is delivered: a trained head only where validation people are served better by it than without."""

from __future__ import annotations

import shutil
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from refocus.cloud_train.methods.iciia.delivery import (
    EXPONENTS,
    _best,
    _doubt,
    accuracy_of,
    calibrate_labels,
    choose_delivery,
    expected_of,
    kept_classes,
    logits_in_every_way,
    plain_logits,
    uniform_attention,
)
from refocus.cloud_train.methods.iciia.programs import iciia_head
from refocus.export import ExportSettings, export
from refocus.export.bundle.class_shares import trained_temperature
from refocus.export.errors import ExportError
from refocus.export.program import load_checkpoint, save_checkpoint


def accuracy(plain: float, shares: float, head: float, together: float) -> dict[str, float]:
    return {"plain": plain, "shares": shares, "head": head, **{str(value): together for value in EXPONENTS}}


@pytest.mark.parametrize(
    ("found", "choice"),
    [
        (accuracy(0.5, 0.6, 0.6, 0.6), "shares"),
        (accuracy(0.6, 0.6, 0.6, 0.6), "plain"),
        (accuracy(0.5, 0.6, 0.7, 0.65), "head"),
        (accuracy(0.5, 0.6, 0.65, 0.7), "both"),
        (accuracy(0.7, 0.6, 0.65, 0.65), "plain"),
    ],
)
def test_a_head_is_delivered_where_it_is_better_than_shares_alone(found, choice):
    assert _best(found)[0] == choice


def test_the_exponent_of_the_shares_is_the_best_of_the_grid():
    found = accuracy(0.5, 0.6, 0.6, 0.6) | {"0.75": 0.8}
    assert _best(found) == ("both", 0.75)


def test_a_head_that_is_lost_after_somebody_elses_photos_is_not_delivered():
    """Ahead of shares by two points with one's own history, behind them by fifty with another person's."""
    own, foreign = accuracy(0.5, 0.7, 0.72, 0.72), accuracy(0.5, 0.45, 0.0, 0.0)
    assert _best(own)[0] == "head"
    assert _best(expected_of(own, foreign))[0] == "shares"
    assert expected_of(own, {}) == own
    assert expected_of(own, foreign)["shares"] == pytest.approx(0.8 * 0.7 + 0.2 * 0.45)


def test_what_is_better_by_less_than_people_can_tell_is_not_delivered():
    assert _best(accuracy(0.6, 0.6004, 0.6005, 0.6006))[0] == "plain"


def test_a_foreign_history_is_somebody_elses_and_the_photos_stay_the_same(tiny_run, head):
    """Of a head that is sure of nothing but histories: the classifier's answers are the same, its own are not."""
    bank = tiny_run.bank(tiny_run.backbone()).of_split("validation")
    model = of_noise(head)
    found = choose_delivery(model, bank, 8, 6)
    assert found.foreign["plain"] == found.accuracy["plain"]
    with torch.no_grad():
        asked = model, bank, plain_logits(model.plain, bank), 8, found.temperature, 6
    for (own, label), (foreign, same_label) in zip(
        logits_in_every_way(*asked), logits_in_every_way(*asked, foreign=True), strict=True
    ):  # answers, not accuracies: of six targets by chance as many may be right
        np.testing.assert_array_equal(label, same_label)
        np.testing.assert_array_equal(own["plain"], foreign["plain"])
        assert all((own[way] != foreign[way]).any(axis=1).all() for way in own if way != "plain")
    assert found.as_dict()["foreign_part"] == 0.2
    first = str(bank.table.client[0])
    alone = choose_delivery(of_noise(head), bank.rows(bank.table.client == first), 8, 6)
    assert (alone.people, alone.foreign, alone.as_dict()["foreign_part"]) == (1, {}, 0.0)


def test_a_head_whose_gate_are_shares_is_never_delivered_without_them():
    assert _best(accuracy(0.5, 0.6, 0.9, 0.65), gated=True)[0] == "both"
    assert _best(accuracy(0.5, 0.6, 0.9, 0.6), gated=True)[0] == "shares"
    assert _best(accuracy(0.6, 0.5, 0.9, 0.6), gated=True)[0] == "plain"


def of_noise(head):
    """The head with random numbers for what it has learned of histories."""
    model = iciia_head(head)
    torch.manual_seed(0)
    for parameter in model.personal.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def test_shares_hold_a_head_back_that_answers_for_somebody_else(tiny_run, head):
    """A head of noise is followed by the photos that shares trust alone."""
    bank = tiny_run.bank(tiny_run.backbone()).of_split("validation")
    model = of_noise(head)
    model.gate.forward = lambda *arguments: torch.ones(len(arguments[0]))
    with torch.no_grad():  # people who own what the classifier says: right is whoever answers as it does
        said = model.plain(torch.from_numpy(bank.take())).argmax(1).numpy()
    bank = replace(bank, table=replace(bank.table, label=said.astype(bank.table.label.dtype)))
    alone, gated = (choose_delivery(model, bank, 8, 24, gated=gated) for gated in (False, True))
    assert alone.accuracy["1.0"] < 0.1
    assert gated.accuracy["1.0"] > alone.accuracy["1.0"] + 0.1
    assert (gated.gated, gated.as_dict()["gated"]) == (True, True)


@pytest.fixture(scope="module")
def head(tiny_run):
    return load_checkpoint(tiny_run.head_path(0, "iciia_t"))


def test_every_way_is_judged_by_the_same_photos(tiny_run, head):
    bank = tiny_run.bank(tiny_run.backbone()).of_split("validation")
    model = iciia_head(head)
    found = choose_delivery(model, bank, 8, 3)
    flags = []
    for _, rows in bank.table.clients():
        positions = sorted({int(p) for p in np.linspace(8, len(rows) - 1, 3)})
        cut = rows[positions]
        logits = model.plain(torch.from_numpy(bank.take(cut))).detach().numpy()
        flags.append((logits.argmax(1) == bank.table.label[cut]).mean())
    assert found.people == len(flags)
    assert found.accuracy["plain"] == pytest.approx(np.mean(flags))
    assert head.card.training["delivery"]["history"] == max(map(int, head.card.training["validation_by_history"]))


def test_an_untrained_head_is_not_delivered(tiny_run, head):
    bank = tiny_run.bank(tiny_run.backbone()).of_split("validation")
    model = of_noise(head)
    model.gate.forward = lambda *arguments: torch.ones(len(arguments[0]))  # its own gate would hold it back
    assert choose_delivery(model, bank, 8, 24).choice in ("plain", "shares")


def test_a_head_that_only_knows_classes_of_the_closed_pass_is_not_delivered(tiny_run, head):
    """Answer one class, which most photos show and the open pass deletes."""
    bank = tiny_run.bank(tiny_run.backbone()).of_split("validation")
    model = iciia_head(head)
    model.gate.forward = lambda *arguments: torch.ones(len(arguments[0]))
    kept = kept_classes(model.plain.out_features)
    frequent = min({*range(model.plain.out_features)} - {*kept.tolist()})
    with torch.no_grad():
        model.personal.classifier.weight.zero_()
        model.personal.classifier.bias.copy_(20 * torch.eye(model.plain.out_features)[frequent])
        said = model.plain(torch.from_numpy(bank.take())).argmax(1).numpy()
    said[np.random.default_rng(0).random(len(said)) < 0.8] = frequent
    bank = replace(bank, table=replace(bank.table, label=said.astype(bank.table.label.dtype)))
    found = choose_delivery(model, bank, 8, 24)
    assert _best(expected_of(found.accuracy, found.foreign))[0] == "head"
    assert found.open["plain"] == 1 > found.open["head"] + 0.5
    assert found.choice in ("plain", "shares")
    assert found.as_dict()["open_part"] == 0.5
    assert accuracy_of(found.as_dict()) == pytest.approx(
        expected_of(found.accuracy, found.foreign, found.open)[found.choice], abs=1e-3
    )


def test_photos_of_deleted_classes_are_in_histories_and_never_answered(tiny_run, head):
    bank = tiny_run.bank(tiny_run.backbone()).of_split("validation")
    model = iciia_head(head)
    kept = kept_classes(model.plain.out_features)
    assert len(kept) == (model.plain.out_features + 1) // 2
    assert [len(kept_classes(count)) for count in (4, 5)] == [2, 3]
    with torch.no_grad():
        plain = plain_logits(model.plain, bank)
    found = logits_in_every_way(model, bank, plain, 8, 1.0, 10_000, kept=kept)
    later = np.concatenate([bank.table.label[rows[8:]] for _, rows in bank.table.clients()])
    assert sum(len(label) for _, label in found) == np.isin(later, kept).sum()
    for logits, label in found:
        assert label.max() < len(kept)
        assert {rows.shape for rows in logits.values()} == {(len(label), len(kept))}
    whole = logits_in_every_way(model, bank, plain, 8, 1.0, 10_000)
    answered = np.concatenate([logits["plain"][np.isin(label, kept)][:, kept] for logits, label in whole])
    np.testing.assert_allclose(np.concatenate([logits["plain"] for logits, _ in found]), answered, rtol=1e-6)


@pytest.fixture
def chosen(tiny_run, head, tmp_path):
    """A run whose head's card states what served its validation people best."""

    def make(choice: str, calibrated_on: int = 64, **changes: object) -> ExportSettings:
        run = tmp_path / choice
        run.mkdir()
        for path in tiny_run.folder.glob("encoder.*"):
            shutil.copy(path, run)
        shutil.copytree(tiny_run.parity_photos(), run / "parity")
        (run / "parity" / "metadata.csv").unlink()  # no photo with a label calibrates shares
        delivery = {
            "choice": choice,
            "with_head": 0.25,
            "gated": choice == "both",
            "history": 8,
            "temperature": 1.5,
            "calibrated_on": calibrated_on,
            "accuracy": dict(accuracy(0.5, 0.6, 0.6, 0.6)),
            **changes,
        }
        card = msgspec.structs.replace(head.card, training={**head.card.training, "delivery": delivery})
        path = save_checkpoint(run / "seed-0" / "iciia_t.safetensors", head.weights, card).path
        return ExportSettings((str(path),), tmp_path / f"{choice}-bundle")

    return make


@pytest.mark.slow
def test_export_delivers_what_served_validation_people_best(chosen):
    said = []
    alone = export(chosen("shares"), said.append).bundle.manifest.head().personalisation
    assert (alone.method, alone.form, alone.shares.temperature) == ("plain", "none", 1.5)
    assert any("calibrated on validation photos in training" in line for line in said)
    assert any("iciia_t is not delivered: after 8 photos" in line for line in said)
    both = export(chosen("both")).bundle.manifest.head().personalisation
    assert (both.method, both.shares.with_head, both.shares.gated) == ("iciia", 0.25, True)
    plain = export(chosen("plain")).bundle.manifest.head().personalisation
    assert (plain.method, plain.shares) == ("plain", None)


@pytest.mark.slow
def test_shares_that_nothing_calibrates_are_delivered_at_temperature_1(chosen):
    said = []
    alone = export(chosen("shares", 63), said.append).bundle.manifest.head().personalisation
    assert (alone.method, alone.form, alone.shares.temperature) == ("plain", "none", 1.0)
    assert any("at temperature 1, not calibrated" in line for line in said)
    gated = export(chosen("both", 63)).bundle.manifest.head().personalisation
    assert (gated.method, gated.shares.gated, gated.shares.temperature) == ("iciia", True, 1.0)


@pytest.mark.slow
def test_a_head_can_be_had_nevertheless(chosen):
    settings = chosen("plain")
    for asked in (replace(settings, personalise="head"), replace(settings, form="window")):
        found = export(asked).bundle.manifest.head().personalisation
        assert (found.method, found.shares) == ("iciia", None)
    with pytest.raises(ExportError, match="--personalise best: expected head or shares"):
        export(replace(settings, personalise="best"))


def test_the_temperature_of_photos_with_several_labels_undoes_what_a_classifier_exaggerates():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 5))
    label = rng.random((2000, 5)) < 1 / (1 + np.exp(-logits))
    assert calibrate_labels(logits, label) == pytest.approx(1, rel=0.1)
    assert calibrate_labels(3 * logits, label) == pytest.approx(3, rel=0.1)


def test_a_temperature_of_few_photos_or_of_none_is_not_calibrated():
    fitted = {"temperature": 1.5, "targets": 64}
    assert trained_temperature({"delivery": fitted}, several=False) == 1.5
    assert trained_temperature({"delivery": fitted}, several=True) is None  # before its temperature was fitted
    assert trained_temperature({"delivery": {**fitted, "calibrated_on": 64}}, several=True) == 1.5
    assert trained_temperature({"delivery": {**fitted, "calibrated_on": 63}}, several=False) is None
    assert trained_temperature({}, several=False) is None


def test_the_control_attends_to_all_photos_alike_and_changes_nothing_else(head):
    model = of_noise(head)
    same = uniform_attention(model)
    window = torch.randn(2, 5, model.personal.iciia.config.width)
    valid = torch.tensor([[True] * 5, [False, False, True, True, True]])
    weights = same.personal.last(window, valid)[1]
    assert torch.allclose(weights, valid / valid.sum(1, keepdim=True))
    assert not torch.allclose(model.personal.last(window, valid)[1], weights, atol=0.01)
    kept = {name: value for name, value in model.state_dict().items() if "qkv" not in name}
    assert all(torch.equal(same.state_dict()[name], value) for name, value in kept.items())


def test_a_gain_that_only_one_of_several_people_has_is_not_delivered():
    one = [{"plain": np.zeros(4), "head": np.full(4, float(person == 0))} for person in range(4)]
    assert _doubt(one, "head") == pytest.approx(np.mean([person["head"].mean() for person in one]))
    most = [{"plain": np.zeros(4), "head": np.ones(4)} for _ in range(4)]
    assert _doubt(most, "head") == pytest.approx(0.5)
    assert _doubt(one, "plain") == 0
