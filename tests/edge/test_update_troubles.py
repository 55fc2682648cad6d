"""What is not a release's fault is never held against it, and nobody's trouble keeps the others from their update."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from edge import serving as serving_module
from edge.errors import BundleError, HistoryError, RefocusError, RuntimeUnavailable, UpdateError
from edge.history import FeatureHistory
from edge.serving import Serving
from edge.shadow import least_median
from edge.slots import Slots
from edge.updates import ATTEMPTS, Updates, adopt


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
    without = Updates(device.slots, fleet.settings(runtime="tensorrt"))
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
        history.append("e" * 64, "f" * 64, np.ones(1292, dtype=np.float32))
    fleet.publish(other_encoder)
    assert update(device).stage == "moving"
    device.switch()
    assert device.run().stage == "trial"


def test_a_history_that_cannot_be_read_is_not_the_releases_fault(fleet, device, anna, other_head):
    broken = anna.with_name("bob.history.sqlite3")
    broken.mkdir()
    fleet.publish(other_head)
    device.look()
    for _ in range(ATTEMPTS + 1):
        with pytest.raises(HistoryError):
            device.run()
    broken.rmdir()
    assert device.run().active.number == 2


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
    from edge.update_commands import app

    taken(fleet, device, anna, other_head)
    device.back("it hurts")
    fleet.server.close()
    given = ["run", str(device.slots.folder), "--profiles", str(device.settings.profiles)]
    assert "cannot be reached" in str(CliRunner().invoke(app, given).exception)
    assert device.slots.read().stage == "settled"


def test_a_device_that_cannot_be_set_up_is_not_left_half_made(fleet, bundle, tmp_path):
    from edge.update_commands import app

    given = ["init", str(tmp_path / "new"), "--root", str(fleet.slots().folder / "root.json"), "--url", "http://h"]
    wrong = CliRunner().invoke(app, [*given, "--device-class", "Phone 7"])
    assert isinstance(wrong.exception, UpdateError)
    assert "--device-class Phone 7" in str(wrong.exception)
    missing = CliRunner().invoke(app, [*given, "--device-class", "phone", "--bundle", str(tmp_path / "none")])
    assert "is not a bundle" in str(missing.exception)
    done = CliRunner().invoke(app, [*given, "--device-class", "phone", "--bundle", str(bundle.folder)])
    assert done.exit_code == 0, done.exception
