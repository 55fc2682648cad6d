"""What is in a bundle, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from refocus.edge.bundle.manifest import Artifact, Manifest, Parity, ShareCard


def artifact_table(manifest: Manifest) -> None:
    """Prints size, parity, placement and top-1 of every artifact, and below what does not fit a row."""
    from rich.console import Console
    from rich.table import Table

    table = Table("program", "target", "size", "difference", "same top-1", "nodes on")
    for artifact in manifest.artifacts:
        table.add_row(
            artifact.head or artifact.role,
            artifact.target,
            f"{artifact.size_bytes / 1e6:.2f} MB",
            _parity(artifact),
            _same(artifact.parity) if artifact.parity else "",
            _placement(artifact),
        )
    console = Console()
    console.width = max(console.width, 100)  # a row in pieces cannot be read
    console.print(table)
    for line in _notes(manifest):
        console.print(line, highlight=False, markup=False)


def _parity(artifact: Artifact) -> str:
    if artifact.parity is None:
        return "not run here"
    mark = "" if artifact.parity.passed else " (MISMATCH)"
    return f"{artifact.parity.max_abs:.1e}{mark}"


def _same(parity: Parity) -> str:
    return f"{round(parity.top1_agreement * parity.photos)} of {parity.photos} photos"


def _placement(artifact: Artifact) -> str:
    if artifact.placement is None:
        return ""
    if artifact.placement.how == "device":
        return f"{artifact.placement.asked} decides"
    operators = artifact.placement.operators.items()
    return ", ".join(f"{name.removesuffix('ExecutionProvider')} {sum(ops.values())}" for name, ops in operators)


def _calibration(shares: ShareCard) -> str:
    if shares.temperature == 1 and not (shares.scale or shares.bias):
        return "temperature 1 (not calibrated, or without effect)"
    return f"temperature {shares.temperature:g}"


def _notes(manifest: Manifest) -> Iterator[str]:
    parts = {(a.head, a.precision): a.parts_bytes for a in manifest.artifacts if a.role == "head"}
    for (head, precision), sizes in parts.items():
        if not sizes:
            continue
        weights = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items())
        yield f"{head} {precision}, weights apart: {weights}"
    for card in manifest.heads:
        if (shares := card.personalisation.shares) is not None:
            yield f"{card.name}: class shares of up to {shares.capacity:,} photos, {_calibration(shares)}"
        if isinstance(card.rejection, float):
            yield f"{card.name}: photos with a score below {card.rejection:.4g} are marked as unknown"
    for artifact in manifest.artifacts:
        name = f"{artifact.head or artifact.role} {artifact.target}"
        if artifact.parity_note:
            yield f"{name}: {artifact.parity_note}"
        fallbacks = artifact.placement.fallbacks if artifact.placement else {}
        by_reason: dict[str, list[str]] = {}
        for operator, reason in fallbacks.items():
            by_reason.setdefault(reason, []).append(operator)
        yield from (f"{name}: {', '.join(ops)}: {reason}" for reason, ops in by_reason.items())
        if artifact.accuracy:
            accuracy = artifact.accuracy
            yield (
                f"{name}: {accuracy.delivered:.2%} right on {accuracy.photos} photos of {accuracy.people} people"
                f" ({accuracy.data}), worst tenth of them {accuracy.worst_decile:.2%}"
            )
