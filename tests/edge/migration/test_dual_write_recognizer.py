"""A person is served while their model changes: two real bundles, real files, and the command."""

from __future__ import annotations

import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from refocus.edge.bundle.personal_weights import NewWeights
from refocus.edge.errors import BundleError, HistoryError, PhotoError, RefocusError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.history.rows import UNKNOWN_PATH
from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.migration.migration import Migration
from refocus.edge.personal.store import PersonalWeightStore
from refocus.edge.recognize.recognizer import Recognizer

SEEN = 20  # photos that the old bundle has seen when the new one arrives


@pytest.fixture
def files(stream, tmp_path):
    """One person's photos as files, in order."""
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(len(stream))]
    for path, content in zip(paths, stream, strict=True):
        path.write_bytes(content)
    return paths


def recognise(recognizer, paths):
    return [recognizer.recognize(path.read_bytes(), str(path)) for path in paths]


def alone(bundle, paths, folder):
    """The answers of a recogniser that never heard of another model."""
    with Recognizer(bundle, folder / "alone" / f"{bundle.manifest.name}.sqlite3") as recognizer:
        return recognise(recognizer, paths)


@pytest.fixture
def profile(bundle, files, tmp_path):
    path = tmp_path / "anna.history.sqlite3"
    with Recognizer(bundle, path) as recognizer:
        recognise(recognizer, files[:SEEN])
    return path


@pytest.fixture
def migrating(bundle, new_bundle, profile):
    with DualWriteRecognizer(Recognizer(bundle), Recognizer(new_bundle), profile) as opened:
        yield opened


def assert_same(answers, wanted):
    for answer, other in zip(answers, wanted, strict=True):
        np.testing.assert_allclose(answer.logits, other.logits, atol=1e-6)
        assert answer.history_photos == other.history_photos


def digests(paths):
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def held(migrating, side):
    """Identities of the photos of one history, oldest first."""
    model = migrating._models[side]
    return list(model.history.recall(model.space, 1000, model.width).photos)


def test_features_of_the_new_encoder_never_meet_the_old_head(migrating, bundle, new_bundle, files, tmp_path):
    """In each stage the answers are those of a model that was always alone."""
    old, new = alone(bundle, files, tmp_path), alone(new_bundle, files, tmp_path)
    assert max(np.abs(a.logits - b.logits).max() for a, b in zip(old, new, strict=True)) > 1e-3, "the bundles are alike"
    move = migrating.migration
    move.start()
    assert_same(recognise(migrating, files[SEEN : SEEN + 3]), old[SEEN : SEEN + 3])
    assert move.state.stage == "warming"
    move.step()
    assert move.state.stage == "switched"
    assert_same(recognise(migrating, files[SEEN + 3 : SEEN + 6]), new[SEEN + 3 : SEEN + 6])
    move.back()
    assert_same(recognise(migrating, files[SEEN + 6 : SEEN + 9]), old[SEEN + 6 : SEEN + 9])
    move.step()
    assert move.state.stage == "settled"
    assert_same(recognise(migrating, files[SEEN + 9 : SEEN + 12]), old[SEEN + 9 : SEEN + 12])


def test_after_the_finish_the_new_model_serves_as_if_it_always_had(migrating, new_bundle, files, tmp_path):
    new = alone(new_bundle, files, tmp_path)
    migrating.migration.start()
    migrating.migration.step()
    recognise(migrating, files[SEEN : SEEN + 3])
    migrating.migration.finish()
    assert_same(recognise(migrating, files[SEEN + 3 : SEEN + 6]), new[SEEN + 3 : SEEN + 6])
    assert (held(migrating, "old"), held(migrating, "new")) == ([], digests(files[: SEEN + 6]))


def test_photos_seen_during_a_move_are_in_both_histories_although_their_originals_are_gone(migrating, files):
    migrating.migration.start()
    recognise(migrating, files[SEEN : SEEN + 4])
    for path in files[SEEN : SEEN + 4]:
        path.unlink()
    migrating.migration.step()
    assert held(migrating, "new") == held(migrating, "old")
    assert len(held(migrating, "new")) == SEEN + 4


def test_a_photo_recognised_again_heals_the_history_that_lacks_it(migrating, files, stream):
    for path in files[:SEEN]:
        path.unlink()
    migrating.migration.start()
    migrating.migration.step()
    for number in (7, 3):
        migrating.recognize(stream[number], str(files[number]))
    wanted = [hashlib.sha256(stream[number]).hexdigest() for number in (3, 7)]
    assert held(migrating, "new") == wanted, "in the order of the old history"
    assert len(held(migrating, "old")) == SEEN


def test_a_photo_that_shall_not_be_remembered_is_in_neither_history(migrating, files):
    migrating.migration.start()
    migrating.recognize(files[SEEN].read_bytes(), remember=False)
    assert (len(held(migrating, "old")), held(migrating, "new")) == (SEEN, [])


@pytest.mark.parametrize("decision", ["switch", "back"])
def test_a_decision_of_another_process_counts_from_the_next_photo_on(decision, migrating, bundle, new_bundle, profile,
                                                                     files):  # fmt: skip
    migrating.migration.start()
    recognise(migrating, files[SEEN : SEEN + 1])
    with FeatureHistory(profile) as history:
        other = Migration(history, Recognizer(bundle), Recognizer(new_bundle))
        getattr(other, decision)()
        if decision == "back":
            other.step()
    assert migrating.serving.manifest.name == (new_bundle if decision == "switch" else bundle).manifest.name
    recognise(migrating, files[SEEN + 1 : SEEN + 2])
    assert held(migrating, "old") == digests(files[: SEEN + 2])
    assert held(migrating, "new") == (digests(files[SEEN : SEEN + 2]) if decision == "switch" else [])


def test_a_decision_made_while_a_photo_is_encoded_counts_for_it(migrating, bundle, new_bundle, profile, files,
                                                                monkeypatch):  # fmt: skip
    """Else a photo would come back into the history that was just erased."""
    migrating.migration.start()
    new, decided = migrating._models["new"], []

    def encode(content, where="photo"):
        if not decided:
            with FeatureHistory(profile) as history:
                other = Migration(history, Recognizer(bundle), Recognizer(new_bundle))
                other.back()
                other.step()
            decided.append(True)
        return Recognizer.encode(new, content, where)

    monkeypatch.setattr(new, "encode", encode)
    recognise(migrating, files[SEEN : SEEN + 1])
    assert decided
    assert held(migrating, "old") == digests(files[: SEEN + 1])
    assert held(migrating, "new") == []


def test_the_past_is_read_once_and_not_for_every_photo_of_a_move(migrating, files, monkeypatch):
    migrating.migration.start()
    past, restarts = migrating.serving._past, []
    restart = past.restart
    monkeypatch.setattr(past, "restart", lambda *given: (restarts.append(1), restart(*given)))
    recognise(migrating, files[SEEN : SEEN + 5])
    assert len(restarts) == 1


def test_two_bundles_of_one_feature_space_have_nothing_to_migrate(bundle, profile):
    old, new = Recognizer(bundle), Recognizer(bundle)
    with pytest.raises(BundleError, match="nothing to migrate"):
        DualWriteRecognizer(old, new, profile)
    assert old.history is None
    assert new.history is None


# ---- the command


@pytest.fixture
def migrate(refocus, bundle, new_bundle, profile, tmp_path):
    """Runs ``refocus migrate OLD NEW`` for anna."""
    old = shutil.copytree(bundle.folder, tmp_path / "old")

    def run(*words, new=new_bundle.folder, name="anna", **more):
        return refocus("migrate", old, new, "--profile", name, "--profiles", tmp_path, *words, **more)

    return run


def found(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_command_goes_there_and_back_and_there_for_good(assert_one_clear_line, migrate, files):
    files[4].unlink()
    assert found(migrate("--status", "--json"))["stage"] == "settled"
    assert_one_clear_line(migrate("--finish"), "the old model serves")
    text = migrate().stdout
    assert text.startswith("anna: switched; ")
    assert "Photos in the old history: 20, in the new one: 19" in text
    assert "1 photos are not where they were" in text
    assert "--back lets it serve again" in text
    back = found(migrate("--back", "--json"))
    assert (back["stage"], back["old"], back["new"]) == ("settled", 20, 0)
    there = found(migrate("--switch", "--json"))
    assert (there["stage"], there["new"], len(there["left_out"])) == ("switched", 19, 1)
    refused = migrate("--finish", input="n\n")
    assert refused.returncode == 1
    assert "erase the old history of 20 photos, 1 of which the new one does not hold?" in refused.stderr
    assert found(migrate("--status", "--json"))["stage"] == "switched"
    done = found(migrate("--finish", "--yes", "--json"))
    assert (done["stage"], done["old"], done["new"]) == ("finished", 0, 19)
    assert found(migrate("--json"))["stage"] == "finished"
    assert_one_clear_line(migrate("--back"), "rollback is impossible")


def test_a_command_that_was_given_little_time_goes_on_where_it_was(migrate):
    first = found(migrate("--seconds", "0.0001", "--json"))
    assert (first["stage"], first["new"]) == ("warming", 1)
    said = migrate("--status").stdout
    assert "19 photos are still to be computed" in said
    assert "the new bundle serves as soon as its history holds 15 photos" in said
    assert found(migrate("--json"))["new"] == 20


@pytest.mark.slow
def test_without_the_old_bundle_one_can_finish_but_not_go_back(assert_one_clear_line, migrate, tmp_path):
    assert found(migrate("--json"))["stage"] == "switched"
    shutil.rmtree(tmp_path / "old")
    assert_one_clear_line(migrate("--back"), "old is not a bundle")
    assert found(migrate("--status", "--json"))["stage"] == "switched"
    assert found(migrate("--finish", "--yes", "--json"))["stage"] == "finished"


@pytest.mark.slow
def test_going_back_asks_before_it_forgets_what_the_new_bundle_alone_has_seen(migrate, new_bundle, profile, files):
    found(migrate("--json"))
    with Recognizer(new_bundle, profile) as recognizer:
        recognise(recognizer, files[SEEN : SEEN + 2])
    files[SEEN].unlink()
    refused = migrate("--back", input="n\n")
    assert refused.returncode == 1
    assert "1 photos that the new bundle alone has seen" in refused.stderr
    assert found(migrate("--status", "--json"))["stage"] == "returning"
    done = found(migrate("--back", "--yes", "--json"))
    assert (done["stage"], done["old"]) == ("settled", SEEN + 1)


@pytest.mark.slow
def test_going_back_asks_before_it_forgets_a_photo_whose_file_was_changed(migrate, new_bundle, profile, files):
    found(migrate("--json"))
    with Recognizer(new_bundle, profile) as recognizer:
        recognise(recognizer, files[SEEN : SEEN + 2])
    files[SEEN].write_bytes(files[0].read_bytes())
    refused = migrate("--back", input="n\n")
    assert refused.returncode == 1
    assert "1 photos that the new bundle alone has seen are gone or were changed" in refused.stderr
    assert "not the photo that was there" in refused.stderr
    assert found(migrate("--status", "--json"))["new"] == SEEN + 2
    done = found(migrate("--back", "--yes", "--json"))
    assert (done["stage"], done["old"], done["new"]) == ("settled", SEEN + 1, 0)


# ---- a person with weights of their own


@pytest.fixture
def own(bundle, new_bundle, tmp_path):
    """Weights of anna and ben for the old bundle, and of carl for the new one: a network of their own."""
    store = PersonalWeightStore(tmp_path / "weights")
    one, other = (made.artifact("encoder", "onnxruntime") for made in (bundle, new_bundle))
    for name, model in (("anna", one), ("ben", one), ("carl", other)):
        store.put(name, model.sha256, NewWeights("whole", "test", file=new_bundle.folder / other.file))
    return store


@pytest.mark.parametrize("name", ["ben", "carl"])
def test_a_move_is_between_the_spaces_that_serve_a_person_with_weights(name, migrate, bundle, new_bundle, files, own,
                                                                       tmp_path):  # fmt: skip
    path = tmp_path / f"{name}.history.sqlite3"
    with Recognizer(bundle, path, weights=own) as recognizer:
        recognise(recognizer, files[:3])
    assert found(migrate("--json", name=name))["new"] == 3
    with Recognizer(new_bundle, path, weights=own) as recognizer:
        assert recognizer.history.count(recognizer.space) == 3
        recognise(recognizer, files[3:4])
    assert found(migrate("--back", "--json", name=name))["stage"] == "settled"
    with Recognizer(bundle, path, weights=own) as recognizer:
        assert recognizer.history.count(recognizer.space) == 4


def test_a_history_from_before_a_person_had_weights_moves_too(migrate, own, bundle, files, profile):
    assert found(migrate("--json"))["new"] == SEEN
    with Recognizer(bundle, profile, weights=own) as recognizer:
        recognise(recognizer, files[:1])
    done = found(migrate("--back", "--json"))
    assert (done["stage"], done["old"], done["new"]) == ("settled", SEEN, 0)


def test_one_bundle_takes_a_history_over_to_weights_that_came_later(migrate, own, bundle, files, profile):
    words = {"new": bundle.folder}
    assert found(migrate("--json", **words))["stage"] == "switched"
    with Recognizer(bundle, profile, weights=own) as recognizer:
        assert recognizer.history.count(recognizer.space) == SEEN
    done = found(migrate("--finish", "--yes", "--json", **words))
    assert (done["stage"], done["old"], done["new"]) == ("finished", 0, SEEN)
    assert "nothing to migrate" in migrate(**words).stdout


def test_both_histories_of_a_move_are_in_the_spaces_of_a_person_with_weights(bundle, new_bundle, files, own, tmp_path):
    path = tmp_path / "carl.history.sqlite3"
    models = [Recognizer(one, weights=own) for one in (bundle, new_bundle)]
    with DualWriteRecognizer(*models, path) as moving:
        moving.migration.start()
        moving.migration.switch()
        recognise(moving, files[:2])
        assert moving.serving.space != new_bundle.artifact("encoder", "onnxruntime").feature_space
        spaces = moving.serving.history.spaces()
        assert {space: found.count for space, found in spaces.items()} == {model.space: 2 for model in models}
        assert all(UNKNOWN_PATH not in moving.serving.history.numeric_paths(space) for space in spaces)


def test_damage_that_the_model_finds_that_does_not_serve_is_told_once(bundle, new_bundle, migrating, profile, files):
    migrating.migration.start()
    migrating.migration.switch()
    feature = held_features(migrating, "old")[2]
    migrating.close()
    content = bytearray(profile.read_bytes())
    content[content.find(feature.tobytes()) + 3] ^= 1
    profile.write_bytes(content)
    with DualWriteRecognizer(Recognizer(bundle), Recognizer(new_bundle), profile) as again:
        first, second = recognise(again, files[SEEN : SEEN + 2])
    assert "the file was damaged" in " ".join(first.notices)
    assert second.notices == ()


def held_features(migrating, side):
    model = migrating._models[side]
    return model.history.recall(model.space, 1000, model.width).features


def test_wrong_use_of_the_command_is_one_clear_line(assert_one_clear_line, migrate, bundle, tmp_path):
    assert_one_clear_line(migrate("--back", "--finish"), "exclude each other")
    assert_one_clear_line(migrate(name="ana"), "no such profile")
    assert "nothing to migrate" in migrate(new=bundle.folder).stdout
    shutil.rmtree(tmp_path / "old")
    assert_one_clear_line(migrate("--finish"), "old is not a bundle")


# ---- as a recogniser that serves alone


def test_a_path_an_image_and_bytes_are_one_photo_of_both_histories(migrating, files):
    migrating.migration.start()
    before = len(held(migrating, "old"))
    migrating.recognize(files[SEEN])
    assert migrating.serving.history.entries()[-1].name == str(files[SEEN].resolve())
    migrating.recognize(files[SEEN].read_bytes())
    with Image.open(files[SEEN + 1]) as image:
        migrating.recognize(image)
    assert len(held(migrating, "old")) == before + 2
    assert held(migrating, "new") == held(migrating, "old")[-2:]


def test_a_photo_that_the_coming_model_cannot_encode_is_answered_and_kept_for_the_one_that_serves(
    migrating, files, monkeypatch
):
    migrating.migration.start()

    def broken(*_):
        raise PhotoError("NaN")

    monkeypatch.setattr(migrating._models["new"], "encode", broken)
    answer = migrating.recognize(files[SEEN])
    assert answer.notices == ("the photo was not stored for the other model: NaN",)
    assert digests([files[SEEN]])[0] in held(migrating, "old")


def test_a_history_that_cannot_be_read_stops_no_photo(migrating, files, monkeypatch):
    migrating.migration.start()

    def unreadable(_):
        raise HistoryError("gone")

    monkeypatch.setattr(Migration, "state", property(unreadable))
    answer = migrating.recognize(files[SEEN])
    assert answer.notices == ("answered without the history, and not stored: gone",)


def test_another_thread_is_told_so(migrating, files):
    migrating.migration.start()
    with ThreadPoolExecutor(1) as pool, pytest.raises(RefocusError, match="used from another thread"):
        pool.submit(migrating.recognize, files[SEEN]).result()
