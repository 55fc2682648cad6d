"""The paper's studies: every point judged on the same photos, kept, and drawn from its document."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest

from refocus.cloud_train.commands.parsing import seeds_of
from refocus.cloud_train.documents import write_results
from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.evaluate.heads import evaluate_run
from refocus.cloud_train.evaluate.page import about_people
from refocus.cloud_train.evaluate.report import print_study
from refocus.cloud_train.methods.iciia.block import IciiaConfig
from refocus.cloud_train.methods.iciia.train import DivergedError, IciiaRecipe
from refocus.cloud_train.runs.folder import save_settings
from refocus.cloud_train.runs.iciia import DataConfig, Run, RunConfig
from refocus.cloud_train.settings import read_settings
from refocus.cloud_train.train import IciiaSettings
from refocus.edge.errors import RefocusError
from studies.commands.parsing import seeds_of_run
from studies.commands.study import _of_one_label
from studies.iciia import PAGES, Axes, run_study
from studies.iciia.orders import FINE_TUNING
from studies.iciia.points import HISTORY, Bench, Point, targets_of, train_best, train_point, with_other_past
from studies.iciia.rivals import labelled_points, shares_point
from studies.iciia.tables import ablation_points, partition_points
from studies.report.pages import STUDIES, study_table
from studies.report.results_page import results_pages
from tests.cloud_train.data.test_label_sets import folder_of
from tests.tiny import WIDTH

BLOCK = IciiaConfig(width=WIDTH, layers=1)
RECIPE = IciiaRecipe(learning_rate=0.1, momentum=0.9, windows_per_step=8, epochs=2)


def study(run, name, seeds=(0,), **more):
    axes = Axes(**more)
    return run_study(run, name, BLOCK, RECIPE, seeds, f"python -m studies {name} RUN", 4, axes, gate_windows=600)


@pytest.fixture(scope="module")
def heterogeneity(tiny_run):
    return study(tiny_run, "heterogeneity", seeds=(0, 1), ratios=(0, 1))


METHODS = ["class shares", "ICIIA-B", "ICIIA-T", "ICIIA-T, gated", "fine-tuning", "prompt tuning"]


def test_heterogeneity_is_judged_at_every_level_for_every_method(heterogeneity):
    nobody, everybody = heterogeneity["rows"]
    assert (nobody["name"], everybody["name"]) == ("0", "1")
    for row in heterogeneity["rows"]:
        assert [method["name"] for method in row["methods"]] == METHODS
        for method in row["methods"]:
            assert method["gain"]["low"] <= method["gain"]["mean"] <= method["gain"]["high"]
            assert method["accuracy"] == pytest.approx(row["original"] + method["gain"]["mean"], abs=1e-5)
    assert nobody["methods"][2]["gain"] != everybody["methods"][2]["gain"]
    assert len(nobody["methods"][2]["gain"]["seeds"]) == 2


def test_the_orders_of_fig_6_compare_gains_at_the_ends(heterogeneity):
    nobody, everybody = heterogeneity["rows"]
    gains = [{method["name"]: method["gain"]["mean"] for method in row["methods"]} for row in (nobody, everybody)]
    orders = {order["better"]: order for order in heterogeneity["orders"]}
    for name in ("ICIIA-B", "ICIIA-T", "fine-tuning", "prompt tuning"):
        order = orders[f"gain of {name} at level 1"]
        assert order["other"] == f"gain of {name} at level 0"
        assert order["difference"]["mean"] == pytest.approx(gains[1][name] - gains[0][name], abs=1e-5)


def test_a_point_that_is_there_is_not_trained_again(tiny_run, heterogeneity, monkeypatch):
    def trained(*_, **__):
        pytest.fail("trained again")

    monkeypatch.setattr("studies.iciia.points.train_iciia", trained)
    assert study(tiny_run, "heterogeneity", seeds=(0, 1), ratios=(0, 1)) == heterogeneity


def test_labelled_baselines_are_judged_on_the_same_photos(tiny_run):
    document = study(tiny_run, "baselines")
    rows = {row["name"]: row for row in document["rows"]}
    assert list(rows) == ["original", "class shares", "ICIIA-B", "ICIIA-T", "fine-tuning", "prompt tuning"]
    assert rows["fine-tuning"]["labels"] == 16
    assert rows["ICIIA-T"]["labels"] == rows["class shares"]["labels"] == 0
    for name in ("class shares", "fine-tuning", "prompt tuning", "ICIIA-T"):
        assert rows[name]["accuracy"] == pytest.approx(rows["original"]["accuracy"] + rows[name]["gain"]["mean"])
    for order in document["orders"]:
        assert order["difference"]["mean"] == pytest.approx(
            rows[order["better"]]["accuracy"] - rows[order["other"]]["accuracy"]
        )


def test_reversed_orders_come_first(tiny_run):
    highs = [order["difference"]["high"] for order in study(tiny_run, "baselines")["orders"]]
    flags = [high >= 0 for high in highs]
    assert flags == sorted(flags)


def test_labelled_baselines_take_the_rate_that_is_best_on_validation_clients(tiny_run):
    rows = {row["name"]: row for row in study(tiny_run, "baselines", rates=(1e6, 0.1))["rows"]}
    assert rows["fine-tuning"]["learning_rate"] in (0.01, 0.1)
    assert rows["prompt tuning"]["learning_rate"] in (0.01, 0.1)


def test_heads_are_compared_with_the_papers_choice(tiny_run):
    document = study(tiny_run, "heads", heads=(2, 4))
    assert [row["heads"] for row in document["rows"]] == [2, 4]
    assert [(order["better"], order["other"]) for order in document["orders"]] == [("H=4", "H=2")]


def test_a_number_of_heads_alone_is_compared_with_nothing(tiny_run):
    document = study(tiny_run, "heads", heads=(2,))
    assert [row["heads"] for row in document["rows"]] == [2]
    assert "orders" not in document


def test_a_rate_that_diverges_is_passed_over(tiny_run):
    bench = Bench.open(tiny_run, 4)
    point = Point("big steps", BLOCK, RECIPE)
    with pytest.raises(DivergedError, match="diverges"):
        train_best(bench, point, (0,), (1e6, 1e7))
    assert train_best(bench, point, (0,), (1e6, 0.1))[0]["learning_rate"] == 0.1


def test_each_block_takes_the_learning_rate_that_is_best_on_validation_clients(tiny_run):
    """One rate learns nothing at all; the figures are those of the other."""
    alone = study(tiny_run, "partitions", partitions=(256,))["rows"]
    chosen = study(tiny_run, "partitions", partitions=(256,), rates=(1e-9, 0.1))["rows"]
    assert [row["learning_rate"] for row in chosen] == [0.1, 0.1]
    assert [row["accuracy"] for row in chosen] == [row["accuracy"] for row in alone]


def test_shuffling_is_judged_on_the_same_photos_as_none(tiny_run):
    document = study(tiny_run, "shuffling")
    shuffled, plain = document["rows"]
    assert (shuffled["shuffle"], plain["shuffle"]) == (True, False)
    assert shuffled["over_shuffled"]["mean"] == 0
    assert plain["over_shuffled"]["mean"] == pytest.approx(plain["accuracy"] - shuffled["accuracy"])
    assert f"{100 * plain['over_shuffled']['mean']:+.1f}" in PAGES["shuffling"].about(document)
    document["rows"][1]["over_shuffled"] |= {"low": 0.01, "high": 0.05}
    assert "better without shuffling" in PAGES["shuffling"].about(document)


def test_targets_come_after_every_labelled_photo(tiny_run):
    bench = Bench.open(tiny_run, 4)
    bank = bench.split("test")
    windows, clients = targets_of(bank, 4, HISTORY)
    for number, (_, stream) in enumerate(bank.table.clients()):
        mine = windows[clients == number]
        position = {int(row): place for place, row in enumerate(stream)}
        assert all(position[int(row)] >= 16 for row in mine[:, -1])
        assert all(
            [position[int(r)] for r in w] == list(range(position[int(w[0])], position[int(w[-1])] + 1)) for w in mine
        )


def test_every_method_is_judged_on_the_same_photos_where_people_have_few(tiny_run, monkeypatch):
    split = Bench.split

    def shorter(bench, name, heterogeneity=1.0):
        bank = split(bench, name, heterogeneity)
        if name != "test":
            return bank
        streams = [rows for _, rows in bank.table.clients()]
        return bank.rows(np.concatenate([*streams[:2], *(rows[:12] for rows in streams[2:])]))

    monkeypatch.setattr(Bench, "split", shorter)
    monkeypatch.setattr("studies.iciia.points.once", lambda _, compute: compute())
    bench = Bench.open(tiny_run, 4)
    trained, tuned = train_point(bench, Point("a", BLOCK, RECIPE), 0), labelled_points(bench, FINE_TUNING, [0])[0]
    assert bench.history == 8
    assert trained["targets"] == tuned["targets"] == shares_point(bench)["targets"]
    assert "8" in trained["right"]["own"].keys() & tuned["right"]["own"].keys()


def test_other_pasts_keep_the_targets(tiny_run):
    bank = Bench.open(tiny_run, 4).split("test")
    windows, _ = targets_of(bank, 4, HISTORY)
    for content in ("mixed", "foreign"):
        changed = with_other_past(bank, windows, content)
        np.testing.assert_array_equal(changed[:, -1], windows[:, -1])
        assert (changed[:, :-1] != windows[:, :-1]).mean() > 0.9
        assert not (changed[:, :-1] == changed[:, -1:]).any(), "a target in its own past gives itself away"


def test_streams_too_short_for_a_target_are_an_error(tiny_run):
    with pytest.raises(DataError, match="no test client has more than 40 photos"):
        targets_of(Bench.open(tiny_run, 4).split("test"), 4, history=40)


def test_points_differ_in_what_their_names_say():
    points = partition_points(BLOCK, RECIPE, Axes(partitions=(1, 16, WIDTH), layers=(1, 2)))
    assert [p.name for p in points] == [
        "N=1, P=1",
        "N=1, P=16",
        "N=1, P=16, not shuffled",
        f"N=1, P={WIDTH}",
        "N=2, P=256",
    ]
    ablations = {p.name: p.iciia for p in ablation_points(BLOCK, RECIPE)}
    assert ablations["ICIIA-T - projection"].attention == "alone"
    assert ablations["ICIIA-B - attention"].attention == "none"
    assert not ablations["ICIIA-T - shuffling"].shuffle


def test_studies_are_on_the_results_page(heterogeneity, tmp_path, capsys):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "levels.json").write_text(json.dumps(heterogeneity))
    pages = results_pages(tmp_path / "results")
    page = pages.topics["iciia-paper"]
    assert heterogeneity["command"] in page
    assert "seeds 0, 1" in page
    assert len(pages.pictures["levels.png"]()) > 5000
    header, rows = study_table(heterogeneity)
    assert all(len(row) == len(header) for row in rows)
    print_study(heterogeneity, STUDIES)
    assert "heterogeneity" in capsys.readouterr().out


def test_a_study_whose_rows_have_no_time_is_not_said_to_have_taken_none():
    document = {"data": {"targets": 4, "test_clients": 2}, "history": 8, "backbone": "resnet10t", "seeds": [0]}
    assert about_people({**document, "rows": [{}]}).endswith("backbone `resnet10t`, seeds 0.")
    assert about_people({**document, "rows": [{"seconds": 90}, {"seconds": 30}]}).endswith(", 2 minutes of one core.")


def test_the_page_counts_the_orders_of_all_studies_and_has_reversed_ones_first(heterogeneity, tmp_path):
    def ordered(better, low, high):
        difference = {"mean": (low + high) / 2, "low": low, "high": high, "seeds": []}
        return {"better": better, "other": "original", "source": "Table 3", "difference": difference}

    (tmp_path / "results").mkdir()
    for name, orders in (
        ("one", [ordered("held", 0.01, 0.02), ordered("unseen", -0.01, 0.02)]),
        ("two", [ordered("reversed", -0.02, -0.01), ordered("held too", 0.01, 0.02)]),
    ):
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps({**heterogeneity, "orders": orders}))
    section = results_pages(tmp_path / "results").topics["orders"]
    assert "2 hold, 1 show no difference, 1 are reversed" in section
    rows = [line for line in section.splitlines() if " over original" in line]
    assert [next(name for name in ("reversed", "unseen", "held") if name in row) for row in rows] == [
        "reversed",
        "unseen",
        "held",
        "held",
    ]
    assert "two" in rows[0]


def test_an_unknown_study_and_a_flag_of_another_one_are_named(studies, tiny_run):
    done = studies("astrology", tiny_run.folder)
    assert done.returncode == 2
    assert "No such command 'astrology'" in done.stderr
    done = studies("gates", tiny_run.folder, "--ratios", "0,1")
    assert done.returncode == 2
    assert "No such option: --ratios" in done.stderr


@pytest.mark.parametrize("text", ["-1", "0,0,1", "2147483648", "a", ""])
def test_seeds_are_numbers_that_each_stand_once(text):
    with pytest.raises(RefocusError, match="--seeds .*: expected different whole numbers from 0"):
        seeds_of(text)
    assert seeds_of("2,0,1") == [2, 0, 1]


def test_a_study_trains_no_seed_that_its_run_does_not_have_unless_it_is_asked_to(tmp_path):
    assert seeds_of_run("", tmp_path) == [0]
    for name in ("seed-10", "seed-2", "seed-old", "studies"):
        (tmp_path / name).mkdir()
    assert seeds_of_run("", tmp_path) == [2, 10]
    assert seeds_of_run("0", tmp_path) == [0]


def test_settings_with_a_seed_given_twice_are_refused():
    with pytest.raises(UsageError, match=r"seeds \[0, 1, 0\]: expected each once"):
        IciiaSettings.named("default", {"seeds": [0, 1, 0]})


def test_a_seed_given_twice_on_the_command_line_s_path_is_refused_too():
    with pytest.raises(UsageError, match=r"seeds \[0, 0\]: expected each once"):
        read_settings(partial(IciiaSettings.start, "default"), None, ["seeds=[0,0]"])


def test_labelled_baselines_of_a_run_that_was_not_evaluated_name_the_command(studies, tiny_run, tmp_path):
    run = shutil.copytree(tiny_run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("results.json"))
    done = studies("labelled", run)
    assert done.returncode == 1
    assert "run refocus evaluate" in done.stderr


@pytest.mark.slow
def test_labelled_baselines_are_added_to_the_results_of_a_run(studies, tiny_run, tmp_path):
    run = shutil.copytree(tiny_run.folder, tmp_path / "run")
    write_results(evaluate_run(Run(run), targets_per_client=6), run / "results.json")
    done = studies("labelled", run)
    assert done.returncode == 0, done.stderr
    results = json.loads((run / "results.json").read_text())
    assert results["labelled"].keys() >= {"original", "delivered", "fine_tuning", "prompt_tuning"}


def test_a_study_of_photos_with_several_labels_is_refused(tmp_path):
    source = folder_of(tmp_path / "d", ["a;b", "a", "b", "a;b"] * 4)
    metadata = source / "metadata.csv"
    header, *lines = metadata.read_text().splitlines()
    metadata.write_text("\n".join([header, *(f"{line.rpartition(',')[0]},c{n % 8}" for n, line in enumerate(lines))]))
    (tmp_path / "run").mkdir()
    save_settings(tmp_path / "run" / "run.json", RunConfig(DataConfig(source=str(source), labels="several")))
    with pytest.raises(DataError, match="python -m studies windows needs one label of each photo"):
        _of_one_label(tmp_path / "run", "windows")
