"""Write the page of networks and the runtimes that they export to.

The page shows the document of ``refocus compatibility``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refocus.cloud_train.render import renderer
from refocus.edge.files import write_file


def write_page(document: dict[str, Any], path: Path) -> None:
    """Write the page as Markdown."""
    rows = document["rows"]
    targets = list(dict.fromkeys(row["target"] for row in rows))
    networks = list(dict.fromkeys(row["network"] for row in rows))
    by_pair = {(row["network"], row["target"]): row for row in rows}
    about = []
    for network in networks:
        tried = [by_pair.get((network, target)) for target in targets]
        parameters = max(row["parameters"] for row in tried if row)
        about.append((network, parameters, [_cell(row) if row else "" for row in tried]))
    totals = []
    for target in targets:
        outcomes = [row["outcome"] for row in rows if row["target"] == target]
        good = sum(outcome in ("parity", "not run here") for outcome in outcomes)
        totals.append(f"{good} of {len(outcomes)}")
    page = renderer(Path(__file__).parent)(
        "programs.md.j2",
        document=document,
        versions=", ".join(f"{name} {version}" for name, version in document["versions"].items()),
        targets=targets,
        networks=about,
        totals=totals,
        failed=[row for row in rows if row["outcome"] in ("failed", "differs")],
        one_line=one_line,
    )
    write_file(path, page)


def one_line(text: str) -> str:
    """Return a text as it stands in a list of a page, without markup."""
    return " ".join(text.replace("|", "/").replace("<", "(").replace(">", ")").split())[:300]


def _cell(row: dict[str, Any]) -> str:
    if row["outcome"] == "parity":
        fallbacks = f", {len(row['fallbacks'])} portable" if row["fallbacks"] else ""
        norms = row.get("norms_in_fp16_error")
        half = f" (norms in fp16 too: {norms:.0e})" if norms is not None else ""
        return f"{row['relative_error']:.0e}, {row['size_bytes'] / 1e6:.0f} MB{fallbacks}{half}"
    if row["outcome"] == "not run here":
        return f"converted, {row['size_bytes'] / 1e6:.0f} MB"
    return f"**{row['outcome']}**"
