"""Which timm networks export to which runtime with parity: a sweep, resumable, and its page.

Each pair of network and target is exported and compared in a process of its own, so that one that crashes, eats all
memory or never ends is one row with a reason. Networks come without trained weights: their normalisation statistics are
first taken from real photos, because at the start values explode or vanish with depth, and branches that start
switched off are switched on: parity of nothing proves nothing. What decides is the relative error of the logits on real
photos, not the best class, which means little here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import nn

from refocus.benchmarks.devices import versions
from refocus.cloud_train.backbones.backbone import create_backbone
from refocus.cloud_train.errors import UsageError
from refocus.cloud_train.progress import say, track
from refocus.edge.errors import PhotoError, RefocusError
from refocus.edge.files import write_file
from refocus.edge.photos import preprocess
from refocus.export.program import TorchProgram, capture_freest, photo_encoder
from refocus.export.targets import Settings, find_target
from refocus.export.targets.single_program import load_single, write_single

SCHEMA = 2  # 1: Refocus 0.1; the same fields
DOCUMENT = "compatibility.json"
# Convolutional, attention, both; small and large. One or more of each family people put on devices.
NETWORKS = (
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "mobilenetv4_conv_small",
    "mobilenetv4_hybrid_medium",
    "efficientnet_b0",
    "efficientnet_b4",
    "tf_efficientnet_lite0",
    "mnasnet_100",
    "ghostnet_100",
    "regnety_008",
    "resnet18",
    "resnet50",
    "repvgg_a0",
    "densenet121",
    "convnext_tiny",
    "edgenext_small",
    "vit_tiny_patch16_224",
    "vit_base_patch16_224",
    "deit3_small_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mixer_s16_224",
    "mobilevit_s",
    "fastvit_t8",
    "efficientformer_l1",
    "efficientvit_b0",
    "levit_128s",
    "poolformer_s12",
    "tiny_vit_5m_224",
    "xcit_nano_12_p16_224",
)
TARGETS = ("onnx:fp32", "executorch:fp32", "coreml:fp16")
LIBRARIES = ("torch", "timm", "onnx", "onnxruntime", "executorch", "coremltools")
TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2}  # of the largest difference of a logit to the largest logit
CLASSES = 1000
STATISTICS_PHOTOS, COMPARED_PHOTOS = 32, 8
SMALLEST_SCALE = 1e-2  # of a branch; networks start theirs at 0, 1e-6 or 1e-5, and train them up


@dataclass(frozen=True)
class Row:
    """One network for one target.

    Attributes:
        outcome: "parity", "differs", "not run here" (exported, but this machine has no such runtime) or "failed".
        relative_error: largest difference over the largest logit.
        same_top1: photos of the compared ones with the same best class.
        fallbacks: operators the delegate left to others.
        norms_in_fp16_error: of ONNX in fp16, the relative error it would have with norms, softmax and sums in fp16 too.
        reason: of anything but parity.
    """

    network: str
    target: str
    outcome: str
    parameters: int = 0
    relative_error: float | None = None
    same_top1: int | None = None
    photos: int = 0
    size_bytes: int = 0
    free_batch: bool = False
    fallbacks: tuple[str, ...] = ()
    norms_in_fp16_error: float | None = None
    seconds: float = 0.0
    reason: str = ""


def sweep(networks: Sequence[str], targets: Sequence[str], photos: Path, out: Path, limit_s: float) -> dict[str, Any]:
    """Runs what is not there yet and returns the whole document.

    Args:
        photos: folder of real photos.
        out: folder of the results, one file per pair; what is there is not run again.
        limit_s: of one pair.

    Raises:
        UsageError: an unknown network, or no photos.
    """
    for name in networks:
        if not timm.is_model(name):
            raise UsageError(f"--networks {name}: timm {timm.__version__} has no such network")
    for target in targets:
        find_target(target)
    if not photo_files(photos):
        raise UsageError(f"--photos {photos}: expected a folder of photos")
    out.mkdir(parents=True, exist_ok=True)
    pairs = [(network, target) for network in networks for target in targets]
    for network, target in track(pairs, "networks x targets", len(pairs)):
        path = out / f"{network}-{target.replace(':', '-')}.json"
        if not path.exists():
            row = _in_a_process(network, target, photos, limit_s)
            say(f"{network} {target}: {row.outcome} {row.reason[:100]}")
            write_file(path, json.dumps(asdict(row), indent=2) + "\n")
    # Everything in the folder: earlier commands may have tried other networks and targets.
    rows = [json.loads(path.read_text()) for path in sorted(out.glob("*-*.json")) if path.name != DOCUMENT]
    return {
        "schema_version": SCHEMA,
        "tolerances": TOLERANCES,
        "compared_photos": COMPARED_PHOTOS,
        "versions": versions(LIBRARIES),
        "rows": rows,
    }


def photo_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*") if p.suffix.lower() in {".jpg", ".jpeg", ".png", ".webp"})


def trained_weights(folder: Path | None, network: str) -> Path | None:
    """The file of a network's trained weights in a folder of them; None where it is not there."""
    file = folder / f"{network}_in1k.safetensors" if folder is not None else None
    return file if file is not None and file.is_file() else None


def _in_a_process(network: str, target: str, photos: Path, limit_s: float) -> Row:
    started = time.monotonic()
    command = [sys.executable, "-m", "refocus.cloud_train.bench.compatibility", network, target, str(photos)]
    try:
        # Our own module, with names that timm knows and a folder that the user gave.
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)  # noqa: S603
    except subprocess.TimeoutExpired:
        return Row(network, target, "failed", seconds=limit_s, reason=f"not done after {limit_s:.0f} s")
    seconds = round(time.monotonic() - started, 1)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith('{"network"'):
            return replace(Row(**json.loads(line)), seconds=seconds)
    last = (done.stderr.strip() or "no message").splitlines()[-1]
    return Row(network, target, "failed", seconds=seconds, reason=f"the process ended with {done.returncode}: {last}")


def try_one(network: str, target: str, photos: Path) -> Row:
    """Exports one network for one target and compares it on real photos through the device's runtime."""
    program, pixels = prepared(network, photos)
    parameters = sum(p.numel() for p in program.module.parameters())
    with torch.inference_mode():
        wanted = torch.cat([program.module(row[None]) for row in pixels]).numpy()
    _, precision = find_target(target)
    about: dict[str, Any] = {"network": network, "target": target, "parameters": parameters, "photos": len(pixels)}
    with tempfile.TemporaryDirectory() as folder:
        try:
            free, captured = capture_freest(program)
            written, path = write_single(target, free, captured, Settings(precision), Path(folder))
        except RefocusError as error:
            return Row(**about, outcome="failed", reason=str(error))
        about["free_batch"] = isinstance(free.inputs[0].shape[0], str)
        about["fallbacks"] = tuple(written.placement.fallbacks) if written.placement else ()
        about["size_bytes"] = sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")))
        if written.parity_note:
            return Row(**about, outcome="not run here", reason=written.parity_note)
        device = load_single(target, written, path)
        found = np.concatenate([device.run(photo=row[None].numpy())["feature"] for row in pixels])
        if target == "onnx:fp16":
            about["norms_in_fp16_error"] = _norms_in_fp16(free, captured, pixels, wanted)
    off, most = relative_error(found, wanted), TOLERANCES[precision]
    same = int((found.argmax(1) == wanted.argmax(1)).sum())
    passed = off <= most
    reason = "" if passed else f"relative error of the logits {off:.1e}, at most {most}"
    return Row(**about, outcome="parity" if passed else "differs", relative_error=off, same_top1=same, reason=reason)


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference over the largest value; infinite where something is not a number."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max()) if np.isfinite(found).all() else float("inf")


def _norms_in_fp16(program: TorchProgram, captured: Any, pixels: torch.Tensor, wanted: np.ndarray) -> float:
    from refocus.export.targets import onnx as onnx_target

    model = onnx_target.to_fp16(onnx_target.model_of(program, captured, Settings("fp16")), normalise_in_fp32=False)
    session = bare_session(model.SerializeToString())
    return relative_error(
        np.concatenate([session.run(None, {"photo": row[None].numpy()})[0] for row in pixels]), wanted
    )


def bare_session(model: str | bytes) -> Any:
    """ONNX Runtime's own session of a file or its content, on one thread of the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def prepared(network: str, photos: Path) -> tuple[TorchProgram, torch.Tensor]:
    """A network whose statistics are of real photos, and other real photos (n, 3, S, S) to compare on.

    Raises:
        UsageError: too few photos can be read.
    """
    torch.manual_seed(0)
    backbone = create_backbone(network, CLASSES)
    rows = []
    for path in photo_files(photos):
        try:
            rows.append(torch.from_numpy(preprocess(path.read_bytes(), backbone.preprocessing, str(path))))
        except PhotoError as error:
            say(str(error))
        if len(rows) == STATISTICS_PHOTOS + COMPARED_PHOTOS:
            break
    else:
        raise UsageError(
            f"--photos {photos}: expected {STATISTICS_PHOTOS + COMPARED_PHOTOS} photos, {len(rows)} can be read"
        )
    pixels = torch.cat(rows)
    wake(backbone.network)
    calibrate_statistics(backbone.network, pixels[:STATISTICS_PHOTOS])
    program = photo_encoder(backbone.network, backbone.preprocessing, CLASSES, "0")
    return program, pixels[STATISTICS_PHOTOS:]


@torch.no_grad()
def wake(network: nn.Module) -> list[str]:
    """Starts what starts switched off: scales of branches at zero or next to it, and classifiers of zeros.

    An untrained network is otherwise little more than its shortcuts, and parity would not notice what is in between.

    Returns:
        names of the parameters that were changed.
    """
    woken = []
    for name, parameter in network.named_parameters():
        asleep = float(parameter.abs().max()) <= SMALLEST_SCALE and float(parameter.max()) == float(parameter.min())
        if name.endswith("bias") or not asleep:
            continue
        if parameter.squeeze().dim() > 1:
            nn.init.trunc_normal_(parameter, std=0.02)
        else:
            nn.init.ones_(parameter)
        woken.append(name)
    return woken


@torch.no_grad()
def calibrate_statistics(network: nn.Module, pixels: torch.Tensor) -> None:
    """Batch norms take the mean and variance of real photos in place of 0 and 1."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
        norm.train()
    for rows in pixels.split(8):
        network(rows)
    network.eval()


if __name__ == "__main__":
    _row = try_one(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    sys.stdout.write(json.dumps(asdict(_row)) + "\n")
