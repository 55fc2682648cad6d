"""Sections of the results pages, generated from result documents."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import UndefinedError

from refocus.benchmarks.document.schema import SCHEMA_VERSION as BENCH_SCHEMA
from refocus.benchmarks.measure import ACCURACY_SCHEMA
from refocus.benchmarks.report.text import markdown_table
from refocus.cloud_train.data.glyphs import read as read_glyph
from refocus.cloud_train.errors import DataError
from refocus.cloud_train.evaluate import report
from refocus.cloud_train.evaluate.heads import RESULTS_SCHEMA
from refocus.cloud_train.evaluate.label_sets import SCHEMA as SETS_SCHEMA
from refocus.cloud_train.evaluate.page import (
    STUDY_SCHEMA,
    Document,
    StudyPage,
    Table,
    no_plot,
    png,
    short_points,
)
from refocus.cloud_train.render import renderer
from refocus.edge.photos import decode_photo
from studies.bench.measure_cuda import SCHEMA as CUDA_SCHEMA
from studies.bench.operators import SCHEMA as OPERATORS_SCHEMA
from studies.bench.overhead import SCHEMA as OVERHEAD_SCHEMA
from studies.bench.overhead import lines as overhead_lines
from studies.bench.plain_bundles import SCHEMA as PLAIN_BUNDLES_SCHEMA
from studies.bench.rows.condensing import SCHEMA as CONDENSE_SCHEMA
from studies.bench.rows.install import SCHEMA as INSTALL_SCHEMA
from studies.bench.rows.service import SCHEMA as SERVICE_SCHEMA
from studies.bench.rows.switching import SCHEMA as SWITCHING_SCHEMA
from studies.bench.rows.switching import lines as switching_lines
from studies.federated.bundle_accuracy import SCHEMA as BUNDLE_CLIENTS_SCHEMA
from studies.report.pages import STUDIES, orders_table, study_table
from studies.report.topics import topic_of

DELIVERED = {
    "plain": "the original backbone",
    "shares": "class shares",
    "head": "the head behind its gate",
    "both": "the head behind its gate and class shares",
}
ANDROID_SCHEMA = 1  # of the documents that android_demo/tools write
DAMAGES = (
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ValueError,
    UndefinedError,
)  # raised by reading a damaged document
render = renderer(Path(__file__).parent)
Pictures = dict[str, Callable[[], bytes]]  # file name -> function that draws the picture
# Field that only documents of a kind have -> their newest schema; the field also names their template.
SCHEMAS = {
    "study": STUDY_SCHEMA,
    "programs": OVERHEAD_SCHEMA,
    "operators": OPERATORS_SCHEMA,
    "condensing": CONDENSE_SCHEMA,
    "service": SERVICE_SCHEMA,
    "append_journal": 1,  # of studies.journal.measure, which needs a checkout of the code with the journal
    "device_install": INSTALL_SCHEMA,
    "cuda_sections": CUDA_SCHEMA,
    "ratios": BENCH_SCHEMA,
    "export_times": 1,  # of studies.bench.export_time
    "switching_people": SWITCHING_SCHEMA,
    "accuracy_of_targets": ACCURACY_SCHEMA,
    "accuracy_of_sets": SETS_SCHEMA,
    "plain_bundles": PLAIN_BUNDLES_SCHEMA,
    "bundle_clients": BUNDLE_CLIENTS_SCHEMA,
    "retrainings": 1,  # of refocus.cloud_train.pipeline.gate_results, which lies above this folder
    "federate_trial": 1,  # of studies.federated.deployment_trial, which lies above this folder
    "android_start": ANDROID_SCHEMA,
    "android_cost": ANDROID_SCHEMA,
    "android_processors": ANDROID_SCHEMA,
    "android_unknown": ANDROID_SCHEMA,
}


@dataclass(frozen=True)
class Section:
    """Section of a page that shows a document.

    Attributes:
        name: name of the document.
        document: result document.
        page: name of the page, a key of ``topics.TOPICS``.
        text: Markdown, beginning with a heading.
    """

    name: str
    document: Document
    page: str
    text: str

    @property
    def place(self) -> str:
        """Page and anchor, relative to the folder of pages."""
        return f"{self.page}.md#{anchor(self.text)}"


def sections_of(folder: Path, pictures: Pictures) -> list[Section]:
    """Return the sections of all documents of a folder, by name.

    Args:
        folder: folder of result documents.
        pictures: mapping to which the functions that draw the pictures are added.

    Raises:
        DataError: a document is damaged, of another version, or of a kind without a page.
    """
    found = []
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stem):
        document = read_document(path)
        try:
            page = topic_of(path.stem, kind_of(document), document)
            found.append(Section(path.stem, document, page, _text(path.stem, document, pictures)))
        except DAMAGES as error:
            raise damaged(path.stem, error) from error
    if not found:
        raise DataError(f"{folder} holds no result documents; copy a run's results.json there")
    return found


def damaged(name: str, error: Exception) -> DataError:
    """Return the error of a document that lacks what its page shows."""
    why = f"{type(error).__name__}: {error}"
    return DataError(f"{name}.json is damaged, or no document of this refocus ({why}); leave it out, or make it again")


def read_document(path: Path) -> dict[str, Any]:
    """Read a result document.

    Raises:
        DataError: the file is not a result document, or has another version.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = document["schema_version"]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is not a result document; copy a run's results.json there") from None
    newest = SCHEMAS.get(kind_of(document), RESULTS_SCHEMA)
    if version not in (newest - 1, newest):
        reads = f"{newest - 1} and {newest}"
        raise DataError(f"{path} has schema {version!r}, this refocus reads {reads}; evaluate the run again")
    return document


def kind_of(document: Document) -> str:
    """Return the field of ``SCHEMAS`` that a document has.

    It is "" for the evaluation of a run.
    """
    return next((field for field in SCHEMAS if field in document), "")


def anchor(text: str) -> str:
    """Return the anchor of the first heading, as GitHub and the site do."""
    heading = next(line for line in text.splitlines() if line.startswith("#")).lstrip("# ")
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def markdown(cells: Table) -> str:
    """Format a header and rows as a Markdown table."""
    header, rows = cells
    return "\n".join(markdown_table(" | ".join(header), rows))


def _text(name: str, document: Document, pictures: Pictures) -> str:
    kind = kind_of(document)
    if kind == "study":
        return study_section(name, document, pictures, STUDIES[document["study"]])
    if kind:
        return render(f"templates/{kind}.md.j2", name=name, **_values(document))
    return _evaluation(name, document, pictures)


def _evaluation(name: str, document: Document, pictures: Pictures) -> str:
    """Return the section of a run's evaluation.

    It shows one photo before and after if that may be published.
    """
    pictures[f"{name}-accuracy.png"] = lambda: report.accuracy_plot(document)
    lengths = list(document["accuracy"]["original"])
    text = render("templates/evaluation.md.j2", name=name, lengths=lengths, **_values(document))
    if document["example"] and document["example"]["photo"].startswith("glyphs/"):
        pictures[f"{name}-example.png"] = lambda: example_plot(document["example"], read_glyph)
        text += f"\n![one photo, before and after](../pictures/{name}-example.png)\n"
    return text


def study_section(name: str, document: Document, pictures: Pictures, study: StudyPage) -> str:
    """Return a study's section as Markdown; add its picture."""
    if has_plot := study.plot is not no_plot and study.plotted in document:
        pictures[f"{name}.png"] = lambda: study.plot(document) or b""
    return render("templates/study.md.j2", name=name, study=study, has_plot=has_plot, **_values(document))


def _data_line(data: Mapping[str, Any]) -> str:
    """Describe the source of the photos."""
    return f"Data `{data['source']}` (fingerprint `{data['fingerprint'][:16]}`)"


def _values(document: Document) -> dict[str, Any]:
    """Return the values and functions that templates use."""
    return {
        "document": document,
        "report": report,
        "orders_table": orders_table,
        "study_table": study_table,
        "by_seed": _by_seed,
        "delivered": DELIVERED,
        "data_line": _data_line(document["data"]) if "data" in document else "",
        "left_to_the_processor": _left_to_the_processor,
        "markdown": markdown,
        "overhead_lines": overhead_lines,
        "short": short_points,
        "switching_lines": switching_lines,
        "training_seconds": _training_seconds,
    }


def _by_seed(gain: Document) -> str:
    return ", ".join(f"{100 * value:+.1f}" for value in gain["seeds"])


def _training_seconds(document: Document) -> float:
    """Return the mean training time of a head, in seconds."""
    seconds = [bundle["training_seconds"] for bundle in document["bundles"]]
    return float(np.mean([each for each in seconds if each is not None]))


def _left_to_the_processor(document: Document) -> str:
    """Return the networks with operators that the delegate did not take."""
    rows = (row for row in document["rows"] if row["left_to_the_processor"])
    return ", ".join(sorted({f"{row['backbone']} on {row['runtime']}" for row in rows})) or "nothing"


def example_plot(example: Document, read: Callable[[str], bytes]) -> bytes:
    """Draw an example as a PNG, like the paper's Fig. 4.

    It shows the history with its weights, the target, and the answer before and after.
    """
    from matplotlib.figure import Figure

    photos = [*example["history"], example["photo"]]
    figure = Figure(figsize=(10.5, 2.1), layout="constrained")
    places = figure.subplots(1, len(photos) + 2, width_ratios=[1] * len(photos) + [2.4, 2.4])
    for axes, name, weight in zip(places, photos, example["attention"], strict=False):
        axes.imshow(np.asarray(decode_photo(read(name), name)), interpolation="nearest")
        kind = "to recognise" if name == example["photo"] else "history"
        axes.set_title(f"{kind}\nweight {weight:.2f}", fontsize=9)
    titles = ("before: the photo alone", "after: with its history")
    for axes, title, ranked in zip(places[-2:], titles, (example["before"], example["after"]), strict=True):
        axes.set_title(title, fontsize=9, loc="left")
        for row, (label, probability) in enumerate(ranked):
            right = label == example["label"]
            axes.text(
                0,
                0.72 - 0.3 * row,
                f"{probability:4.0%}  {label}",
                fontsize=9.5,
                transform=axes.transAxes,
                color="#15803d" if right else "#111827",
                fontweight="bold" if right else None,
            )
    for axes in places:
        axes.set_axis_off()
    return png(figure)
