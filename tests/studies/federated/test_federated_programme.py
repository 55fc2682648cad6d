"""A programme of federated tables: orders that are judged by jobs that exist, a queue that goes on from documents."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.federated.evaluate import packed_bits
from refocus.cloud_train.federated.methods import METHODS, TITLES
from studies.federated import orders as federated_orders
from studies.federated.orders import (
    HOLDS,
    NOT_RUN,
    NOT_SEEN,
    REVERSED,
    _edge,
    _line,
    average_rows,
    judge,
    read_documents,
    unpacked_bits,
)
from studies.federated.programme import (
    Job,
    Queue,
    load_programme,
    merged,
    of_these_settings,
    plain,
    run_queue,
    same_settings,
)
from studies.report.results_page import results_pages

COMMITTED = Path(__file__).parents[3] / "docs" / "federated-programme.toml"
SMALL = """
[defaults]
scratch = true
unseen = 0.0
clients = 2
photos_per_client = 20
rates = [0.05, 0.1]
part_rates = [0.05]
tuning_rounds = 1
arguments = { img_size = 16, patch_size = 8, embed_dim = 16, depth = 1, num_heads = 2 }

[defaults.recipe]
rounds = 2
steps = 3
watch = 1
keep = "best"
full = { batch = 8 }
parts = { batch = 8 }
features = { batch = 8 }

[tables.small]
paper = "pFedPG Table 1"
methods = ["fedrep", "head", "local"]
seeds = [0]

[tables.other]
like = "small"
methods = ["head"]
settings = { recipe = { rounds = 1 } }

[[orders]]
better = "fedrep"
other = "head"
source = "pFedPG Table 1"
tables = ["small"]

[[orders]]
better = "head"
other = "head"
source = "pFedPG Table 2"
tables = ["small"]
other_tables = ["other"]
"""


@pytest.fixture
def queue(tmp_path):
    (tmp_path / "federated-programme.toml").write_text(SMALL)
    programme = load_programme(tmp_path / "federated-programme.toml")
    return Queue(programme, tmp_path, tmp_path / "run", tmp_path / "results" / "federated")


# ---- what is committed


def test_every_order_names_jobs_that_exist():
    programme = load_programme(COMMITTED)
    names = {job.name for job in Queue(programme, Path(), Path(), Path()).jobs()}
    assert len(programme.orders) >= 40
    for order in programme.orders:
        assert {job.name for pair in federated_orders._pairs(programme, order) for job in pair} <= names


def test_methods_of_a_table_have_equal_budgets():
    programme = load_programme(COMMITTED)
    queue = Queue(programme, Path(), Path(), Path())
    for name in programme.tables:
        config = queue.config(name)
        methods = federated_orders.resolved(programme, name).methods
        recipes = [config.recipe.of(METHODS[method]) for method in methods]
        assert config.recipe.steps > 0
        assert len({(recipe.steps, recipe.batch, recipe.optimiser, recipe.weight_decay) for recipe in recipes}) == 1, (
            name
        )
        assert max(recipe.batch for recipe in recipes) <= 16
        assert config.rates == config.part_rates == config.feature_rates
        assert len(config.generator_rates) == 1  # nobody has a second grid


def test_every_method_has_a_name_that_people_read():
    assert TITLES.keys() == METHODS.keys()


# ---- the file


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ('methods = ["fedrep", "head", "local"]', "methods: fedrap"),
        ("rounds = 2", "is unknown"),
        ('tables = ["small"]\nother', "no job of head in large"),
        ('like = "small"', "there is no smell"),
        ("[defaults]", "unknown field"),
    ],
)
def test_a_mistake_in_a_programme_is_said_before_anything_runs(change, what, tmp_path):
    wrong = {
        "methods: fedrap": 'methods = ["fedrap"]',
        "is unknown": "ronds = 2",
        "no job of head in large": 'tables = ["large"]\nother',
        "there is no smell": 'like = "smell"',
        "unknown field": "speed = 1\n[defaults]",
    }[what]
    (tmp_path / "programme.toml").write_text(SMALL.replace(change, wrong, 1))
    with pytest.raises(UsageError, match=what):
        load_programme(tmp_path / "programme.toml")


def test_settings_of_a_table_go_over_those_of_the_one_it_is_like():
    assert merged({"a": {"b": 1, "c": 2}, "arguments": {"x": 1}}, {"a": {"b": 3}, "arguments": {}}) == {
        "a": {"b": 3, "c": 2},
        "arguments": {},
    }


# ---- the queue


def test_a_job_that_has_a_document_is_not_run_again_and_one_with_other_settings_is(queue, tmp_path):
    assert run_queue(queue, ["*.head.*"]) == []
    paths = sorted(queue.documents.glob("*.json"))
    assert [path.name for path in paths] == ["other.head.seed-0.json", "small.head.seed-0.json"]
    document = json.loads(paths[1].read_text())
    assert document["budget"]["steps"] == 3
    assert document["curves"]["steps"] == [3.0, 3.0]
    assert all(loss > 0 for loss in document["curves"]["loss"])
    before = [path.stat().st_mtime_ns for path in paths]
    elsewhere = replace(queue, folder=tmp_path / "another machine", _runs={})
    assert run_queue(elsewhere, ["*.head.*"]) == []
    assert [path.stat().st_mtime_ns for path in paths] == before
    assert not elsewhere.folder.exists()
    (tmp_path / "changed.toml").write_text(SMALL.replace("rounds = 1 }", "rounds = 3 }"))
    changed = replace(elsewhere, programme=load_programme(tmp_path / "changed.toml"), _runs={})
    assert run_queue(changed, ["*.head.*"]) == []
    after = [path.stat().st_mtime_ns for path in paths]
    assert (after[0] > before[0], after[1] == before[1]) == (True, True)
    assert len(json.loads(paths[0].read_text())["curves"]["round"]) == 3


def test_a_job_of_a_table_with_the_same_settings_is_not_run_twice(queue, tmp_path):
    (tmp_path / "twice.toml").write_text(SMALL.replace("settings = { recipe = { rounds = 1 } }", "seeds = [0, 1]"))
    twice = replace(queue, programme=load_programme(tmp_path / "twice.toml"), _runs={})
    assert run_queue(twice, ["*.head.*"]) == []
    one, other, more = (
        json.loads((queue.documents / f"{name}.json").read_text())
        for name in ("small.head.seed-0", "other.head.seed-0", "other.head.seed-1")
    )
    assert (other["same_as"], other["table"]) == ("small.head.seed-0", "other")
    assert "same_as" not in more
    assert (other["members"], other["curves"]) == (one["members"], one["curves"])
    assert not list((tmp_path / "run").glob("other-*/*/head*seed-0*"))


def test_arguments_that_are_left_out_are_those_of_another_network(queue):
    now = plain(queue.config("small"))
    assert same_settings(now, now)
    for other in ({}, {"img_size": 16}, {**now["arguments"], "class_token": False}):
        assert not same_settings({**now, "arguments": other}, now)
        assert not same_settings(now, {**now, "arguments": other})


def test_documents_of_other_budgets_are_not_judged_beside_those_of_now(queue):
    now = plain(queue.config("small"))
    longer = {**now, "recipe": {**now["recipe"], "rounds": 99}}
    documents = {"small.head.seed-0": {"settings": now}, "small.local.seed-0": {"settings": longer}}
    assert [*of_these_settings(queue.programme, documents)] == ["small.head.seed-0"]


@pytest.mark.parametrize("text", ["", "{", "{}", "null"])
def test_a_damaged_document_of_a_job_is_no_document(queue, text):
    job = Job("small", "head", 0)
    queue.documents.mkdir(parents=True, exist_ok=True)
    (queue.documents / f"{job.name}.json").write_text(text)
    assert queue.document(job) is None


def test_rates_are_chosen_once_and_a_failed_job_stops_no_other(queue):
    assert run_queue(queue, ["small.local.seed-0", "small.head*"]) == ["small.local.seed-0"]
    assert run_queue(queue, ["small.local.*"]) == []
    chosen = json.loads((queue.documents / "small.local.rates.json").read_text())
    trained = json.loads((queue.documents / "small.local.seed-0.json").read_text())
    assert set(chosen["tried"]) == {"0.05", "0.1"}
    assert trained["rates"] == chosen["rates"]
    assert chosen["tried"][f"{chosen['rates']['client']:g}"] == max(chosen["tried"].values())
    assert chosen["budget"]["rounds"] == 1
    with pytest.raises(DataError, match="run that job first"):
        queue.rates(Job("small", "fedrep", 0))


@pytest.mark.slow
def test_jobs_at_a_time_find_what_they_find_one_by_one(queue, tmp_path):
    beside = replace(queue, folder=tmp_path / "beside", documents=tmp_path / "beside-documents", _runs={})
    assert run_queue(beside, ["small.*"], processes=2) == []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a process of the pool
    try:
        assert run_queue(queue, ["small.*"]) == []
    finally:
        torch.set_num_threads(threads)
    names = sorted(path.name for path in queue.documents.glob("*.json"))
    assert names == sorted(path.name for path in beside.documents.glob("*.json"))
    for name in names:
        one, other = (json.loads((place / name).read_text()) for place in (queue.documents, beside.documents))
        for document in (one, other):
            del document["budget"]["seconds"]
        assert one == other


class KilledInOneTable(Queue):
    """A queue whose jobs of the table "other" are killed as where memory ends."""

    def run(self, table):
        if table == "other":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(table)


@pytest.mark.slow
def test_a_job_whose_process_is_killed_stops_no_other(queue):
    killed = KilledInOneTable(queue.programme, queue.data, queue.folder, queue.documents)
    assert run_queue(killed, ["*.head.*"], processes=2) == ["other.head.seed-0"]
    assert killed.document(Job("small", "head", 0)) is not None
    assert run_queue(queue, ["*.head.*"], processes=2) == []


def test_several_jobs_at_a_time_do_not_wait_for_rates_that_nobody_chooses(queue):
    assert run_queue(queue, ["small.local.seed-0"], processes=2) == ["small.local.seed-0"]


def test_the_page_says_what_was_run_and_what_was_not(queue, tmp_path):
    run_queue(queue, ["*.head.*"])
    (tmp_path / "results" / "one.json").write_text((COMMITTED.parent / "results" / "condense.json").read_text())
    pages = results_pages(tmp_path / "results")
    page = pages.text
    assert "1 are judged" in page
    assert "1 have jobs that have not run yet" in page
    assert "| FedRep over classifier alone | pFedPG Table 1 | small | not yet run |" in page
    assert "| classifier alone | 1 |" in page
    assert "| 3 |" in page, "steps a round"
    assert "| CPU |" in page
    assert "100 % of all clients in each" in page
    assert len(pages.pictures["federated-small.png"]()) > 1000


@pytest.mark.parametrize(
    ("tried", "chosen", "said"),
    [
        ({"0.001": 0.1, "0.01": 0.2, "0.1": 0.1}, 0.01, ""),
        ({"0.001": 0.3, "0.01": 0.2}, 0.001, " (lowest tried)"),
        ({"1e-05-0.01": 0.1, "0.25-0.01": 0.2}, 0.25, " (highest tried)"),
        ({"0.1": 0.2}, 0.1, ""),
    ],
)
def test_a_rate_at_the_end_of_what_was_tried_is_marked(tried, chosen, said):
    assert _edge({"client": chosen, "server": 0.0}, {"tried": tried}) == said


def test_no_two_methods_of_a_table_are_drawn_alike():
    most = max(len(table.methods) for table in load_programme(COMMITTED).tables.values())
    assert len({tuple(_line(number).values()) for number in range(most)}) == most > 10


# ---- the orders


def test_bits_of_photos_come_back():
    bits = np.random.default_rng(0).random(37) < 0.5
    assert (unpacked_bits(packed_bits(bits), 37) == bits).all()


@pytest.mark.parametrize("clients", [3, 12])
def test_a_difference_is_seen_and_the_smallest_that_could_have_been_is_said(clients, queue):
    rng, documents = np.random.default_rng(0), {}
    for method, right in (("fedrep", 0.8), ("head", 0.5)):
        for job in ("small", "other"):
            members = []
            for number in range(clients):
                bits = rng.random(200) < right
                members.append({"name": str(number), "test": 200, "right": {"used": packed_bits(bits)}})
            name = f"{job}.{method}.seed-0"
            documents[name] = {"federated_job": name, "data": {"fingerprint": "x"}, "members": members, "unseen": []}
    held, same = judge(queue.programme, documents)[::-1]
    assert (held["verdict"], same["verdict"]) == (HOLDS, NOT_SEEN)
    assert held["difference"]["low"] > 0.2
    assert held["difference"]["over"] == ("clients" if clients > 10 else "photos")
    assert 0 < same["smallest"] < 0.1
    swapped = {
        name: {**one, "members": documents[name.replace("head", "?").replace("fedrep", "head").replace("?", "fedrep")]["members"]}
        for name, one in documents.items()
    }  # fmt: skip
    assert judge(queue.programme, swapped)[0]["verdict"] == REVERSED
    assert {row["verdict"] for row in judge(queue.programme, {})} == {NOT_RUN}
    documents["small.head.seed-0"]["data"] = {"fingerprint": "y"}
    with pytest.raises(DataError, match="are of other photos"):
        judge(queue.programme, documents)


def test_means_over_tables_count_every_client_once_and_wait_for_all_jobs(tmp_path):
    more = """
[tables.left-out]
like = "small"
settings = { unseen = 0.5 }
[tables.left-out-too]
like = "left-out"
[[averages]]
paper = "another table"
tables = ["left-out", "left-out-too"]
"""
    (tmp_path / "programme.toml").write_text(SMALL + more)
    programme = load_programme(tmp_path / "programme.toml")
    documents = {
        f"{table}.{method}.seed-0": {
            "members": [{"received": right, "test": 10} for right in members],
            "unseen": [{"received": newcomer, "test": 10}],
        }
        for table, members, newcomer in (("left-out", (4, 6), 1), ("left-out-too", (8, 10, 10), 3))
        for method in ("fedrep", "head", "local")
    }
    del documents["left-out-too.head.seed-0"]
    rows = average_rows(programme, programme.averages[0], documents)
    assert [row["method"] for row in rows] == ["FedRep", "each client alone"]
    assert list(rows[0].values())[1:] == ["10.0%", "30.0%", "20.0%", "76.0%", "60.0%"]
    (tmp_path / "programme.toml").write_text(SMALL + more.replace('"left-out-too"]', '"other"]'))
    with pytest.raises(UsageError, match="another table: 2 sets of methods"):
        load_programme(tmp_path / "programme.toml")


def test_a_document_under_another_name_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"federated_job": "b", "schema_version": 1}')
    with pytest.raises(DataError, match="is of job b"):
        read_documents(tmp_path)
