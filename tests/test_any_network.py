"""Any network in four commands: the wheel in a fresh environment, published weights, real photos, no training."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

MINUTES = 5  # that the four commands may take for one network where nothing else runs
OPTIONS = {
    "mobilenetv2_100": ("--backbone-arguments", "pad_type=same", "--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5"),
    "deit_tiny_patch16_224": (),
}
BEFORE = {"mobilenetv2_100": 87.0, "deit_tiny_patch16_224": 80.5}  # top-1 in per cent, as the weights' page says
TARGETS = ("onnxruntime:fp32", "executorch:fp32")


@pytest.fixture(scope="module")
def python(fresh_environment, tmp_path_factory):
    """The interpreter of a fresh environment with the wheel and what exporting and both runtimes need."""
    return fresh_environment(tmp_path_factory.mktemp("fresh") / "venv", "cpu,cloud,targets")


@pytest.fixture(scope="module")
def photos(real_data, tmp_path_factory):
    """The 200 real photos with their labels, which are in the files' names."""
    folder = shutil.copytree(real_data / "photos", tmp_path_factory.mktemp("labelled") / "photos", copy_function=copy)
    files = sorted(folder.glob("*.JPEG"))
    with (folder / "metadata.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["file_name", "label", "client"])
        rows.writerows((file.name, file.stem, f"person {number % 4}") for number, file in enumerate(files))
    return folder


def copy(source, place):
    return shutil.copyfile(source, place)  # without its rights: the source may be read-only


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("network", OPTIONS)
def test_a_timm_network_is_exported_checked_measured_and_used_in_four_commands(
    python, photos, real_data, network, tmp_path, capsys
):
    weights = real_data / "weights" / f"{network}_in1k.safetensors"
    photo = photos / "n01440764_tench.JPEG"
    labels, seconds = ("--labels", photos / "classes.txt"), {}

    def refocus(*words):
        started = time.monotonic()
        command = [python.with_name("refocus"), *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=2400)
        assert done.returncode == 0, done.stdout + done.stderr
        seconds[words[0]] = seconds.get(words[0], 0.0) + time.monotonic() - started
        return done

    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    alone |= {"XDG_DATA_HOME": str(tmp_path / "data"), "COLUMNS": "160"}
    exported = refocus("export", f"timm:{network}", "--checkpoint", weights, *OPTIONS[network], *labels,
                       "--photos", photos, "--to", "onnx:fp32,executorch:fp32", "--out", "bundle")  # fmt: skip
    checked = refocus("check", "bundle")
    measured = refocus("bench", "bundle", "--quick", "--only", "stages")
    recognised = refocus("recognize", "bundle", photo)
    four = sum(seconds.values())
    told = ", ".join(f"{name} {spent:.0f} s" for name, spent in seconds.items())

    output = exported.stdout + exported.stderr
    right = [line for line in output.splitlines() if line.startswith("top-1 of 200 labelled photos")]
    for target in TARGETS:
        shown = next(line for line in right if line.split(", ")[1].startswith(f"{target} "))
        before, after = map(float, re.findall(r"([\d.]+)%", shown))
        assert before == BEFORE[network], shown
        assert abs(after - before) <= 0.5, shown
        assert f"plain {target}: 8 of 8 photos" in checked.stdout
        assert f"bundle {target}" in measured.stdout
    assert "encoder" in measured.stdout
    assert re.search(r"tench.JPEG: n01440764_tench \d", recognised.stdout)
    assert len(recognised.stdout.splitlines()) == 1

    other = refocus("recognize", "bundle", photo, "--runtime", "executorch")
    assert other.stdout.split(",")[0] == recognised.stdout.split(",")[0]
    accuracy = refocus("accuracy", "bundle", "--data", photos, "--head", "plain")
    assert "200 photos of 4 people" in accuracy.stdout
    assert f"{BEFORE[network]:.2f}%" in accuracy.stdout
    code = f"import refocus\nwith refocus.Recognizer.open('bundle') as opened: print(opened.recognize({str(photo)!r}).label)"
    said = subprocess.run([python, "-c", code], cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=300)
    assert (said.returncode, said.stdout.strip()) == (0, "n01440764_tench"), said.stderr

    with capsys.disabled():
        sys.stdout.write(f"\n{network}: {told}; together {four:.0f} s; {'; '.join(right)}\n")
    if os.environ.get("REFOCUS_QUIET") == "1":
        assert four < 60 * MINUTES
