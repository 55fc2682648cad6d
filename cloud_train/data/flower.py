"""Partitions by the classes of ``flwr_datasets.partitioner`` (Flower, Apache-2.0), such as ``DirichletPartitioner``.

The library is installed beside Refocus (``pip install flwr-datasets``) and asked for who gets which row alone: it sees
labels, clients, domains and parents, and no photo.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from refocus.cloud_train.data.table import PhotoTable
from refocus.cloud_train.errors import DataError, UsageError


def flower(table: PhotoTable, name: str, arguments: Mapping[str, Any], seed: int) -> np.ndarray:
    """(R,) client of each photo; "" for photos that the partitioner gives to nobody.

    Args:
        name: a class of ``flwr_datasets.partitioner``.
        arguments: of its constructor. ``partition_by`` names ``label``, ``client``, ``domain`` or ``parent``.
        seed: its ``seed``, where it takes one and ``arguments`` states none.

    Raises:
        UsageError: the library is not installed, it has no such class, or the class refuses the arguments.
        DataError: the class cannot deal these photos.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        from datasets import Dataset
        from flwr_datasets import partitioner
    except ImportError:
        raise UsageError(
            "partition = flwr needs a library that is not installed; install it with: pip install flwr-datasets"
        ) from None
    kinds = sorted(one for one in dir(partitioner) if one.endswith("Partitioner") and one != "Partitioner")
    if name not in kinds:
        raise UsageError(f"partitioner = {name!r}: expected one of {', '.join(kinds)}")
    kind = getattr(partitioner, name)
    seeded = {"seed": seed} if "seed" in inspect.signature(kind).parameters else {}
    try:
        dealer = kind(**{**seeded, **arguments})
    except (TypeError, ValueError) as error:
        raise UsageError(f"partitioner_arguments of {name}: {error}") from None
    columns = {one: getattr(table, one).tolist() for one in ("label", "client", "domain", "parent")}
    client = np.full(len(table), "", dtype=object)
    try:
        dealer.dataset = Dataset.from_dict({**columns, "row": np.arange(len(table)).tolist()})
        for number in range(dealer.num_partitions):
            client[np.asarray(dealer.load_partition(number)["row"], dtype=int)] = f"client-{number:04d}"
    except (KeyError, ValueError, AttributeError) as error:
        raise DataError(f"{name} cannot deal {len(table)} photos: {error}") from None
    return client.astype(str)
