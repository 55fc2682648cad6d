"""A fleet of devices takes releases from a repository, recognises throughout, and sends back what hurts."""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from examples.fleet.device import Answered, News, read_log
from examples.fleet.fleet import Fleet, LoopbackServer, Owner, Pace
from examples.fleet.letters import CAPITALS, Collection, photos_of, write_collection, writers
from examples.fleet.report import fleet_page
from examples.fleet.rollout import Decision, RollOut, has_ended, roll_out
from examples.fleet.story import DeviceStory, End, ReleaseStory, Span, Story, story_of
from refocus.cloud_train.errors import ReleaseError
from refocus.cloud_train.release.keys import KeyRing
from refocus.cloud_train.release.repository import Repository
from refocus.cloud_train.release.stages import StopRule, Verdict, publish
from refocus.edge.update.device_state import Outcome, UpdateState
from refocus.edge.update.rules import Report, bucket

RULE = StopRule(returned=0.1, devices=2, confidence=1.0, false_stops=0.16)


@pytest.fixture
def repository(tmp_path):
    return Repository.create(tmp_path / "repository", KeyRing(tmp_path / "keys"), ["phone"])


@pytest.fixture
def server(repository):
    made = LoopbackServer(repository.folder)
    yield made
    made.close()


def get(url, start=0):
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.status, response.read()


def put(url, content):
    request = urllib.request.Request(url, data=content, method="PUT")
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.status


# ---- the server


def test_a_download_goes_on_where_it_was_cut(server, repository):
    root = repository.first_root
    assert get(f"{server.url}/metadata/1.root.json") == (200, root)
    assert get(f"{server.url}/metadata/1.root.json", 100) == (206, root[100:])


@pytest.mark.parametrize("path", ["../keys/root-1.pem", "metadata/../../keys/root-1.pem", "nothing", "metadata"])
def test_nothing_outside_the_repository_is_served(server, path):
    for way in (path, quote(path, safe="")):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{server.url}/{way}")


def test_later_counts_of_a_device_replace_its_earlier_ones(server):
    first, second = Report(identity="a" * 64, committed=1), Report(identity="a" * 64, returned=1)
    for name, report in (("x", first), ("y", first), ("x", second)):
        assert put(f"{server.url}/counts/{name}", msgspec.json.encode([report])) == 204
    assert sorted(server.reports(), key=lambda report: report.returned) == [first, second]


@pytest.mark.parametrize("content", [b"{", b'[{"identity": "short"}]', b'[{"committed": 1}]', b"[" * 70_000])
def test_counts_that_are_none_are_refused(server, content):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        put(f"{server.url}/counts/x", content)
    assert server.reports() == []


# ---- photos


def test_a_collection_knows_every_class_and_mixes_up_labels_of_teachers_alone(tmp_path):
    people = {"train": writers(["greek"], 3, 100), "test": writers(["latin"], 2, 200)}
    place = write_collection(tmp_path, Collection("autumn", people, 8, wrong_labels=0.5))
    rows = [line.split(",") for line in (place / "metadata.csv").read_text().splitlines()[1:]]
    assert {label for _, label, *_ in rows} == set(CAPITALS)
    truth = {person: list(photos_of(person, 8).values()) for split in people.values() for person in split}
    wrong = {"train": 0, "test": 0}
    for split, persons in people.items():
        for person in persons:
            entered = [label for _, label, client, *_ in rows if client == f"person-{person:05d}"]
            wrong[split] += sum(a != b for a, b in zip(entered, truth[person], strict=True))
    assert wrong["train"] > 4
    assert wrong["test"] == 0
    assert {script for *_, client, script, split in rows if split == "test"} == {"latin"}
    assert write_collection(tmp_path, Collection("autumn", people, 8)) == place, "it is not drawn again"


# ---- the roll-out


def test_a_device_is_waited_for_until_the_release_has_ended_there_and_has_settled():
    from datetime import datetime, timezone

    from refocus.edge.update.rules import File, Program, Release

    release = Release(
        number=2, name="x", files=(File(path="manifest.json", sha256="b" * 64, size_bytes=1),),
        programs=(Program(target="onnxruntime:fp32", min_version="1.20", feature_space="c" * 64),), manifest_schema=5,
        min_refocus="0.1.0", percent=50.0, published=datetime.now(timezone.utc),
    )  # fmt: skip
    name = next(name for name in map(str, range(99)) if bucket(name, release) < 50)
    other = next(name for name in map(str, range(99)) if bucket(name, release) >= 50)
    record = UpdateState(device=name, device_class="phone", url="")
    assert has_ended(msgspec.structs.replace(record, device=other), release), "it is not offered the release"
    assert not has_ended(record, release)
    ended = Outcome(number=2, identity=release.identity, outcome="refused")
    assert has_ended(msgspec.structs.replace(record, outcomes=(ended,)), release)
    assert not has_ended(msgspec.structs.replace(record, outcomes=(ended,), stage="trial"), release)


def test_a_device_that_ended_is_named(server, repository, tmp_path):
    fleet = Fleet(tmp_path / "devices", [Owner(1, labels=False, tells=False, photos=2)], server, b"no root", "phone")
    with fleet, pytest.raises(ReleaseError, match="the device owner-00001 ended"):
        (owner,) = fleet.owners
        fleet.kill(owner)
        fleet.wait(lambda record: record.active is not None, "waiting", 5)


def assert_recognised_throughout(fleet, began, ended):
    """From the first release on, every photo was answered, with no pause that an owner would notice."""
    for owner in fleet.owners:
        answers = [row for row in fleet.answers(owner) if began <= row.at <= ended]
        assert len(answers) > 10, owner
        assert [row.error for row in answers if row.error] == []
        assert max(b.at - a.at for a, b in itertools.pairwise(answers)) < 30, owner


@pytest.mark.slow
def test_a_release_that_hurts_on_devices_is_taken_back_while_they_recognise(repository, server, bundle, updating,
                                                                           tmp_path):  # fmt: skip
    """Two owners' photos show what is the matter; the third has too few, takes it, and gets its release back.

    One device loses its power meanwhile, and one owner lets nothing be told.
    """
    people = writers(["latin"], 3, 70_000)
    owners = [Owner(people[0], labels=True, tells=True, photos=40), Owner(people[1], labels=False, tells=True, photos=40),
              Owner(people[2], labels=False, tells=False, photos=6)]  # fmt: skip
    fleet = Fleet(tmp_path / "devices", owners, server, repository.first_root, "phone", Pace(photo_s=0.05, look_s=0.5))
    first = publish(repository, bundle.folder, "phone", 100).release
    began = time.time()
    with fleet:
        roll_out(repository, "phone", 1, fleet, server, (), RULE, 300)
        fleet.wait(lambda record: record.stage == "settled" and record.active is not None, "all have it", 300)
        while min(len(fleet.answers(owner)) for owner in owners) < 20:
            time.sleep(0.2)
        serving = time.time()
        hurts = updating.variant(bundle, tmp_path / "noise", "encoder", "noise", noise=0.4)
        publish(repository, hurts.folder, "phone", 99.9)  # who is offered it is a matter of hashes: nearly surely all
        fleet.kill(owners[0])
        fleet.start(owners[0])
        done = roll_out(repository, "phone", 2, fleet, server, (100,), RULE, 300, say=lambda line: None)
        ended = time.time()
    channel = repository.channel("phone")
    assert done.stopped
    assert "did not keep release 2" in channel.releases[1].withdrawn
    for owner, outcome in zip(owners, ("refused", "refused", "returned"), strict=True):
        record = fleet.records()[owner.name]
        assert (record.stage, record.active.identity) == ("settled", first.identity)
        assert record.outcomes[-1].outcome == outcome
    assert len(server.reports()) == 4, "two releases each, of the two whose owners let them"
    assert_recognised_throughout(fleet, serving, ended)
    story = story_of(fleet, channel, [ReleaseStory("spring", "noise", serving - began, 2)], began, ended)
    assert {span.release for span in story.devices[2].spans} == {1, 2}, "it was served by the release that hurt"
    page = fleet_page(story)
    assert "withdrawn" in page
    assert "taken back" in page


# ---- the report


def told(outcome="refused", release=2):
    devices = [
        DeviceStory("owner-1", "latin", True, True, [Span(1, 0, 5), Span(2, 5, 9)], [End(5, 2, "committed", "")],
                    {1: (10, 5), 2: (10, 9)}, 1.5, 4.0, []),
        DeviceStory("owner-2", "cyrillic", False, True, [Span(1, 0, 9)], [End(6, release, outcome, "<b>too slow</b>")],
                    {1: (20, 10)}, 2.5, 4.0, ["gone"]),
    ]  # fmt: skip
    return Story(9.0, 1.0, [], devices)


def test_the_report_counts_what_devices_wrote():
    story = told()
    assert story.share_right(1) == (30, 0.5)
    assert story.share_right(1, ["latin"]) == (10, 0.5)
    assert story.share_right(2) == (10, 0.9)
    assert story.share_right(3)[0] == 0
    assert "recognised 40 photos, 1 failed; the longest wait for an answer was 2.5 s" in story.summary()
    assert "1 committed, 1 refused, 0 returned" in story.summary()


def test_the_report_needs_nothing_else_and_escapes_what_devices_say():
    page = fleet_page(told())
    assert "&lt;b&gt;too slow" in page
    assert "<b>too slow" not in page
    assert not re.search(r"(src|href)=", page.replace("xmlns=", ""))
    assert json.loads(msgspec.json.encode(told()))["devices"][1]["ends"][0]["outcome"] == "refused"


def test_the_report_in_the_docs_is_of_the_figures_beside_it():
    folder = Path(__file__).parents[1] / "docs" / "results" / "pipeline-demo"
    story = msgspec.json.decode((folder / "fleet.json").read_bytes(), type=Story)
    assert fleet_page(story) == (folder / "report.html").read_text(encoding="utf-8")


def test_half_a_line_of_a_device_that_was_killed_is_left_out(tmp_path):
    whole = msgspec.json.encode(Answered(1.0, 2, 1, "latin capital letter a"))
    (tmp_path / "log").write_bytes(whole + b"\n" + whole[:9])
    assert [row.photo for row in read_log(tmp_path / "log", Answered)] == [2]
    assert read_log(tmp_path / "none", News) == []


def test_a_roll_out_says_why_it_was_stopped():
    stop = Decision(1.0, 40, 70, Verdict("stop", "5 of 8 devices did not keep it"))
    assert RollOut(2, 0, (stop,)).stopped == "5 of 8 devices did not keep it"
    assert RollOut(2, 40, (Decision(1.0, 40, 70, Verdict("go", "fine")),)).stopped == ""
    assert RollOut(1, 100, ()).stopped == ""
