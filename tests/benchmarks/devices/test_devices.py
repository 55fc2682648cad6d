"""Jetsons, GPUs and phones: what they print is understood, and a device that is lost leaves what was measured.

Recorded outputs and where they are quoted from: recorded/README.md.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from refocus.benchmarks.devices import android, cuda, jetson
from refocus.benchmarks.devices.host import open_device
from refocus.benchmarks.devices.machine import describe
from refocus.benchmarks.document.schema import BenchError, Conditions, Machine, Observation
from refocus.benchmarks.measure.target import Target, read_album
from refocus.benchmarks.rows.recorder import Table
from refocus.benchmarks.run import Plan

RECORDED = Path(__file__).parent / "recorded"
FEW = Conditions(min_queries=4, min_seconds=0.0, warm_up=1, least=4)


def recorded(name):
    return (RECORDED / name).read_text()


# ---- Jetson


@pytest.mark.parametrize(
    ("board", "cores_mhz", "gpu", "hottest", "rails", "total_mw"),
    [("tx2", [345, 960, 960, 345, 345, 345], (0, None), 35.5, 6, 1649),
     ("tx1", [102] * 4, (0, 76), 42.75, 3, 2532),
     ("tx2-5cores-off", [345], (0, 114), 41.0, 6, 2003),
     ("xavier", [1190] * 8, (0, None), 34.75, 6, 216 + 864 + 144 + 1889),
     ("nano", [1036] * 4, (0, 76), 65.0, 3, 4520),
     ("orin-nano", [729, 1036, 1036, 1036, 729, 729], (0, None), 56.656, 3, 4673),
     ("xavier-nx-jp5", [1397, 1192, 1190, 1190, 1190, 1190], (0, 114), 46.5, 3, 2763),
     ("agx-orin-jp7", [2201] * 12, (12, 1300), 52.968, 3, 5139 + 3268 + 5500)],
)  # fmt: skip
def test_tegrastats_of_each_board_is_understood(board, cores_mhz, gpu, hottest, rails, total_mw):
    stats = jetson.parse_tegrastats(recorded(f"tegrastats-{board}.txt").splitlines()[0])
    assert list(stats.cpu_mhz) == cores_mhz
    assert (stats.gpu_percent, stats.gpu_mhz) == gpu
    assert max(stats.temperatures_c.values()) == hottest
    assert "PMIC" not in stats.temperatures_c
    assert len(stats.rails_mw) == rails
    assert stats.total_mw == total_mw


def test_a_line_that_is_none_is_refused():
    with pytest.raises(BenchError, match="tegrastats printed 'sh: tegrastats: not found', expected RAM and CPU"):
        jetson.parse_tegrastats("sh: tegrastats: not found")


def test_the_power_mode_and_the_clocks_are_read():
    assert jetson.parse_nvpmodel(recorded("nvpmodel-nano.txt")) == ("MAXN", 0)
    clocks = jetson.parse_jetson_clocks(recorded("jetson-clocks-tx2.txt"))
    assert (clocks.locked, clocks.governors, clocks.gpu_mhz) == (False, ("schedutil",), 114.75)
    assert clocks.cpu_mhz == (2035.2, 1881.6, 2035.2, 2035.2)  # two cores are off
    fixed = recorded("jetson-clocks-tx2.txt").replace("MinFreq=345600", "MinFreq=2035200")
    assert jetson.parse_jetson_clocks(fixed.replace("MinFreq=114750000", "MinFreq=1134750000")).locked


@pytest.mark.parametrize(
    ("parse", "message"),
    [(jetson.parse_nvpmodel, "nvpmodel -q printed 'Please run as root'"),
     (jetson.parse_jetson_clocks, "jetson_clocks --show printed 'Please run as root'")],
)  # fmt: skip
def test_tools_that_need_root_are_told_apart(parse, message):
    with pytest.raises(BenchError, match=message):
        parse("Please run as root")


def test_energy_is_power_times_time():
    stats = jetson.Tegrastats()
    for at, line in enumerate(recorded("tegrastats-orin-nano.txt").splitlines()):
        stats.take(line, at_s=100.0 + at)
    assert stats.source.startswith("power rails")
    third = recorded("tegrastats-orin-nano.txt").splitlines()[1]
    assert stats.joules(lambda: stats.take(third, 102.0)) == pytest.approx(4.673)
    seen = stats.observe(Observation(at_s=0.0, temperature_c=1.0))
    assert (seen.temperature_c, seen.clocks_mhz) == (56.593, (729.0,) * 6)
    assert jetson.Tegrastats().joules(lambda: None) is None


def test_tegrastats_runs_beside_a_measurement(tmp_path, monkeypatch):
    """The recorded lines, printed by a program of that name; one of them cut short."""
    program = tmp_path / "tegrastats"
    line = recorded("tegrastats-nano.txt")
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' 'RAM 11' '{line.strip()}' '{line.strip()}'\nexec sleep 20\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with open_device("jetson") as device:
        for _ in range(100):
            if device.meter.source.startswith("power rails"):
                break
            time.sleep(0.05)
        monitor = device.monitor(0.0)
        monitor.start()
        assert monitor.observations[0].temperature_c == 65.0
        assert device.provider == "cuda"
        assert "not installed" in device.machine.extra["nvpmodel"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("jetson", "tegrastats is not here; run this on the Jetson"), ("cuda", "nvidia-smi is not here"),
     ("toaster", "--device toaster: expected cpu, cuda, jetson or android")],
)  # fmt: skip
def test_a_device_that_is_not_here_is_named(name, message, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match=message), open_device(name):
        pass


# ---- CUDA


# In the form of `nvidia-smi --query-gpu`, put together from its documentation: no GPU was at hand.
SMI = "NVIDIA A100-SXM4-40GB, 470.57.02, 33, 1410, 53.21, Enabled\n"


def test_nvidia_smi_is_understood():
    state = cuda.parse_smi(SMI)
    assert (state.name, state.driver, state.temperature_c, state.sm_mhz, state.watts, state.persistence) == (
        "NVIDIA A100-SXM4-40GB", "470.57.02", 33.0, 1410.0, 53.21, "Enabled")  # fmt: skip
    assert cuda.parse_smi(SMI.replace("53.21", "[N/A]")).watts is None
    with pytest.raises(BenchError, match="nvidia-smi printed 'No devices were found', expected 6 fields"):
        cuda.parse_smi("No devices were found\n")


def test_the_split_of_a_photos_way_runs_as_far_as_it_goes_without_a_gpu(bundle, tmp_path):
    """The same calls with the host as the device: three parts that add up to the whole."""
    target = Target("b", bundle, ("onnxruntime", "fp32"), read_album(bundle, None), tmp_path)
    program = target.encoder(1)
    inputs = {"photo": target.pixels[0]}
    table = Table(target, describe(), FEW)
    found = dict(cuda.measure_parts(table, cuda.onnxruntime_split(program, inputs, "cpu")))
    assert [*found] == [*cuda.PARTS, "whole"]
    parts = sum(found[name].samples_ms for name in cuda.PARTS)
    assert (parts <= found["whole"].samples_ms).all()
    assert np.median(parts / found["whole"].samples_ms) > 0.5
    with pytest.raises(Exception, match="runs on CPUExecutionProvider, so nothing is copied to a GPU"):
        cuda.onnxruntime_split(program, inputs, "cuda")


# ---- Android


def test_battery_and_thermal_dumps_are_understood():
    battery = android.parse_battery(recorded("battery-galaxy.txt"))
    assert (battery.level_percent, battery.voltage_v, battery.temperature_c) == (84, 4.063, 32.6)
    assert (battery.charging, battery.charge_uah) == (True, None)  # it counts no charge: 0 says so
    thermal = android.parse_thermal(recorded("thermalservice-shield.txt"))
    assert (thermal.status, max(thermal.temperatures_c.values())) == ("none", 37.0)
    now = "Current temperatures from HAL:\n  Temperature{mValue=66.5, mType=0, mName=CPU0, mStatus=0}\n"
    assert android.parse_thermal(recorded("thermalservice-shield.txt") + now).temperatures_c == {"CPU0": 66.5}


@pytest.mark.parametrize(
    ("parse", "message"),
    [(android.parse_battery, "dumpsys battery printed 'Can't find service: x', which lacks 'voltage'"),
     (android.parse_thermal, "dumpsys thermalservice printed 'Can't find service: x', expected a thermal status")],
)  # fmt: skip
def test_a_dump_that_is_none_is_refused(parse, message):
    with pytest.raises(BenchError, match=message):
        parse("Can't find service: x")


ROW = {"event": "row", "target": "executorch:fp32", "group": "stages", "name": "whole",
       "samples_ms": [9.1, 9.2, 9.0, 9.1, 9.3], "starts_s": [0.0, 0.01, 0.02, 0.03, 0.04]}  # fmt: skip
RAN = {"event": "ran", "target": "executorch:fp32", "encoder_sha256": "e", "head_sha256": "h", "head": "iciia_t",
       "runtime_version": "1.5.1", "asked": "xnnpack", "used": "XnnpackBackend", "threads": 4, "telemetry": "none",
       "size_bytes": 9}  # fmt: skip
SESSION = [{"event": "begin", "protocol": 1}, RAN, ROW, {**ROW, "name": "encoder"},
           {"event": "missing", "what": "condensing", "why": "no bank"}, {"event": "end"}]  # fmt: skip
PHONE = Machine(device="android", id="p", system="Android 14", python="", cpu="x", cores=8, memory_bytes=1)


def session():
    return android.Session("b", "", PHONE, FEW)


def printed(events):
    return [json.dumps(event) for event in events]


def test_a_session_becomes_rows_with_verdicts_made_here():
    taken = session()
    android.take_all(taken, printed(SESSION))
    assert [row.name for row in taken.rows] == ["whole", "encoder"]
    assert taken.rows[0].summary.p50.ms == 9.1
    assert taken.rows[0].verdict.valid
    assert taken.ran[0].used == "XnnpackBackend"
    assert taken.ended


def test_a_phone_that_is_lost_leaves_what_was_measured():
    def lines():
        yield from printed(SESSION[:3])
        raise android.Lost("the phone was lost: error: device '1234' not found")

    taken = session()
    android.take_all(taken, lines())
    (row,) = taken.rows
    assert row.summary.count == 5
    assert [reason.code for reason in row.verdict.reasons] == ["lost"]
    assert "device '1234' not found" in taken.missing[0].why


def test_a_runner_that_complains_at_length_is_read_to_its_end(tmp_path):
    adb = tmp_path / "adb"
    adb.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stderr.write('no! ' * 100_000 + 'and out')\n"
        "sys.stdout.buffer.write(b'one\\n\\xff\\n')\nsys.exit(3)\n"
    )
    adb.chmod(0o755)
    lines = android.Adb(str(adb)).lines("shell", "sh", "run.sh")
    assert [next(lines), next(lines)] == ["one\n", "\ufffd\n"]
    with pytest.raises(android.Lost, match="no! and out$"):
        next(lines)


def test_a_runner_that_stops_early_is_no_whole_run():
    taken = session()
    android.take_all(taken, printed(SESSION[:3]))
    assert taken.missing[0].why == "the runner stopped before its end"


def test_a_phone_that_is_lost_at_once_is_an_error():
    with pytest.raises(BenchError, match="stopped before its end; nothing had been measured yet"):
        android.take_all(session(), printed(SESSION[:2]))


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "line 2 of the runner is not of protocol 1"),
     ("[]", "line 2 of the runner"),
     ('{"event": "dance"}', "unknown event dance"),
     (json.dumps({**ROW, "samples_ms": [1.0]}), "1 samples and 5 starts"),
     (json.dumps({**ROW, "samples_ms": ["x"] * 5}), "Expected `float`"),
     (json.dumps({**ROW, "samples_ms": [-1.0] * 5}), "expected as many, and times"),
     (json.dumps({**ROW, "colour": "red"}), "unknown field `colour`"),
     (json.dumps({key: value for key, value in ROW.items() if key != "starts_s"}), "no 'starts_s'"),
     ("Segmentation fault", "'Segmentation fault'; use the runner of this version")],
)  # fmt: skip
def test_a_line_that_is_not_of_the_protocol_is_one_clear_error(line, message):
    with pytest.raises(BenchError, match=message):
        android.take_all(session(), [*printed(SESSION[:1]), line])


@pytest.mark.parametrize(
    ("first", "message"),
    [({"event": "begin", "protocol": 2}, "it speaks protocol 2"), (ROW, "expected the event begin")],
)
def test_a_runner_of_another_protocol_is_refused(first, message):
    with pytest.raises(BenchError, match=message):
        android.take_all(session(), printed([first]))


ADB = """#!/bin/sh
# A recorded session: what adb printed, word for word; the phone is a folder.
case "$*" in
devices) printf 'List of devices attached\\n%s\\n' "${PHONES-1234	device}" ;;
*getprop\\ ro.product.model) echo 'Pixel 8' ;;
*getprop\\ ro.soc.model) echo 'Tensor G3' ;;
*getprop*) echo x ;;
*nproc) echo 9 ;;
*meminfo) echo 'MemTotal:        7799584 kB' ;;
*thermalservice) cat @recorded@/thermalservice-shield.txt ;;
*dumpsys\\ battery) cat @battery@ ;;
*push*) shift $(($# - 2)); mkdir -p @phone@; cp -r "$1" "@phone@/$(basename "$2")" ;;
*rm\\ -rf*) rm -rf @phone@ ;;
*run.sh*) test -f @phone@/bundle/manifest.json && test -f @phone@/plan.json && test -f @phone@/photos/000 \\
  && sh @phone@/runner/run.sh ;;
*) echo "adb: unknown command $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def phone(tmp_path, monkeypatch):
    """adb as a program that answers as recorded, and a runner that prints a recorded session."""
    (tmp_path / "battery").write_text(recorded("battery-galaxy.txt"))
    program = tmp_path / "bin" / "adb"
    program.parent.mkdir()
    text = ADB.replace("@recorded@", str(RECORDED)).replace("@phone@", str(tmp_path / "phone"))
    program.write_text(text.replace("@battery@", str(tmp_path / "battery")))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    runner = tmp_path / "runner"
    runner.mkdir()
    (runner / "session").write_text("\n".join(printed(SESSION)) + "\n")
    (runner / "run.sh").write_text('cat "$(dirname "$0")/session"\n')
    return runner


def plan(**changes):
    return Plan(conditions=FEW, mode="custom", **changes)


def test_a_whole_run_on_a_phone(phone, bundle):
    found = android.run(bundle.folder, phone, plan(), "refocus bench", android.Adb.find())
    assert found.machine.cpu == "x Pixel 8 (Tensor G3)"
    assert (found.machine.cores, found.machine.temperature_c) == (9, 37.0)
    assert [row.name for row in found.rows] == ["whole", "encoder"]
    assert found.energy[0].source.startswith("not measured: the phone is charging")
    asked = json.loads((phone.parent / "phone" / "plan.json").read_text())
    assert asked["conditions"]["min_queries"] == 4


def test_an_unplugged_phone_tells_its_energy(phone, bundle):
    battery = recorded("battery-galaxy.txt").replace("USB powered: true", "USB powered: false")
    (phone.parent / "battery").write_text(battery.replace("Charge counter: 0", "Charge counter: 3000000"))
    later = battery.replace("Charge counter: 0", "Charge counter: 2999000")
    (phone / "later").write_text(later)
    with (phone / "run.sh").open("a") as script:
        script.write(f"cp {phone / 'later'} {phone.parent / 'battery'}\n")
    found = android.run(bundle.folder, phone, plan(), "refocus bench", android.Adb.find())
    assert found.energy[0].joules == pytest.approx(1000 * 3.6e-3 * 4.063)
    assert found.energy[0].joules_per_photo == pytest.approx(found.energy[0].joules / 5)


def test_a_phone_that_is_unplugged_mid_run_leaves_what_was_measured(phone, bundle):
    (phone / "session").write_text("\n".join(printed(SESSION[:3])) + "\n")
    with (phone / "run.sh").open("a") as script:
        script.write("echo \"error: device '1234' not found\" >&2\nexit 255\n")
    found = android.run(bundle.folder, phone, plan(), "refocus bench", android.Adb.find())
    assert [reason.code for reason in found.rows[0].verdict.reasons] == ["lost"]
    assert "device '1234' not found" in found.missing[0].why


@pytest.mark.parametrize(
    ("phones", "serial", "message"),
    [("", "", "adb sees no phone; plug it in"), ("1234\tunauthorized", "", "adb sees no phone"),
     ("1\tdevice\n2\tdevice", "", r"adb sees 2 phones \(1, 2\); choose with --serial"),
     ("1\tdevice", "9", "--serial 9: adb sees 1")],
)  # fmt: skip
def test_no_phone_or_several_are_named(phone, phones, serial, message, monkeypatch):
    monkeypatch.setenv("PHONES", phones)
    with pytest.raises(BenchError, match=message):
        android.Adb.find(serial)


def test_a_machine_without_adb_or_a_runner_is_told_what_to_do(bundle, tmp_path, monkeypatch):
    with pytest.raises(BenchError, match="expected a folder with run.sh; none is shipped yet"):
        android.run(bundle.folder, tmp_path, plan(), "x", android.Adb())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="adb is not here; Debian and Ubuntu: apt install adb"):
        android.Adb.find()


def test_the_command_measures_a_phone(phone, bundle, refocus, tmp_path):
    done = refocus("bench", bundle.folder, "--device", "android", "--runner", phone, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "Pixel 8" in done.stdout
    done = refocus("bench", bundle.folder, "--device", "android")
    assert "expected one bundle and --runner" in done.stderr
