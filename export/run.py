"""An export as a function of its settings. Nothing heavy is imported before it is called."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocus.export.errors import ExportError
from refocus.export.settings import PERSONALISE, ExportSettings, is_network

if TYPE_CHECKING:
    from refocus.export.bundle import Export, Exported
    from refocus.export.bundle.first_divergence import Bisection
    from refocus.export.parity.photos import Streams
    from refocus.export.program import Checkpoint, Network

CALIBRATION_STREAMS = 4  # that the photos of a network are dealt to
Say = Callable[[str], object]


def export(settings: ExportSettings, say: Say = lambda line: None) -> Exported:
    """Exports heads and their encoder, a bank, or any network as a bundle, compared with PyTorch on real photos.

    A target that fails is left out and named in the outcomes; the others are written.

    Args:
        say: is told what is being done.

    Raises:
        ExportError: the settings do not allow it, or no target could be written.
        ParityError: no target computes what PyTorch computes.
        CheckpointError: a checkpoint cannot be used.
    """
    from refocus.edge.bundle import Bundle

    Bundle.check_replaceable(settings.out)
    loaded, asked, streams, name = _prepared(settings, say)
    from refocus.export.bank.write import builder_of, export_bank_targets
    from refocus.export.bundle import export_targets

    if builder_of(loaded[0]) is not None:
        if len(loaded) > 1:
            raise ExportError(f"{loaded[0].path} holds a bank; export it alone")
        return export_bank_targets(loaded[0], settings.out, asked, streams, name)
    return export_targets(loaded, settings.out, asked, streams, name)


def bisect(settings: ExportSettings) -> list[Bisection]:
    """For every program and target, the first layer whose values differ; writes nothing.

    Raises:
        ExportError: as of :func:`export`; or the checkpoint holds a bank.
    """
    loaded, asked, streams, _ = _prepared(settings, lambda line: None)
    from refocus.export.bank.write import builder_of
    from refocus.export.bundle import first_divergence
    from refocus.export.bundle.artifacts import heads_alone

    if builder_of(loaded[0]) is not None:
        raise ExportError(f"--bisect: {loaded[0].path} holds a bank, whose parity names program and target alone")
    whole = [target for target in asked.targets if heads_alone(target)]
    if whole:
        raise ExportError(f"--bisect: {whole[0]} is one function without layers to compare; leave the target out")
    return [row for checkpoint in loaded for row in first_divergence.bisect(checkpoint, asked, streams)]


def _prepared(settings: ExportSettings, say: Say) -> tuple[list[Checkpoint], Export, Streams, str]:
    """Checkpoints, what is asked of the export, photos, and the bundle's name."""
    network, opset, photos, calibration = _checked(settings)
    from refocus.export.bank.write import builder_of
    from refocus.export.bundle import Export
    from refocus.export.bundle.attempt import Attempt
    from refocus.export.parity.limits import parse_limits
    from refocus.export.parity.photos import read_streams
    from refocus.export.program import checkpoint_of, load_checkpoint
    from refocus.export.targets import needs_ranges

    name, shares, run = settings.name, settings.personalise == "shares", Path()
    limits, attempt = parse_limits(settings.max_deviation), Attempt(settings.to, partial=True)  # before a download
    if network and photos is not None:
        opened = _open(network, settings, say)
        loaded, streams, name = [checkpoint_of(opened)], photos, name or opened.name
        _compare_labels(streams, opened.labels, say)
    else:
        loaded = [load_checkpoint(Path(path), settings.form, settings.window) for path in settings.models]
        run = (loaded[0] if builder_of(loaded[0]) else loaded[0].required("encoder")).path.resolve().parent
        streams = photos or read_streams(run / "parity")
        if not (settings.personalise or settings.form):
            loaded, shares = _as_delivered(loaded, say)
    ranges = None
    if any(needs_ranges(target) for target in attempt.left) and builder_of(loaded[0]) is None:
        ranges = calibration or read_streams(run / "calibration", "--calibration")
    asked = Export(
        settings.to,
        opset,
        ranges,
        settings.head_only,
        settings.allow_mismatch,
        settings.require_full_delegation,
        say,
        partial=True,
        limits=limits,
        shares=shares,
    )
    return loaded, asked, streams, name


def _checked(settings: ExportSettings) -> tuple[str, int, Streams | None, Streams | None]:
    """Check what can be checked before PyTorch and the targets are imported.

    Returns:
        The network, or "" for checkpoints; the opset; photos for parity and for calibration, or None for the run's own.
    """
    from refocus.export.parity.photos import FEWEST_PHOTOS, pooled_streams, read_streams
    from refocus.export.targets import check_name, parse_opset

    if settings.personalise not in PERSONALISE:
        raise ExportError(f"--personalise {settings.personalise}: expected head or shares, or leave it out")
    for target in settings.to:
        check_name(target)
    network, opset, photos, calibration = _network_in(settings), parse_opset(settings.opset), None, None
    if network and settings.photos is not None:
        photos = pooled_streams(settings.photos, fewest=FEWEST_PHOTOS)
        flag = "--calibration" if settings.calibration else "--photos"
        calibration = pooled_streams(settings.calibration or settings.photos, flag, CALIBRATION_STREAMS)
    else:
        photos = read_streams(settings.photos) if settings.photos else None
        calibration = read_streams(settings.calibration, "--calibration") if settings.calibration else None
    return network, opset, photos, calibration


def _compare_labels(streams: Streams, labels: tuple[str, ...], say: Say) -> None:
    """Says why no right answers are counted, where the photos' labels are not the network's."""
    from refocus.export.parity.photos import labels_of

    found = sorted({*labels_of(streams).values()} - {""})
    if found and not set(found) & set(labels):
        say(
            f"no top-1: the photos' labels ({_first(found)}) are none of the network's ({_first(labels)}); name the"
            " network's classes with --labels FILE, in the order of its logits"
        )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:2]) + (", …" if len(names) > 2 else "")


def _as_delivered(loaded: list[Checkpoint], say: Say) -> tuple[list[Checkpoint], bool]:
    """Heads as their validation people were served best, and whether with class shares."""
    from refocus.export.program import PLAIN_FORM

    found, shares = [], False
    for checkpoint in loaded:
        delivery = checkpoint.card.training.get("delivery") or {"choice": "head"}
        choice, name = delivery["choice"], checkpoint.path.stem
        if choice in ("plain", "shares"):
            say(f"{name} is not delivered: {_no_better(delivery)}; --personalise head exports it nevertheless")
        shares |= choice in ("shares", "both")
        found.append(checkpoint if choice in ("head", "both") else replace(checkpoint, form=PLAIN_FORM))
    return found, shares


def _no_better(delivery: dict[str, Any]) -> str:
    """Why a head is not delivered."""
    parts = {"accuracy": "", "foreign": " after another person's", "open": " with half of the classes unknown"}
    head, shares, plain = (
        ", ".join(f"{delivery[part][name]:.1%}{said}" for part, said in parts.items() if delivery.get(part))
        for name in ("head", "shares", "plain")
    )
    return (
        f"after {delivery['history']} photos its validation people are served no better by it ({head}) than by class"
        f" shares ({shares}) or the plain classifier ({plain})"
    )


def _network_in(settings: ExportSettings) -> str:
    """Return the network that the settings name, or "" for checkpoints.

    Raises:
        ExportError: a network with another model, without photos, settings of a network for checkpoints, or a file is
            missing.
    """
    named = [model for model in settings.models if is_network(model)]
    if not settings.models:
        raise ExportError("no checkpoint and no network was given; give one, such as timm:NAME")
    if not named:
        for model in settings.models:
            _require_checkpoint(model)
        names = "pretrained", "checkpoint", "backbone_arguments", "labels", "side", "mean", "std"
        if any(getattr(settings, name) for name in names):
            raise ExportError(
                f"{settings.models[0]}: --pretrained, --checkpoint, --backbone-arguments, --labels, --side, --mean and"
                " --std are of a network, as timm:NAME, module:function or FILE.pt2"
            )
    elif len(settings.models) > 1:
        raise ExportError(f"{named[0]} is a network; export it alone")
    elif settings.window:
        raise ExportError(f"--window {settings.window}: {named[0]} is a network, which has no attention window")
    elif settings.photos is None:
        raise ExportError(f"{named[0]}: give real photos with --photos, on which it is compared with PyTorch")
    files = [("", Path(model)) for model in settings.models if model.endswith((".pt2", ".safetensors"))]
    for flag, file in (*files, ("--checkpoint ", settings.checkpoint), ("--labels ", settings.labels)):
        if file is not None and not file.exists():
            raise ExportError(f"{flag}{file}: no such file")
    return named[0] if named else ""


def _open(name: str, settings: ExportSettings, say: Say) -> Network:
    """Open a network; report random weights and outputs as probabilities."""
    from refocus.export.program import RANDOM, NetworkSettings, open_network
    from refocus.export.program.sources import PROBABILITIES

    preprocessing = {n: list(v) for n, v in (("mean", settings.mean), ("std", settings.std)) if v is not None}
    weights = settings.pretrained, settings.checkpoint, settings.backbone_arguments
    network = open_network(name, NetworkSettings(*weights, settings.labels, preprocessing, settings.side))
    if network.source.get("weights") == RANDOM:
        logging.getLogger("refocus.export").warning(
            f"{name}: its weights are random, because neither --pretrained nor --checkpoint was given; the bundle"
            " is good for measuring time, not for recognising"
        )
    if network.source.get("outputs") == PROBABILITIES:
        say(f"{name} gives probabilities; the bundle holds their logarithms, as what follows expects logits")
    return network


def _require_checkpoint(model: str) -> None:
    """Raises ExportError for what is neither a checkpoint nor a network, and says which network may be meant."""
    if Path(model).suffix == ".safetensors":
        return
    named = re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z0-9]+_\w+)?", model)  # with a tag of weights, as resnet18.a1_in1k
    near = f"; did you mean timm:{model}?" if named else ""
    near = near or _checkpoints_in(Path(model))
    where = "" if near or Path(model).exists() else ", and there is no such file"
    raise ExportError(
        f"{model} is neither a checkpoint of refocus train (.safetensors) nor a PyTorch network (timm:NAME,"
        f" package.module:function or FILE.pt2){where}{near}"
    )


def _checkpoints_in(folder: Path) -> str:
    """Which checkpoints may be meant by the folder of a run, or of one of its seeds; "" where it has none."""
    files = [*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")]
    found = sorted(str(file) for file in files if file.with_suffix(".json").is_file())
    return f"; did you mean {' or '.join(found[:3])}?" if found else ""
