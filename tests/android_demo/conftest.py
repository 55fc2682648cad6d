"""Shared pieces: golden vectors of the tiny bundle, and Maven where it can be had."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "android_demo"


@pytest.fixture(scope="session")
def golden(bundle, tmp_path_factory):
    """A folder with ``bundle/`` and the ``golden/`` vectors that it wrote."""
    from edge.golden import write_golden

    home = tmp_path_factory.mktemp("golden")
    (home / "bundle").symlink_to(bundle.folder)
    write_golden(bundle, home / "golden")
    return home


@pytest.fixture(scope="session")
def maven():
    """Runs Maven's tests; skips where there is no JDK, no Maven, or no way to Maven Central."""
    for tool in ("mvn", "javac"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; the JVM suite needs a JDK from 17 on and Maven")

    def run(*homes: Path) -> subprocess.CompletedProcess[str]:
        command = ["mvn", "-B", "-f", str(DEMO / "pom.xml"), "test", f"-Drefocus.golden={','.join(map(str, homes))}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
        if "Could not transfer artifact" in done.stdout or "Unknown host" in done.stdout:
            pytest.skip("Maven Central cannot be reached, and its artifacts are not here yet")
        return done

    return run
