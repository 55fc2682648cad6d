"""Comparing: no difference where there is none, one where there is, and "not comparable" where nobody can know."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import time
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest

from refocus.benchmarks.document.schema import (
    Accuracy,
    BenchError,
    Conditions,
    Document,
    Machine,
    Observation,
    Paired,
    Photos,
    Ran,
    Ratio,
    Row,
    write_document,
)
from refocus.benchmarks.measure import paired
from refocus.benchmarks.measure.paired import Plan, decide, shift, signed_rank_interval
from refocus.benchmarks.measure.timer import Series
from refocus.benchmarks.measure.verdict import other_load, verdict_of, waited
from refocus.benchmarks.report.charts import new_axes, pareto, svg
from refocus.benchmarks.report.compare import changes, compare, obstacles
from refocus.benchmarks.report.report import write_report
from refocus.benchmarks.report.text import paired_text, ratio_cells

# ---- paired: the decision on simulated runs


def load_of(rng, effect, pairs=24, placement=0.01):
    """One load: neighbours are alike (autocorrelation 0.9), some samples are struck, and memory lies elsewhere."""
    steps = rng.normal(0, 0.02, 2 * pairs)
    noise = np.zeros(2 * pairs)
    for at in range(1, 2 * pairs):
        noise[at] = 0.9 * noise[at - 1] + steps[at]
    noise += (rng.random(2 * pairs) < 0.05) * rng.exponential(0.5, 2 * pairs)
    a, b = noise[0::2] + rng.normal(0, placement), noise[1::2] + rng.normal(0, placement) + np.log1p(effect)
    return shift(a, b)


def answers(effect, repeats=150, loads=paired.QUICK.loads):
    rng = np.random.default_rng(1)
    found = []
    for _ in range(repeats):
        _, low, high = signed_rank_interval([load_of(rng, effect) for _ in range(loads)])
        found.append(decide(1.0, np.exp(low), np.exp(high))[0])
    return found


def test_the_same_thing_twice_is_no_difference():
    assert answers(0.0).count("no difference seen") >= 0.98 * 150


def test_five_percent_slower_is_found():
    assert answers(0.05).count("B is slower") >= 0.95 * 150
    assert answers(-0.05, 40).count("B is faster") >= 0.95 * 40


def test_half_a_percent_is_nothing_to_act_on():
    assert answers(0.005, 60).count("no difference seen") == 60


def test_an_interval_that_leaves_zero_out_and_is_no_difference_says_why():
    within = "which may be less than 1%, as two loads of one thing may differ"
    answer, sentence = decide(0.953, 0.839, 0.996)
    assert answer == "no difference seen"
    assert "-4.7% (99% interval -16.1% to -0.4%), " + within in sentence
    assert within in decide(1.02, 1.005, 1.03)[1]
    assert within not in decide(1.0, 0.98, 1.03)[1]


def test_the_interval_of_eight_loads_is_their_range():
    """From the tables of the signed-rank test: of eight values, 99 % is only left by the smallest and the largest."""
    values = [0.1, -0.3, 0.2, 0.05, 0.4, -0.1, 0.0, 0.3]
    middle, low, high = signed_rank_interval(values)
    assert (low, high) == (-0.3, 0.4)
    assert low < middle < high


@pytest.mark.parametrize(("count", "cut"), [(8, 1), (10, 4), (12, 8), (16, 20), (20, 38)])
def test_the_exact_law_agrees_with_the_published_table(count, cut):
    """Critical values of Wilcoxon's signed-rank test, two-sided 1 %: 0, 3, 7, 19, 37, each one below the cut."""
    assert paired._cut(count, 0.005) == cut


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(2)
    inside = sum(low <= 0 <= high for _, low, high in (signed_rank_interval(rng.normal(0, 1, 12)) for _ in range(800)))
    assert inside >= 0.975 * 800


def test_too_few_loads_are_refused():
    with pytest.raises(BenchError, match="7 loads: at least 8"):
        Plan(loads=7)
    with pytest.raises(ValueError, match="5 values have no interval"):
        signed_rank_interval([1, 2, 3, 4, 5])


def test_a_load_stays_open_for_its_pairs_only_and_takes_turns():
    opened, events = itertools.count(), []

    def candidate(name):
        @contextlib.contextmanager
        def load():
            number = next(opened)
            events.append(name)
            yield lambda: time.sleep(0)
            events.append(f"close {number}")

        return load

    found = paired.compare(candidate("A"), candidate("B"), Plan(loads=8, pairs=3, min_seconds=0.0))
    assert [event for event in events if event in "AB"][:4] == ["A", "B", "B", "A"]
    assert len(found.by_load) == 8
    assert len(found.a.samples_ms) == len(found.b.samples_ms) >= 24
    assert (np.diff(found.a.starts_s) > 0).all()


def test_the_time_between_loads_is_nobodys_load():
    one = Series(np.ones(2), np.array([0.0, 0.5]), (Observation(at_s=0, busy_s=10, own_s=1),
                                                    Observation(at_s=1, busy_s=11, own_s=2)))  # fmt: skip
    later = Series(np.ones(2), np.array([0.0, 0.5]), (Observation(at_s=0, busy_s=90, own_s=2),
                                                      Observation(at_s=1, busy_s=91, own_s=3)))  # fmt: skip
    joined = paired._joined([{"A": one}, {"A": later}], "A")
    assert [o.busy_s for o in joined.observations] == [0, 1, 1, 2]
    assert [o.own_s for o in joined.observations] == [0, 1, 1, 2]


def test_loads_that_are_alike_are_no_other_load_and_no_wait_when_they_are_joined():
    """The counters go on between loads, and the other candidate has the last turn of each."""

    def load(number):
        seen = (Observation(at_s=t, busy_s=100 * number + 2 * t, own_s=100 * number + 0.98 * t,
                            steal_s=100 * number + 0.001 * t, waited_s=100 * number + 0.01 * t)
                for t in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25))  # fmt: skip
        return {"A": Series(np.full(24, 30.0), np.linspace(0, 1.15, 24), tuple(seen))}

    loads = [load(number) for number in range(12)]
    alone, joined = loads[0]["A"].observations, paired._joined(loads, "A").observations
    assert waited(joined) == pytest.approx(waited(alone))
    assert other_load(joined) == pytest.approx(other_load(alone))
    assert (np.diff([o.at_s for o in joined]) >= 0).all()


@pytest.fixture(scope="module")
def two_photos(bank_bundle, tmp_path_factory):
    """The whole of a real recogniser, loaded afresh each time; optionally slower by a share of its own time."""
    from refocus.benchmarks.modes import loaded
    from refocus.benchmarks.run import Plan as Table
    from refocus.benchmarks.run import targets_of

    plan = Table(precisions=("fp32",), photos=bank_bundle.folder.parent / "parity")
    (target,) = targets_of([bank_bundle.folder], plan, tmp_path_factory.mktemp("pair"), [])
    open_it = loaded(target)

    def slower(share):
        @contextlib.contextmanager
        def load():
            with open_it() as action:

                def work():
                    begin = time.perf_counter_ns()
                    action()
                    until = begin + (time.perf_counter_ns() - begin) * (1 + share)
                    while time.perf_counter_ns() < until:
                        pass

                yield work

        return load

    return open_it, slower


LIVE = Plan(loads=12, pairs=24, min_seconds=0.1)


def repeat(open_a, open_b):
    """Twenty answers; where this process hardly gets a core nothing can be measured, and the verdicts say so."""
    found = [paired.compare(open_a, open_b, LIVE) for _ in range(20)]
    shares = [share for one in found if (share := waited(one.a.observations)) is not None]
    if shares and np.median(shares) > 0.2:
        pytest.skip(f"other programs kept this one waiting for {np.median(shares):.0%} of the time")
    return [one.answer for one in found]


needs_a_quiet_machine = pytest.mark.skipif(
    not os.environ.get("REFOCUS_QUIET"), reason="times real programs: set REFOCUS_QUIET=1 where nothing else runs"
)


@pytest.mark.slow
@needs_a_quiet_machine
def test_the_same_bundle_is_no_different_from_itself_live(two_photos):
    open_it, _ = two_photos
    assert repeat(open_it, open_it).count("no difference seen") >= 19


@pytest.mark.slow
@needs_a_quiet_machine
def test_a_whole_that_is_five_percent_slower_is_found_live(two_photos):
    open_it, slower = two_photos
    assert repeat(open_it, slower(0.05)).count("B is slower") >= 18


# ---- separate runs


def machine(**changes):
    facts = {"device": "cpu", "id": "m", "system": "Linux", "python": "3", "cpu": "x", "cores": 2, "memory_bytes": 1}
    return Machine(**{**facts, **changes})


def row(name, level, seed=0, group="stages", at="", bundle="b", noise=0.01, count=600):
    samples = level * np.exp(np.random.default_rng(seed).normal(0, noise, count))
    series = Series(samples, np.cumsum(samples) / 1000)
    conditions = Conditions(min_queries=100, min_seconds=0.0)
    return Row(bundle=bundle, target="onnxruntime:fp32", group=group, name=name, at=at, conditions=conditions,
               samples_ms=tuple(samples.tolist()), starts_s=tuple(series.starts_s.tolist()), summary=series.summary(),
               verdict=verdict_of(series, conditions), observations=())  # fmt: skip


def test_rows_of_0_1_are_compared_by_the_present_name_of_their_precision():
    old, new = (msgspec.structs.replace(row("whole", 1.0, seed=n), target=f"onnxruntime:{name}")
                for n, name in enumerate(("int8", "w8a8")))  # fmt: skip
    for first, second in ((old, new), (new, old)):
        [found] = compare(document(first), document(second))
        assert found.answer == "no difference seen"
        assert found.key[0] == second.target


def document(*rows, **changes):
    ran = Ran(bundle="b", target="onnxruntime:fp32", encoder_sha256="e", head_sha256="h", head="x", used="CPU",
              runtime_version="1.28.0", asked="", threads=1, telemetry="off", size_bytes=2_000_000)  # fmt: skip
    facts = {"command": "refocus bench b", "refocus": "0.1", "mode": "default", "started": "2026-01-01", "seconds": 1.0,
             "machine": machine(), "photos": Photos(source="p", count=1, fingerprint="f"), "ran": (ran,), "rows": rows}  # fmt: skip
    return Document(**{**facts, **changes})


@pytest.mark.parametrize(
    ("factor", "answer"),
    [(1.0, "no difference seen"), (1.03, "no difference seen"), (1.2, "slower"), (0.8, "faster")],
)
def test_separate_runs_are_compared_with_what_two_runs_differ_by(factor, answer):
    (found,) = compare(document(row("whole", 5.0)), document(row("whole", 5.0 * factor, seed=1)))
    assert found.answer == answer
    assert found.ratio == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize(
    ("changes_of_second", "why"),
    [({"machine": machine(id="n", cpu="y")}, "machine: x (m), then y (n)"),
     ({"machine": machine(governor="powersave")}, "governor: unknown, then powersave"),
     ({"machine": machine(power_mode="15W")}, "power mode: unknown, then 15W"),
     ({"photos": Photos(source="p", count=1, fingerprint="g")}, "photos: f, then g")],
)  # fmt: skip
def test_runs_of_other_conditions_are_not_comparable(changes_of_second, why):
    first, second = document(row("whole", 5.0)), document(row("whole", 5.0), **changes_of_second)
    assert [*obstacles(first, second)] == [why]
    (found,) = compare(first, second)
    assert (found.answer, found.why, found.ratio) == ("not comparable", why, None)


def test_a_row_that_is_not_valid_is_not_compared():
    (found,) = compare(document(row("whole", 5.0)), document(row("whole", 9.0, noise=0.3)))
    assert found.why == "the second is not valid: spread"


def test_a_row_that_only_one_has_is_named():
    found = compare(document(row("whole", 5.0)), document(row("head", 5.0)))
    assert [difference.why for difference in found] == [
        "the second document has no such row", "the first document has no such row"]  # fmt: skip


def test_documents_that_share_no_row_are_one_line(refocus, tmp_path):
    others = [msgspec.structs.replace(row(name, 5.0), target="executorch:fp32") for name in ("whole", "head")]
    write_document(document(row("whole", 5.0), row("head", 1.0)), tmp_path / "a.json")
    write_document(document(*others), tmp_path / "b.json")
    done = refocus("bench", "compare", tmp_path / "a.json", tmp_path / "b.json")
    (line,) = done.stdout.splitlines()
    assert f"{tmp_path / 'a.json'} and {tmp_path / 'b.json'} share no row" in line
    assert "refocus bench BUNDLE --choose" in line
    rows = json.loads(refocus("bench", "compare", tmp_path / "a.json", tmp_path / "b.json", "--json").stdout)["rows"]
    assert len(rows) == 4


def test_another_runtime_is_what_is_compared_and_no_obstacle():
    newer = msgspec.structs.replace(document().ran[0], runtime_version="1.28.1")
    first, second = document(row("whole", 5.0)), document(row("whole", 5.0), ran=(newer,))
    assert [*obstacles(first, second)] == []
    assert [*changes(first, second)] == ["runtime: 1.28.0, then 1.28.1"]


def test_compare_and_report_are_commands(refocus, tmp_path):
    write_document(document(row("whole", 5.0)), tmp_path / "a.json")
    write_document(document(row("whole", 6.0, seed=1)), tmp_path / "b.json")
    done = refocus("bench", "compare", tmp_path / "a.json", tmp_path / "b.json")
    assert "onnxruntime:fp32 stages whole: slower: +20" in done.stdout, done.stderr
    done = refocus("bench", "report", tmp_path)
    assert "report.html: 2 documents" in done.stdout, done.stderr


# ---- the report


class Outside(HTMLParser):
    """Everything in a page that a browser would fetch, and everything it would run."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [(tag, name) for name, _ in attrs if name in ("src", "href", "srcset", "data", "action")]
        self.found += [tag] if tag in ("script", "link", "iframe", "object", "embed") else []


def test_the_report_has_every_chart_and_fetches_nothing(tmp_path):
    accuracy = Accuracy(bundle="b", target="onnxruntime:fp32", data="d", photos=9, people=2, with_history=0.7,
                        photo_alone=0.5, worst_decile=0.4)  # fmt: skip
    lengths = [row("recogniser", 4 + n / 10, group="history length", at=at) for n, at in enumerate(("0", "4", "16"))]
    table = document(row("whole", 5.0), row("encoder", 4.0), *lengths, accuracy=(accuracy,))
    warm = row("whole", 5.0, group="sustained")
    seen = tuple(Observation(at_s=float(n), temperature_c=50.0 + n) for n in range(4))
    write_document(table, tmp_path / "a.json")
    write_document(document(msgspec.structs.replace(warm, observations=seen), mode="sustained"), tmp_path / "b.json")
    result = Paired(a="<A>", b="B", answer="no difference seen", sentence="no difference seen: +0.1%", ratio=1.001,
                    low=0.99, high=1.01, loads=8, pairs=4, by_load=(1.0,) * 8)  # fmt: skip
    write_document(document(row("whole", 5.0, group="paired"), mode="paired", paired=result), tmp_path / "c.json")
    page, count = write_report(tmp_path)
    text = page.read_text()
    assert count == 3
    outside = Outside()
    outside.feed(text)
    assert outside.found == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    for chart_of in ("CDF of stages", "along stored photos", "accuracy against time", "accuracy against size",
                     "sustained", "temperature", "CDF of paired"):  # fmt: skip
        assert f'aria-label="{chart_of}"' in text, chart_of
    assert "&lt;A&gt;" in text
    markdown = (tmp_path / "table.md").read_text()
    assert "| b | onnxruntime:fp32 |" in markdown
    assert "70.0%" in markdown


def test_the_letters_of_two_bundles_are_not_doubled():
    result = Paired(a="A shop", b="B x1", answer="no difference seen", sentence="no difference seen: +0.1%", ratio=1.001,
                    low=0.99, high=1.01, loads=8, pairs=4, by_load=(1.0,) * 8)  # fmt: skip
    assert paired_text(result) == "A is shop, B is x1: no difference seen: +0.1%"


def test_a_ratio_of_rows_that_are_not_valid_stands_in_brackets():
    """Both rows decide; those of other groups and targets do not."""
    valid, other = row("bare encoder", 1.0, group="overhead"), row("recogniser", 2.0, group="overhead")
    struck = row("recogniser", 2.0, group="overhead", noise=1.0)
    elsewhere = row("recogniser", 2.0, noise=1.0)
    assert [one.verdict.valid for one in (valid, other, struck, elsewhere)] == [True, True, False, False]
    ratio = Ratio(bundle="b", target="onnxruntime:fp32", group="overhead", name="recogniser", over="bare encoder",
                  ratio=2.0, low=1.9, high=2.1)  # fmt: skip
    assert ratio_cells(ratio, [valid, other, elsewhere])[3:] == ("2.000", "1.900 to 2.100")
    assert ratio_cells(ratio, [valid, struck])[3:] == ("(2.000)", "(1.900 to 2.100)")
    by_place = [msgspec.structs.replace(one, at=one.name, name="photo") for one in (valid, struck)]
    assert ratio_cells(ratio, by_place)[3:] == ("(2.000)", "(1.900 to 2.100)")


def test_a_folder_without_documents_is_refused(tmp_path):
    with pytest.raises(BenchError, match="holds no documents; refocus bench"):
        write_report(tmp_path)


def test_a_chart_without_points_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="has no points"):
        svg(new_axes("a", "b"), "t")


def test_the_front_is_what_nothing_beats():
    assert pareto([(1.0, 0.5), (2.0, 0.7), (3.0, 0.6), (2.0, 0.6)]) == {0, 1}


# ---- over time


def days(tmp_path, *levels, **facts):
    """One document a day, each of the next commit."""
    files = []
    for day, level in enumerate(levels, 1):
        files.append(tmp_path / f"day-{day}.json")
        facts["started"] = f"2026-01-{day:02}T10:00:00+00:00"
        write_document(document(row("whole", level, seed=day), row("head", 1.0, seed=90 + day), **facts), files[-1])
    return files


@pytest.mark.slow
def test_what_got_slower_is_told_with_its_commit(refocus, tmp_path):
    folder = tmp_path / "kept"
    for name, file in zip("abc", days(tmp_path, 5.0, 5.01, 6.5), strict=True):
        done = refocus("bench", "track", folder, file, "--commit", name, "--fail")
        assert done.returncode == (1 if name == "c" else 0)
    assert "onnxruntime:fp32 stages whole: c is slower than b: +30." in done.stdout
    assert "3 documents, 1 differences" in done.stdout
    page = (folder / "history.html").read_text()
    assert page.count("<figure>") == 2
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


@pytest.mark.slow
def test_many_small_steps_show_against_a_baseline(refocus, tmp_path):
    folder = tmp_path / "kept"
    for name, file in zip("abcd", days(tmp_path, 5.0, 5.15, 5.3, 5.46), strict=True):
        done = refocus("bench", "track", folder, file, "--commit", name)
    assert "0 differences" in done.stdout
    assert "d is slower than a" in refocus("bench", "track", folder, "--baseline", "a").stdout
    assert "--baseline z" in refocus("bench", "track", folder, "--baseline", "z").stderr


def test_two_machines_are_not_compared(refocus, tmp_path):
    folder = tmp_path / "kept"
    (file,) = days(tmp_path, 5.0)
    refocus("bench", "track", folder, file, "--commit", "a")
    (file,) = days(tmp_path, 9.0, machine=machine(id="another", cpu="y"))
    assert "2 documents, 0 differences" in refocus("bench", "track", folder, file, "--commit", "b").stdout


def test_the_same_document_is_kept_once_and_a_bad_one_keeps_nothing(refocus, tmp_path):
    folder = tmp_path / "kept"
    (file,) = days(tmp_path, 5.0)
    (tmp_path / "bad.json").write_text("{}")
    assert refocus("bench", "track", folder, file, tmp_path / "bad.json", "--commit", "a").returncode
    assert not folder.exists()
    for _ in range(2):
        assert "1 documents" in refocus("bench", "track", folder, file, "--commit", "a").stdout
    assert "expected letters" in refocus("bench", "track", folder, file, "--commit", "../a").stderr


def test_without_a_repository_the_commit_must_be_named(refocus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = days(tmp_path, 5.0)
    assert "name the commit with --commit" in refocus("bench", "track", tmp_path / "kept", file).stderr
    subprocess.run("git init -q . && git add day-1.json && git -c user.name=a -c user.email=a@b commit -qm x", shell=True,
                   check=True)  # fmt: skip
    refocus("bench", "track", tmp_path / "kept", file)
    ((commit,),) = [[path.stem.split("-")[-1]] for path in (tmp_path / "kept").glob("*/*.json")]
    assert re.fullmatch(r"[0-9a-f]{12}", commit)


def test_a_folder_that_keeps_nothing_is_refused(refocus, tmp_path):
    assert "keeps no documents" in refocus("bench", "track", tmp_path).stderr
