"""Profile encoders by operator and target.

Run it with ``python -m studies.bench.operators``. Each network is exported as a plain bundle by ``refocus export``. Its
encoders run interleaved for their medians, and separately with a profile, which adds time to every node: the profile's
shares show which operators are slow, the medians show the total time.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from refocus.benchmarks.devices import versions
from refocus.benchmarks.measure import interleave
from refocus.cloud_train.bench.compatibility import LIBRARIES, photo_files
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.progress import say
from refocus.edge.bundle import Bundle, load_bundle
from refocus.edge.commands import show_news
from refocus.edge.files import write_file
from refocus.edge.photos import preprocess
from refocus.edge.runtimes import load_program, profile_folder, profiled
from studies.bench.plain_bundles import COMPARED, MATRIX, TARGETS, Entry, run_export

SCHEMA = 1
RUNTIMES = {"onnx": "onnxruntime", "executorch": "executorch"}
NETWORKS = (
    next(entry for entry in MATRIX if entry.name == "mobilenetv2_100"),
    Entry("vit_small_patch16_224", "ViT", 224),
)
PROFILES = 5  # profiled runs, of which the medians count


def measure(bundle: Bundle, targets: Sequence[str], photo: bytes, rounds: int) -> list[dict[str, Any]]:
    """Measure a plain bundle's encoder on each target, on one thread.

    There is one row per target.
    """
    inputs = {"photo": preprocess(photo, bundle.manifest.preprocessing)}
    pairs = {target: (RUNTIMES[target.partition(":")[0]], target.partition(":")[2]) for target in targets}
    programs = {target: load_program(bundle, "encoder", *pair, threads=1) for target, pair in pairs.items()}
    timings = interleave({target: program.bind(inputs) for target, program in programs.items()}, rounds)
    for program in programs.values():
        program.close()
    rows = []
    for target, pair in pairs.items():
        ratio = timings.ratio(target, targets[0])
        rows.append(
            {
                "target": target,
                "p50_ms": timings.percentile(target, 50),
                "ratio": {key: value for key, value in asdict(ratio).items() if key in ("mean", "low", "high")},
                "operators": operators(bundle, pair, inputs),
            }
        )
    return rows


def operators(bundle: Bundle, pair: tuple[str, str], inputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Count nodes and measure the median time of each operator.

    The times are of profiled runs; the operator with the longest time comes first.
    """
    nodes: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    for _ in range(PROFILES):
        with profile_folder() as folder:
            program = load_program(bundle, "encoder", *pair, threads=1, profile=Path(folder))
            for part in profiled(program, inputs):
                for one in part.operators:
                    nodes[one.name] = one.nodes
                    times.setdefault(one.name, []).append(one.ms)
    found = [{"name": name, "nodes": nodes[name], "ms": statistics.median(times[name])} for name in nodes]
    return sorted(found, key=lambda operator: -operator["ms"])


def main(
    photos: Annotated[Path, typer.Option(help="folder of real photos, at least 40")],
    out: Annotated[Path, typer.Option(help="output file for the document, such as operators.json")],
    weights: Annotated[Path | None, typer.Option(help="folder of trained weights, NAME_in1k.safetensors")] = None,
    to: Annotated[str, typer.Option(help="comma-separated targets; ratios are over the first")] = ",".join(TARGETS),
    networks: Annotated[str, typer.Option(help="comma-separated networks; default: all")] = "",
    rounds: Annotated[int, typer.Option(min=64, help="rounds of each interleaved run")] = 64,
) -> None:
    """Measure where the time of encoders goes, by operator."""
    files, targets, rows = photo_files(photos), to.split(","), []
    chosen = [entry for entry in NETWORKS if not networks or entry.name in networks.split(",")]
    if len(files) < COMPARED or not chosen:
        known = ", ".join(entry.name for entry in NETWORKS)
        raise UsageError(f"expected {COMPARED} photos, found {len(files)}; and networks among {known}")
    for entry in chosen:
        say(f"{entry.name}: exporting to {to}")
        with tempfile.TemporaryDirectory() as temporary:
            ran = run_export(entry, files, weights, 1800, targets, Path(temporary))
            if not (Path(temporary) / "bundle").exists():
                raise UsageError(f"{entry.name} was not exported: {ran.done.stderr.strip()[-400:]}")
            found = measure(load_bundle(Path(temporary) / "bundle"), targets, files[0].read_bytes(), rounds)
        rows.append({"network": entry.name, "weights": "trained" if ran.trained else "seeded", "targets": found})
    about = {"rounds": rounds, "profiles": PROFILES, "threads": 1, "cores": os.cpu_count()}
    about["executorch_threads"] = 1
    command = "python -m studies.bench.operators --photos PHOTOS --weights WEIGHTS --out OUT"
    document = {
        "schema_version": SCHEMA,
        "operators": about,
        "versions": versions(LIBRARIES),
        "rows": rows,
        "command": command,
    }
    write_file(out, json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    show_news()
    typer.run(main)
