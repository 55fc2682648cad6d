"""What is not a release's fault is never held against it, and nobody's trouble keeps the others from their update."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from refocus.edge.errors import BundleError, HistoryError, RefocusError, RuntimeUnavailable, UpdateError
from refocus.edge.history.feature_history import FeatureHistory
from refocus.edge.migration.dual_write_recognizer import DualWriteRecognizer
from refocus.edge.migration.stages import read_record
from refocus.edge.recognize.recognizer import Recognizer
from refocus.edge.update import serving as serving_module
from refocus.edge.update import trial
from refocus.edge.update.agent import UpdateAgent, adopt
from refocus.edge.update.canary import least_median
from refocus.edge.update.device_state import LONGEST_WAIT, Slot, Slots
from refocus.edge.update.profile_rollout import histories
from refocus.edge.update.repository import RepositoryClient
from refocus.edge.update.rules import MAX_RELEASES
from refocus.edge.update.serving import Serving
from refocus.edge.update.transitions import ATTEMPTS, ended, postponed
from tests.tiny import STORED

SLOW = pytest.mark.slow


@pytest.fixture
def device(fleet):
    return fleet.device()


@pytest.fixture
def anna(device):
    return device.settings.profiles / "anna.history.sqlite3"


def update(device):
    device.look()
    return device.run()


def taken(fleet, device, anna, bundle):
    """A device that has taken a second release, and serves with it."""
    fleet.publish(bundle)
    update(device)
    Serving(device.slots, device.settings, anna).close()
    assert device.slots.read().stage == "settled"


def damage(device, bundle, role, slot=None):
    """One bit of a file of the release that serves, or of another one."""
    file = device.slots.path(slot or device.slots.read().active) / bundle.artifact(role, "onnxruntime").file
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_change_while_a_release_is_opened_is_seen_with_the_next_photo(fleet, device, anna, other_head, stream,
                                                                       monkeypatch):  # fmt: skip
    taken(fleet, device, anna, other_head)
    read, changed = Slots.read, []

    def read_then_change(slots):
        record = read(slots)
        if not changed:
            changed.append(True)
            device.back("in between")
        return record

    monkeypatch.setattr(Slots, "read", read_then_change)
    with Serving(device.slots, device.settings, anna) as serving:
        serving.recognize(stream[0])
        assert serving.recognizer.manifest.name == "iciia_t"


def test_several_processes_that_open_a_release_on_trial_are_no_deaths(fleet, device, anna, other_head, monkeypatch):
    fleet.publish(other_head)
    assert update(device).stage == "trial"
    answer_all = serving_module.answer_all
    monkeypatch.setattr(serving_module, "answer_all", lambda *given: (time.sleep(0.3), answer_all(*given)))
    errors = []

    def serve(number):
        try:
            Serving(device.slots, device.settings, anna.with_name(f"{number}.history.sqlite3")).close()
        except RefocusError as error:
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(ATTEMPTS + 2)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)  # each sees what those before it have begun
    for thread in threads:
        thread.join()
    record = device.slots.read()
    assert (record.stage, record.active.number, errors) == ("settled", 2, [])


def test_settings_that_no_release_can_run_with_blame_none(fleet, device, anna, other_head):
    taken(fleet, device, anna, other_head)
    before = device.slots.read()
    with pytest.raises(BundleError, match="no encoder for coreml:fp16"):
        Serving(device.slots, fleet.settings(runtime="coreml", precision="fp16"), anna)
    assert device.slots.read() == before


def test_a_missing_runtime_is_not_the_releases_fault(fleet, device, other_head):
    fleet.publish(other_head)
    device.look()
    while device.slots.read().stage == "staging":
        device.step()
    without = UpdateAgent(device.slots, fleet.settings(runtime="tensorrt"))
    for _ in range(ATTEMPTS + 1):
        with pytest.raises(RuntimeUnavailable, match="tensorrt is missing"):
            without.run()
    assert device.run().active.number == 2


@pytest.mark.parametrize("role", ["head", "encoder"])
def test_a_damaged_release_is_healed_by_the_next_one(role, fleet, device, anna, bundle, other_head, other_encoder):
    damage(device, bundle, role)
    fleet.publish(other_encoder if role == "head" else other_head)
    assert update(device).active.number == 2


def test_damage_to_the_release_that_is_only_kept_stops_no_update(
    fleet, device, anna, bundle, other_head, other_encoder
):
    fleet.publish(other_encoder)
    update(device)
    device.switch()
    device.run()
    Serving(device.slots, device.settings, anna).close()
    damage(device, bundle, "head", device.slots.read().previous)
    fleet.publish(other_head)
    assert update(device).active.number == 3


def test_a_busy_moment_is_not_a_slow_release():
    noise = np.random.default_rng(0)
    busy = [least_median(noise.lognormal(np.log(1.0), 1.5, 10)) for _ in range(400)]
    slow = [least_median(noise.lognormal(np.log(3.0), 0.1, 10)) for _ in range(400)]
    assert sum(ratio > 2 for ratio in busy) < 2, "the ratio of two medians refuses one in eight"
    assert min(slow) > 2
    assert sum(np.median(noise.lognormal(0, 1.5, 10)) > 2 for _ in range(400)) > 20
    assert least_median(np.ones(3)) == 0.0


def test_a_release_given_up_for_a_return_is_taken_later(fleet, device, anna, other_head, other_encoder):
    taken(fleet, device, anna, other_head)
    fleet.publish(other_encoder)
    assert device.look() == "release 3 is to be fetched"
    device.back("the second hurts")
    record = device.run()
    assert (record.active.number, [o.number for o in record.outcomes if o.outcome == "refused"]) == (1, [])
    assert device.look() == "release 3 is to be fetched"


def test_a_bundle_that_came_with_the_device_gives_way_to_newer_releases_alone(fleet, other_head):
    fleet.publish(other_head, 1e-9)
    adopt(fleet.slots("fresh"), other_head.folder, fleet.settings("fresh"))
    assert fleet.device("fresh").look() == "up to date"


def test_a_history_of_a_forgotten_release_keeps_nobody_from_the_update(fleet, device, anna, other_encoder):
    with FeatureHistory(anna.with_name("bob.history.sqlite3")) as history:
        history.append("e" * 64, "f" * 64, np.ones(STORED, dtype=np.float32))
    fleet.publish(other_encoder)
    assert update(device).stage == "moving"
    device.switch()
    assert device.run().stage == "trial"
    assert "it holds photos of feature space eeeeeeeeeeee alone" in device.left_out["bob.history.sqlite3"]


def test_a_file_system_without_links_stores_shared_files_twice(fleet, device, anna, other_head, monkeypatch):
    def no_links(*_):
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    fleet.publish(other_head)
    assert update(device).active.number == 2
    assert len([path for path, _ in fleet.server.asked if path.startswith("targets/files/")]) == 2


def test_what_is_left_of_an_update_is_swept_while_nobody_else_works(device, monkeypatch):
    sweep, alone = Slots.sweep, []

    def seen(slots):
        with slots.working() as free:
            alone.append(not free)
        sweep(slots)

    monkeypatch.setattr(Slots, "sweep", seen)
    device.run()
    assert all(alone)


def test_offline_the_command_still_ends_what_needs_no_network(fleet, device, anna, other_head):
    from refocus.edge.commands.update import app

    taken(fleet, device, anna, other_head)
    device.back("it hurts")
    fleet.server.close()
    given = ["run", str(device.slots.folder), "--profiles", str(device.settings.profiles)]
    assert "cannot be reached" in str(CliRunner().invoke(app, given).exception)
    assert device.slots.read().stage == "settled"


def test_a_device_that_cannot_be_set_up_is_not_left_half_made(fleet, bundle, tmp_path):
    from refocus.edge.commands.update import app

    given = ["init", str(tmp_path / "new"), "--root", str(fleet.slots().folder / "root.json"), "--url", "http://h"]
    wrong = CliRunner().invoke(app, [*given, "--device-class", "Phone 7"])
    assert isinstance(wrong.exception, UpdateError)
    assert "--device-class Phone 7" in str(wrong.exception)
    newline = CliRunner().invoke(app, [*given, "--device-class", "phone\n"])
    assert isinstance(newline.exception, UpdateError)
    missing = CliRunner().invoke(app, [*given, "--device-class", "phone", "--bundle", str(tmp_path / "none")])
    assert "is not a bundle" in str(missing.exception)
    done = CliRunner().invoke(app, [*given, "--device-class", "phone", "--bundle", str(bundle.folder)])
    assert done.exit_code == 0, done.exception


def test_a_first_bundle_that_found_no_room_is_taken_when_the_command_is_given_again(
    fleet, bundle, tmp_path, monkeypatch
):
    from refocus.edge.commands.update import app

    given = ["init", str(tmp_path / "new"), "--root", str(fleet.slots().folder / "root.json"), "--url", "http://h",
             "--device-class", "phone", "--bundle", str(bundle.folder)]  # fmt: skip
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # writes beyond the limit fail as those to a full disk do
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        full = CliRunner().invoke(app, given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "make room or check the rights, and try again" in str(full.exception)
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.exception
    again = CliRunner().invoke(app, given)
    assert "is set up already" in str(again.exception)


def test_releases_that_were_refused_are_remembered_as_long_as_they_are_listed(device):
    record = device.slots.read()
    for number in range(MAX_RELEASES):
        slot = Slot(number=number, identity=f"{number:064x}", name="x", space="s")
        record = ended(record, slot, "refused", "no good")
    assert len(record.refused) == MAX_RELEASES


def test_what_another_system_leaves_beside_a_profile_is_none(tmp_path):
    (tmp_path / "anna.history.sqlite3").touch()
    (tmp_path / "._anna.history.sqlite3").touch()
    assert [path.name for path in histories(tmp_path)] == ["anna.history.sqlite3"]


# ---- what interrupts the tests of a release


def begin_test(fleet, device, bundle):
    """A device whose next step tests a release."""
    fleet.publish(bundle)
    device.look()
    while device.slots.read().stage == "staging":
        device.step()
    assert device.slots.read().stage == "testing"


@pytest.fixture
def isolated(fleet):
    """The device, as it is by default: its tests of releases run in a child process."""
    return fleet.device(isolated=True)


@pytest.fixture
def in_child(tmp_path, monkeypatch):
    """Lets every Python that starts from now on run some code when it imports onnxruntime."""

    def install(code):
        folder = tmp_path / "path"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(f"""
import builtins, os, signal, sys, time
real = builtins.__import__
def imported(name, *given, **more):
    if name == "onnxruntime":
        {code}
    return real(name, *given, **more)
builtins.__import__ = imported
""")
        monkeypatch.syspath_prepend(str(folder))

    return install


def test_a_release_that_crashes_each_time_is_refused_and_takes_nothing_with_it(fleet, isolated, anna, other_head,
                                                                               in_child):  # fmt: skip
    in_child("os.kill(os.getpid(), signal.SIGSEGV)")
    begin_test(fleet, isolated, other_head)
    assert isolated.run().stage == "settled"
    assert "it crashed in 3 of 3 tests (SIGSEGV" in isolated.slots.read().outcomes[-1].why
    assert isolated.look() == "up to date", "it is not tried again"


def test_kills_while_a_release_is_tested_do_not_refuse_it(fleet, isolated, anna, other_head, in_child, monkeypatch):
    in_child("os.kill(os.getpid(), signal.SIGKILL)")
    begin_test(fleet, isolated, other_head)
    for _ in range(ATTEMPTS):
        with pytest.raises(UpdateError, match="interrupted .*SIGKILL"):
            isolated.run()
    record = isolated.run()
    assert (record.stage, record.refused) == ("settled", {})
    assert "release 2 waits until" in isolated.look()
    monkeypatch.undo()
    (late,) = record.postponed.values()
    soon = msgspec.structs.replace(late, until=datetime.now(timezone.utc))
    isolated.slots.change(lambda now: msgspec.structs.replace(now, postponed=dict.fromkeys(now.postponed, soon)))
    assert update(isolated).active.number == 2
    Serving(isolated.slots, isolated.settings, anna).close()
    assert isolated.slots.read().postponed == {}


@pytest.mark.slow
def test_a_device_that_dies_while_it_tests_a_release_does_not_refuse_it(fleet, device, anna, other_head):
    begin_test(fleet, device, other_head)
    device.slots.change(lambda record: msgspec.structs.replace(record, attempts=ATTEMPTS))
    record = device.run()
    assert (record.stage, record.refused, len(record.postponed)) == ("settled", {}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["MemoryError()", "OSError(28, 'No space left on device')"])
def test_a_shortage_while_a_release_is_tested_does_not_refuse_it(error, fleet, isolated, anna, other_head, in_child,
                                                                 monkeypatch):  # fmt: skip
    in_child(f"raise {error}")
    begin_test(fleet, isolated, other_head)
    with pytest.raises(UpdateError, match="cannot be tested now"):
        isolated.run()
    monkeypatch.undo()
    assert isolated.run().active.number == 2


def test_ctrl_c_while_a_release_is_tested_counts_for_nothing(fleet, isolated, anna, other_head, in_child, monkeypatch):
    in_child("time.sleep(60)")
    begin_test(fleet, isolated, other_head)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            isolated.run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert isolated.slots.read().attempts == 0
    monkeypatch.undo()
    assert isolated.run().active.number == 2


@pytest.mark.slow
def test_a_test_that_never_ends_is_stopped_and_does_not_refuse_the_release(fleet, isolated, other_head, in_child,
                                                                           monkeypatch):  # fmt: skip
    in_child("time.sleep(60)")
    begin_test(fleet, isolated, other_head)
    monkeypatch.setattr("refocus.edge.update.trial.run", partial(trial.run, seconds=1.0))
    with pytest.raises(UpdateError, match="not done in 1 s"):
        isolated.run()
    assert isolated.slots.read().refused == {}


@pytest.mark.slow
def test_the_process_that_tests_a_release_ends_with_its_parent(fleet, isolated, other_head, tmp_path, in_child):
    in_child(f"open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid())); time.sleep(60)")
    begin_test(fleet, isolated, other_head)
    if (parent := os.fork()) == 0:
        try:
            isolated.run()
        finally:
            os._exit(1)
    until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    child = int((tmp_path / "child").read_text())
    until(lambda: not Path(f"/proc/{child}").exists() or "zombie" in Path(f"/proc/{child}/status").read_text())
    isolated.slots.change(lambda record: msgspec.structs.replace(record, attempts=0))


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_release_that_was_damaged_after_it_was_fetched_is_fetched_again(fleet, device, anna, other_head):
    begin_test(fleet, device, other_head)
    damage(device, other_head, "head", device.slots.read().candidate)
    with pytest.raises(UpdateError, match="was damaged on this device"):
        device.run()
    assert device.run().active.number == 2


@pytest.mark.slow
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), RuntimeError("std::bad_alloc")])
def test_what_interrupts_a_release_on_trial_does_not_refuse_it(error, fleet, device, anna, other_head, monkeypatch):
    fleet.publish(other_head)
    update(device)

    def interrupted(*_):
        raise error

    monkeypatch.setattr(serving_module, "answer_all", interrupted)
    try:
        Serving(device.slots, device.settings, anna).close()
    except KeyboardInterrupt:
        assert device.slots.read().attempts == 0
    assert device.slots.read().refused == {}


@pytest.mark.slow
def test_processes_that_end_while_they_try_a_release_postpone_it(fleet, device, anna, other_head):
    fleet.publish(other_head)
    update(device)
    device.slots.change(lambda record: msgspec.structs.replace(record, attempts=ATTEMPTS))
    with Serving(device.slots, device.settings, anna) as serving:
        assert serving.recognizer.manifest.name == "iciia_t"
    record = device.run()
    assert (record.active.number, record.refused, len(record.postponed)) == (1, {}, 1)
    assert "release 2 waits until" in device.look()


def test_a_wait_for_a_release_doubles_and_ends(device):
    record, slot = device.slots.read(), device.slots.read().active
    waits = []
    for _ in range(12):
        record = postponed(record, slot, "killed")
        waits.append(record.postponed[slot.identity].until - datetime.now(timezone.utc))
    assert waits[1] / waits[0] == pytest.approx(2, rel=0.01)
    assert max(waits) <= LONGEST_WAIT
    assert not record.postponed[slot.identity].waits(datetime.now(timezone.utc) - 2 * LONGEST_WAIT), "a wrong clock"


@pytest.mark.slow
def test_a_part_that_a_cut_download_left_in_a_folder_program_does_not_refuse_the_release(fleet, device, bundle,
                                                                                         updating, tmp_path):  # fmt: skip
    fleet.publish(updating.with_folder_program(bundle, tmp_path / "folder", "head"))
    device.look()
    device.step()
    (staging,) = device.slots.folder.glob("slots/*.staging")
    (staging / "head").mkdir(exist_ok=True)
    (staging / "head" / "left.onnx.part").write_bytes(b"half")
    record = device.run()
    assert record.active.number == 2
    assert not list(device.slots.path(record.active).rglob("*.part"))


# ---- one person's trouble


@pytest.fixture
def broken(anna):
    """A profile that cannot be read, first in the order."""
    path = anna.with_name("aaron.history.sqlite3")
    path.mkdir()
    return path


def space_of(profile, slot):
    with FeatureHistory(profile) as history:
        return history.count(slot.space)


def test_one_unreadable_profile_does_not_keep_the_others_from_moving(fleet, device, anna, broken, other_encoder):
    fleet.publish(other_encoder)
    device.look()
    device.run()
    device.switch()
    record = device.run()
    assert (record.active.number, record.refused) == (2, {})
    assert list(device.left_out) == [broken.name]
    with Serving(device.slots, device.settings, anna) as serving:
        assert serving.recognizer.manifest.name == "other encoder"


@pytest.mark.slow
def test_one_unreadable_profile_does_not_keep_the_others_from_coming_back(fleet, device, anna, broken, other_encoder):
    fleet.publish(other_encoder)
    update(device)
    device.switch()
    device.run()
    Serving(device.slots, device.settings, anna).close()
    before = space_of(anna, device.slots.read().previous)
    device.back("it hurts")
    record = device.run()
    assert (record.stage, record.active.number) == ("settled", 1)
    assert space_of(anna, record.active) == before == 1


@pytest.mark.slow
def test_one_unreadable_profile_does_not_keep_the_older_histories_from_making_place(fleet, device, anna, broken,
                                                                                    other_encoder, other_head):  # fmt: skip
    fleet.publish(other_encoder)
    update(device)
    device.switch()
    first = device.run().previous
    Serving(device.slots, device.settings, anna).close()
    fleet.publish(other_head)
    update(device)
    assert space_of(anna, first) == 0


@pytest.mark.slow
def test_who_was_left_out_of_a_move_moves_later(fleet, device, anna, other_encoder, tmp_path, stream):
    """The profile was away, as on a card that was pulled out, and comes back."""
    anna.rename(tmp_path / "away")
    anna.mkdir()
    fleet.publish(other_encoder)
    update(device)
    anna.rmdir()
    (tmp_path / "away").rename(anna)
    device.run()
    with Serving(device.slots, device.settings, anna) as serving:
        serving.recognize(stream[1])
        assert device.slots.read().stage == "settled"
        assert serving.recognizer.history.count(device.slots.read().previous.space) == 2
    device.run()
    with FeatureHistory(anna) as history:
        assert read_record(history)[1].new == device.slots.read().active.space


@pytest.mark.slow
def test_a_move_that_an_earlier_update_left_unfinished_is_ended_by_the_next(fleet, device, anna, other_encoder,
                                                                            updating, bundle, stream, tmp_path):  # fmt: skip
    fleet.publish(other_encoder)
    update(device)
    device.switch()
    device.run()
    with Serving(device.slots, device.settings, anna) as serving:
        serving.recognize(stream[1])
    device.slots.change(lambda record: msgspec.structs.replace(record, previous=None))  # and nobody told the profile
    fleet.publish(updating.variant(bundle, tmp_path / "third", "encoder", "third", seed=7))
    update(device)
    device.switch()
    record = device.run()
    assert (record.active.number, device.left_out) == (3, {})
    assert space_of(anna, record.previous) == 1
    with FeatureHistory(anna) as history:
        assert read_record(history)[1].new == record.active.space


@pytest.mark.slow
def test_a_full_disk_stops_the_move_and_leaves_nobody_out(fleet, device, anna, other_encoder, monkeypatch):
    fleet.publish(other_encoder)
    device.look()
    while device.slots.read().stage in ("staging", "testing"):
        device.step()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # writes beyond the limit fail as those to a full disk do
        resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, before[1]))
        with pytest.raises((HistoryError, UpdateError)):
            device.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert device.slots.read().stage == "moving"
    device.run()
    device.switch()
    assert device.run().active.number == 2


# ---- after an error an object works as before, or says that it is closed


def test_a_photo_after_a_failed_reopen_is_answered_with_the_history_and_remembered(fleet, device, anna, stream,
                                                                                   other_encoder):  # fmt: skip
    with Serving(device.slots, device.settings, anna) as serving:
        fleet.publish(other_encoder)
        update(device)
        away = anna.rename(anna.with_suffix(".away"))
        for left in anna.parent.glob(anna.name + "-*"):
            left.unlink()
        anna.mkdir()
        for _ in range(2):
            with pytest.raises(HistoryError):
                serving.recognize(stream[1])
        anna.rmdir()
        away.rename(anna)
        answer = serving.recognize(stream[1])
        assert len(answer.history_photos) == 1
        assert serving.recognizer.history.count(serving.recognizer.space) == 2


def test_a_closed_serving_says_so(device, anna, stream):
    serving = Serving(device.slots, device.settings, anna)
    serving.close()
    serving.close()
    for ask in (lambda: serving.recognize(stream[0]), lambda: serving.recognizer):
        with pytest.raises(RefocusError, match="is closed"):
            ask()


def test_a_record_that_is_gone_while_somebody_is_served_is_a_typed_error(device, anna, stream):
    record = device.slots.folder / "record.json"
    with Serving(device.slots, device.settings, anna) as serving:
        content = record.read_bytes()
        record.unlink()
        with pytest.raises(UpdateError, match="cannot be read"):
            serving.recognize(stream[0])
        record.write_bytes(content)
        assert serving.recognize(stream[0]).history_photos == ()
        assert serving.recognizer.history.count(serving.recognizer.space) == 1


def test_a_record_that_cannot_be_written_does_not_stop_a_release_on_trial_from_serving(fleet, device, anna, stream,
                                                                                      other_head):  # fmt: skip
    fleet.publish(other_head)
    update(device)
    (device.slots.folder / ".record.json.writing").mkdir()
    with Serving(device.slots, device.settings, anna) as serving:
        assert serving.recognize(stream[0]).labels
        assert serving.recognizer.manifest.name == "other head"
    assert device.slots.read().stage == "trial"
    (device.slots.folder / ".record.json.writing").rmdir()
    Serving(device.slots, device.settings, anna).close()
    assert device.slots.read().stage == "settled"


def test_serving_frees_the_programs_that_it_loaded(device, anna):
    serving = Serving(device.slots, device.settings, anna)
    recognizer = serving.recognizer
    programs = recognizer.head, recognizer.encoder
    serving.close()
    assert all(program.closed for program in programs)


@pytest.mark.slow
def test_an_update_frees_the_programs_that_it_loaded(fleet, device, anna, other_encoder):
    kept = []
    settings, load = device.settings, type(device.settings).recognizer

    class Watched(type(settings)):
        def recognizer(self, bundle, weights=None):
            kept.append(load(self, bundle, weights))
            return kept[-1]

    fleet.publish(other_encoder)
    watched = UpdateAgent(device.slots, Watched(settings.profiles, threads=1), device._repository)
    update(watched)
    assert kept
    assert all(recognizer._state == "closed" for recognizer in kept)


def test_a_recognizer_whose_switch_failed_answers_nobody_without_their_history(bundle, stream, tmp_path):
    broken = tmp_path / "bert.history.sqlite3"
    broken.mkdir()
    with Recognizer(bundle, tmp_path / "anna.history.sqlite3") as recognizer:
        recognizer.recognize(stream[0])
        with pytest.raises(HistoryError):
            recognizer.switch(broken)
        with pytest.raises(RefocusError, match="call switch first"):
            recognizer.recognize(stream[1])
        recognizer.switch(tmp_path / "anna.history.sqlite3")
        assert len(recognizer.recognize(stream[1]).history_photos) == 1


def test_a_closed_recognizer_says_so_whatever_it_is_asked(bundle, stream, tmp_path):
    recognizer = Recognizer(bundle, tmp_path / "anna.history.sqlite3")
    feature = recognizer.encode(stream[0])
    recognizer.close()
    recognizer.close()
    for ask in (lambda: recognizer.recognize(stream[0]), lambda: recognizer.encode(stream[0]),
                lambda: recognizer.switch(None), lambda: recognizer.answer_next(feature),
                lambda: list(recognizer.replay([feature])),
                lambda: recognizer.answer(feature, np.zeros((0, len(feature)), dtype=np.float32))):  # fmt: skip
        with pytest.raises(RefocusError, match="is closed"):
            ask()


def test_a_closed_migrating_recognizer_says_so(bundle, new_bundle, stream, tmp_path):
    migrating = DualWriteRecognizer(Recognizer(bundle), Recognizer(new_bundle), tmp_path / "anna.history.sqlite3")
    migrating.close()
    with pytest.raises(RefocusError, match="is closed"):
        migrating.recognize(stream[0])


# ---- servers that take their time


@pytest.mark.parametrize(
    "how", ["headers", pytest.param("body", marks=SLOW), pytest.param("interim answers", marks=SLOW)]
)
def test_a_server_cannot_hold_an_update_beyond_its_limits(how, fleet, device, other_head):
    fleet.publish(other_head)
    slots, limit = device.slots, 0.6
    slow = UpdateAgent(
        slots, device.settings, RepositoryClient(slots.folder / "m", fleet.server.url, slots.root, "phone", limit)
    )
    if how == "headers":
        fleet.server.trickle_headers = 0.1
    elif how == "body":
        fleet.server.trickle = 0.05
    else:
        fleet.server.endless = b"HTTP/1.1 100 Continue\r\n\r\n"
    began = time.monotonic()
    with pytest.raises(UpdateError, match="cannot be reached"):
        slow.look()
    assert time.monotonic() - began < 6 * limit
    fleet.server.trickle_headers, fleet.server.trickle, fleet.server.endless = 0.0, 0.0, b""
    assert "release 2" in slow.look()
    with contextlib.suppress(UpdateError):
        fleet.server.trickle_headers = 0.1
        slow.run()
    assert time.monotonic() - began < 12 * limit
