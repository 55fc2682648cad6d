"""Results that the README shows.

``python -m studies.report.readme_table`` prints them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENCODER = "efficientnet_lite0"  # of the default bundle
SETS = {"grocery-store": "Grocery Store", "office-31": "Office-31"}
HEADER = "| photos of a person | people | correct alone | with the earlier photos | change, points (95 %) |\n|---|---|---|---|---|"
ROLLS = {  # cells of the study
    "4 classes, after 15 photos": "4 classes, 0% unknown",
    "4 classes, after 15 photos among as many of unknown things": "4 classes, 50% unknown",
    "15 classes, after 15 photos": "15 classes, 0% unknown",
    "4 classes, after 63 photos of another person": "4 classes, 0% unknown, foreign, history of 63",
}


def readme_table(results: Path) -> str:
    """Return the table as Markdown, the largest loss first.

    Args:
        results: folder of the results documents.
    """
    found = [*_rolls(_rows(results / "camera-roll-confirmation.json")), *_folders(_rows(results / "mixed-folder.json"))]
    return "\n".join([HEADER, *(line for _, line in sorted(found))])


def readme_costs(results: Path) -> str:
    """Return the costs in time as an item of a Markdown list."""
    document = json.loads((results / "overhead.json").read_text(encoding="utf-8"))
    rows = [*document["programs"], *document["recognizer"]["rows"], *document["shares"]["rows"]]
    found = {row["what"]: row["ratio"]["mean"] for row in reversed(rows) if row["target"] == "onnx:fp32"}
    return (
        f"- **Time**, in addition to an encoder run ({document['overhead']['backbone']}, one thread): class shares"
        f" {found['shares']:.0%} ({found['shares, arithmetic alone']:.0%} without the stored row), an ICIIA head in C"
        f" {found['streaming block, native:fp32']:.0%}, all that a recogniser does {found['recognizer']:.0%}"
        f" ([cost](docs/results/cost.md), [costs of ICIIA by network](docs/results/suite/table1.md))."
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["encoder"] == ENCODER and row["method"] == "shares"]


def _rolls(rows: list[dict[str, Any]]) -> Iterator[tuple[float, str]]:
    for name, words in SETS.items():
        for about, cell in ROLLS.items():
            (row,) = (row for row in rows if row["data"] == name and row["cell"] == f"{cell}, confirmation")
            yield _line(f"{words}, {about}", row, row["plain"])


def _folders(rows: list[dict[str, Any]]) -> Iterator[tuple[float, str]]:
    for name, words in {"ImageNet": "ImageNet", **SETS}.items():
        (row,) = (row for row in rows if row["group"] == name and row["temperature"] == "fitted")
        yield _line(
            f"{words}, mixed folder, most things once (development)", row, row["accuracy"] - row["gain"]["mean"]
        )


def _line(words: str, row: dict[str, Any], plain: float) -> tuple[float, str]:
    mean, low, high = (100 * row["gain"][part] for part in ("mean", "low", "high"))
    return (
        mean,
        f"| {words} | {row['people']} | {plain:.1%} | {row['accuracy']:.1%} | {mean:+.1f} ({low:+.1f} to {high:+.1f}) |",
    )


if __name__ == "__main__":
    folder = Path(__file__).parents[2] / "docs" / "results"
    print(readme_table(folder), readme_costs(folder), sep="\n\n")  # noqa: T201
