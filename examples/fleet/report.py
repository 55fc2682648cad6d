"""Self-contained HTML report of a fleet.

It shows which device ran which release when, and why devices did not keep a release.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from examples.fleet.story import Story
from refocus.edge.pages import style

COLOURS = ("#94a3b8", "#1d4ed8", "#15803d", "#b45309", "#7c3aed", "#be123c")
_MARKS = {"refused": "✕", "returned": "↩"}


def write_fleet_report(story: Story, folder: Path) -> Path:
    """Write the figures, ``fleet.json``, and the page, ``report.html``."""
    (folder / "fleet.json").write_bytes(msgspec.json.format(msgspec.json.encode(story)) + b"\n")
    path = folder / "report.html"
    path.write_text(fleet_page(story), encoding="utf-8")
    return path


def fleet_page(story: Story) -> str:
    """Return the page as HTML."""
    ends = [(end, device) for device in story.devices for end in device.ends if end.outcome in _MARKS]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["f"] = format
    return environment.get_template("report.html.j2").render(
        STYLE=Markup(style()),  # noqa: S704 - our own file
        story=story,
        served=sorted({span.release for device in story.devices for span in device.spans}),
        answered=sorted({number for device in story.devices for number in device.right}),
        scripts=list(dict.fromkeys(device.script for device in story.devices)),
        reasons=sorted(ends, key=lambda pair: pair[0].at),
        colour=lambda number: COLOURS[number % len(COLOURS)],
        MARKS=_MARKS,
    )
