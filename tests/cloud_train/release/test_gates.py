"""Gates evaluate_gates people: what helps the mean and hurts somebody is stopped, and every gate says why."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from refocus.benchmarks.measure.accuracy import LabelledDataError, Photos
from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.release.evidence import judging_photos, measure, shares, shares_of_bank
from refocus.cloud_train.release.gates import (
    GATES,
    Evidence,
    GateLimits,
    accuracy,
    evaluate_gates,
    read_limits,
    worst_decile,
)
from refocus.edge.recognize.recognizer import Recognizer
from tests.tiny import taught

PEOPLE = 40


def evidence(**changes):
    """A candidate that is as good as the current release for everybody."""
    shares = np.linspace(0.5, 0.9, PEOPLE)
    same = Evidence(
        photos=np.full(PEOPLE, 32), current=shares, candidate=shares, plain=shares - 0.1, current_bytes=1000,
        candidate_bytes=1000, latency_ratio=(1.0, 0.98), parity={"encoder.onnx": True, "encoder.engine": None},
    )  # fmt: skip
    return dataclasses.replace(same, **changes)


def failed(found):
    return [gate.name for gate in found if not gate.passed]


def test_a_candidate_that_is_as_good_passes_every_gate():
    found = evaluate_gates(evidence(), GateLimits())
    assert len(found) == len(GATES) == 7
    assert failed(found) == []


def test_a_release_in_which_the_mean_improves_but_the_worst_decile_falls_is_stopped():
    current = evidence().current
    candidate = current + 0.05
    candidate[:4] -= 0.09  # the tenth that is served worst: 4 points less, all others 5 more
    found = {gate.name: gate for gate in evaluate_gates(evidence(candidate=candidate, plain=candidate), GateLimits())}
    assert found["accuracy"].value > 0.04
    assert found["accuracy"].passed
    assert not found["worst decile"].passed
    assert found["worst decile"].value == pytest.approx(-0.04)
    assert "FAILED: the worst served tenth of 40 people has" in str(found["worst decile"])
    assert failed(found.values()) == ["worst decile"]


def test_as_many_right_answers_as_before_are_no_loss_however_they_are_dealt():
    """Shares of odd numbers of photos are no binary fractions."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        photos = rng.integers(8, 33, PEOPLE)
        right = rng.binomial(photos - 2, 0.8) + 1
        moved = right + rng.permutation(np.resize([1, -1], PEOPLE))
        assert accuracy(evidence(photos=photos, current=right / photos, candidate=moved / photos), GateLimits()).passed


@pytest.mark.parametrize(("more", "passed"), [(0, True), (1, False)])
def test_a_loss_that_is_just_the_limit_passes_and_the_next_larger_one_does_not(more, passed):
    """Ten people of 100 photos, of whom one is served worst: one photo of a hundred, and ten of a thousand."""
    photos, right = np.full(10, 100), np.array([50] + [70] * 9)
    for gate, lost, limits in (
        (worst_decile, np.eye(10, dtype=int)[0], GateLimits(worst_decile_lost=0.01)),
        (accuracy, np.ones(10, dtype=int), GateLimits(accuracy_lost=0.01)),
    ):
        candidate = (right - lost - more * np.eye(10, dtype=int)[0]) / photos
        assert gate(evidence(photos=photos, current=right / photos, candidate=candidate), limits).passed == passed


def test_a_release_that_makes_many_people_worse_is_stopped_although_the_mean_improves():
    candidate = evidence().current + np.where(np.arange(PEOPLE) % 4 == 3, -0.06, 0.1)
    found = evaluate_gates(evidence(candidate=candidate, plain=candidate), GateLimits())
    assert failed(found) == ["made worse"]
    assert found[2].value == 0.25


def test_a_release_whose_history_hurts_somebody_is_stopped():
    plain = evidence().current.copy()
    plain[:3] += 0.06
    assert failed(evaluate_gates(evidence(plain=plain), GateLimits())) == ["never worse than the backbone"]


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"candidate": evidence().current - 0.002}, "accuracy", "at most 0.00% may be lost"),
        ({"candidate_bytes": 1101}, "size", "1.10 times the current release's 1000"),
        ({"latency_ratio": (1.4, 1.2)}, "latency", "1.40 times as long (1.20 at least)"),
        ({"parity": {"a.onnx": True, "b.onnx": False}}, "parity", "b.onnx does not"),
        ({"parity": {"a.engine": None}}, "parity", "0 of 0 programs that were run"),
    ],
)
def test_each_gate_stops_what_it_is_for_and_says_why(changes, name, words):
    found = evaluate_gates(evidence(**changes), GateLimits())
    assert failed(found) == [name]
    assert words in next(gate.why for gate in found if not gate.passed)


def test_noise_of_the_timer_stops_nobody():
    assert failed(evaluate_gates(evidence(latency_ratio=(1.2, 1.1)), GateLimits())) == []


def test_too_few_people_judge_nothing():
    few = evidence(photos=np.full(9, 32))
    with pytest.raises(ReleaseError, match="9 people are too few"):
        evaluate_gates(few, GateLimits())


def test_one_person_s_photos_have_no_interval():
    one = Evidence(*(np.full(1, value) for value in (32, 0.5, 0.5, 0.4)), latency_ratio=(1.0, 0.98))
    gate = evaluate_gates(one, GateLimits(least_people=1), [accuracy])[0]
    assert "(one person: no interval)" in gate.why


def test_streams_of_few_people_are_few_people(bundle, stream):
    """Two people with several streams each, as `--photos-per-person` makes them, are judged as two and not as six."""
    owners = {f"{name} {number}": name for name in ("anna", "ben") for number in range(3)}
    sizes = dict(zip(owners, (4, 1, 1, 2, 2, 2), strict=True))
    with Recognizer(bundle, threads=1) as recognizer:
        features = [recognizer.encode(content) for content in stream[:4]]
        right = [answer.labels[0] for answer in recognizer.replay(features)]
        wrong = next(label for label in bundle.manifest.head().labels if label not in right)
    people = {  # the longest stream is recognised, all others are not
        name: [(str(n), right[n] if name == "anna 0" else wrong) for n in range(size)] for name, size in sizes.items()
    }
    photos = Photos("photos", "0" * 64, people, lambda name: stream[int(name)], owners)
    found = measure(bundle, bundle, photos, rounds=64)
    assert found.photos.tolist() == [6, 6]
    assert found.current == pytest.approx([4 / 6, 0])
    with pytest.raises(ReleaseError, match="2 people are too few"):
        evaluate_gates(found, GateLimits(latency_ratio=10, least_people=3))


def test_photos_that_taught_either_bundle_judge_neither(bundle, stream, tmp_path):
    """The candidate learned from the first three, the current release from the third and fourth."""
    people = {"anna": [(str(n), "x") for n in range(3)], "ben": [(str(n), "x") for n in range(3, 6)]}
    photos = Photos("photos", "0" * 64, people, lambda name: stream[int(name)])
    current, candidate = taught(bundle, tmp_path / "a", stream[2:4]), taught(bundle, tmp_path / "b", stream[:3])
    left, lines = judging_photos(current, candidate, photos)
    assert left.people == {"ben": [("4", "x"), ("5", "x")]}
    assert lines == [
        "current: 2 of 6 photos taught the bundle and are left out",
        "candidate: 2 of 4 photos taught the bundle and are left out",
    ]
    assert "does not say which photos taught it" in judging_photos(bundle, bundle, photos)[1][1]
    everything = taught(bundle, tmp_path / "c", stream[:6])
    with pytest.raises(
        ReleaseError, match=r"no photo is left to judge by: candidate .*all 4 photos taught this bundle"
    ):
        judging_photos(current, everything, photos)


def test_the_gate_s_command_judges_no_photo_that_taught_the_candidate(refocus, bundle, stream, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = [f"{n}.png,{bundle.manifest.head().labels[0]},p{n}" for n in range(4)]
    (folder / "metadata.csv").write_text("\n".join(["file_name,label,client", *rows]))
    for number in range(4):
        (folder / f"{number}.png").write_bytes(stream[number])
    half, all_of_them = taught(bundle, tmp_path / "half", stream[:2]), taught(bundle, tmp_path / "all", stream[:4])
    done = refocus("release", "gate", bundle.folder, half.folder, folder)
    assert "candidate: 2 of 4 photos taught the bundle and are left out" in done.stderr
    assert "2 people are too few" in done.stderr
    done = refocus("release", "gate", bundle.folder, all_of_them.folder, folder)
    assert (done.returncode, "no photo is left to judge by" in done.stderr) == (1, True)


def test_limits_are_data(tmp_path):
    (tmp_path / "limits.toml").write_text("made_worse = 0.3\nlatency_ratio = 2.0\n")
    limits = read_limits(tmp_path / "limits.toml")
    assert (limits.made_worse, limits.latency_ratio, limits.size_ratio) == (0.3, 2.0, 1.1)
    (tmp_path / "limits.toml").write_text("made_worst = 0.3\n")
    with pytest.raises(ReleaseError, match="expected lines as 'made_worse = 0.1'"):
        read_limits(tmp_path / "limits.toml")


# A bank is judged as its owners meet it: batch after batch, without labels


def photos_of(contents, labels):
    """One person's photos; a photo may come again."""
    rows = [(str(number), label) for number, label in enumerate(labels)]
    return Photos("photos", "0" * 64, {"anna": rows}, lambda name: contents[int(name)])


@pytest.fixture
def generic(bank_bundle):
    """Photos, and what the bank's generic model says of each."""
    contents = [path.read_bytes() for path in sorted((bank_bundle.folder.parent / "parity").rglob("*.png"))]
    with Recognizer(bank_bundle, threads=1) as recognizer:
        return contents, [recognizer.recognize(content).labels[0] for content in contents]


def test_nothing_is_learned_from_a_batch_before_all_of_it_is_answered(bank_bundle, generic):
    contents, labels = generic
    assert len(set(labels)) > 1
    contents, labels = contents[:1] * 40, labels[:1] * 40  # an owner of one class: sure to convince, once it may
    other = next(label for label in generic[1] if label != labels[0])
    target = ("onnxruntime", "fp32")
    for told, plain in ((labels, 1.0), ([other] * 40, 0.0)):
        at_once = shares_of_bank(bank_bundle, photos_of(contents, told), target, batch=40)
        assert at_once.tolist() == [[plain, plain]]
        assert shares(bank_bundle, photos_of(contents, told), target)[0, 1] == plain


def test_a_label_that_the_bank_does_not_know_is_named(bank_bundle, generic):
    with pytest.raises(LabelledDataError, match="as 'unicorn'; 1 of them"):
        shares(bank_bundle, photos_of(generic[0], ["unicorn"]), ("onnxruntime", "fp32"))


@pytest.mark.slow
def test_two_real_bundles_are_measured_on_the_same_people(bundle, stream, updating, tmp_path):
    """Labels are the current release's own answers, so it is right everywhere, and a spoilt head is not."""
    spoilt = updating.variant(bundle, tmp_path / "spoilt", "head", "spoilt", noise=2.0)
    people = {f"person {n}": [f"{n * 2}", f"{n * 2 + 1}"] for n in range(10)}
    with Recognizer(bundle, threads=1) as recognizer:
        rows = {
            person: [
                (file, answer.labels[0])
                for file, answer in zip(files, recognizer.replay(recognizer.encode(stream[int(f)]) for f in files), strict=True)
            ]
            for person, files in people.items()
        }  # fmt: skip
    photos = Photos("stream", "0" * 64, rows, lambda name: stream[int(name)])
    found = measure(bundle, spoilt, photos, rounds=64)
    assert found.current.tolist() == [1.0] * 10
    assert found.candidate.mean() < 0.9
    assert found.current_bytes == pytest.approx(found.candidate_bytes, rel=0.01)
    assert 0.2 < found.latency_ratio[0] < 5
    assert "accuracy" in failed(evaluate_gates(found, GateLimits(latency_ratio=10)))
