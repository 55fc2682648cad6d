"""A move from one model to another, stage by stage. Models are numbers here; tests/edge/migration/test_dual_write_recognizer.py has real ones."""

from __future__ import annotations

import hashlib
import os
import sqlite3

import numpy as np
import pytest

from refocus.edge.errors import BundleError, HistoryError
from refocus.edge.files import printable
from refocus.edge.history import rows as placing
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.migration import Migration
from refocus.edge.migration.stages import SETTING, STAGES

D = 8
WINDOW = 4  # of the new head


class Numbers:
    """A model whose feature of photo n is n times its factor."""

    width, window = D, WINDOW

    def __init__(self, space, factor):
        self.space, self.factor = space, factor

    def encode(self, content, where="photo"):
        return np.full(D, self.factor * int(content), dtype=np.float32)


OLD, NEW, THIRD = Numbers("old space", 1), Numbers("new space", -1), Numbers("third space", 100)


class Person:
    """A profile, and photos in a folder."""

    def __init__(self, folder, **keeping):
        self.folder = folder
        self.history = FeatureHistory(folder / "p.sqlite3", **keeping)
        self.move = Migration(self.history, OLD, NEW)

    def file(self, number):
        return self.folder / f"{number}.jpg"

    def photo(self, number):
        return hashlib.sha256(str(number).encode()).hexdigest()

    def see(self, *numbers, by=(OLD,)):
        for number in numbers:
            content = str(number).encode()
            self.file(number).write_bytes(content)
            values = {model.space: self.history.value(model.encode(content)) for model in by}
            self.history.transaction(
                lambda database, bounds, values=values, number=number: placing.append(
                    database, bounds, self.photo(number), values, str(self.file(number))
                )
            )

    def lose(self, *numbers):
        for number in numbers:
            self.file(number).unlink()

    def numbers(self, model):
        """What a history holds, in order; every feature must be the model's own."""
        past = self.history.recall(model.space, 1000, D)
        found = [int(row[0] / model.factor) for row in past.features]
        assert list(past.photos) == [self.photo(number) for number in found]
        assert list(past.names) == [str(self.file(number)) for number in found]
        return found

    @property
    def stage(self):
        return self.move.state.stage

    @property
    def serves(self):
        return self.move.state.now.serves


@pytest.fixture
def person(tmp_path):
    """Ten photos seen by the old model."""
    made = Person(tmp_path)
    made.see(*range(1, 11))
    yield made
    made.history.close()


ALL = list(range(1, 11))


# ---- warming


def test_before_the_start_nothing_is_done(person):
    assert person.move.step() == 0
    assert (person.stage, person.serves, person.numbers(NEW)) == ("settled", "old", [])


def test_the_old_model_serves_until_the_new_history_is_warm(person):
    person.move.start()
    for computed in range(WINDOW):
        assert (person.stage, person.serves, len(person.numbers(NEW))) == ("warming", "old", computed)
        assert person.move.step(photos=1) == 1
    assert person.move.step(photos=1) == 1
    assert (person.stage, person.serves) == ("switched", "new")
    assert person.numbers(NEW) == [7, 8, 9, 10], "what the head looks back on comes first"


def test_after_the_switch_the_rest_of_the_history_follows_in_the_old_order(person):
    person.move.start()
    assert person.move.step() == 11
    assert person.numbers(NEW) == person.numbers(OLD) == ALL
    assert person.move.step() == 0


def test_a_history_shorter_than_the_window_is_warm_when_all_of_it_is_there(tmp_path):
    person = Person(tmp_path)
    person.see(1, 2)
    person.move.start()
    assert person.move.status().enough == 2
    person.move.step()
    assert (person.stage, person.numbers(NEW)) == ("switched", [1, 2])
    person.history.close()


def test_a_person_without_history_is_switched_at_once(tmp_path):
    person = Person(tmp_path)
    person.move.start()
    assert person.move.step() == 1
    assert person.stage == "switched"
    person.history.close()


def test_photos_that_arrive_while_warming_leave_no_hole_and_no_disorder(person):
    person.move.start()
    person.move.step(photos=2)
    person.see(11, 12, by=(OLD, NEW))
    person.see(13)  # by a process that knows nothing of the move
    person.move.step()
    assert person.numbers(NEW) == person.numbers(OLD) == [*ALL, 11, 12, 13]


def test_photos_that_the_new_model_saw_before_the_start_keep_their_place(person):
    person.see(11, by=(NEW,))
    person.see(12)
    person.move.start()
    person.move.step()
    assert person.numbers(NEW) == [*ALL, 11, 12]


def test_a_step_does_no_more_than_it_may(person):
    person.move.start()
    assert person.move.step(photos=2) == 2
    assert person.move.step(seconds=0) == 0
    assert len(person.numbers(NEW)) == 2


# ---- originals


def test_an_original_that_was_changed_is_not_taken_for_the_old_one(person):
    person.file(10).write_bytes(b"99")
    person.move.start()
    person.move.step()
    assert person.numbers(NEW) == ALL[:-1]
    assert "not the photo that was there" in person.move.left_out[person.photo(10)]


def test_missing_originals_are_left_out_and_found_again_when_they_are_back(person):
    person.lose(3, 9)
    person.move.start()
    person.move.step()
    assert person.numbers(NEW) == [1, 2, 4, 5, 6, 7, 8, 10]
    assert (person.move.status().lacking, person.move.status().without_original) == (0, 2)
    person.file(9).write_bytes(b"9")
    assert person.move.step() == 0
    person.move.start()
    person.move.step()
    assert person.numbers(NEW) == [1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_a_changed_original_is_not_told_to_be_still_computed(person):
    person.file(3).write_bytes(b"33")
    person.move.start()
    person.move.step()
    found = person.move.status()
    assert (found.lacking, found.without_original, found.old_alone) == (0, 0, 1)


def test_a_folder_of_frames_is_not_counted_as_lost(person):
    clip = person.folder / "clip"
    clip.mkdir()
    person.history.append(OLD.space, "a clip", np.full(D, 11, "f4"), str(clip))
    person.lose(3)
    person.move.start()
    assert (person.move.status().lacking, person.move.status().without_original) == (10, 1)


def test_a_photo_whose_place_was_never_known_is_left_out(person):
    for number, name in ((11, ""), (12, "no\0path")):
        person.history.append(OLD.space, person.photo(number), np.full(D, number, "f4"), name)
    person.move.start()
    person.move.step()
    assert person.numbers(NEW) == ALL
    assert len(person.move.left_out) == 2


def test_where_originals_are_gone_new_photos_make_it_warm(person):
    person.lose(*ALL[1:])
    person.move.start()
    person.move.step()
    for number in (11, 12, 13):
        assert (person.stage, person.serves) == ("warming", "old")
        person.see(number, by=(OLD, NEW))
        person.move.step()
    assert (person.stage, person.numbers(NEW)) == ("switched", [1, 11, 12, 13])


def test_the_owner_can_switch_before_it_is_warm(person):
    person.move.start()
    person.move.step(photos=1)
    person.move.switch()
    assert (person.serves, person.numbers(NEW)) == ("new", [10])
    person.move.step()
    assert person.numbers(NEW) == ALL


def test_a_photo_that_is_erased_while_warming_does_not_come_back(person):
    person.move.start()
    person.move.step(photos=1)  # 9 and the photos before it are looked up by now
    person.history.erase(person.photo(9))
    person.move.step()
    assert 9 not in person.numbers(NEW)


def test_a_damaged_row_is_not_taken_over(person):
    with sqlite3.connect(person.history.path) as other:
        other.execute("update feature set seal = x'00' where photo = ?", (person.photo(5),))
    other.close()
    person.move.start()
    person.move.step()
    assert 5 not in person.numbers(NEW)


# ---- back


def bytes_of(person):
    return b"".join(file.read_bytes() for file in person.folder.glob("p.sqlite3*"))


def test_going_back_while_warming_leaves_the_old_history_and_nothing_of_the_new(person):
    person.move.start()
    person.move.step(photos=3)
    assert NEW.encode(b"10").tobytes() in bytes_of(person)
    person.move.back()
    assert person.serves == "old"
    person.move.step()
    assert (person.stage, person.numbers(OLD), person.numbers(NEW)) == ("settled", ALL, [])
    assert NEW.encode(b"10").tobytes() not in bytes_of(person)
    assert OLD.encode(b"10").tobytes() in bytes_of(person)


def test_going_back_after_the_switch_finds_the_old_history_and_the_new_photos(person):
    person.move.start()
    person.move.step()
    person.see(11, by=(OLD, NEW))
    person.see(12, 13, by=(NEW,))  # by a process that knows nothing of the move
    person.move.back()
    assert (person.stage, person.serves) == ("returning", "old")
    assert person.numbers(OLD) == [*ALL, 11], "the old history serves at once"
    person.see(14, by=(OLD, NEW))
    person.move.step()
    assert (person.stage, person.numbers(OLD)) == ("settled", [*ALL, 11, 12, 13, 14])
    assert person.numbers(NEW) == []


def test_on_the_way_back_nothing_is_erased_before_the_caller_has_asked(person):
    person.move.start()
    person.move.step()
    person.see(11, 12, by=(NEW,))
    person.file(11).write_bytes(b"1111")
    person.move.back()
    person.move.step(leave=False)
    assert (person.stage, person.numbers(OLD), list(person.move.left_out)) == (
        "returning",
        [*ALL, 12],
        [person.photo(11)],
    )
    assert person.numbers(NEW) == [*ALL, 11, 12]
    person.move.step()
    assert (person.stage, person.numbers(NEW)) == ("settled", [])


def test_photos_of_the_new_model_alone_are_taken_back_though_no_move_was_begun(tmp_path):
    person = Person(tmp_path)
    person.move.adopt()
    assert person.stage == "settled", "nothing is stored"
    person.see(1, 2, by=(NEW,))
    person.move.adopt()
    assert (person.stage, person.serves) == ("switched", "new")
    person.move.back()
    person.move.step()
    assert (person.stage, person.numbers(OLD), person.numbers(NEW)) == ("settled", [1, 2], [])
    person.history.close()


def test_a_full_old_history_makes_room_for_photos_seen_since_as_if_it_had_served(tmp_path):
    person = Person(tmp_path, capacity=10)
    person.see(*ALL)
    person.move.start()
    person.move.step()
    person.see(11, 12, by=(NEW,))
    assert person.numbers(OLD) == ALL
    person.move.back()
    person.move.step()
    assert person.numbers(OLD) == [*ALL[2:], 11, 12]
    person.history.close()


def test_one_can_turn_forward_again_on_the_way_back(person):
    person.move.start()
    person.move.step()
    person.see(11, by=(NEW,))
    person.move.back()
    person.move.start()
    assert person.stage == "warming"
    person.move.step()
    assert (person.stage, person.numbers(NEW)) == ("switched", [*ALL, 11])


def test_turning_forward_and_back_again_loses_no_photo_that_the_new_model_saw_alone(person):
    person.move.start()
    person.move.step()
    person.see(11, by=(NEW,))
    person.move.back()
    person.move.start()
    person.move.back()
    person.move.step()
    assert (person.stage, person.numbers(OLD)) == ("settled", [*ALL, 11])


# ---- finish


def test_finishing_erases_the_old_history_for_good(person):
    person.move.start()
    person.move.step()
    person.move.finish()
    assert (person.stage, person.serves) == ("finished", "new")
    assert (person.numbers(OLD), person.numbers(NEW)) == ([], ALL)
    assert OLD.encode(b"10").tobytes() not in bytes_of(person)


@pytest.mark.parametrize("begin", [False, True])
def test_the_old_history_is_not_erased_while_it_serves(begin, person):
    if begin:
        person.move.start()
    with pytest.raises(HistoryError, match="the old model serves"):
        person.move.finish()
    assert person.numbers(OLD) == ALL


def test_after_the_finish_there_is_no_way_back(person):
    person.move.start()
    person.move.step()
    person.move.finish()
    with pytest.raises(HistoryError, match="rollback is impossible"):
        person.move.back()


def test_nothing_is_switched_that_was_not_started(person):
    with pytest.raises(HistoryError, match="start it first"):
        person.move.switch()


def test_bytes_that_another_process_still_reads_are_erased_at_the_next_step(person):
    person.move.start()
    person.move.step(photos=1)
    person.history._file._database.execute("pragma busy_timeout=50")
    reader = sqlite3.connect(person.history.path, isolation_level=None)
    reader.execute("begin")
    reader.execute("select * from feature").fetchone()
    person.move.back()
    with pytest.raises(HistoryError, match="still reads"):
        person.move.step()
    assert (person.stage, person.serves) == ("leaving", "old")
    reader.close()
    assert person.move.step() == 1
    assert person.stage == "settled"
    assert NEW.encode(b"10").tobytes() not in bytes_of(person)


# ---- every stage


def reach(person, stage):
    """Brings a person from settled to a stage."""
    move = person.move
    ways = {
        "settled": [],
        "warming": [move.start],
        "switched": [move.start, move.step],
        "returning": [move.start, move.step, move.back],
        "leaving": [move.start, move.back, lambda: move._move(move.state, "leaving")],
        "finishing": [move.start, move.step, lambda: move._move(move.state, "finishing")],
        "finished": [move.start, move.step, move.finish],
    }
    for do in ways[stage]:
        do()
    assert person.stage == stage


AFTER = {  # what each of the owner's decisions leads to, once its work is done; None: refused, and nothing changes
    "settled": {"start": "warming", "switch": None, "back": "settled", "finish": None},
    "warming": {"start": "warming", "switch": "switched", "back": "returning", "finish": None},
    "switched": {"start": "switched", "switch": "switched", "back": "returning", "finish": "finished"},
    "returning": {"start": "warming", "switch": None, "back": "returning", "finish": None},
    "leaving": {"start": "warming", "switch": None, "back": "leaving", "finish": None},
    "finishing": {"start": "finished", "switch": "finishing", "back": None, "finish": "finished"},
    "finished": {"start": "finished", "switch": "finished", "back": None, "finish": "finished"},
}


@pytest.mark.parametrize("decision", ["start", "switch", "back", "finish"])
@pytest.mark.parametrize("stage", STAGES)
def test_every_decision_in_every_stage_leads_where_it_should_and_twice_is_as_once(stage, decision, person):
    reach(person, stage)
    for _ in range(2):
        if AFTER[stage][decision] is None:
            with pytest.raises(HistoryError):
                getattr(person.move, decision)()
            assert person.stage == stage
        else:
            getattr(person.move, decision)()
            assert person.stage == AFTER[stage][decision]


@pytest.mark.parametrize("stage", STAGES)
def test_labels_and_settings_survive_every_transition(stage, person):
    person.history.set_label(person.photo(3), "a cat")
    person.history.set_setting("policy", "newest")
    reach(person, stage)
    person.move.step()
    assert person.history.labels() == {person.photo(3): "a cat"}
    settings = person.history.settings()
    settings.pop(SETTING, None)
    assert settings == {"policy": "newest"}


@pytest.mark.parametrize("stage", STAGES)
def test_a_process_that_starts_in_any_stage_finds_it(stage, person):
    reach(person, stage)
    with FeatureHistory(person.history.path) as history:
        other = Migration(history, OLD, NEW)
        assert other.status() == person.move.status()
        assert other.status().stage == stage


# ---- several at once


def test_two_processes_that_warm_at_once_compute_each_photo_and_one_switches(person):
    with FeatureHistory(person.history.path) as history:
        other = Migration(history, OLD, NEW)
        person.move.start()
        other.start()
        while person.move.step(photos=1) + other.step(photos=1):
            assert person.numbers(NEW) == person.numbers(OLD)[-len(person.numbers(NEW)) :]
        assert person.stage == other.state.stage == "switched"
    assert person.numbers(NEW) == ALL


@pytest.mark.parametrize(("meanwhile", "left"), [("back", []), ("switch", None)])
def test_what_was_computed_for_a_stage_that_is_over_is_not_stored(meanwhile, left, person):
    """The other process decides while this one encodes a photo."""
    person.move.start()
    with FeatureHistory(person.history.path) as history:

        class Meanwhile(Numbers):
            def encode(self, content, where="photo"):
                getattr(Migration(history, OLD, NEW), meanwhile)()
                return super().encode(content, where)

        slow = Migration(person.history, OLD, Meanwhile(NEW.space, NEW.factor))
        slow.step(photos=1)
    assert person.numbers(NEW) == []
    person.move.step()
    assert person.numbers(NEW) == (ALL if left is None else left)


def test_a_stage_that_somebody_else_has_just_changed_is_not_overwritten(person):
    person.move.start()
    before = person.move.state
    with FeatureHistory(person.history.path) as history:
        Migration(history, OLD, NEW).back()
    person.move._move(before, "switched")
    assert person.stage == "returning"


def test_a_photo_that_the_new_model_stores_while_its_history_is_about_to_go_is_still_taken_along(person, monkeypatch):
    person.move.start()
    person.move.step()
    person.move.back()
    move = person.move._move

    def just_before(*given, **more):
        monkeypatch.undo()
        person.see(11, by=(NEW,))
        move(*given, **more)

    monkeypatch.setattr(person.move, "_move", just_before)
    person.move.step()
    assert (person.stage, person.numbers(OLD), person.numbers(NEW)) == ("settled", [*ALL, 11], [])


# ---- which models


def test_one_feature_space_is_nothing_to_migrate(person):
    with pytest.raises(BundleError, match="nothing to migrate"):
        Migration(person.history, OLD, Numbers(OLD.space, 7))


def test_a_model_of_another_width_than_its_space_adds_nothing_and_deletes_nothing(person):
    person.see(11, 12, by=(OLD, NEW))
    wrong = Numbers(NEW.space, -1)
    wrong.encode = lambda content, where="photo": np.zeros(D + 1, dtype=np.float32)
    move = Migration(person.history, OLD, wrong)
    move.start()
    with pytest.raises(HistoryError, match="features of 8 numbers in this profile, expected 9"):
        move.step()
    assert (person.numbers(OLD), person.numbers(NEW)) == ([*ALL, 11, 12], [11, 12])


def test_a_third_model_waits_until_the_move_is_over(person):
    person.move.start()
    for pair in ((NEW, THIRD), (OLD, THIRD), (NEW, OLD)):
        with pytest.raises(HistoryError, match="on its way from feature space old space"):
            Migration(person.history, *pair).start()
    person.move.step()
    person.move.finish()
    third = Migration(person.history, NEW, THIRD)
    assert third.state.stage == "settled"
    third.start()
    third.step()
    assert (third.state.stage, person.numbers(THIRD)) == ("switched", ALL)


def test_a_finished_move_can_be_made_the_other_way_round(person):
    person.move.start()
    person.move.step()
    person.move.finish()
    again = Migration(person.history, NEW, OLD)
    again.start()
    again.step()
    assert (again.state.stage, person.numbers(OLD)) == ("switched", ALL)


def test_an_old_bundle_of_which_nothing_is_stored_is_refused(person):
    with pytest.raises(HistoryError, match="has nothing of feature space third space"):
        Migration(person.history, THIRD, NEW).start()


def test_a_move_that_a_newer_refocus_began_is_refused(person):
    person.history.set_setting(SETTING, '{"schema_version": 2, "stage": "warming", "old": "", "new": "", "enough": 0}')
    with pytest.raises(HistoryError, match="update refocus"):
        person.move.start()


def test_a_lost_stage_costs_nothing_but_a_new_start(person):
    person.move.start()
    person.move.step()
    with sqlite3.connect(person.history.path) as other:
        other.execute("update setting set seal = x'00'")
    other.close()
    assert (person.stage, person.serves) == ("settled", "old")
    person.move.start()
    person.move.step()
    assert (person.stage, person.numbers(OLD), person.numbers(NEW)) == ("switched", ALL, ALL)


# ---- bounds


def test_a_new_history_that_is_full_takes_no_more_and_the_old_one_stays_whole(person):
    with FeatureHistory(person.history.path, capacity=6) as history:
        move = Migration(history, OLD, NEW)
        move.start()
        move.step()
        assert move.state.stage == "switched"
    assert (person.numbers(OLD), person.numbers(NEW)) == (ALL, ALL[-6:])


class Keeps(Numbers):
    """A model that keeps so many photos, as one whose class shares count them does."""

    def __init__(self, space, factor, capacity):
        super().__init__(space, factor)
        self.capacity = capacity


def test_as_many_photos_move_as_the_new_model_keeps_whatever_the_file_was_opened_for(person):
    with FeatureHistory(person.history.path, capacity=3) as history:
        move = Migration(history, OLD, Keeps("new space", -1, 8))
        move.start()
        move.step()
    assert (person.numbers(OLD), person.numbers(NEW)) == (ALL, ALL[-8:])


def test_what_is_erased_for_good_is_counted_with_what_the_new_history_has_no_room_for(person):
    with FeatureHistory(person.history.path, capacity=6) as history:
        move = Migration(history, OLD, NEW)
        move.start()
        move.step()
        found = move.status()
    assert (found.lacking + found.without_original, found.old_alone) == (0, 4)


def test_going_back_under_smaller_bounds_evicts_a_photo_for_a_photo_and_no_more(person):
    person.move.start()
    person.move.step()
    person.see(11, by=(NEW,))
    with FeatureHistory(person.history.path, capacity=3) as history:
        move = Migration(history, OLD, NEW)
        move.back()
        move.step()
    assert person.numbers(OLD) == [*ALL[1:], 11]


@pytest.mark.parametrize("name", [b"caf\xe9.jpg", "z" * 300 + ".jpg"])
def test_a_photo_whose_name_is_not_utf8_or_too_long_stops_nobody(name, tmp_path):
    person = Person(tmp_path)
    person.see(1, 2)
    file = tmp_path / os.fsdecode(name)
    content = b"3"
    if isinstance(name, bytes):
        file.write_bytes(content)
    values = {OLD.space: person.history.value(OLD.encode(content))}
    person.history.transaction(
        lambda database, bounds: placing.append(database, bounds, person.photo(3), values, printable(file))
    )
    assert person.move.status().without_original == 0
    person.move.start()
    assert person.move.status().without_original == (0 if isinstance(name, bytes) else 1)
    person.move.step()
    assert person.history.count(NEW.space) == (3 if isinstance(name, bytes) else 2)
    person.history.close()


def test_the_new_history_never_pushes_out_the_old_one(person):
    with FeatureHistory(person.history.path, max_bytes=15 * 4 * D) as history:
        move = Migration(history, OLD, NEW)
        move.start()
        move.step()
    assert (person.numbers(OLD), person.numbers(NEW)) == (ALL, ALL[-5:])


def test_a_full_new_history_takes_back_nothing_that_it_gave_up(tmp_path):
    """Else computing would undo, photo by photo, what its eviction policy chose."""
    person = Person(tmp_path, capacity=10)
    person.see(*ALL)
    person.move.start()
    person.move.step()
    person.history.erase(person.photo(8), space=NEW.space)
    person.see(11, by=(OLD, NEW))
    person.move.step()
    assert person.numbers(NEW) == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11]
    person.history.close()


def test_a_long_history_with_a_gap_is_taken_over_in_order(tmp_path):
    person = Person(tmp_path, capacity=2000)
    person.see(*range(1, 301))
    person.lose(*range(100, 200))
    person.move.start()
    person.move.step()
    assert person.numbers(NEW) == [*range(1, 100), *range(200, 301)]
    person.history.close()


def test_a_move_is_begun_in_the_place_of_one_whose_models_are_gone(person):
    person.move.start()
    person.move.step()
    other = Migration(person.history, NEW, THIRD)
    with pytest.raises(HistoryError, match="finish that migration or go back first"):
        other.start()
    other.start_instead()
    other.step()
    assert (other.state.stage, person.numbers(THIRD), person.numbers(OLD)) == ("switched", ALL, ALL)
