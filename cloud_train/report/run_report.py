"""``refocus report``: one self-contained HTML page of a training run, whether it has ended or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from markupsafe import Markup

from refocus.cloud_train.errors import DataError, UsageError
from refocus.cloud_train.evaluate.page import Table
from refocus.cloud_train.evaluate.report import STUDIES, study_table
from refocus.cloud_train.render import render
from refocus.cloud_train.report.run_federated import federated_story
from refocus.cloud_train.report.run_iciia import iciia_story
from refocus.cloud_train.report.run_story import Story, read_document
from refocus.cloud_train.report.run_taper import taper_story
from refocus.edge.files import write_file
from refocus.edge.pages import page

# What makes a folder a run, and how its content is read.
KINDS: dict[str, Callable[[Path], Story]] = {
    "run.json": iciia_story,
    "taper.json": taper_story,
    "federated.json": federated_story,
}
_STYLE = """
.missing { border-left: 4px solid var(--bad); padding: .2rem .8rem; background: var(--panel); }
pre { background: var(--panel); padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: var(--soft); } dd { margin: 0; }
"""


def write_run_report(folder: Path, out: Path) -> Story:
    """Writes the page of a run folder.

    Args:
        out: the page.

    Raises:
        UsageError: the folder is not a run.
        DataError: a file of the run is damaged; nothing is written.
    """
    story = read_run(folder)
    settings = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("run*.toml"))]
    commands = folder / "commands.txt"
    body = render(
        "report/templates/run.html.j2",
        story=story,
        studies=list(_studies(folder)),
        settings=settings,
        commands=commands.read_text(encoding="utf-8").splitlines() if commands.exists() else [],
        svg=Markup,  # drawn by matplotlib, which escapes text
    )
    write_file(out, page(story.title, body, _STYLE))
    return story


def read_run(folder: Path) -> Story:
    """Content of the report of a run folder.

    Raises:
        UsageError, DataError: as of :func:`write_run_report`.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give the folder of a run made by refocus train")
    for name, story in KINDS.items():
        if (folder / name).exists():
            return story(folder)
    raise UsageError(f"{folder} is not a run: it holds none of {', '.join(KINDS)}; make one with refocus train")


def _studies(folder: Path) -> Iterator[tuple[str, str, Table]]:
    """Name, command and table of each study of the run.

    Raises:
        DataError: a study's document is damaged.
    """
    for path in sorted((folder / "studies").glob("*.json")):
        document = read_document(path)
        if document is None or document.get("study") not in STUDIES:
            continue
        try:
            yield str(document["study"]), str(document.get("command", "")), study_table(document)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is not a document of the study {document['study']} ({error!r})") from None
