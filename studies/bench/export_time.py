"""Measure the processor time of ``refocus export`` in two source trees.

``python -m studies.bench.export_time --base FOLDER --photos FOLDER --out FILE`` exports the network of the default
bundle from another checkout and from this one, alternately. Processor time of a command and its processes depends less
on other load than elapsed time. The programs are compared by SHA-256. Earlier exports with calibrated ranges depended
on the number of threads: set ``OMP_NUM_THREADS=1`` to compare them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refocus.cloud_train.bench.compatibility import photo_files
from refocus.cloud_train.documents import write_results
from refocus.edge.bundle import load_bundle

NETWORK = "package:efficientnet-lite0"
CASES = {
    "one target": "onnx:fp32",
    "four targets": "onnx:fp32,onnx:w8a8,executorch:fp32,executorch:w8a8",
}


def measure(base: Path, photos: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row of figures for each case."""
    for name, targets in CASES.items():
        runs: list[tuple[Mapping[str, Any], ...]] = []
        for _ in range(rounds):
            runs.append(tuple(_exported(tree.resolve(), photos, targets) for tree in (base, Path(__file__).parents[2])))
        seconds = np.array([[run["cpu_s"] for run in pair] for pair in runs])
        before, after = ({file for run in side for file in run["programs"]} for side in zip(*runs, strict=True))
        yield {
            "name": name,
            "targets": targets,
            "cpu_s": seconds.round(1).tolist(),
            "wall_s": [[round(run["wall_s"], 1) for run in pair] for pair in runs],
            "ratio": round(float((seconds[:, 1] / seconds[:, 0]).mean()), 3),
            "other_programs": sorted({file for file, _ in before ^ after}),
        }


def _exported(tree: Path, photos: Path, targets: str) -> dict[str, Any]:
    """Run one export; return its times and the SHA-256 of its programs."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["export", NETWORK, "--photos", str(photos.resolve()), "--to", targets, "--out", f"{folder}/bundle"]
        before, began = _processor_seconds(), time.perf_counter()
        # With cached bytecode, as after the first command.
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, "-m", "refocus", *words]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        cpu_s, wall_s = _processor_seconds() - before, time.perf_counter() - began
        artifacts = load_bundle(Path(folder) / "bundle").manifest.artifacts
    return {"cpu_s": cpu_s, "wall_s": wall_s, "programs": {(a.file, a.sha256) for a in artifacts}}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder of another checkout")
    parser.add_argument("--photos", type=Path, required=True, help="folder of real photos")
    parser.add_argument("--out", type=Path, required=True, help="output file (JSON)")
    parser.add_argument("--rounds", type=int, default=2, help="exports of each tree and case")
    asked = parser.parse_args()
    found = {"schema_version": 1, "export_times": {"network": NETWORK, "photos": len(photo_files(asked.photos))}}
    command = f"python -m studies.bench.export_time --base BASE --photos PHOTOS --out OUT --rounds {asked.rounds}"
    rows = [*measure(asked.base, asked.photos, asked.rounds)]
    write_results({**found, "command": command, "rows": rows}, asked.out)
