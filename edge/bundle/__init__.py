"""Bundles: the manifest, verified files, tensors, signatures. Nothing here runs a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refocus.edge.bundle.load import MANIFEST, Bundle, load_bundle, photo_hash, put_in_place, upgrade, write_manifest
from refocus.edge.bundle.manifest import (
    EAGER,
    KNOWN_LEVELS,
    MAX_FRAMES,
    MAX_MANIFEST_BYTES,
    MAX_SET_LABELS,
    SCHEMA_VERSION,
    SET_SHARES_VERSION,
    SHARES_VERSION,
    Accuracy,
    Artifact,
    BankCard,
    Column,
    Defaults,
    Fold,
    Head,
    Manifest,
    NonNegativeFloat,
    Parity,
    PersonalFile,
    Personalisation,
    PersonalTensor,
    Piece,
    PlacedTensor,
    Placement,
    Preprocessing,
    SelfImprovementBy,
    SelfTest,
    SelfTestAnswer,
    SelfTestPhoto,
    ShareCard,
    State,
    Strict,
    Tensor,
    WeightFile,
    decode_manifest,
)
from refocus.edge.bundle.personal_weights import Carrier, NewWeights, PersonalWeights, model_of
from refocus.edge.bundle.precision import (
    ALIASES,
    PRECISIONS,
    PrecisionName,
    find_named_target,
    find_precision,
    find_runtime,
)
from refocus.edge.bundle.table import artifact_table
from refocus.edge.bundle.tensor_file import encode_tensors
from refocus.edge.bundle.verified_files import tree_sha256
from refocus.edge.bundle.weight_patching import filled

if TYPE_CHECKING:
    from refocus.edge.bundle.signed import REQUEST, Asked, pack, sign, sign_statement, unpack

__all__ = [
    "ALIASES",
    "EAGER",
    "KNOWN_LEVELS",
    "MANIFEST",
    "MAX_FRAMES",
    "MAX_MANIFEST_BYTES",
    "MAX_SET_LABELS",
    "PRECISIONS",
    "REQUEST",
    "SCHEMA_VERSION",
    "SET_SHARES_VERSION",
    "SHARES_VERSION",
    "Accuracy",
    "Artifact",
    "Asked",
    "BankCard",
    "Bundle",
    "Carrier",
    "Column",
    "Defaults",
    "Fold",
    "Head",
    "Manifest",
    "NewWeights",
    "NonNegativeFloat",
    "Parity",
    "PersonalFile",
    "PersonalTensor",
    "PersonalWeights",
    "Personalisation",
    "Piece",
    "PlacedTensor",
    "Placement",
    "PrecisionName",
    "Preprocessing",
    "SelfImprovementBy",
    "SelfTest",
    "SelfTestAnswer",
    "SelfTestPhoto",
    "ShareCard",
    "State",
    "Strict",
    "Tensor",
    "WeightFile",
    "artifact_table",
    "decode_manifest",
    "encode_tensors",
    "filled",
    "find_named_target",
    "find_precision",
    "find_runtime",
    "load_bundle",
    "model_of",
    "pack",
    "photo_hash",
    "put_in_place",
    "sign",
    "sign_statement",
    "tree_sha256",
    "unpack",
    "upgrade",
    "write_manifest",
]


def __getattr__(name: str) -> Any:
    """Names of :mod:`refocus.edge.bundle.signed`, which needs cryptography: a device without updates has none."""
    if name not in ("REQUEST", "Asked", "pack", "sign", "sign_statement", "unpack"):
        raise AttributeError(f"module 'refocus.edge.bundle' has no attribute '{name}'")
    from refocus.edge.bundle import signed

    return getattr(signed, name)
