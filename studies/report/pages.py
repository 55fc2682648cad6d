"""Pages of all studies, by the name of the study in its documents."""

from __future__ import annotations

from collections.abc import Mapping

from refocus.cloud_train.evaluate.page import Document, StudyPage, Table, table
from refocus.cloud_train.evaluate.report import STUDIES as EVALUATIONS
from studies import iciia
from studies.banks import growth, tables
from studies.bench import decoding, default_bundle
from studies.federated import sensitivity
from studies.iciia import attention, history_policies, windows
from studies.streams import camera_roll, few_people, mixed_folder, pages, trade_off

_MODULES = (
    camera_roll,
    mixed_folder,
    iciia,
    attention,
    history_policies,
    tables,
    sensitivity,
    pages,
    few_people,
    trade_off,
    decoding,
    default_bundle,
    windows,
    growth,
)
STUDIES: Mapping[str, StudyPage] = {
    **EVALUATIONS,
    **{name: page for module in _MODULES for name, page in module.PAGES.items()},
}


def study_table(document: Document) -> Table:
    """Return header and rows of a study.

    Differences to the plain classifier are in points.
    """
    return STUDIES[document["study"]].table(document)


def orders_table(document: Document) -> Table | None:
    """Return the orders of papers with the results of a study.

    Returns:
        None for a study without orders.
    """
    orders = document.get("orders")
    return table(STUDIES[document["study"]].orders, orders) if orders else None
