"""The Java side, on a desktop JVM with the real ONNX Runtime, against what Python wrote."""

from __future__ import annotations

import re

import pytest


def passed(done):
    assert done.returncode == 0, done.stdout[-6000:]
    assert "Tests run: 0" not in done.stdout
    return re.findall(r"^golden (\S+) (\S+): (\d+) decisions as in Python", done.stdout, re.MULTILINE)


def test_the_jvm_decides_as_python_did(golden, maven):
    ((home, head, decisions),) = passed(maven(golden))
    assert (home, head, decisions) == (golden.name, "iciia_t", "58")


@pytest.mark.slow
def test_the_jvm_streams_and_takes_a_persons_inputs_as_python_did(tiny_run, bundle, golden, maven, tmp_path):
    """A streaming head, and a bundle whose encoder takes each person's prompt."""
    from cloud_train.methods.iciia import IciiaConfig
    from edge.golden import write_golden

    homes = [golden]
    for name, made in (("streaming", streaming(tiny_run, IciiaConfig, tmp_path)), ("prompted", prompted(bundle, tmp_path))):
        home = tmp_path / name
        home.mkdir()
        (home / "bundle").symlink_to(made.folder)
        write_golden(made, home / "golden")
        homes.append(home)
    found = passed(maven(*homes))
    assert {(home, int(decisions)) for home, _, decisions in found} == {
        (golden.name, 58), ("streaming", 58), ("prompted", 58)
    }  # fmt: skip
    assert {head for home, head, _ in found if home == "prompted"} == {"iciia_t", "iciia_t.personal"}
