"""Export networks as plain bundles and write their compatibility matrix.

``refocus export`` exports each network to all targets in a separate process. Networks with trained weights have the
limits of every export. The others have seeded weights, prepared as for :mod:`refocus.cloud_train.bench.compatibility`:
in fp32 they show whether a program computes what PyTorch computes. The loss of a network in 8 bits depends on trained
weights: seeded networks are measured and written whatever they lose, and the page marks those that an export of a
trained network would have refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from refocus.benchmarks.devices import versions
from refocus.cloud_train.bench.compatibility import (
    LIBRARIES,
    calibrate_statistics,
    photo_files,
    trained_weights,
    wake,
)
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.progress import say, track
from refocus.cloud_train.render import renderer
from refocus.edge.bundle import load_bundle
from refocus.edge.files import write_file
from refocus.edge.photos import preprocess
from refocus.export.parity.limits import FLAG
from refocus.export.parity.parity import TOLERANCES
from refocus.export.program import Network, NetworkSettings, open_network
from refocus.export.targets import needs_ranges
from studies.bench.compatibility_page import one_line

SCHEMA = 1
TARGETS = ("onnx:fp32", "onnx:w8a8", "executorch:fp32", "executorch:w8a8")
COMPARED, CALIBRATING = 16, 24  # photos, of which none is in both


@dataclass(frozen=True)
class Entry:
    """Network of the matrix.

    Attributes:
        name: timm name, or the name in the matrix.
        kind: kind of network, as the page shows it.
        side: pixels of its input.
        states_side: whether the network itself defines its side.
        arguments: arguments of the network's constructor.
        trained: whether to look for weights trained on ImageNet in the folder of weights.
        flags: further options of the export.
        place: source of a network that is not timm's, as ``refocus export`` takes it.
    """

    name: str
    kind: str
    side: int
    states_side: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = False
    flags: tuple[str, ...] = ()
    place: str = ""

    @property
    def source(self) -> str:
        """Source of the network, as ``refocus export`` takes it."""
        return self.place or f"timm:{self.name}"


_HALF = ("--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5")
_SMALL_VIT = {
    "image_size": 192,
    "patch_size": 16,
    "num_layers": 6,
    "num_heads": 3,
    "hidden_dim": 192,
    "mlp_dim": 768,
}
MATRIX = (
    Entry("mobilenetv2_100", "CNN", 224, True, {"pad_type": "same"}, True, ("--side", "224", *_HALF)),
    Entry("mobilenetv3_small_100", "CNN", 96, False),
    Entry("regnetx_002", "CNN", 128, False),
    Entry("resnet18", "CNN", 160, False),
    Entry("convnext_atto", "CNN", 288, False),
    Entry("deit_tiny_patch16_224", "ViT", 224, trained=True),
    Entry("vit_tiny_patch16_224", "ViT", 96, False, {"img_size": 96}),
    Entry(
        "torchvision VisionTransformer",
        "ViT",
        192,
        False,
        _SMALL_VIT,
        place="torchvision.models.vision_transformer:VisionTransformer",
    ),
    Entry("levit_128s", "hybrid", 224),
    Entry("tiny_vit_5m_224", "hybrid", 224),
    Entry("mobilevit_xxs", "hybrid", 256),
    Entry("vit_tiny_patch16_384", "ViT", 384),
)


def run_matrix(
    photos: Path,
    out: Path,
    weights: Path | None,
    limit_s: float,
    entries: Sequence[Entry] = MATRIX,
    targets: Sequence[str] = TARGETS,
) -> dict[str, Any]:
    """Export the networks without a result and return the whole document.

    Args:
        photos: folder of real photos.
        out: folder of the results, one file per network; networks with a file are skipped.
        weights: folder of trained weights; a network without a file there gets seeded weights, and its row states it.
        limit_s: time limit per network.
        entries: networks of the matrix.
        targets: targets of each export.

    Raises:
        UsageError: there are too few photos.
    """
    files = photo_files(photos)
    if len(files) < COMPARED + CALIBRATING:
        raise UsageError(f"--photos {photos}: expected {COMPARED + CALIBRATING} photos, found {len(files)}")
    out.mkdir(parents=True, exist_ok=True)
    for entry in track(entries, "networks", len(entries)):
        path = out / f"{entry.name.replace(' ', '-')}.json"
        if not path.exists():
            row = export_one(entry, files, weights, limit_s, targets)
            say(f"{entry.name}: " + ", ".join(f"{name} {found['status']}" for name, found in row["targets"].items()))
            write_file(path, json.dumps(row, indent=2) + "\n")
    return document_of(out, entries, targets)


def document_of(out: Path, entries: Sequence[Entry] = MATRIX, targets: Sequence[str] = TARGETS) -> dict[str, Any]:
    """Build the document from the results in a folder.

    Networks without a result are named but have no row.
    """
    paths = [out / f"{entry.name.replace(' ', '-')}.json" for entry in entries]
    return {
        "schema_version": SCHEMA,
        "plain_bundles": {
            "networks": [entry.name for entry in entries],
            "targets": list(targets),
            "compared_photos": COMPARED,
            "calibration_photos": CALIBRATING,
        },
        "versions": versions(LIBRARIES),
        "rows": [json.loads(path.read_text()) for path in paths if path.exists()],
    }


def export_one(
    entry: Entry, files: Sequence[Path], weights: Path | None, limit_s: float, targets: Sequence[str]
) -> dict[str, Any]:
    """Export one network and return its row, with the outcome per target."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ran = run_export(entry, files, weights, limit_s, targets, folder)
        done = ran.done
        row = {
            "network": entry.name,
            "kind": entry.kind,
            "side": entry.side,
            "weights": "trained" if ran.trained else "seeded",
            "command": " ".join(("refocus", *ran.command)),
            "seconds": round(time.monotonic() - started, 1),
            "status": done.returncode,
            "classifier": "",
            "parameters": ran.parameters,
            "targets": _failed(targets, done),
        }
        if done.returncode in (0, 3):
            row["targets"] = _targets_of(json.loads(done.stdout))
            training = load_bundle(folder / "bundle").manifest.heads[0].training
            row["classifier"] = str(training["classifier"])
    return row


class RanExport(NamedTuple):
    """Finished export command.

    Attributes:
        done: the process.
        command: see :func:`command_of`.
        trained: whether the network has trained weights.
        parameters: number of the network's parameters.
    """

    done: subprocess.CompletedProcess[str]
    command: list[str]
    trained: bool
    parameters: int


def run_export(
    entry: Entry, files: Sequence[Path], weights: Path | None, limit_s: float, targets: Sequence[str], folder: Path
) -> RanExport:
    """Export one network into ``folder / "bundle"``.

    The arguments are those of :func:`run_matrix`.
    """
    trained = trained_weights(weights, entry.name) if entry.trained else None
    # Every n-th photo: files in order of their names are often in order of their classes.
    step = len(files) // (COMPARED + CALIBRATING)
    chosen = list(files)[:: max(1, step)][: COMPARED + CALIBRATING]
    shares = {"compared": chosen[:COMPARED], "calibration": chosen[COMPARED:]}
    for name, photos in shares.items():
        (folder / name).mkdir()
        for photo in photos:
            (folder / name / photo.name).write_bytes(photo.read_bytes())
    network = _network(entry)
    parameters = sum(parameter.numel() for parameter in network.module.parameters())
    checkpoint = trained or folder / "seeded.safetensors"
    if trained is None:
        save_seeded(network, shares["calibration"], checkpoint)
    command = command_of(entry, targets, seeded=trained is None)
    places = {"WEIGHTS": checkpoint, "COMPARED": folder / "compared", "CALIBRATION": folder / "calibration"}
    words = [str(places.get(word, word)) for word in [*command, "--out", str(folder / "bundle"), "--json"]]
    return RanExport(_run(words, limit_s), command, trained is not None, parameters)


def command_of(entry: Entry, targets: Sequence[str], seeded: bool) -> list[str]:
    """Return the arguments of ``refocus`` that export a network.

    WEIGHTS, COMPARED and CALIBRATION are placeholders for files and folders.
    """
    words = ["export", entry.source, "--checkpoint", "WEIGHTS", "--photos", "COMPARED", "--calibration", "CALIBRATION"]
    words += ["--to", ",".join(targets), *entry.flags]
    if not entry.states_side:
        words += ["--side", str(entry.side)]
    if entry.arguments:
        words += ["--backbone-arguments", json.dumps(dict(entry.arguments))]
    quantised = [target for target in targets if needs_ranges(target)]
    if seeded and quantised:
        free = ("typical-logits=1", "cosine-distance=2", "disagreement=1")
        words += [FLAG, ",".join(f"{target}:{limit}" for target in quantised for limit in free)]
    return words


def _network(entry: Entry) -> Network:
    """Create the network with weights of seed 0."""
    torch.manual_seed(0)
    side = 0 if entry.states_side else entry.side
    return open_network(entry.source, NetworkSettings(arguments=entry.arguments, side=side))


def save_seeded(network: Network, photos: Sequence[Path], path: Path) -> None:
    """Save seeded weights of a network with statistics of real photos.

    No branch of the network is switched off.
    """
    pixels = [torch.from_numpy(preprocess(p.read_bytes(), network.preprocessing, str(p))) for p in photos]
    wake(network.module)
    calibrate_statistics(network.module, torch.cat(pixels))
    save_file({name: tensor.contiguous().clone() for name, tensor in network.module.state_dict().items()}, path)


def _run(words: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "refocus", *words]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment)  # noqa: S603
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1, "", f"not done after {limit_s:.0f} s")


def _failed(targets: Sequence[str], done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    last = (done.stderr.strip() or f"the process ended with {done.returncode}").splitlines()[-1]
    return {target: {"status": "failed", "reason": last.removeprefix("refocus: ")} for target in targets}


def _targets_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the outcome of each target from the command's output."""
    found = {outcome["target"]: {k: v for k, v in outcome.items() if k != "target"} for outcome in document["targets"]}
    for artifact in document["artifacts"]:
        runtime = {"onnxruntime": "onnx"}.get(artifact["runtime"], artifact["runtime"])
        of_target = found[f"{runtime}:{artifact['precision']}"]
        figures = ("size_bytes", "parity_max_abs", "parity_cosine", "parity_typical_logits", "top1_agreement")
        of_target[artifact["role"]] = {name: artifact[name] for name in figures if artifact[name] is not None}
        of_target[artifact["role"]]["fallbacks"] = sorted(artifact["fallbacks"])
    return found


def write_bundles_page(document: Mapping[str, Any], path: Path) -> None:
    """Write the compatibility page of plain bundles as Markdown."""
    about, rows = document["plain_bundles"], document["rows"]
    targets = about["targets"]
    failed = [(row, target) for row in rows for target in targets if row["targets"][target]["status"] == "failed"]
    seeded = [row for row in rows if row["weights"] == "seeded"]
    page = renderer(Path(__file__).parent)(
        "plain_bundles.md.j2",
        about=about,
        rows=rows,
        targets=targets,
        versions=", ".join(f"{name} {version}" for name, version in document["versions"].items()),
        failed=failed,
        waiting=[name for name in about["networks"] if name not in {row["network"] for row in rows}],
        complete=sum(all(row is not other for other, _ in failed) for row in rows),
        trained=", ".join(row["network"] for row in rows if row["weights"] == "trained") or "none",
        over=[_is_over(row["targets"][target]) for row in seeded for target in targets if needs_ranges(target)],
        cell=_cell,
        one_line=one_line,
    )
    write_file(path, page)


def _is_over(found: Mapping[str, Any]) -> bool:
    """Return whether a quantised program exceeds a limit of exports.

    Exports of seeded networks have no such limits.
    """
    limit = TOLERANCES["w8a8"]
    return "head" in found and (
        found["head"]["parity_typical_logits"] > limit.typical_logits
        or found["head"]["top1_agreement"] < limit.agreement
        or min(found[role]["parity_cosine"] for role in ("encoder", "head")) < limit.cosine
    )


def _cell(target: str, found: Mapping[str, Any]) -> str:
    if found["status"] == "failed":
        return "**failed**"
    if found["status"] == "not run here":
        return "not run here"
    size = sum(found[role]["size_bytes"] for role in ("encoder", "head")) / 1e6
    fallbacks = f", {len(found['encoder']['fallbacks'])} portable" if found["encoder"]["fallbacks"] else ""
    if needs_ranges(target):
        head = found["head"]
        figure = f"{head['parity_typical_logits']:.3f}, {head['top1_agreement']:.0%} same"
        figure += " (over)" if _is_over(found) else ""
    else:
        figure = f"{found['encoder']['parity_max_abs']:.0e}"
    return f"{figure}, {size:.0f} MB{fallbacks}"
