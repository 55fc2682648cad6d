"""The camera-roll protocol on toy points, and once on photos of one's own."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from refocus.cloud_train.backbones.backbone import Backbone, create_backbone
from refocus.cloud_train.backbones.pretrain import GLYPH_PREPROCESSING
from refocus.cloud_train.errors import UsageError
from studies.commands.study import study_app
from studies.experiment import read_experiment, run_experiment
from studies.report.negatives import negatives
from studies.report.pages import STUDIES
from studies.streams import camera_roll
from studies.streams.camera_roll import RollSettings
from studies.streams.rivals.em_shares import EmSettings, EmShares
from studies.streams.rivals.method import Knowledge
from studies.streams.rivals.shares import RECENT, BurstsOnceMethod, SharesMethod
from studies.streams.rolls import points
from studies.streams.rolls.dealing import Roll, deal_rolls
from studies.streams.rolls.drawn import KINDS, draw, drawn_photos, near_copy
from studies.streams.rolls.marking import Scores, marking_gain
from studies.streams.rolls.points import (
    Limits,
    RollPoint,
    Sets,
    deleted_classes,
    is_named_alike,
    part_of,
    with_near_copies,
)

FILE = Path(camera_roll.__file__).with_name("camera-roll.toml")
CLASSES, EACH, WIDTH, PEOPLE, TARGETS = 24, 30, 12, 24, 8
BASE = {
    "data": ["office-31"],
    "encoder": ["mobilenetv2"],
    "condition": ["same"],
    "classes": [4],
    "unknown": [0.5],
    "unknown_kind": ["mixed"],
    "roll": ["plain"],
    "history": [15],
    "confidence": [1.0],
    "method": ["plain", "shares", "em", "majority control", "known classes"],
}
SMALL = (f"settings.people={PEOPLE}", f"settings.targets={TARGETS}", "seeds=[0, 1]", "include=[]")


def toy_point() -> RollPoint:
    """Return a point whose classes are Gaussians; unknown photos are of further Gaussians."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(CLASSES + 20, WIDTH))
    label = np.repeat(np.arange(CLASSES + 20), EACH)
    features = centre[label] + rng.normal(size=(len(label), WIDTH))
    weight, bias = centre[:CLASSES], -0.5 * (centre[:CLASSES] ** 2).sum(1)
    base, means = np.full(CLASSES, 1 / CLASSES), centre[:CLASSES]
    knowledge = Knowledge(1.0, base, weight, bias, means, np.ones(WIDTH))
    pools = {
        points.DELETED: np.flatnonzero((label >= CLASSES) & (label < CLASSES + 10)),
        points.GENERATED: np.flatnonzero(label >= CLASSES + 10),
    }
    known = np.where(label < CLASSES, label, -1)
    names = np.array([f"photo {row}" for row in range(len(label))])
    classes = tuple(f"class {number}" for number in range(CLASSES))
    return RollPoint(
        knowledge, features, features @ weight.T + bias, known, pools, label, names, classes, {"classes": CLASSES}
    )


def document(run: Path, **axes: Any) -> dict[str, Any]:
    """Return the results document of the study on the toy point."""
    grid = [f"grid.{axis}={json.dumps(values)}" for axis, values in {**BASE, **axes}.items()]
    return run_experiment(read_experiment(FILE, [*SMALL, *grid]), run, "command")


def rows_of(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of a document by cell and method."""
    return {(row["cell"], row["method"]): row for row in found["rows"]}


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """Every point of the study is the toy's."""
    monkeypatch.setattr(camera_roll, "prepare", lambda *arguments: toy_point())
    for name in ("office-31", "grocery-store", "tiny-imagenet-subset"):
        (tmp_path / f"{name}.zip").write_bytes(b"")
    (tmp_path / "weights.safetensors").write_bytes(b"")
    monkeypatch.setattr(camera_roll, "weights_file", lambda *arguments: tmp_path / "weights.safetensors")
    of_test = camera_roll.RollSettings.sets
    monkeypatch.setattr(RollSettings, "sets", lambda self, data: of_test(replace(self, source=str(tmp_path)), data))


@pytest.mark.parametrize("kind", ["mixed", "repeated", points.DELETED])
@pytest.mark.parametrize("roll", ["plain", "one-off", "bursts", "changed", "foreign"])
def test_photos_of_a_roll_are_what_the_cell_says(roll, kind):
    point, cell = toy_point(), Roll(4, 0.5, kind, roll, 15)
    people = deal_rolls(point.label, point.pools, point.subject, cell, 12, TARGETS, 0)
    assert len(people) == 12
    for person in people:
        label = point.label[person.history]
        assert ((label >= 0).sum(), (label < 0).sum()) == (15, 15)
        assert (point.label[person.known] >= 0).all()
        assert (point.label[person.unknown] < 0).all()
        assert len({*person.known.tolist()}) == len({*person.unknown.tolist()}) == TARGETS
        assert not {*person.history.tolist()} & {*person.known.tolist(), *person.unknown.tolist()}
        if kind == "repeated":
            shown = {*point.subject[person.unknown].tolist(), *point.subject[person.history[label < 0]].tolist()}
            assert len(shown) <= 2 * 4  # of two kinds
        if kind == points.DELETED:
            assert {*person.unknown.tolist(), *person.history[label < 0].tolist()} <= {*point.pools[kind].tolist()}
        else:
            assert np.isin(person.history, point.pools[points.GENERATED]).sum() in (6, 7, 8, 9)
        asked, met = point.label[person.known], label[label >= 0]
        assert {*asked.tolist()} <= {*person.classes.tolist()}
        if roll == "foreign":
            assert not {*met.tolist()} & {*asked.tolist()}
        if roll == "changed":
            assert not {*met[:7].tolist()} & {*asked.tolist()}
            assert {*met[8:].tolist()} <= {*person.classes.tolist()}
        if roll == "one-off":
            assert (np.unique(met, return_counts=True)[1] == 1).sum() >= 5
        if roll == "bursts":
            assert (np.unique(person.history, return_counts=True)[1] == 3).all()
            assert (person.history.reshape(-1, 3) == person.history[::3, None]).all()


def test_a_set_with_too_few_classes_or_photos_deals_no_people():
    point = toy_point()
    assert deal_rolls(point.label, point.pools, point.subject, Roll(200), 12, TARGETS, 0) == []
    assert deal_rolls(point.label, point.pools, point.subject, Roll(4, history=255), 12, TARGETS, 0) == []
    assert deal_rolls(point.label, {}, point.subject, Roll(4), 12, TARGETS, 0) == []
    assert deal_rolls(point.label, {}, point.subject, Roll(4, kind="repeated"), 12, TARGETS, 0) == []
    assert len(deal_rolls(point.label, {}, point.subject, Roll(4, unknown=0.0), 12, TARGETS, 0)[0].unknown) == 0


def test_rows_of_the_study_say_who_gains_and_who_loses(toy, tmp_path):
    found = document(tmp_path, roll=["plain", "foreign"])
    rows = rows_of(found)
    own, foreign = "4 classes, 50% unknown", "4 classes, 50% unknown, foreign"
    assert rows[own, "known classes"]["gain"]["mean"] > rows[own, "shares"]["gain"]["mean"] > 0.02
    assert rows[own, "majority control"]["gain"]["high"] < 0  # labels of another person
    assert rows[own, "majority control"]["people_who_lose"] > 0.3
    assert rows[foreign, "em"]["gain"]["mean"] < rows[own, "em"]["gain"]["mean"]
    assert rows[foreign, "em"]["lost"] > rows[own, "em"]["lost"]
    for row in rows.values():
        assert row["people"] == 2 * PEOPLE
        assert row["gain"]["mean"] == pytest.approx(row["gained"] - row["lost"])
        assert row["gain"]["mean"] == pytest.approx(row["accuracy"] - row["plain"])
        assert (row["changed"] > 0) == (row["method"] != "plain")
    assert rows[own, "plain"]["marked_by_plain"] > 0.05
    page = STUDIES["camera-roll"]
    header, lines = page.table(found)
    assert len(header) == len(lines[0])
    assert [line[header.index("cell")] for line in lines] == [foreign, own]  # the least gain of shares first
    assert "of 2 cells" in page.about(found)
    assert all(negative.text for negative in negatives(found))


def test_the_factor_changes_the_temperature_that_methods_use(toy, tmp_path):
    rows = rows_of(document(tmp_path, confidence=[0.33, 1.0, 3.0], method=["plain", "em"]))
    low, fitted, high = (
        rows[f"4 classes, 50% unknown{of}", "plain"] for of in (", temperature x 0.33", "", ", temperature x 3")
    )
    assert low["confidence"] > fitted["confidence"] > high["confidence"]
    assert low["accuracy"] == fitted["accuracy"] == high["accuracy"]
    assert fitted["ece"] < min(low["ece"], high["ece"])


def test_the_largest_logit_is_compared_with_the_largest_probability(toy, tmp_path, monkeypatch):
    point = toy_point()
    lower = point.logits - 100.0 * (point.label < 0)[:, None]  # of equal probabilities
    monkeypatch.setattr(camera_roll, "prepare", lambda *arguments: replace(point, logits=lower))
    row = rows_of(document(tmp_path))["4 classes, 50% unknown", "shares"]
    assert row["marked_by_score"] == 1.0
    assert row["marking_gain"]["mean"] == pytest.approx(1 - row["marked_by_plain"])
    assert row["marking_gain"]["low"] > 0


def test_a_threshold_marks_its_part_of_the_correct_answers():
    rng = np.random.default_rng(0)
    known, unknown, correct = rng.normal(1, 1, 4000), rng.normal(0, 1, 4000), rng.random(4000) < 0.8
    scores = Scores(known, correct, unknown)
    assert (known[correct] < scores.threshold()).mean() == pytest.approx(0.05, abs=0.001)
    assert scores.marked() == pytest.approx(0.26, abs=0.03)
    person = np.repeat(np.arange(40), 100)
    same = marking_gain(scores, scores, person, person)
    assert same["mean"] == same["low"] == same["high"] == 0
    worse = marking_gain(Scores(known, correct, unknown + 0.5), scores, person, person)
    assert worse["low"] < worse["mean"] < worse["high"] < 0


def test_em_answers_as_devices_did_when_the_protocol_was_written():
    kept = json.loads(Path(__file__).with_name("em_shares.json").read_text())
    for case in kept:
        rng = np.random.default_rng(7)
        base = rng.dirichlet(np.full(20, 5.0))
        shares = EmShares(EmSettings(temperature=1.3, base=tuple(base), support=case["support"]), 20)
        own, answers = rng.choice(20, 4, replace=False), {}
        for photo in range(400):
            logits = (rng.normal(size=20) * 1.5).round(3)
            if photo % 3:
                logits[rng.choice(own)] += 2
            answers[photo] = shares.answer(logits).logits
            shares.add(shares.row(logits))
        for golden in case["answers"]:
            assert np.allclose(answers[golden["photo"]], golden["logits"], atol=1e-5)


def test_parts_share_neither_photos_nor_known_classes():
    names = [f"class {number}" for number in range(31)]
    first, second = (deleted_classes(names, part) for part in points.PARTS)
    assert not {*names} - {*first} - {*second} - {*names}
    assert len(({*names} - {*first}) & ({*names} - {*second})) <= 1
    of = [part_of(f"photo {number}.jpg") for number in range(1000)]
    assert 450 < of.count("development") < 550
    assert deleted_classes(names, "development", 0.0) == []


def test_classes_of_other_sets_that_are_named_like_known_ones_are_found():
    for one, other in (("back_pack", "backpack, back pack, knapsack"), ("bottle", "beer bottle"), ("Lemon", "lemon")):
        assert is_named_alike(one, other)
        assert is_named_alike(other, one)
    for one, other in (("mug", "snail"), ("desk lamp", "desk chair"), ("pen", "pencil box, pencil case")):
        assert not is_named_alike(one, other)


def test_generated_photos_are_drawn_from_their_names():
    table = drawn_photos(10)
    assert [*np.bincount(table.label)] == [2] * len(KINDS)
    for name in table.photo.tolist():
        assert draw(name) == table.read(name)
        assert min(Image.open(io.BytesIO(draw(name))).size) >= 224
    assert len({draw(name) for name in table.photo.tolist()}) == 10


def test_bursts_are_of_near_copies(tiny_encoder, tmp_path):
    point = own_point(tiny_encoder, tmp_path, "development")
    people = deal_rolls(point.label, point.pools, point.subject, Roll(2, 0.5, roll="bursts", history=7), 4, 3, 0)
    more, changed = with_near_copies(point, people)
    assert len(changed) == 4
    for before, after in zip(people, changed, strict=True):
        assert (after.history[::3] == before.history[::3]).all()
        assert len({*after.history.tolist()}) == len(after.history) == len(before.history)
        assert (more.label[after.history] == point.label[before.history]).all()
        apart = np.linalg.norm(more.features[after.history] - point.features[before.history], axis=1)
        assert (apart[::3] == 0).all()
        assert (np.delete(apart, np.s_[::3]) > 0).all()
        assert np.allclose(more.logits[after.history][::3], point.logits[before.history][::3])
    first = draw("gradient-0000.png")
    copy = Image.open(io.BytesIO(near_copy(first, "a#0")))
    assert near_copy(first, "a#0") == near_copy(first, "a#0") != near_copy(first, "a#1")
    assert 0.89 < copy.width / Image.open(io.BytesIO(first)).width < 0.99


def test_a_burst_counts_once_and_a_photo_that_comes_again_later_twice():
    point = toy_point()
    (person,) = deal_rolls(point.label, point.pools, point.subject, Roll(4, roll="bursts"), 1, TARGETS, 0)
    once, singly = BurstsOnceMethod(point.knowledge), SharesMethod(point.knowledge)
    for method, rows in ((once, person.history), (singly, person.history[::3])):
        for row in rows.tolist():
            method.observe(point.features[row], point.logits[row])
    np.testing.assert_array_equal(once.state.estimate().shares, singly.state.estimate().shares)
    assert len(once.state) == len(person.history) / 3
    first, *others = person.history[::3].tolist()
    for row in [*others[:RECENT], first]:
        once.observe(point.features[row], point.logits[row])
    assert len(once.state) == len(person.history) / 3 + RECENT + 1


def test_settings_that_fit_no_set_are_errors(tmp_path):
    with pytest.raises(UsageError, match="--known A.zip"):
        RollSettings().sets("own")
    with pytest.raises(UsageError, match="em_x is none of plain"):
        read_experiment(FILE, ['grid.method=["em_x"]'])
    with pytest.raises(UsageError, match="unknown: from 0 to below 1"):
        read_experiment(FILE, ["grid.unknown=[1.0]"])


def make_photos(folder: Path, classes: list[str], each: int) -> None:
    """Write photos in a folder per class, each of one colour with noise."""
    rng = np.random.default_rng(len(classes))
    for name in classes:
        (folder / name).mkdir(parents=True)
        colour = rng.integers(0, 256, 3)
        for number in range(each):
            pixels = np.clip(colour + rng.normal(0, 12, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.png")


@pytest.fixture
def tiny_encoder(tmp_path, monkeypatch):
    """The encoder of all points is a small network with random weights."""
    made = create_backbone("test_resnet", None, GLYPH_PREPROCESSING)
    save_file(made.network.state_dict(), tmp_path / "weights.safetensors")
    monkeypatch.setattr(camera_roll, "published_backbone", lambda *arguments: made)
    monkeypatch.setattr(camera_roll, "weights_file", lambda *arguments: tmp_path / "weights.safetensors")
    return made


def test_photos_of_ones_own_go_through_the_command(tiny_encoder, tmp_path):
    make_photos(tmp_path / "mine", ["red cup", "blue cup", "shoe", "hat", "sofa", "tree"], 22)
    make_photos(tmp_path / "others", ["street", "cup", "sky"], 12)
    changes = {"classes": [2], "unknown": [0.5], "history": [3], "roll": ["plain"], "confidence": [1.0]}
    changes |= {"encoder": ["mobilenetv2"], "condition": ["same", "shifted"], "unknown_kind": ["mixed", "other photos"]}
    changes |= {"part": ["development", "confirmation"], "method": ["plain", "em"]}
    sets = [f"--set=grid.{axis}={json.dumps(values)}" for axis, values in changes.items()]
    sets += ["--set=settings.people=4", "--set=settings.targets=3", "--set=settings.generated=12", "--set=include=[]"]
    flags = ["--known", str(tmp_path / "mine"), "--unknown", str(tmp_path / "others"), "--seeds", "0"]
    run = tmp_path / "run"
    done = CliRunner().invoke(study_app, ["run", str(FILE), str(run), *flags, *sets], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads((run / "studies" / "camera-roll.json").read_text())
    assert {(row["data"], row["part"], row["unknown_kind"], row["method"]) for row in found["rows"]} == {
        ("own", part, kind, method)
        for part in changes["part"]
        for kind in changes["unknown_kind"]
        for method in changes["method"]
    }
    for point in found["points"]:
        assert len(point["deleted"]) == point["classes"] == 3
        assert {*point["unknown_photos"]} == {*points.KINDS}
    assert (run / "studies" / "camera-roll.md").read_text().startswith("##")


def own_point(encoder: Backbone, folder: Path, part: str) -> RollPoint:
    """Return the point of photos of one's own."""
    if not (folder / "mine").exists():
        make_photos(folder / "mine", ["red cup", "blue cup", "shoe", "hat", "sofa", "tree"], 22)
        make_photos(folder / "others", ["street", "cup", "sky"], 12)
    sets, limits = Sets(folder / "mine", (folder / "others",)), Limits(10, 100, 12)

    def fitted(fit: Any) -> tuple[np.ndarray, np.ndarray]:
        kept = fit()
        return kept["weight"].numpy(), kept["bias"].numpy()

    point = points.prepare_point(sets, limits, lambda: encoder, ("same", part, 0), folder / "features", fitted)
    assert point is not None
    return point


def test_photos_of_a_known_class_are_never_unknown(tiny_encoder, tmp_path):
    names = {}
    for part in points.PARTS:
        point = own_point(tiny_encoder, tmp_path, part)
        shown = point.names.tolist()
        for rows in point.pools.values():
            assert not any(f"/{name}/" in shown[row] for row in rows for name in (*point.classes, "cup"))
        for row in np.flatnonzero(point.label >= 0):
            assert f"/{point.classes[point.label[row]]}/" in shown[row]
        names[part] = {*shown}
    assert not names["development"] & names["confirmation"]


def test_flags_for_photo_sets_are_errors_of_a_study_without_them(tmp_path):
    with pytest.raises(UsageError, match="settings.known is unknown"):
        read_experiment(FILE.with_name("stream.toml"), ["settings.known=A.zip", 'grid.data=["own"]'])
