"""Explanations say what an answer rests on, and nothing they cannot know."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from refocus.edge.recognize.explain import draw, explain, largest, save_picture
from refocus.edge.recognize.recognizer import Recognizer


@pytest.fixture
def photos(stream, tmp_path):
    paths = []
    for number, content in enumerate(stream[:12]):
        paths.append(tmp_path / f"letter-{number:02d}.png")
        paths[-1].write_bytes(content)
    return paths


@pytest.fixture
def explained(bundle, photos, tmp_path):
    with Recognizer(bundle, tmp_path / "p.sqlite3") as recognizer:
        for path in photos:
            answer = recognizer.recognize(path.read_bytes(), str(path))
        return answer, explain(answer, recognizer.card.labels, str(photos[-1]))


def test_weights_name_their_photos_heaviest_first_and_add_up_to_one(explained, photos):
    answer, explanation = explained
    weights = [attended.weight for attended in explanation.attended]
    assert weights == sorted(weights, reverse=True)
    assert sum(weights) + explanation.own_weight == pytest.approx(1, abs=1e-5)
    assert {attended.name for attended in explanation.attended} == {str(path) for path in photos[:-1]}
    by_name = {attended.name: attended.weight for attended in explanation.attended}
    assert [by_name[str(path)] for path in photos[:-1]] == answer.attention[:-1].tolist()


def test_the_three_rankings_are_those_of_the_three_answers(bundle, explained):
    answer, explanation = explained
    assert explanation.delivered[0][0] == answer.labels[0]
    assert explanation.plain[0][0] == bundle.manifest.head().labels[answer.plain_logits.argmax()]
    assert explanation.with_history[0][0] == bundle.manifest.head().labels[answer.calibrated_logits.argmax()]
    assert explanation.trust == answer.trust
    text = "\n".join(explanation.lines())
    assert "the photo alone" in text
    assert "itself" in text
    json.dumps(explanation.as_dict())


def test_a_photo_that_changed_since_is_an_empty_frame(explained, photos):
    _, explanation = explained
    before = np.asarray(draw([explanation]))
    first = next(path for path in photos if str(path) == explanation.attended[0].name)
    Image.new("RGB", (32, 32), "red").save(first)
    after = np.asarray(draw([explanation]))
    thumbnail = (slice(20, 90), slice(20, 90))
    assert not (after[thumbnail] == before[thumbnail]).all()
    assert (after[thumbnail] == 255).all()  # white, not red: it is another photo now


def test_a_photo_that_is_gone_or_damaged_does_not_stop_the_picture(explained, photos):
    _, explanation = explained
    for path in photos:
        path.unlink()
    assert draw([explanation, explanation]).height == 2 * draw([explanation]).height


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000, "no\0path", "\ud800"])
def test_a_photo_whose_name_is_no_path_does_not_stop_the_picture(explained, name):
    _, explanation = explained
    first = dataclasses.replace(explanation.attended[0], name=name)
    odd = dataclasses.replace(explanation, name=name, attended=(first, *explanation.attended[1:]))
    assert draw([odd]).size == draw([explanation]).size


def test_a_picture_is_written_whole_or_not_at_all(explained, tmp_path):
    _, explanation = explained
    save_picture([explanation], tmp_path / "why.png")
    with Image.open(tmp_path / "why.png") as picture:
        assert picture.size == draw([explanation]).size
    with pytest.raises(OSError, match="No such file"):
        save_picture([explanation], tmp_path / "nowhere" / "why.png")
    assert [path.name for path in tmp_path.glob("*why*")] == ["why.png"]


def test_the_command_explains_in_words_in_json_and_in_a_picture(refocus, bundle, photos, tmp_path):
    common = ("recognize", bundle.folder, *photos[:4], "--profiles", tmp_path / "p", "--explain")
    done = refocus(*common, "--out", tmp_path / "why.png")
    assert done.returncode == 0, done.stderr
    assert "no history yet" in done.stdout
    assert "letter-02.png" in done.stdout
    with Image.open(tmp_path / "why.png") as picture:
        assert picture.height > 400
    rows = json.loads(refocus(*common, "--json").stdout)
    assert [len(row["explanation"]["attended"]) for row in rows] == [0, 1, 2, 3]
    assert rows[3]["explanation"]["attended"][0].keys() == {"photo", "name", "weight"}


def test_a_picture_needs_explanations_and_a_name_that_says_png(refocus, bundle, photos, tmp_path):
    for words in (("--out", tmp_path / "why.png"), ("--explain", "--out", tmp_path / "why.txt")):
        done = refocus("recognize", bundle.folder, photos[0], "--profiles", tmp_path / "p", *words)
        assert done.returncode == 1
        assert "expected --explain and a file name that ends in .png" in done.stderr
        assert not (tmp_path / "p").exists()


def test_nothing_is_made_for_a_profile_that_is_only_read(refocus, bundle, photos, tmp_path):
    common = ("recognize", bundle.folder, photos[0], "--profiles", tmp_path / "p", "--no-remember")
    done = refocus(*common, "--profile", "ana")
    assert done.returncode == 1
    assert "--profile ana: no such profile" in done.stderr
    assert refocus(*common).returncode == 0
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("shares", "shown"),
    [([0.5, 0.3, 0.1, 0.1], "ab"), ([0.6, 0.4], "ab"), ([0.25, 0.25, 0.25, 0.25], ""), ([0.5, 0.3, 0.2], "abc")],
)
def test_a_class_is_left_out_only_where_no_photo_has_a_vote_for_it(shares, shown):
    assert "".join(label for label, _ in largest(np.array(shares), "abcd", 4)) == shown
