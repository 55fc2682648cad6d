"""`refocus bench` on a real bundle: its table, its document, and what it says it could not measure."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from refocus.benchmarks import modes
from refocus.benchmarks.commands.bench import _deliver, _keep
from refocus.benchmarks.devices.energy import EnergyMeter, energy_of
from refocus.benchmarks.devices.machine import describe
from refocus.benchmarks.document.schema import BenchError, Conditions, decode_document, read_document, write_document
from refocus.benchmarks.measure.machine_monitor import MachineMonitor, StartBelow
from refocus.benchmarks.measure.target import Target, fastest, read_album
from refocus.benchmarks.report.text import fastest_lines
from refocus.benchmarks.rows import cold_start, stages
from refocus.benchmarks.rows.recorder import Table
from refocus.benchmarks.run import GROUPS, Labelled, Plan, run, targets_of
from refocus.edge.bundle import write_manifest
from refocus.edge.errors import BundleError, RefocusError, RuntimeUnavailable
from refocus.edge.photos.preprocess import preprocess
from refocus.edge.recognize.recognizer import STAGES
from refocus.edge.runtimes import RUNTIMES

FEW = Conditions(min_queries=4, min_seconds=0.0, warm_up=1)


def few(**changes):
    return Plan(conditions=FEW, mode="custom", starts=1, **changes)


@pytest.fixture(scope="module")
def document(bundle, tmp_path_factory):
    """Every group, a few samples each."""
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr("refocus.benchmarks.rows.personal.PROFILES", (1, 3))
        fewer.setattr("refocus.benchmarks.rows.stages.ALBUM", 4)
        return run([bundle.folder], few(), tmp_path_factory.mktemp("scratch"), "refocus bench")


def rows(document, group):
    return {(row.name, row.at): row for row in document.rows if row.group == group}


def test_the_stages_of_a_photo_are_apart_and_add_up(document):
    found = rows(document, "stages")
    assert [name for name, _ in found] == [*STAGES, "whole"]
    whole = np.array(found["whole", ""].samples_ms)
    apart = sum(np.array(found[stage, ""].samples_ms) for stage in STAGES)
    assert (apart <= whole).all()
    assert np.median(apart / whole) > 0.5


def test_every_axis_of_personalisation_has_its_rows(document):
    assert [at for _, at in rows(document, "history length")] == ["0", "1", "4", "16", "64", "256"]
    assert [name for name, _ in rows(document, "cache")] == ["warm", "cold"]
    assert [name for name, _ in rows(document, "first photo")] == [
        "next photo", "first photo of the day", "first photo after a switch"]  # fmt: skip
    assert [at for _, at in rows(document, "profiles")] == ["1", "3"]
    assert next(at for _, at in rows(document, "batch")) == "1"
    assert rows(document, "album")["whole album", ""].photos == 4
    assert [name for name, _ in rows(document, "start")] == ["import", "cold load", "first photo", "second photo"]
    over = {(ratio.group, ratio.name): ratio for ratio in document.ratios}
    found = over["overhead", "recogniser"]
    assert 0 < found.low <= found.ratio <= found.high


def test_a_history_stays_as_long_as_its_row_says(document, bundle, tmp_path):
    from refocus.edge.history.feature_history import FeatureHistory

    plan = few(only=("history length",))
    run([bundle.folder], plan, tmp_path, "x")
    (profile,) = tmp_path.rglob("length-16*.sqlite3")
    with FeatureHistory(profile) as history:
        assert history.count(bundle.artifact("encoder", "onnxruntime").feature_space) == 16


def test_what_ran_is_told_by_the_programs(document):
    (ran,) = document.ran
    assert ran.used == "CPUExecutionProvider"
    assert ran.runtime_version.startswith("1.")
    assert ran.telemetry.startswith("off")
    (memory,) = document.memory
    assert 0 < memory.imported_bytes < memory.loaded_bytes <= memory.peak_bytes
    assert document.machine.id == describe().id


def test_what_was_not_measured_is_named_with_the_reason(document):
    missing = {lacking.what.split(": ")[1]: lacking.why for lacking in document.missing}
    assert set(missing) == {"prompt swap", "condensing", "accuracy"}
    assert missing["condensing"] == "it is no bank"


def test_few_samples_have_no_valid_verdict(document):
    assert all(not row.verdict.valid for row in document.rows)


def test_a_bank_is_condensed(bank_bundle, tmp_path):
    photos = bank_bundle.folder.parent / "parity"
    found = run([bank_bundle.folder], few(only=("condensing",), precisions=("fp32",), photos=photos), tmp_path, "x")
    (row,) = found.rows
    assert (row.name, row.summary.count) == ("condense", 20)


@pytest.fixture
def labelled(bundle, stream, tmp_path):
    """Four photos of one person, with a label that the bundle knows."""
    folder = tmp_path / "labelled"
    folder.mkdir()
    lines = ["file_name,label,client"]
    for number, content in enumerate(stream[:4]):
        (folder / f"{number}.png").write_bytes(content)
        lines.append(f"{number}.png,{bundle.manifest.head().labels[0]},anna")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("photos_per_person", [64, 2])
def test_accuracy_stands_in_the_same_document(bundle, labelled, tmp_path, photos_per_person):
    (tmp_path / "s").mkdir()
    given = Labelled(labelled, photos_per_person=photos_per_person)
    found = run([bundle.folder], few(only=("accuracy",), labelled=given), tmp_path / "s", "x")
    (accuracy,) = found.accuracy
    assert (accuracy.photos, accuracy.people) == (4, 1)


def table_of(bundle, folder, monitor=MachineMonitor, **how):
    target = Target("b", bundle, ("onnxruntime", "fp32"), read_album(bundle, None), folder, **how)
    return Table(target, describe(), FEW, monitor)


def test_another_head_than_the_one_asked_for_is_neither_started_nor_judged(bundle, labelled, tmp_path):
    table = table_of(bundle, tmp_path, head_target="coreml:fp16")
    for group in (lambda: cold_start.starts(table, 1), lambda: cold_start.memory(table)):
        with pytest.raises(BenchError, match="has no head coreml:fp16 behind the encoder onnxruntime:fp32"):
            group()
    with pytest.raises(BundleError, match="has no head coreml:fp16 behind the encoder onnxruntime:fp32"):
        GROUPS["accuracy"](table, few(labelled=Labelled(labelled)), None)


def test_accuracy_on_another_provider_than_the_one_asked_for_is_refused(bundle, labelled, tmp_path):
    table = table_of(bundle, tmp_path, provider="NoSuchExecutionProvider", allow_fallback=False)
    with pytest.raises(RuntimeUnavailable, match="NoSuchExecutionProvider"):
        GROUPS["accuracy"](table, few(labelled=Labelled(labelled)), None)


def test_a_stage_that_began_on_a_warm_device_is_not_valid(bundle, tmp_path):
    zone = tmp_path / "root/sys/class/thermal/thermal_zone0/temp"
    zone.parent.mkdir(parents=True)
    zone.write_text("60000\n")
    warm = table_of(bundle, tmp_path, lambda: MachineMonitor(root=tmp_path / "root", start_below=StartBelow(37.0, 0.0)))
    stages.stages(warm)
    assert [row.name for row in warm.rows] == [*STAGES, "whole"]
    for row in warm.rows:
        assert "throttling" in {reason.code for reason in row.verdict.reasons}, row.name
        assert row.start is not None


def test_a_number_behind_a_photo_leaves_its_pixels(bundle):
    album = read_album(bundle, None)
    first, again = album.next(), album.contents[0]
    assert first != again
    assert (preprocess(first, bundle.manifest.preprocessing) == preprocess(again, bundle.manifest.preprocessing)).all()


def test_a_group_that_fails_does_not_stop_the_table(bundle, tmp_path, monkeypatch):
    from refocus.benchmarks import run as bench

    def broken(*_):
        raise BenchError("the disk is full")

    monkeypatch.setitem(bench.GROUPS, "cache", broken)
    found = run([bundle.folder], few(only=("cache", "threads")), tmp_path, "x")
    assert [row.group for row in found.rows] == ["threads"] * len(found.rows) != []
    assert found.missing[-1].why == "the disk is full"


def test_what_was_measured_before_a_group_failed_unforeseen_is_kept(bundle, tmp_path, monkeypatch):
    from refocus.benchmarks import run as bench

    def broken(*_):
        raise KeyError("no such photo")

    monkeypatch.setitem(bench.GROUPS, "accuracy", broken)
    kept = []
    with pytest.raises(KeyError):
        run([bundle.folder], few(only=("threads", "accuracy")), tmp_path, "x", keep=kept.append)
    assert {row.group for document in kept for row in document.rows} == {"threads"}


def test_labelled_photos_that_cannot_be_used_leave_what_was_measured(bundle, labelled, tmp_path):
    (labelled / "metadata.csv").write_text("file_name,label,client\n0.png,no such label,anna\n")
    (tmp_path / "s").mkdir()
    found = run([bundle.folder], few(only=("threads", "accuracy"), labelled=Labelled(labelled)), tmp_path / "s", "x")
    assert {row.group for row in found.rows} == {"threads"}
    assert "labels the bundle does not know, such as 'no such label'" in found.missing[-1].why


@pytest.mark.parametrize(
    ("plan", "message"),
    [({"only": ("stage",)}, "--only stage: expected some of start, memory, stages,"),
     ({"runtimes": ("tensorrt",)}, "none of the requested targets can run on this machine; onnxruntime:fp32 can")],
)  # fmt: skip
def test_a_plan_that_cannot_be_is_refused(bundle, plan, message, tmp_path):
    with pytest.raises(BenchError, match=message):
        run([bundle.folder], few(**plan), tmp_path, "x")


@pytest.mark.parametrize(("runtimes", "tried"), [((), True), (("onnxruntime",), False), (("onnx",), False)])
def test_a_runtime_that_is_not_asked_for_is_not_loaded(bundle, tmp_path, monkeypatch, runtimes, tried):
    monkeypatch.setitem(RUNTIMES, "executorch", ("no_such_module", "executorch"))  # it is said if it is tried
    shutil.copytree(bundle.folder, tmp_path / "b")
    also = tuple(structs.replace(artifact, runtime="executorch") for artifact in bundle.manifest.artifacts)
    write_manifest(tmp_path / "b", structs.replace(bundle.manifest, artifacts=(*bundle.manifest.artifacts, *also)))
    (tmp_path / "scratch").mkdir()
    missing = []
    found = [*targets_of([tmp_path / "b"], few(runtimes=runtimes), tmp_path / "scratch", missing)]
    assert [target.target_name for target in found] == ["onnxruntime:fp32"]
    assert [lacking.what for lacking in missing] == ["b executorch:fp32"] * tried


def test_photos_that_are_none_are_refused(bundle, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no photo")
    with pytest.raises(BenchError, match="can be decoded"):
        read_album(bundle, tmp_path)


# ---- documents


def test_a_document_is_read_as_it_was_written(document, tmp_path):
    write_document(document, tmp_path / "a.json")
    assert read_document(tmp_path / "a.json") == document


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda d: d.update(schema_version=3), "has schema 3, this refocus reads 1 to 2"),
     (lambda d: d.update(kind="else"), "not a document of refocus bench"),
     (lambda d: d.pop("machine"), "not a document of refocus bench"),
     (lambda d: d["rows"][0]["samples_ms"].pop(), "has 0 samples|samples, .* starts and says")],
)  # fmt: skip
def test_a_document_that_is_none_is_refused(document, change, message):
    import msgspec

    content = json.loads(msgspec.json.encode(document))
    change(content)
    with pytest.raises(BenchError, match=message):
        decode_document(json.dumps(content).encode(), "a.json")


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path):
    with pytest.raises(BenchError, match="cannot be read"):
        read_document(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("[")
    with pytest.raises(BenchError, match="is not a document of refocus bench"):
        read_document(tmp_path / "x.json")


# ---- other runs


def test_two_bundles_are_measured_in_turns(bank_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(modes.paired, "QUICK", modes.paired.Plan(loads=8, pairs=4, min_seconds=0.0))
    plan = Plan(mode="quick", precisions=("fp32",), photos=bank_bundle.folder.parent / "parity")
    found = modes.pair([bank_bundle.folder, bank_bundle.folder], plan, tmp_path, "x")
    assert found.paired.answer in ("B is slower", "B is faster", "no difference seen")
    assert found.paired.low <= found.paired.ratio <= found.paired.high
    assert len(found.paired.by_load) == found.paired.loads == 8
    assert [row.summary.count for row in found.rows] == [32, 32]


def test_a_target_that_nobody_chose_for_two_bundles_is_said(bank_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(modes.paired, "QUICK", modes.paired.Plan(loads=8, pairs=1, min_seconds=0.0))
    one, fewer, said = bank_bundle, tmp_path / "fewer", []
    shutil.copytree(one.folder, fewer)
    kept = tuple(artifact for artifact in one.manifest.artifacts if artifact.precision == "fp16")
    bank, files = one.manifest.bank, {artifact.file for artifact in kept}
    bank = structs.replace(bank, weight_files=tuple(each for each in bank.weight_files if each.artifact in files))
    write_manifest(fewer, structs.replace(one.manifest, artifacts=kept, bank=bank))
    (tmp_path / "scratch").mkdir()
    plan = Plan(mode="quick", photos=one.folder.parent / "parity")
    found = modes.pair([one.folder, fewer], plan, tmp_path / "scratch", "x", said.append)
    measured, targets = found.ran[0].target, [":".join(target) for target in one.targets()]
    assert said == [f"{measured} is measured, the only target in common (A runs {', '.join(targets)} here; B runs {measured}"
                    " here); --runtime and --precision choose"]  # fmt: skip


def test_one_bundle_cannot_be_paired(bundle, tmp_path):
    with pytest.raises(BenchError, match="two bundles, A and B; 1 were given"):
        modes.pair([bundle.folder], few(), tmp_path, "x")


def test_a_sustained_run_lasts_as_long_as_asked(bundle, tmp_path):
    found = modes.sustained([bundle.folder], few(), tmp_path, "x", modes.duration_seconds("0.3s"))
    (row,) = found.rows
    assert row.group == "sustained"
    assert row.summary.seconds >= 0.29


def test_a_duration_that_is_none_is_refused():
    assert modes.duration_seconds("30m") == 1800
    with pytest.raises(BenchError, match="--sustained soon: expected"):
        modes.duration_seconds("soon")


def test_energy_is_read_where_the_machine_tells_and_else_not_measured(tmp_path):
    assert EnergyMeter(tmp_path).source.startswith("not measured")
    package = tmp_path / "sys/class/powercap/intel-rapl:0"
    package.mkdir(parents=True)
    (package / "max_energy_range_uj").write_text("1000000")
    (package / "energy_uj").write_text("900000")
    (package.parent / "intel-rapl:0:0").mkdir()  # a core is part of its package
    meter = EnergyMeter(tmp_path)
    assert meter.joules(lambda: (package / "energy_uj").write_text("150000")) == pytest.approx(0.25)  # it started again
    if os.getuid():
        (package / "energy_uj").chmod(0)
        assert "sudo" in EnergyMeter(tmp_path).source


class TenWatts:
    """A meter of a machine that draws 10 W."""

    source = "ten watts"

    def joules(self, action):
        begin = time.perf_counter()
        action()
        return 10 * (time.perf_counter() - begin)


def test_power_is_of_the_time_that_the_photos_took_and_not_of_the_time_asked_for():
    found = energy_of(TenWatts(), lambda: time.sleep(0.2), 0.25)
    assert found["joules_per_photo"] == pytest.approx(2, rel=0.2)
    assert found["watts"] == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    ("words", "named"),
    [(("--queries", 2000), "--queries"), (("--seconds", 20), "--seconds"),
     (("--paired", "--queries", 2000, "--seconds", 20), "--queries and --seconds")],
)  # fmt: skip
def test_conditions_are_not_dropped_for_those_of_a_quick_run(refocus, assert_one_clear_line, bundle, words, named):
    done = refocus("bench", bundle.folder, "--quick", *words)
    assert_one_clear_line(done, f"--quick has conditions of its own; leave out --quick, or {named}")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(refocus, assert_one_clear_line, bundle):
    done = refocus("bench", bundle.folder, "--only", "stages", "--queries", 4, "--seconds", 0.01, "--out", "/proc/self")
    assert_one_clear_line(done, "--out /proc/self/bench-", "cannot be written")
    assert done.stdout == ""


def test_a_document_that_cannot_be_written_is_printed_and_its_own_path_is_named(document, tmp_path, capsys):
    lost = tmp_path / "removed meanwhile" / "bench.json"
    _keep(lost, document)  # while it is measured: the run goes on
    with pytest.raises(RefocusError, match="removed meanwhile/bench.json cannot be written"):
        _deliver(document, lost, as_json=False)
    assert "overhead" in capsys.readouterr().out


def test_the_page_of_the_format_has_every_field_and_no_other():
    import re
    from pathlib import Path

    import msgspec

    from refocus.benchmarks.document import schema

    text = (Path(__file__).parents[2] / "docs" / "bench-format.md").read_text()
    described = {
        heading: set(re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE))
        for heading, body in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    }
    types = {name: kind for name, kind in vars(schema).items()
             if isinstance(kind, type) and issubclass(kind, schema.Strict) and kind is not schema.Strict}  # fmt: skip
    assert described == {name: {field.name for field in msgspec.structs.fields(kind)} for name, kind in types.items()}
    assert f"`schema_version` is {schema.SCHEMA_VERSION}" in text


def test_the_fastest_target_that_keeps_accuracy_is_the_first_thing_that_is_printed(document, bundle, capsys):
    (first,) = document.fastest
    whole, start = rows(document, "stages")["whole", ""], rows(document, "start")
    assert (first.target, first.p50, first.valid) == ("onnxruntime:fp32", whole.summary.p50, False)
    assert first.agreement == bundle.artifact("head", "onnxruntime").parity.top1_agreement
    assert first.peak_bytes == document.memory[0].peak_bytes
    steps = [start[name, ""].samples_ms[0] for name in ("import", "cold load", "first photo")]
    assert first.start_ms == pytest.approx(sum(steps))
    _deliver(document, None, as_json=False)
    printed = capsys.readouterr().out.splitlines()
    assert "fastest target that keeps accuracy: onnxruntime:fp32 (" in printed[0]
    assert [line.split()[0] for line in printed[1:3]] == ["photo", "memory:"]
    _deliver(structs.replace(document, fastest=()), None, as_json=False)
    assert "fastest" not in capsys.readouterr().out


def test_a_faster_target_that_may_lose_accuracy_is_named_and_not_taken(document, bundle):
    failed = tuple(
        structs.replace(a, precision="w8", parity=a.parity and structs.replace(a.parity, passed=False))
        for a in bundle.manifest.artifacts
    )
    lossy = replace(bundle, manifest=structs.replace(bundle.manifest, artifacts=failed))
    name, album, folder = bundle.folder.name, read_album(bundle, None), bundle.folder
    good = Target(name, bundle, ("onnxruntime", "fp32"), album, folder)
    quicker = Target(name, lossy, ("onnxruntime", "w8"), album, folder)
    whole = rows(document, "stages")["whole", ""]
    point = structs.replace(whole.summary.p50, ms=whole.summary.p50.ms / 2)
    twice = structs.replace(whole, target="onnxruntime:w8", summary=structs.replace(whole.summary, p50=point))
    (found,) = fastest([good, quicker], structs.replace(document, rows=(*document.rows, twice)))
    assert (found.target, [*found.refused]) == ("onnxruntime:fp32", ["onnxruntime:w8"])
    assert not [*fastest([quicker], structs.replace(document, rows=(twice,)))]


def test_what_was_not_timed_is_said_to_be_not_measured(document, bundle):
    target = Target(bundle.folder.name, bundle, ("onnxruntime", "fp32"), read_album(bundle, None), bundle.folder)
    alone = structs.replace(document, rows=tuple(rows(document, "stages").values()), memory=())
    (found,) = fastest([target], alone)
    lines = [*fastest_lines(structs.replace(alone, fastest=(found,)))]
    assert lines[2] == "  memory: not measured; start: not measured"
    assert not [*fastest([target], structs.replace(alone, rows=()))]
