"""The measuring core and its verdicts: what a run must not hide."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from refocus.benchmarks.document.schema import BenchError, Conditions, Machine, Observation
from refocus.benchmarks.measure import machine_monitor as monitoring
from refocus.benchmarks.measure import timer as measuring
from refocus.benchmarks.measure.machine_monitor import EVERY_S, MachineMonitor, StartBelow, yardstick_us
from refocus.benchmarks.measure.timer import Series, measure
from refocus.benchmarks.measure.verdict import other_load, verdict_of
from refocus.benchmarks.modes import start_below

ENOUGH = Conditions(min_queries=100, min_seconds=0.0)
QUIET = Machine(device="cpu", id="x", system="Linux", python="3", cpu="x", cores=2, memory_bytes=1)


def series(samples, observations=()):
    samples = np.asarray(samples, dtype=float)
    return Series(samples, np.cumsum(samples) / 1000, tuple(observations))


def steady(count=1000, level=3.0, noise=0.01, seed=0):
    return level * np.exp(np.random.default_rng(seed).normal(0, noise, count))


def codes(samples, observations=(), machine=QUIET, conditions=ENOUGH):
    return [reason.code for reason in verdict_of(series(samples, observations), conditions, machine).reasons]


def seen(**columns):
    """Observations a second apart."""
    length = len(next(iter(columns.values())))
    return [Observation(at_s=float(n), **{name: values[n] for name, values in columns.items()}) for n in range(length)]


# ---- conditions


@pytest.mark.parametrize(("queries", "seconds", "expected"), [(300, 0.0, 300), (10, 0.9, 90)])
def test_a_run_goes_on_until_both_conditions_are_met(monkeypatch, queries, seconds, expected):
    now = [0]
    monkeypatch.setattr(measuring.time, "perf_counter_ns", lambda: now[0])

    def work():
        now[0] += 10_000_000

    found = measure({"work": work}, Conditions(min_queries=queries, min_seconds=seconds, warm_up=0))["work"]
    assert len(found.samples_ms) == expected
    assert set(found.samples_ms) == {10.0}


def test_a_row_that_is_given_up_says_that_it_has_too_few_samples():
    conditions = Conditions(min_queries=1000, min_seconds=0.0, warm_up=0, max_seconds=0.05)
    found = measure({"slow": lambda: time.sleep(0.01)}, conditions)["slow"]
    assert 1 <= len(found.samples_ms) <= 6
    assert verdict_of(found, conditions).reasons[0].code == "too few samples"


def test_preparation_is_outside_a_sample():
    found = measure({"work": lambda: None}, Conditions(min_queries=5, min_seconds=0.0, warm_up=0),
                    before={"work": lambda: time.sleep(0.005)})["work"]  # fmt: skip
    assert np.median(found.samples_ms) < 2


def test_nothing_to_time_is_a_bug_of_the_caller():
    with pytest.raises(ValueError, match="nothing to time"):
        measure({}, ENOUGH)


def test_the_harness_costs_less_than_one_percent_of_three_milliseconds(monkeypatch):
    """In processor time of this thread, least of many: other programs cannot change it."""
    monkeypatch.setattr(measuring.gc, "collect", lambda generation: 0)  # once before a run, not per query

    def run_ns(queries):
        begin = time.thread_time_ns()
        measure({"nothing": lambda: None}, Conditions(min_queries=queries, min_seconds=0.0, warm_up=0),
                MachineMonitor(every_s=3600))  # fmt: skip
        return time.thread_time_ns() - begin

    def look_ns():
        begin = time.thread_time_ns()
        watch.finish()
        return time.thread_time_ns() - begin

    watch = MachineMonitor()
    query = (min(run_ns(2100) for _ in range(12)) - min(run_ns(100) for _ in range(12))) / 2000
    look = min(look_ns() for _ in range(12))
    assert query + look * 0.003 / EVERY_S < 0.01 * 3e6, f"{query:.0f} ns a query and {look} ns a look"


def test_a_sample_is_the_stage_and_nothing_else():
    """The stage times itself; what the harness says is compared with it, query by query."""
    own: list[int] = []

    def stage():
        begin = time.perf_counter_ns()
        while time.perf_counter_ns() - begin < 3_000_000:
            pass
        own.append(time.perf_counter_ns() - begin)

    found = measure({"stage": stage}, Conditions(min_queries=64, min_seconds=0.0, warm_up=0))["stage"]
    added = found.samples_ms / (np.array(own) / 1e6) - 1
    assert 0 <= np.median(added) < 0.01


# ---- percentiles


def test_a_percentile_without_samples_beyond_it_is_not_supported():
    summary = series(np.arange(1, 1001)).summary()
    assert (summary.p99.supported, summary.p99_9.supported) == (True, False)
    assert summary.max_ms == 1000  # the tail is still there


# ---- verdicts on recorded and simulated samples


def test_a_steady_run_is_valid():
    assert codes(steady()) == []


def test_twenty_samples_are_too_few():
    assert codes(steady(20)) == ["too few samples"]


def test_enough_samples_in_too_little_time_are_too_few():
    assert codes(steady(), conditions=Conditions(min_queries=100, min_seconds=10.0)) == ["too few samples"]


def test_a_wide_run_is_not_valid():
    assert codes(steady(noise=0.15)) == ["spread"]


def test_a_slow_spell_is_not_valid_though_most_samples_are_alike():
    samples = steady()
    samples[300:400] *= 1.5
    assert codes(samples) == ["spread"]


def test_a_run_that_gets_slower_has_a_drift():
    assert codes(steady() * np.linspace(1, 1.12, 1000)) == ["drift"]


def test_a_change_of_the_clock_shows_in_the_samples_alone():
    samples = steady()
    samples[600:] *= 1.12
    verdict = verdict_of(series(samples), ENOUGH, QUIET)
    assert [reason.code for reason in verdict.reasons] == ["spread", "clock"]  # two levels lie apart
    assert "+12% after 1.8 s" in verdict.reasons[1].detail


def test_a_change_of_the_clock_shows_in_the_clocks():
    clocks = [(3000.0, 3000.0)] * 3 + [(2400.0, 2400.0)] * 3
    assert codes(steady(), seen(clocks_mhz=clocks)) == ["clock"]


def test_a_change_of_the_clock_shows_in_the_yardstick_where_no_file_says_it():
    assert codes(steady(), seen(yardstick_us=[20.0, 20.1, 20.0, 20.1, 24.0, 24.1, 24.0, 24.2])) == ["clock"]


def test_a_yardstick_that_was_struck_once_is_no_change():
    assert codes(steady(), seen(yardstick_us=[20.0, 31.0, 20.1, 20.0, 20.1, 20.0, 20.2, 20.0])) == []


def test_throttling_is_counted_or_seen_in_heat():
    assert codes(steady(), seen(throttled=[4, 4, 9])) == ["throttling"]
    warming = seen(temperature_c=[60.0, 70.0, 88.0])
    assert codes(steady() * np.linspace(1, 1.2, 1000), warming)[-1] == "throttling"
    assert codes(steady(), warming) == []  # warm, and not slower for it


def test_a_governor_that_may_move_the_clock_is_named():
    saving = Machine(device="cpu", id="x", system="Linux", python="3", cpu="x", cores=2, memory_bytes=1,
                     governor="schedutil")  # fmt: skip
    assert codes(steady(), machine=saving) == ["governor"]
    assert codes(steady(), seen(clocks_mhz=[(2400.0,)] * 4), machine=saving) == []  # it did not move it


def test_other_programs_and_other_machines_are_a_load():
    busy = seen(busy_s=[100.0, 101.9, 103.8], own_s=[5.0, 5.9, 6.8], steal_s=[0.0, 0.0, 0.0])
    assert codes(steady(), busy) == ["other load"]
    assert other_load(busy) == pytest.approx((1.0, 0.0))
    stolen = seen(busy_s=[100.0, 101.0], own_s=[5.0, 6.0], steal_s=[0.0, 0.1])
    assert "hypervisor" in verdict_of(series(steady(), stolen), ENOUGH, QUIET).reasons[0].detail


def test_a_process_that_waits_for_a_core_is_not_measured():
    waiting = seen(waited_s=[4.0, 4.1, 4.3])
    assert codes(steady(), waiting) == ["other load"]
    assert "waited for a core for 15%" in verdict_of(series(steady(), waiting), ENOUGH, QUIET).reasons[0].detail


def test_every_reason_comes_with_advice():
    machine = Machine(device="cpu", id="x", system="", python="", cpu="", cores=2, memory_bytes=1, governor="powersave")
    struck = seen(busy_s=[0.0, 2.0], own_s=[0.0, 1.0], steal_s=[0.0, 0.0], throttled=[0, 1])
    verdict = verdict_of(series(steady(noise=0.2), struck), Conditions(min_queries=5000, min_seconds=0.0), machine)
    found = {reason.code for reason in verdict.reasons}
    assert found == {"too few samples", "spread", "throttling", "governor", "other load"}
    assert all(len(reason.advice) > 10 and reason.detail for reason in verdict.reasons)


def test_a_long_tail_is_noted_and_not_hidden():
    samples = steady()
    samples[::50] *= 20
    verdict = verdict_of(series(samples), ENOUGH, QUIET)
    assert verdict.valid
    assert any(note.startswith("a long tail") for note in verdict.notes)


# ---- live


def test_a_busy_loop_beside_it_is_seen_live():
    conditions = Conditions(min_queries=50, min_seconds=1.2, warm_up=0)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            found = measure({"stage": lambda: sum(range(20_000))}, conditions)["stage"]
        finally:
            other.kill()
    assert "other load" in [reason.code for reason in verdict_of(found, conditions).reasons]


def test_a_machine_that_says_nothing_is_not_accused(tmp_path):
    watch = MachineMonitor(every_s=0, root=tmp_path)
    found = measure({"stage": lambda: None}, Conditions(min_queries=200, min_seconds=0.0), watch)["stage"]
    assert other_load(found.observations) is None
    codes = {reason.code for reason in verdict_of(found, ENOUGH).reasons}
    assert not codes & {"other load", "throttling", "governor"}


def test_a_recorded_machine_is_read(tmp_path):
    cpu = tmp_path / "sys/devices/system/cpu/cpu0"
    for path, text in {
        cpu / "cpufreq/scaling_cur_freq": "2400000\n", cpu / "thermal_throttle/core_throttle_count": "7\n",
        tmp_path / "sys/class/thermal/thermal_zone0/temp": "61500\n",
        tmp_path / "sys/class/thermal/thermal_zone1/temp": "-256000\n",  # switched off
        tmp_path / "proc/stat": "cpu  1000 200 300 9000 50 10 20 40 0 0\n",
    }.items():  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    watch = MachineMonitor(root=tmp_path)
    watch.start()
    (found,) = watch.observations
    assert (found.clocks_mhz, found.throttled, found.temperature_c) == ((2400.0,), 7, 61.5)
    assert (found.busy_s, found.steal_s) == (15.3, 0.4)


def test_the_yardstick_is_a_time():
    assert 0 < yardstick_us() < 1e5


# ---- a cool device before a row


class Zone:
    """A root folder whose one thermal zone cools by some degrees each time somebody waits."""

    def __init__(self, root, celsius, step):
        self.file, self.celsius, self.step, self.waits = root / "sys/class/thermal/thermal_zone0/temp", celsius, step, 0
        self.file.parent.mkdir(parents=True)
        self.write()

    def write(self):
        self.file.write_text(f"{self.celsius * 1000:.0f}\n")

    def sleep(self, seconds):
        assert seconds > 0
        self.waits, self.celsius = self.waits + 1, self.celsius - self.step
        self.write()


def run_below(monkeypatch, tmp_path, zone, within_s):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds
        zone.sleep(seconds)

    clock = monitoring.time
    monkeypatch.setattr(monitoring, "time", SimpleNamespace(
        sleep=sleep, monotonic=lambda: now[0], perf_counter_ns=clock.perf_counter_ns, process_time=clock.process_time))  # fmt: skip
    watch = MachineMonitor(root=tmp_path, start_below=StartBelow(37.0, within_s))
    return measure({"work": lambda: None}, Conditions(min_queries=100, min_seconds=0.0, warm_up=0), watch)["work"]


def test_a_row_begins_when_the_device_is_cool(monkeypatch, tmp_path):
    zone = Zone(tmp_path, 45, 2)
    found = run_below(monkeypatch, tmp_path, zone, 600)
    assert (found.start.below_c, found.start.reached_c, found.start.waited_s) == (37.0, 35.0, 5.0)
    assert zone.waits == 5
    assert not [reason for reason in verdict_of(found, ENOUGH).reasons if reason.code == "throttling"]


def test_a_device_that_stays_warm_is_measured_and_its_verdict_says_so(monkeypatch, tmp_path):
    found = run_below(monkeypatch, tmp_path, Zone(tmp_path, 60, 0), 3)
    (reason,) = [reason for reason in verdict_of(found, ENOUGH).reasons if reason.code == "throttling"]
    assert reason.detail == "it began at 60 °C after waiting 3 s for 37 °C"


def test_a_machine_without_a_thermometer_cannot_wait(tmp_path):
    watch = MachineMonitor(root=tmp_path, start_below=StartBelow(37.0))
    with pytest.raises(BenchError, match="--start-below 37C: this device does not say its temperature"):
        measure({"work": lambda: None}, ENOUGH, watch)


def test_slowed_for_heat_at_the_start_is_a_verdict(tmp_path):
    for number, (kind, state) in enumerate({"Processor": 2, "Fan": 9, "cpufreq-cpu4": 0}.items()):
        device = tmp_path / f"sys/class/thermal/cooling_device{number}"
        device.mkdir(parents=True)
        (device / "type").write_text(f"{kind}\n")
        (device / "cur_state").write_text(f"{state}\n")
    watch = MachineMonitor(root=tmp_path)
    watch.start()
    assert watch.observations[0].slowed == 1  # a fan slows nothing
    assert codes(steady(), seen(slowed=[1, 0, 0])) == ["throttling"]
    assert codes(steady(), seen(slowed=[0, 0, 0])) == []


@pytest.mark.parametrize("text", ["", "37F", "cool", "-3C"])
def test_a_temperature_that_is_none_is_refused(text):
    with pytest.raises(BenchError, match="expected degrees Celsius as 37C"):
        start_below(text, "10m")


def test_the_longest_wait_is_a_duration():
    assert start_below("41.5C", "2m") == StartBelow(41.5, 120.0)
    with pytest.raises(BenchError, match="--start-within soon"):
        start_below("37", "soon")
