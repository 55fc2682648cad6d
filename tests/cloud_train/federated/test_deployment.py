"""The parts of a deployment that need no network: what a client keeps, whom the server asks, what either refuses."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from refocus.cloud_train.backbones.pretrain import GLYPH_PREPROCESSING
from refocus.cloud_train.commands.federate import read_classes
from refocus.cloud_train.data import glyphs
from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.evaluate.clients import kept_round
from refocus.cloud_train.federated.checkpoint import read_log
from refocus.cloud_train.federated.client import Recipe
from refocus.cloud_train.federated.client_data import own_client
from refocus.cloud_train.federated.deployment import kits
from refocus.cloud_train.federated.deployment.kits import Project, project_of, provision
from refocus.cloud_train.federated.deployment.plan import Plan, decode_plan, packed
from refocus.cloud_train.federated.deployment.processes import become_client
from refocus.cloud_train.federated.deployment.serve import _newcomers, serve
from refocus.cloud_train.federated.deployment.session import Deployment, place_of, run_session, save_deployment
from refocus.cloud_train.federated.deployment.site import Site
from refocus.cloud_train.federated.deployment.sites import SiteConfig, check_kit, check_photos, own_photos
from refocus.cloud_train.federated.deployment.watch import Watch
from refocus.cloud_train.federated.deployment.wire import Stalled, Wire, checked
from refocus.cloud_train.federated.methods import PeftSizes
from refocus.cloud_train.federated.run import FederatedConfig, FederatedRun, Rates
from refocus.cloud_train.locks import one_at_a_time
from refocus.cloud_train.runs.folder import same_inputs, save_settings
from refocus.edge.errors import RefocusError
from refocus.edge.files import file_sha256

NETWORK = dict(img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=2)
RATES = Rates(0.25, 0.01)
CONTRACT = msgspec.structs.replace(GLYPH_PREPROCESSING, resize_shorter=16, crop=16)


class Party:
    """Clients who are asked in this process, by the same messages; any of them may be away."""

    def __init__(self, folder, run) -> None:
        people = {client.name: client for client in run.clients.members}
        self.sites = {name: Site(name, folder / name, lambda _, name=name: people[name]) for name in people}
        self.away: set[str] = set()
        self.busy: set[str] = set()
        self.asked: list[tuple[str, str]] = []

    def __call__(self, method, arguments, timeout):
        self.asked += [(method, name) for name in arguments]
        failed = {name: "silent" for name in arguments if name in self.away}
        if method == "status":
            return {name: {"busy": name in self.busy} for name in arguments if name not in failed}, failed
        failed |= {name: "timed out" for name in arguments if name in self.busy}
        return {name: self._answer(name, method, own) for name, own in arguments.items() if name not in failed}, failed

    def _answer(self, name, method, own):
        try:
            found = getattr(self.sites[name], method)(**own)
        except RefocusError as error:
            return {"refused": type(error).__name__}
        return {"answer": dict(zip(("tensors", "photos"), found, strict=True)) if method == "train" else found}


@pytest.fixture
def simulated(tmp_path):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 6, 90)
    photos = (40 * label[:, None, None, None] + rng.integers(0, 9, (90, 16, 16, 3))).astype(np.uint8)
    np.savez(tmp_path / "all.npz", x=photos, y=label, client=np.arange(90) % 3)
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", num_classes=len(glyphs.CLASSES), **NETWORK)
    save_file(network.state_dict(), tmp_path / "vit.safetensors")
    return FederatedRun(tmp_path / "run", FederatedConfig(
        source=str(tmp_path / "all.npz"), unseen=0.0, backbone="vit_tiny_patch16_224", arguments=NETWORK,
        checkpoint=str(tmp_path / "vit.safetensors"), recipe=replace(Recipe(), rounds=3, sizes=PeftSizes(prompts=3)),
    ))  # fmt: skip


def deploy(folder, simulated, method="pfedpg", rates=RATES, **more):
    names = tuple(client.name for client in simulated.clients.members)
    FederatedRun(folder, replace(simulated.config, source="", classes=simulated.classes))
    save_deployment(folder, Deployment(method, 0, rates, names, **more))
    return folder, names


@pytest.mark.parametrize(("method", "rates"), [("pfedpg", RATES), ("fedrep", Rates(0.05)), ("head", Rates(0.25))])
def test_messages_and_states_on_disk_change_no_number(method, rates, simulated, tmp_path):
    expected = simulated.result(method, 0, rates)
    folder, names = deploy(tmp_path / "deployed", simulated, method, rates)
    run_session(folder, names, Party(tmp_path / "sites", simulated))
    found = msgspec.json.decode((place_of(folder) / "result.json").read_bytes())
    assert found["members"] == expected["members"]
    for log in (found["log"], expected["log"]):
        for record in log:
            for said_here in ("seconds", "steps", "loss", "accuracy"):  # the last three in the simulation alone
                record.pop(said_here, None)
    assert found["log"] == expected["log"]


def test_the_kept_round_is_noted_and_earlier_documents_kept_their_last(simulated, tmp_path):
    folder, names = deploy(tmp_path / "deployed", simulated, "head", Rates(0.25))
    run_session(folder, names, Party(tmp_path / "sites", simulated))
    result = json.loads((place_of(folder) / "result.json").read_text())
    assert kept_round(result | {"kept_round": 2}) == 2
    assert result.pop("kept_round") == kept_round(result) == 3


def test_a_round_that_is_asked_again_starts_where_the_round_before_ended(simulated, tmp_path):
    folder, names = deploy(tmp_path / "deployed", simulated, "fedrep", Rates(0.05))
    party = Party(tmp_path / "sites", simulated)
    run_session(folder, names, party)
    (kept,) = (tmp_path / "sites" / names[0]).glob("*/rounds")
    assert sorted(path.name for path in kept.iterdir()) == ["000002.safetensors", "000003.safetensors"]
    site, payload = party.sites[names[0]], packed(site_payload(folder))
    assert site.train(3, payload) == site.train(3, payload)
    assert site.train(2, payload)[0] != site.train(3, payload)[0]


def test_a_client_whose_last_file_is_damaged_goes_on_from_the_one_before_and_names_it(simulated, tmp_path, monkeypatch):
    folder, names = deploy(tmp_path / "deployed", simulated, "fedrep", Rates(0.05))
    party, said = Party(tmp_path / "sites", simulated), []
    run_session(folder, names, party)
    (kept,) = (tmp_path / "sites" / names[0]).glob("*/rounds")
    monkeypatch.setattr("refocus.cloud_train.federated.deployment.site.say", said.append)
    payload, site = packed(site_payload(folder)), party.sites[names[0]]
    os.truncate(kept / "000003.safetensors", 20)
    site.train(4, payload)
    assert said[0].startswith(f"{kept / '000003.safetensors'} is damaged")
    for path in kept.iterdir():
        os.truncate(path, 20)
    with pytest.raises(DataError, match=f"{kept}: no file can be read; remove the folder"):
        site.train(5, payload)


def site_payload(folder):
    run = FederatedRun(folder)
    participant = run.participant("fedrep", 0, Rates(0.05))
    return participant.server([], run.recipe(Rates(0.05))).payload("")


def test_a_client_that_comes_back_takes_part_again_and_one_that_is_late_is_left_alone(simulated, tmp_path):
    folder, names = deploy(tmp_path / "deployed", simulated)
    place, party = place_of(folder), Party(tmp_path / "sites", simulated)
    party.busy.add(names[0])
    wire = Wire(party, names)
    wire.late[names[0]] = "timed out"
    assert wire.free() == [*names[1:]]
    party.busy.clear()
    assert wire.free() == [*names]
    party.away.add(names[1])
    run_session(folder, names, party)
    log = read_log(place)
    assert [record["clients"] for record in log] == [2, 2, 2]
    assert {tuple(record["absent"]) for record in log} == {(names[1],)}
    session = msgspec.json.decode((place / "session.json").read_bytes())
    assert set(session["lost"]) == {names[1]}
    since = session["lost"][names[1]]
    assert _newcomers({names[1]: since - 1, names[0]: since + 1}, session) == []
    assert _newcomers({names[1]: since + 1}, session) == [names[1]]
    assert _newcomers({"somebody else": 0.0}, session) == ["somebody else"]


def test_a_round_without_enough_clients_does_not_count(simulated, tmp_path):
    folder, names = deploy(tmp_path / "deployed", simulated, fewest=3)
    place, party = place_of(folder), Party(tmp_path / "sites", simulated)
    party.away.add(names[2])
    run_session(folder, names, party)
    assert read_log(place) == []
    assert "2 clients answer, 3 are needed" in msgspec.json.decode((place / "session.json").read_bytes())["stalled"]
    party.away.clear()
    run_session(folder, names, party)
    assert len(read_log(place)) == 3


def test_a_round_that_cannot_be_kept_is_named_and_the_training_goes_on_when_it_can(simulated, tmp_path):
    expected = simulated.result("fedavg", 0, Rates(0.05))
    folder, names = deploy(tmp_path / "deployed", simulated, "fedavg", Rates(0.05))
    party, place = Party(tmp_path / "sites", simulated), place_of(folder)
    place.mkdir(parents=True)
    (place / "server").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="File exists"):
        run_session(folder, names, party)
    session = json.loads((place / "session.json").read_text())
    assert session["over"]
    assert session["failed"] == f"{place / 'server'}: File exists"
    (place / "server").unlink()
    run_session(folder, names, party)
    assert json.loads((place / "session.json").read_text())["failed"] == ""
    assert json.loads((place / "result.json").read_text())["members"] == expected["members"]


def test_a_session_ends_between_two_rounds_when_it_is_asked_to(simulated, tmp_path, caplog):
    caplog.set_level("INFO", "refocus")
    folder, names = deploy(tmp_path / "deployed", simulated)
    place, party = place_of(folder), Party(tmp_path / "sites", simulated)

    def ask(method, arguments, timeout):
        if method == "train" and arguments[names[0]]["number"] == 2:
            (place / "regroup").touch()
        return party(method, arguments, timeout)

    with Watch(place, 3) as watch:
        run_session(folder, names, ask)
        assert watch.look() == 2
        run_session(folder, names, party)
        assert watch.look() == 3
    assert [line.split("  ")[0] for line in caplog.messages if line.startswith("round")] == [
        "round 1",
        "round 2",
        "round 3",
    ]


def test_a_terminal_gets_a_bar_and_a_table_of_rounds(simulated, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    folder, names = deploy(tmp_path / "deployed", simulated)
    party, terminal = Party(tmp_path / "sites", simulated), Terminal()
    party.away.add(names[2])
    run_session(folder, names, party)
    monkeypatch.setattr(sys, "stderr", terminal)
    logging.getLogger("refocus").setLevel("INFO")
    monkeypatch.setenv("COLUMNS", "120")
    with Watch(place_of(folder), 3) as watch:
        watch.look()
    shown = terminal.getvalue()
    assert all(word in shown for word in ("bytes down", "validation", "client-0002", "3/3", "280"))


def test_a_training_goes_on_with_the_clients_that_it_began_with(simulated, tmp_path):
    folder, names = deploy(tmp_path / "deployed", simulated)
    assert save_deployment(folder, Deployment("pfedpg", 0, RATES, (*names, "later"))).clients == names


def test_a_server_that_cannot_begin_leaves_no_folder_that_refuses_the_corrected_command(simulated, tmp_path):
    (tmp_path / "server").mkdir()
    save_settings(tmp_path / "server" / "project.json", Project("localhost", 1, ("a", "b")))
    config = replace(simulated.config, source="", classes=simulated.classes, backbone="resnet10t", arguments={},
                     checkpoint="", scratch=True)  # fmt: skip
    with pytest.raises(UsageError, match="need a vision transformer"):
        serve(tmp_path / "server", tmp_path / "deployed", config, Deployment("pfedpg", 0, RATES, ()), 1.0)
    assert not (tmp_path / "deployed").exists()


def test_a_training_does_not_go_on_from_another_checkpoint_at_the_same_place(simulated, tmp_path):
    folder, names = deploy(tmp_path / "deployed", simulated)
    checkpoint = Path(simulated.config.checkpoint)
    same_inputs(folder, {"checkpoint": file_sha256(checkpoint)})
    place_of(folder).mkdir(parents=True)
    (tmp_path / "server").mkdir()
    save_settings(tmp_path / "server" / "project.json", Project("localhost", 1, names))
    save_file({name: value + 1 for name, value in load_file(checkpoint).items()}, checkpoint)
    config = replace(simulated.config, source="", classes=simulated.classes)
    with pytest.raises(DataError, match="was started on other checkpoint"):
        serve(tmp_path / "server", folder, config, Deployment("pfedpg", 0, RATES, ()), 1.0)


def test_a_training_in_the_same_place_with_other_settings_is_refused(simulated, tmp_path):
    deploy(tmp_path / "deployed", simulated)
    with pytest.raises(UsageError, match="holds a run with other settings"):
        deploy(tmp_path / "deployed", simulated, "fedrep", Rates(0.05))


def test_a_reply_that_would_spoil_what_all_share_is_not_taken():
    given = {"a": torch.zeros(2, 3)}
    assert checked({"tensors": packed({"a": torch.ones(2, 3)}), "photos": 4}, given).photos == 4
    for spoilt in ({"a": torch.zeros(3, 2)}, {"b": torch.zeros(2, 3)}, {"a": torch.zeros(2, 3, dtype=torch.float64)}):
        with pytest.raises(DataError, match="other tensors came back than were given"):
            checked({"tensors": packed(spoilt), "photos": 4}, given)
    with pytest.raises(DataError, match="not finite"):
        checked({"tensors": packed({"a": torch.full((2, 3), float("nan"))}), "photos": 4}, given)
    with pytest.raises(DataError, match="holds no tensors"):
        checked({"tensors": b"\x80\x04pickle", "photos": 4}, given)
    with pytest.raises(DataError, match="is no reply to a round"):
        checked({"photos": 4}, given)
    with pytest.raises(Stalled, match="nobody is here"):
        Wire(lambda *_: ({}, {}), []).begin(b"", {})


@pytest.mark.parametrize("nonsense", ["boo", {}, {"answer": "x"}, {"answer": float("nan")}, {"answer": 7.0}])
def test_a_client_that_answers_nonsense_stops_nobody_and_spoils_no_mean(nonsense):
    def answering(sound):
        return lambda method, given, timeout: ({name: {"a": sound, "b": nonsense}[name] for name in given}, {})

    wire = Wire(answering({"answer": 0.5}), ["a", "b"])
    assert wire.validation(1, lambda name: {}) == 0.5
    assert "answers what was not asked" in wire.late["b"]
    Wire(answering({"answer": []}), ["a", "b"]).begin(b"plan", {})


PLANNED = FederatedConfig(source="", classes=("a", "b"))


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"files": {"../../startup/client.key": "0" * 64}}, "client.key would reach beyond"),
        ({"files": {"body.safetensors": "../x"}}, "body.safetensors would reach beyond"),
        ({"config": replace(PLANNED, arguments={"pretrained": True})}, "pretrained would reach beyond"),
        ({"config": replace(PLANNED, backbone="hf-hub:somebody/something")}, "hf-hub:somebody/something would reach"),
        ({"config": replace(PLANNED, source="/home/alice/private")}, "source = '/home/alice/private' would reach"),
        ({"config": replace(PLANNED, source="hf:evil/photos")}, "source = 'hf:evil/photos' would reach"),
        ({"config": replace(PLANNED, checkpoint="/etc/x.safetensors")}, "checkpoint = '/etc/x.safetensors' would"),
        ({"config": replace(PLANNED, tower_classes="/etc/passwd")}, "tower_classes = '/etc/passwd' would reach"),
        ({"config": replace(PLANNED, tower_data="hf:evil/x")}, "tower_data = 'hf:evil/x' would reach"),
        ({"config": replace(PLANNED, classes=())}, "it names no classes"),
    ],
)
def test_a_plan_that_reaches_beyond_what_was_sent_is_refused(more, what):
    plan = Plan("fedrep", 0, RATES, PLANNED)
    assert decode_plan(plan.encoded) == plan
    with pytest.raises(DataError, match=what):
        decode_plan(replace(plan, **more).encoded)


def test_a_plan_of_another_version_is_refused():
    with pytest.raises(DataError, match="install the same version of refocus on both"):
        decode_plan(b'{"method": 1}')


def test_a_plan_names_no_path_of_the_server(simulated, tmp_path):
    folder, names = deploy(tmp_path / "deployed", simulated)
    party = Party(tmp_path / "sites", simulated)
    told = []

    def ask(method, arguments, timeout):
        told.extend(own["plan"] for own in arguments.values() if "plan" in own)
        return party(method, arguments, timeout)

    run_session(folder, names, ask)
    assert len(told) == 3
    assert str(tmp_path).encode() not in told[0]


def letters(count: int, split: str = "", classes=("x", "y")) -> PhotoTable:
    drawn = glyphs.glyphs(0, {"test": 1}, count)
    label = np.arange(count) % 2
    return replace(drawn, label=label, classes=classes, split=np.full(count, split, dtype="<U10"))


def test_own_photos_are_divided_the_same_way_in_every_session():
    first, again = (own_client("anna", letters(40), ("y", "x"), CONTRACT, 0) for _ in range(2))
    assert [len(getattr(first, role)) for role in ("train", "validation", "test")] == [22, 8, 10]
    assert torch.equal(first.train.pixels, again.train.pixels)
    assert not torch.equal(own_client("bert", letters(40), ("y", "x"), CONTRACT, 0).train.pixels, first.train.pixels)
    everything = torch.cat([first.train.label, first.validation.label, first.test.label])
    assert everything.bincount().tolist() == [20, 20]


def test_own_photos_that_do_not_fit_the_federation_are_refused():
    with pytest.raises(DataError, match="1 labels of anna are none of the federation's 2 classes, as y"):
        own_client("anna", letters(20), ("x", "z"), CONTRACT, 0)
    with pytest.raises(DataError, match="anna has 6 photos; a client needs 15"):
        own_client("anna", letters(6), ("x", "y"), CONTRACT, 0)
    for wrong, what in ((("train", "validation"), "anna has no photo for test"),
                        (("test",), "anna has 20 photos for test and 0 others; expected one or more for training")):  # fmt: skip
        with pytest.raises(DataError, match=what):
            own_client("anna", in_splits(letters(20), *wrong), ("x", "y"), CONTRACT, 0)


def in_splits(table: PhotoTable, *splits: str) -> PhotoTable:
    return replace(table, split=np.resize(np.array(splits, dtype="<U10"), len(table)))


def digests(photos):
    return {photo.numpy().tobytes() for photo in photos.pixels}


@pytest.mark.parametrize("others", [("train", "train"), ("train", ""), ("validation", "gate")])
def test_own_test_photos_stay_test_photos_and_the_others_lie_where_they_lay_before_more_came(others):
    table = in_splits(letters(60), "test", *others)
    judged = own_client("anna", in_splits(table.of_split("test"), ""), ("x", "y"), CONTRACT, 0)
    before, after = (own_client("anna", table.rows(np.arange(n)), ("x", "y"), CONTRACT, 0) for n in (45, 60))
    assert digests(after.test) == digests(judged.train) | digests(judged.validation) | digests(judged.test)
    assert (len(after.train) + len(after.validation), len(after.test)) == (40, 20)
    assert 5 <= len(after.validation) <= 15
    assert digests(before.train) < digests(after.train)
    assert digests(before.validation) < digests(after.validation)


def test_own_photos_without_a_photo_for_judging_are_divided_in_three():
    whole, named = (own_client("anna", letters(40, split), ("x", "y"), CONTRACT, 0) for split in ("", "train"))
    assert [digests(getattr(whole, role)) for role in ("train", "validation", "test")] == [
        digests(getattr(named, role)) for role in ("train", "validation", "test")
    ]


def tree(folder: Path, **photos: int) -> Path:
    """Photos of two classes in folders of their splits."""
    table = letters(sum(photos.values()))
    splits = np.repeat([*photos], [*photos.values()])
    for number, split in enumerate(splits.tolist()):
        path = folder / split / table.classes[table.label[number]] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(table.read(table.photo[number]))
    return folder


def test_photos_whose_splits_leave_nothing_to_train_on_are_refused_before_a_session_begins(tmp_path):
    usual = SiteConfig(str(tree(tmp_path / "usual", train=14, test=6)))
    assert check_photos(usual, "anna") == "20 photos of 2 classes"
    found = own_client("anna", own_photos(Path(usual.photos)), ("x", "y"), CONTRACT, 0)
    assert (len(found.train) + len(found.validation), len(found.test)) == (14, 6)
    with pytest.raises(DataError, match="has 20 photos for test and 0 others"):
        check_photos(SiteConfig(str(tree(tmp_path / "judged", test=20))), "anna")
    with pytest.raises(DataError, match="has no photo for test; add some to that split, or leave the splits out"):
        check_photos(SiteConfig(str(tree(tmp_path / "unjudged", train=14, validation=6))), "anna")


@pytest.mark.parametrize("first", [0, 3])
def test_photos_that_come_or_go_leave_the_others_where_they_are(first):
    table = letters(60)
    before = own_client("anna", table.rows(np.arange(first, 56)), ("x", "y"), CONTRACT, 0)
    after = own_client("anna", table.rows(np.arange(3 - first, 60)), ("x", "y"), CONTRACT, 0)
    for part in ("train", "validation", "test"):
        others = {"train", "validation", "test"} - {part}
        assert all(digests(getattr(before, part)).isdisjoint(digests(getattr(after, other))) for other in others)


def test_photos_of_several_clients_are_refused(simulated, tmp_path):
    assert read_classes(str(simulated.folder)) == tuple("012345")
    with pytest.raises(DataError, match="has photos of 3 clients"):
        own_photos(tmp_path / "all.npz")


def test_a_kit_serves_one_client_at_a_time(tmp_path):
    with one_at_a_time(tmp_path / ".client.lock"), pytest.raises(UsageError, match="in use by another"):
        become_client(tmp_path, "north")


@pytest.mark.slow
def test_arguments_of_no_backbone_are_refused_before_a_network_without_them_is_trained(refocus, tmp_path):
    done = refocus("federate", "server", tmp_path / "kit", "--out", tmp_path / "run", "--method", "fedavg", "--classes",
                   "a,b", "--backbone-arguments", "img_size=96")  # fmt: skip
    assert done.returncode == 1
    assert "--backbone-arguments img_size=96: name the timm model they are for with --backbone" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("step", "call"), [("_settle", 1), ("_settle", 2), ("_put", 1), ("_put", 2), ("_put", 3)])
def test_a_kit_whose_making_was_interrupted_is_made_and_hardened_by_the_next_call(step, call, tmp_path, monkeypatch):
    pytest.importorskip("nvflare", reason="needs NVFlare: pip install 'refocus-edge[flare]'")
    work, calls = getattr(kits, step), []

    def killed(*given: object, **named: object) -> None:
        calls.append(given)
        if len(calls) == call:
            raise KeyboardInterrupt
        work(*given, **named)

    monkeypatch.setattr(kits, step, killed)
    with pytest.raises(KeyboardInterrupt):
        provision(tmp_path, "server.example.org", 8002, ["anna"])
    monkeypatch.undo()
    half = tmp_path / "clients" / "anna.unfinished"  # of a copy that was cut short
    half.mkdir(parents=True, exist_ok=True)
    provision(tmp_path, "server.example.org", 8002, ["anna"])
    for kit in (tmp_path / "clients" / "anna", tmp_path / "server" / "kit"):
        resources = json.loads((kit / "local" / "resources.json").read_text())
        assert resources["class_list_enforcement_mode"] == "enforce"
        rights = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]["project_admin"]
        assert rights["byoc"] == rights["shell_commands"] == "none"
        assert kit.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "server" / "operator" / "startup").is_dir()


def test_names_and_folders_that_are_none_are_refused_before_anything_starts(tmp_path):
    for clients, host, what in ((["a b"], "localhost", "a name has letters"), (["localhost"], "localhost", "is not the server's"),
                                (["a"], "no/host", "expected the host name")):  # fmt: skip
        with pytest.raises(UsageError, match=what):
            provision(tmp_path, host, 8002, clients)
    with pytest.raises(UsageError, match="is not a client's kit"):
        check_kit(tmp_path)
    with pytest.raises(UsageError, match="is not a server's kit"):
        project_of(tmp_path)
    for text in ("one", "a,b,a"):
        with pytest.raises(UsageError, match="expected two names or more, each once"):
            read_classes(text)
    (tmp_path / "classes.txt").write_text("ä\n\nb\n", encoding="utf-8")
    assert read_classes(str(tmp_path / "classes.txt")) == ("ä", "b")
