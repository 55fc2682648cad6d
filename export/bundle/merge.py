"""One bundle of several that were exported apart, one target each: exporting can so be shared among machines."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from refocus.edge.bundle import SCHEMA_VERSION, BankCard, Bundle, Head, write_manifest
from refocus.export.bundle.proof import evaluate_mixed, fp32_targets, require_self_test
from refocus.export.bundle.write import build
from refocus.export.errors import ExportError
from refocus.export.parity.parity import Reference, compare
from refocus.export.parity.photos import Streams
from refocus.export.program.checkpoint import Checkpoint


def merge_bundles(bundles: Sequence[Bundle], out: Path, head: Checkpoint, streams: Streams) -> Bundle:
    """Joins bundles of the same head for different targets.

    fp32 runtimes share one feature space only if histories of one may be met by another, so that is measured here,
    where they come together for the first time.

    Args:
        bundles: in the order of their targets.
        out: folder of the bundle; one that is there is replaced.
        head: the checkpoint that all of them were exported from.
        streams: real photos, one stream per person.

    Raises:
        ExportError: they are not of one head, or two have the same target.
        ParityError: histories of one runtime are not met by another as its own are.
    """
    first = bundles[0].manifest
    for bundle in bundles:
        found = bundle.manifest
        if [h.training for h in found.heads] != [h.training for h in first.heads] or (
            found.preprocessing,
            found.self_test_photos,
        ) != (first.preprocessing, first.self_test_photos):
            raise ExportError(f"{bundle.folder} and {bundles[0].folder} were not made of the same checkpoint")
    names = [a.file for bundle in bundles for a in bundle.manifest.artifacts]
    if len(set(names)) < len(names):
        raise ExportError(
            f"{next(n for n in names if names.count(n) > 1)} is in two of the bundles; give each target once"
        )

    def write(folder: Path) -> None:
        for bundle in bundles:
            shutil.copytree(bundle.folder, folder, dirs_exist_ok=True)
        manifest = msgspec.structs.replace(
            first,
            schema_version=SCHEMA_VERSION,
            artifacts=tuple(
                a for role in ("encoder", "head") for b in bundles for a in b.manifest.artifacts if a.role == role
            ),
            heads=tuple(_joined([b.manifest.heads[i] for b in bundles]) for i in range(len(first.heads))),
            bank=_joined_bank([b.manifest.bank for b in bundles]),
        )
        merged = write_manifest(folder, manifest)
        if manifest.bank is None:  # a bank's models know no history
            _measure_mixed(merged, head, streams)
        require_self_test(merged)

    return build(out, write)


def _joined(heads: Sequence[Head]) -> Head:
    """The head with the self-test's answers of every target."""
    tests = [head.self_test for head in heads if head.self_test is not None]
    if len(tests) < len(heads):
        raise ExportError(f"the head {heads[0].name} has no self-test; export it again")
    answers = {target: found for test in tests for target, found in test.answers.items()}
    return msgspec.structs.replace(heads[0], self_test=msgspec.structs.replace(tests[0], answers=answers))


def _joined_bank(banks: Sequence[BankCard | None]) -> BankCard | None:
    """The bank with the weight files of every target."""
    found = [bank for bank in banks if bank is not None]
    if not found:
        return None
    alone = {msgspec.json.encode(msgspec.structs.replace(bank, weight_files=())) for bank in found}
    if len(found) < len(banks) or len(alone) > 1:
        raise ExportError("the bundles hold different banks; they were not made of the same checkpoint")
    return msgspec.structs.replace(found[0], weight_files=tuple(file for bank in found for file in bank.weight_files))


def _measure_mixed(bundle: Bundle, head: Checkpoint, streams: Streams) -> None:
    [name] = [found.name for found in bundle.manifest.heads]
    shared = fp32_targets(bundle, name)
    if len(shared) > 1:
        reference = Reference(head.required("encoder").program(), head.program(), streams)
        evaluate_mixed(name, shared, compare(bundle, shared, reference, name))
