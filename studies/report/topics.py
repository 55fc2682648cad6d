"""Pages of the results, and their documents."""

from __future__ import annotations

from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate.page import Document

# Pages by the name of their file, in the order of the front page, each with its title.
TOPICS = {
    "camera-rolls": "Camera rolls: photos that show none of the classes",
    "class-shares": "Class shares and streams",
    "iciia-photos": "ICIIA heads on photos",
    "iciia-letters": "ICIIA heads on letters and digits",
    "iciia-paper": "ICIIA: tables and figures of the paper",
    "iciia-variants": "ICIIA: gates, streaming and longer memories",
    "taper": "TAPER: tables and figures of the paper",
    "taper-devices": "TAPER: banks on devices",
    "federated": "Federated methods: first runs and deployment",
    "pfedpg": "pFedPG under the conditions of its paper",
    "fedperfix": "FedPerfix under the conditions of its paper",
    "fedclip": "FedCLIP under the conditions of its paper",
    "cost": "Cost on a device",
    "speed": "Speed of networks and runtimes",
    "targets": "Export targets and quantised accuracy",
    "pipeline": "Pipeline and releases",
    "android": "Android",
}
PAPERS = {
    "ICIIA": "iciia-paper",
    "TAPER": "taper",
    "pFedPG": "pfedpg",
    "FedPerfix": "fedperfix",
    "FedCLIP": "fedclip",
}
ORDERS = "orders"  # the page with the orders of all papers
OF_STUDY = {
    "stream": "class-shares",
    "trade-off": "class-shares",
    "few-people": "class-shares",
    "camera-roll": "camera-rolls",
    "camera-roll-choices": "camera-rolls",
    "mixed-folder": "camera-rolls",
    "ablations": "iciia-paper",
    "attention": "iciia-paper",
    "baselines": "iciia-paper",
    "gates": "iciia-variants",
    "heads": "iciia-paper",
    "heterogeneity": "iciia-paper",
    "memories": "iciia-variants",
    "partitions": "iciia-paper",
    "shuffling": "iciia-paper",
    "streaming": "iciia-variants",
    "windows": "iciia-paper",
    "bases": "taper",
    "growth": "taper",
    "taper": "taper",
    "ways": "taper",
    "bank": "taper-devices",
    "improvement": "taper-devices",
    "federated": "federated",
    "sensitivity": "federated",
    "decoding": "cost",
    "default-bundle": "targets",
}
# Documents that are no study, by the field of ``sections.SCHEMAS`` that they have.
OF_KIND = {
    "programs": "cost",
    "condensing": "taper-devices",
    "service": "taper-devices",
    "device_install": "cost",
    "append_journal": "cost",
    "switching_people": "cost",
    "operators": "speed",
    "cuda_sections": "speed",
    "ratios": "speed",
    "export_times": "speed",
    "accuracy_of_targets": "targets",
    "plain_bundles": "targets",
    "accuracy_of_sets": "iciia-letters",
    "bundle_clients": "federated",
    "federate_trial": "federated",
    "retrainings": "pipeline",
    "android_start": "android",
    "android_cost": "android",
    "android_processors": "android",
    "android_unknown": "android",
}
LETTERS = ("glyphs", "moving-glyphs", "mnist", "omniglot")  # prefixes of the data of evaluations of letters


def topic_of(name: str, kind: str, document: Document) -> str:
    """Return the page of a document.

    Args:
        name: name of the document.
        kind: the field of ``sections.SCHEMAS`` that the document has; "" for the evaluation of a run.
        document: result document.

    Raises:
        DataError: no page shows documents of its kind.
    """
    if kind == "study":
        return _found(name, "OF_STUDY", OF_STUDY, document["study"])
    if kind:
        return _found(name, "OF_KIND", OF_KIND, kind)
    return "iciia-letters" if document["data"]["source"].startswith(LETTERS) else "iciia-photos"


def page_of_paper(paper: str) -> str:
    """Return the page of a paper.

    The first word names the paper, as in "pFedPG Table 1".

    Raises:
        DataError: the paper has no page.
    """
    return _found("the programme", "PAPERS", PAPERS, paper.split()[0])


def _found(name: str, table: str, pages: dict[str, str], key: str) -> str:
    if key not in pages:
        raise DataError(f"no page is for {key!r} of {name}; add it to {table} in studies/report/topics.py")
    return pages[key]
