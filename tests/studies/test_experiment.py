"""The runner of experiments: what it computes, when it computes again, and what it shows."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from refocus.cloud_train.errors import DataError, UsageError
from studies.commands.study import study_app
from studies.experiment import (
    Cache,
    Column,
    Experiment,
    ExperimentPage,
    Group,
    Needs,
    Row,
    Shown,
    read_experiment,
    run_experiment,
)

TOML = """
name = "toy"
study = "tests.studies.toy_study"
seeds = [0, 1]

[settings]
people = 40

[comparisons]
gain = { over = { method = "plain" }, unit = "people" }

[page]
title = "A toy"
sort = "better"

[page.columns]
place = {}
people = { of = { method = "plain" } }
plain = { field = "accuracy", form = ".1%", of = { method = "plain" } }
better = { field = "gain", of = { method = "better" } }
perfect = { field = "gain", of = { method = "perfect" } }
"""


@pytest.fixture
def toy(tmp_path):
    """Reads the toy experiment, changed, and counts what is evaluated."""

    class Toy:
        file, log, run = tmp_path / "toy.toml", tmp_path / "log", tmp_path / "run"

        def read(self, *changes: str) -> Experiment:
            return read_experiment(self.file, [f"settings.log={self.log}", *changes])

        def document(self, *changes: str, run: Path | None = None) -> dict:
            return run_experiment(self.read(*changes), run or self.run)

        def evaluated(self) -> list[str]:
            """Return the points evaluated since the last call, without process numbers."""
            lines = [line.rpartition(" ")[0] for line in self.log.read_text().splitlines()]
            self.log.write_text("")
            return lines

    toy = Toy()
    toy.file.write_text(TOML)
    toy.log.write_text("")
    return toy


def forked(*calls):
    """Runs each call in a process of its own, all at once, and returns their exit codes."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=call) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


def test_everything_that_is_wrong_with_a_file_is_one_error(toy):
    toy.file.write_text(
        TOML.replace("people = 40", "peple = 40").replace("over =", "ovr =") + "\n[grid]\nmethods = []\n"
    )
    with pytest.raises(UsageError) as error:
        toy.read("seeds=[0.5]")
    text = str(error.value)
    assert "toy.toml" in text
    assert "settings.peple is unknown (line 7); did you mean people?" in text
    assert "grid.methods is unknown" in text
    assert "unknown field `ovr`" in text
    assert "seeds = [0.5] (--set)" in text
    assert "--config" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("study=tests.studies.no_study", "expected a module with a STUDY"),
        ("settings.people=0", "settings.people = 0"),
        ("seeds=[1,1]", "expected each once"),
        ('exclude=[{plce=["home"]}]', "plce is none of place, method"),
    ],
)
def test_a_value_that_cannot_be_is_refused(toy, change, message):
    with pytest.raises(UsageError, match=message):
        toy.read(change)


def test_cells_are_chosen_by_rules_and_by_name(toy):
    experiment = toy.read(
        'include=[{place=["home"]},{method=["plain"]}]', 'exclude=[{place=["away"],method=["plain"]}]'
    )
    assert experiment.cells() == [{"place": "home", "method": "plain"}, {"place": "home", "method": "better"}]
    assert toy.read().cells(["*:better", "away:*"])[0] == {"place": "home", "method": "better"}
    with pytest.raises(UsageError, match="no cell matches abroad:.*; there is home:plain, for example"):
        toy.read().cells(["abroad:*"])


def test_a_cell_that_was_evaluated_is_not_evaluated_again(toy):
    first = toy.document()
    assert len(toy.evaluated()) == 8
    assert toy.document() == first
    assert toy.evaluated() == []
    toy.document("seeds=[0,1,2]")
    assert sorted(toy.evaluated()) == ["away better 2", "away plain 2", "home better 2", "home plain 2"]


def test_a_changed_setting_concerns_the_cells_that_depend_on_it_alone(toy):
    toy.document()
    toy.evaluated()
    toy.document("settings.lift=0.5")
    assert {line.split()[1] for line in toy.evaluated()} == {"better"}
    toy.document("settings.people=30")
    assert len(toy.evaluated()) == 8


def test_files_count_by_their_content_and_not_by_their_place(toy, tmp_path):
    for name, content in (("one", "a"), ("copy", "a"), ("other", "b")):
        (tmp_path / name).write_text(content)
    toy.document(f"settings.source={tmp_path / 'one'}")
    assert len(toy.evaluated()) == 8
    toy.document(f"settings.source={tmp_path / 'copy'}")
    assert toy.evaluated() == []
    toy.document(f"settings.source={tmp_path / 'other'}")
    assert len(toy.evaluated()) == 8
    with pytest.raises(DataError, match="missing is not there"):
        toy.document(f"settings.source={tmp_path / 'missing'}")


def test_code_counts_without_its_comments_and_docstrings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    codes = {
        "first": '"""One."""\nVALUE = 1  # a number\n',
        "second": '"""Another."""\n\nVALUE = 1\n',
        "third": '"""One."""\nVALUE = 2\n',
    }
    for name, text in codes.items():
        (tmp_path / f"code_of_{name}.py").write_text(text)
    cache = Cache(tmp_path)
    from studies import experiment

    first, second, third = (experiment._sha256_of_code(f"code_of_{name}") for name in codes)
    assert first == second != third
    assert cache.path({}, Needs(code=("code_of_first",))) != cache.path({}, Needs(code=("code_of_third",)))


def test_a_run_that_was_killed_goes_on_to_the_same_document(toy, tmp_path):
    whole = toy.document(run=tmp_path / "whole")
    toy.evaluated()
    assert forked(lambda: toy.document("settings.dies_after=3")) == [9]
    assert len(toy.evaluated()) == 3
    assert toy.document() == whole
    assert len(toy.evaluated()) == 5


@pytest.mark.parametrize("damage", ["", '{"rows": [{"labels"', "[]", '{"rows": [{"labels": {}}]}'])
def test_a_damaged_entry_is_evaluated_again(toy, damage):
    first = toy.document()
    toy.evaluated()
    path = sorted(toy.run.glob("cache/*.json"))[3]
    cell = json.loads(path.read_text())
    path.write_text(damage)
    assert toy.document() == first
    assert toy.evaluated() == [f"{cell['cell']['place']} {cell['cell']['method']} {cell['seed']}"]


def test_two_processes_share_the_cells_of_one_run(toy, tmp_path):
    def work(name: str) -> None:
        (tmp_path / name).write_text(json.dumps(toy.document("settings.seconds=0.1")))

    assert forked(lambda: work("one"), lambda: work("other")) == [0, 0]
    processes = [line.split()[-1] for line in toy.log.read_text().splitlines()]
    assert len(toy.evaluated()) == 8  # none twice
    assert len(set(processes)) == 2
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text() == json.dumps(toy.document())


def test_rows_have_people_means_and_differences_that_are_known(toy):
    rows = {(row["place"], row["method"]): row for row in toy.document()["rows"]}
    assert [*rows] == [("home", "plain"), ("home", "better"), ("seaside", "plain"), ("seaside", "better")]
    better = rows["seaside", "better"]
    assert (better["people"], better["targets"]) == (80, 320)
    assert rows["home", "plain"]["accuracy"] == 0.25
    assert rows["home", "plain"]["gain"]["mean"] == 0
    # A quarter of the people gain 0.75 and the others nothing.
    gain, error = better["gain"], 0.75 * np.sqrt(0.25 * 0.75 / 80)
    assert gain["mean"] == pytest.approx(0.1875)
    assert gain["seeds"] == pytest.approx([0.1875, 0.1875])
    assert gain["half_width"] == pytest.approx(1.96 * error, rel=0.06)
    assert gain["high"] - gain["low"] == pytest.approx(2 * gain["half_width"])


def rows_of(correct: np.ndarray, photo: np.ndarray, seed: int = 0, method: str = "a") -> Row:
    """A row of people with several answers each, both (people, answers)."""
    person = np.repeat(np.arange(len(correct)), correct.shape[1])
    return Row({"method": method, "seed": seed}, person, photo.ravel(), {"accuracy": correct.ravel()})


def test_an_interval_over_photos_is_wider_where_people_share_them():
    rng = np.random.default_rng(0)
    photo = np.stack([rng.permutation(20)[:10] for _ in range(200)])
    correct = (photo % 2).astype(float)  # the photo decides, not the person
    group = Group.of({}, [rows_of(correct, photo)])
    over_people, over_both = (group.interval(group.values(), unit) for unit in ("people", "people and photos"))
    assert over_both["half_width"] > 3 * over_people["half_width"]


def test_answers_to_other_photos_are_not_compared():
    one = Group.of({}, [rows_of(np.ones((3, 2)), np.arange(6).reshape(3, 2))])
    other = Group.of({}, [rows_of(np.ones((3, 2)), np.array([[0, 1], [1, 2], [3, 4]]))])
    with pytest.raises(DataError, match="not of the same people and photos"):
        one.over(other)


def test_people_of_two_encoders_are_the_same_and_photos_of_two_sets_are_not():
    def row(data: str, seed: int) -> Row:
        return Row(
            {"data": data, "seed": seed}, np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), {"accuracy": np.ones(4)}
        )

    group = Group.of({}, [row("one", 0), row("one", 0), row("one", 1), row("other", 0)], ("data",))
    assert group.record["people"] == 6
    assert group.person.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert group.photo.tolist() == [0, 1, 1, 2] * 3 + [3, 4, 4, 5]
    assert group.by_person(np.arange(16.0))[0] == np.mean([0, 1, 4, 5])


def test_a_comparison_with_nothing_is_refused(toy):
    toy.file.write_text(TOML.replace('method = "plain" }, unit', 'method = "plan" }, unit'))
    with pytest.raises(UsageError, match="comparisons.gain: no row has method = plan"):
        toy.document()


def test_the_table_has_the_declared_columns_least_first(toy):
    document = toy.document()
    document["rows"][1]["gain"] = {"mean": 0.3, "low": 0.2, "high": 0.4}  # of "home"
    page = ExperimentPage.of(toy.read().page)
    header, lines = page.table(document)
    assert header == ["place", "people", "plain", "better"]  # no line has a value of "perfect"
    assert [line[:3] for line in lines] == [["seaside", "80", "25.0%"], ["home", "80", "25.0%"]]
    assert lines[1][3] == "+30.0 (+20.0 to +40.0)"
    assert "80 to 80 people in each row, seeds 0, 1; the smallest difference" in page.about(document)


def test_a_table_without_chosen_rows_has_a_line_for_each_row():
    page = ExperimentPage.of(Shown("t", {"name": Column(), "change": Column("value", form="points")}))
    document = {"rows": [{"name": "a", "value": 0.01}, {"name": "a", "value": None}]}
    assert page.table(document) == (["name", "change"], [["a", "+1.0"], ["a", ""]])


def test_the_command_writes_a_document_and_its_markdown(toy, monkeypatch):
    file, run = str(toy.file), str(toy.run)
    words = ["run", file, run, "--set", f"settings.log={toy.log}", "--seeds", "3", "--cells", "home:*"]
    monkeypatch.setattr("sys.argv", ["studies", *words])
    told = CliRunner().invoke(study_app, words)
    assert told.exit_code == 0, told.output
    document = json.loads((toy.run / "studies" / "toy.json").read_text())
    assert (document["study"], document["seeds"]) == ("toy", [3])
    assert document["command"] == "python -m studies run toy.toml RUN --set settings.log=log --seeds 3 --cells 'home:*'"
    assert {row["place"] for row in document["rows"]} == {"home"}
    text = (toy.run / "studies" / "toy.md").read_text()
    assert text.startswith("## toy: A toy\n")
    assert "| place | people | plain | better |" in text
    assert "| home | 40 | 25.0% | +18.8 (" in text
    assert CliRunner().invoke(study_app, ["run", file]).exception is not None


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "studies" / "README.md").read_text()
    _, _, example = text.partition("## Write an experiment")
    for kind, name in (("toml", "shops.toml"), ("python", "shops.py")):
        (tmp_path / name).write_text(example.partition(f"```{kind}\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    experiment = read_experiment(tmp_path / "shops.toml")
    document = run_experiment(experiment, tmp_path / "run")
    header, lines = ExperimentPage.of(experiment.page).table(document)
    assert header == ["shop", "people", "plain", "small", "large"]
    assert [line[:2] for line in lines] == [["bakery", "600"], ["garden", "600"]]
    assert (lines[0][4], lines[1][4] != "") == ("", True)  # the bakery has no "large"


def test_settings_that_are_shown_can_be_read(toy, tmp_path):
    shown = CliRunner().invoke(study_app, ["run", str(toy.file), "--show-settings", "--set", "settings.people=7"])
    again = tmp_path / "again.toml"
    again.write_text(shown.output)
    assert read_experiment(again) == read_experiment(toy.file, ["settings.people=7"])
