"""The report of a training run: it shows what the folder holds, says what is missing, and refuses what is no run."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.report.run_report import write_run_report

SMALL = ("partitions=[4]", "block.layers=1", "block.window=3", "gate.kind=warm_up", "recipe.epochs=2",
         "recipe.windows_per_step=4", "devices.accelerator=cpu", "arguments.channels=[8,16,32,64]",
         "arguments.stem_width=8")  # fmt: skip
VIT = ("arguments.img_size=16", "arguments.patch_size=8", "arguments.embed_dim=16", "arguments.depth=2",
       "arguments.num_heads=2")  # fmt: skip


def written(folder, out):
    story = write_run_report(folder, out)
    text = out.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href)=["']?(https?:|//)""", text)
    return story, text


def test_a_run_of_heads_shows_curves_and_budgets_before_and_after_it_is_judged(
    train, changes, people, weights, tmp_path
):
    run = tmp_path / "run"
    train("iciia", run, "--data", people, "--backbone", "resnet10t", "--checkpoint", weights, *changes(*SMALL))
    story, text = written(run, tmp_path / "page.html")
    assert story.missing == [f"The heads are not evaluated: refocus evaluate {run} judges them on unseen people."]
    assert [caption for caption, _ in story.curves] == [
        "iciia P=4 seed 0: validation accuracy",
        "iciia P=4 seed 0: loss",
    ]
    (budget,) = story.budgets[1]
    card = json.loads((run / "seed-0" / "iciia_p4.json").read_text())
    assert budget[:5] == ["iciia_p4, seed 0", "2 (patience 10)", "2", str(card["training"]["best_epoch"]),
                          str(card["training"]["steps"])]  # fmt: skip
    assert card["training"]["steps"] > 0
    assert "recipe.epochs" in text or "epochs = 2" in text  # run.toml
    found = {"mean": 0.1, "low": 0.0, "high": 0.2}
    shares = [(0.5, 0.75), (0.25, 0.0), (1.0, 1.0)]
    rows = [{"person": f"p{n}<b>", "targets": 4, "original": a, "delivered": b} for n, (a, b) in enumerate(shares)]
    results = {
        "data": {"targets": 12, "test_clients": 3},
        "accuracy": {"original": {"0": 0.5, "2": 0.5}, "delivered": {"0": 0.5, "2": 0.6}},
        "control": {},
        "gain": {"delivered": {"2": found}, "foreign_delivered": {"2": found}},
        "bundles": [{}],
        "people": {"history": 2, "rows": rows},
    }
    (run / "results.json").write_text(json.dumps(results))
    story, text = written(run, tmp_path / "page.html")
    assert story.missing == []
    assert story.worst[1] == [
        ["original backbone", "58.3%", "25.0%", "", "", ""],
        ["delivered", "58.3%", "0.0%", "+0.0", "1", "1"],
    ]
    assert "p1&lt;b&gt;" in text
    assert "p1<b>" not in text
    (run / "seed-0" / "iciia_p4.json").unlink()
    shutil.rmtree(run / "seed-0")
    (run / "results.json").unlink()
    story, _ = written(run, tmp_path / "page.html")
    assert story.missing[0].startswith("Training has not ended: 0 of 1 heads are trained.")
    assert len(story.curves) == 2  # of the head that was not saved


def test_a_run_of_clients_shows_each_against_training_alone_and_what_has_not_ended(train, changes, squares, tmp_path):
    run = tmp_path / "run"
    few = ("recipe.rounds=2", "recipe.watch=1", "rates=[0.05]", "part_rates=[0.25]", "unseen=0.0", "seeds=[0,1]")
    data = ("--data", squares / "squares.npz", "--checkpoint", squares / "vit.safetensors")
    told = (*data, "--methods", "fedvpt", "--backbone", "vit_tiny_patch16_224")
    train("federated", run, *told, *changes(*few, *VIT))
    story, text = written(run, tmp_path / "page.html")
    assert story.missing == []
    assert [row[0] for row in story.worst[1]] == ["each client alone", "FedAvg", "FedVPT"]
    assert [row[0] for row in story.people_tables[0][1][1]] == [f"client-000{n}" for n in range(3)]
    assert len(story.budgets[1]) == 3 * 2
    assert {tuple(row[1:3]) for row in story.budgets[1]} == {("2", "2")}
    assert "Study: federated" in text
    (run / "studies" / "federated.json").unlink()
    for result in run.glob("seed-1/fedvpt-*/result.json"):
        result.unlink()
    story, text = written(run, tmp_path / "page.html")
    assert story.missing[0].startswith("Training has not ended: 5 of the 6 trainings that were begun are judged.")
    assert story.missing[0] in text
    assert [row[3] for row in story.budgets[1]].count("not ended") == 1
    assert [row[2] for row in story.budgets[1]] == ["2"] * 6  # rounds of the one that has not ended are there


def test_a_run_of_prompts_shows_its_groups(train, changes, squares, tmp_path):
    few = ("partition=natural", "recipe.full.epochs=1", "recipe.parts.epochs=1", "recipe.parts.head_epochs=1")
    data = ("--data", squares / "squares.npz", "--checkpoint", squares / "vit.safetensors", "--seeds", "0")
    train("prompt", tmp_path / "run", *data, *changes(*few, *VIT))
    story, _ = written(tmp_path / "run", tmp_path / "page.html")
    assert story.missing == []
    assert len(story.worst[1]) == 4
    assert story.people


def test_a_bank_that_has_not_ended_says_which_stages_are_there(tmp_path):
    from refocus.cloud_train.runs.folder import save_settings
    from refocus.cloud_train.runs.taper import TaperConfig
    from refocus.cloud_train.tracking import log_metrics, tracked

    save_settings(tmp_path / "taper.json", replace(TaperConfig(), bases=2))
    (tmp_path / "seed-0").mkdir()
    with tracked("", tmp_path, {}):
        for step in (1, 2, 3):
            log_metrics("seed 0: small network, 5 epochs", step, loss=1 / step)
        log_metrics("seed 0: stage 2, basis 1 of 2", 7, loss=0.5)
        log_metrics("seed 0: stage 2, basis 2 of 2", 8, loss=0.5)
    story, _ = written(tmp_path, tmp_path / "page.html")
    assert story.missing[0].startswith("Training has not ended: 0 of 1 banks are trained.")
    assert story.budgets[1] == [
        ["stage 1, one network, seed 0", "5", "3", "not ended"],
        ["stage 2, specialists, seed 0", "16", "15", "not ended"],
        ["stage 3, mixing, seed 0", "1", "not noted", "not ended"],
    ]
    assert len(story.curves) == 2


def test_a_folder_that_is_no_run_is_refused(refocus, tmp_path, assert_one_clear_line):
    out = tmp_path / "page.html"
    assert_one_clear_line(refocus("report", tmp_path / "nowhere", "--out", out), "nowhere", "is not a folder")
    assert_one_clear_line(refocus("report", tmp_path, "--out", out), str(tmp_path), "run.json", "refocus train")
    assert not out.exists()


@pytest.mark.parametrize("name", ["run.json", "results.json", "studies/gates.json", "run.toml"])
def test_a_damaged_file_is_named_and_no_page_is_written(name, tmp_path):
    from refocus.cloud_train.runs.folder import save_settings
    from refocus.cloud_train.runs.iciia import RunConfig

    save_settings(tmp_path / "run.json", RunConfig())
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"study": "gates", "rows": [{')
    with pytest.raises((DataError, UsageError), match=name):
        write_run_report(tmp_path, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
