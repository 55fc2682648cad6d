"""One self-contained HTML page about a fleet: which device ran which release, when, and why not."""

from __future__ import annotations

import html
from pathlib import Path

import msgspec

from refocus.cloud_train.demos.fleet.story import DeviceStory, ReleaseStory, Story

COLOURS = ("#94a3b8", "#1d4ed8", "#15803d", "#b45309", "#7c3aed", "#be123c")
_ROW, _WIDTH, _LEFT = 16, 720, 190
_LEGEND = """One line is one device: a process that recognises one photo of its owner after the other, and looks for
releases by itself. The bar's colour is the release that answered. ✕ refused before it served anybody, ↩ taken back
after it had. ✎: the owner says what photos show; ☏: the owner lets the device send its counts."""
_MARKS = {"refused": ("✕", "#be123c"), "returned": ("↩", "#be123c")}


def write_fleet_report(story: Story, folder: Path) -> Path:
    """Writes ``fleet.json``, the figures, and ``report.html``, the page."""
    (folder / "fleet.json").write_bytes(msgspec.json.format(msgspec.json.encode(story)) + b"\n")
    path = folder / "report.html"
    path.write_text(fleet_page(story), encoding="utf-8")
    return path


def fleet_page(story: Story) -> str:
    """The page."""
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8><title>Refocus: a fleet and its releases</title>",
            f"<style>{_STYLE}</style>",
            "<h1>A fleet and its releases</h1>",
            f"<p class=lead>{html.escape(story.summary())}",
            "<h2>What was trained, and what became of it</h2>",
            _releases(story),
            "<h2>Who ran what, and when</h2>",
            fleet_picture(story),
            f"<p class=note>{_LEGEND}",
            "<h2>What the owners had of it</h2>",
            _accuracy(story),
            "<p class=note>Share of right answers to the photos that each release was asked about, while it served; by what"
            " the owners wrote, which devices do not know.",
            "<h2>Why devices did not keep a release</h2>",
            _reasons(story),
        ]
    )


def fleet_picture(story: Story) -> str:
    """The lines of all devices, as SVG."""
    height, x = _ROW * (len(story.devices) + 2) + 6, _scale(story)
    numbers = sorted({span.release for device in story.devices for span in device.spans})
    parts = [
        f"<svg viewBox='0 0 {_LEFT + _WIDTH + 10} {height}' xmlns='http://www.w3.org/2000/svg' role='img'"
        " font-family='system-ui,sans-serif' font-size='11' aria-label='releases over time'>"
    ]
    for place, number in enumerate(numbers):
        left = _LEFT + 90 * place
        parts.append(
            f"<rect x='{left}' y='2' width='10' height='10' fill='{_colour(number)}'/>"
            f"<text x='{left + 14}' y='11'>release {number}</text>"
        )
    for row, device in enumerate(story.devices):
        parts += _line(device, _ROW * (row + 1) + 4, x)
    axis = height - 6
    for seconds in range(0, int(story.seconds) + 1, 60):
        where = f"x='{x(seconds):.0f}' y='{axis}' text-anchor='middle'"
        parts.append(f"<text {where} fill='#6b7280'>{seconds // 60} min</text>")
    return "".join([*parts, "</svg>"])


def _line(device: DeviceStory, top: int, x: Scale) -> list[str]:
    signs = ("✎" if device.labels else "") + ("☏" if device.tells else "")
    about = f"<tspan fill='#6b7280'>{device.script} {signs}</tspan>"
    parts = [f"<text x='0' y='{top + 10}'>{html.escape(device.name)} {about}</text>"]
    for span in device.spans:
        width = max(1.0, x(span.ended) - x(span.began))
        parts.append(
            f"<rect x='{x(span.began):.1f}' y='{top}' width='{width:.1f}' height='{_ROW - 4}'"
            f" fill='{_colour(span.release)}'><title>release {span.release}</title></rect>"
        )
    for end in device.ends:
        if end.outcome in _MARKS:
            sign, colour = _MARKS[end.outcome]
            at, said = f"{x(end.at):.1f}", html.escape(f"release {end.release} {end.outcome}: {end.why}")
            parts += [
                f"<circle cx='{at}' cy='{top + 6}' r='7' fill='#fff' stroke='{colour}'/>",
                f"<text x='{at}' y='{top + 10}' text-anchor='middle' fill='{colour}'>{sign}",
                f"<title>{said}</title></text>",
            ]
    return parts


class Scale:
    """Seconds to pixels."""

    def __init__(self, first: float, last: float) -> None:
        self.first, self.by = first, _WIDTH / max(last - first, 1.0)

    def __call__(self, seconds: float) -> float:
        return _LEFT + (seconds - self.first) * self.by


def _scale(story: Story) -> Scale:
    return Scale(0.0, story.seconds)


def _releases(story: Story) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(row.name)}<td>{html.escape(row.what)}<td>{html.escape(row.figures)}"
        f"<td>{row.seconds:.0f} s<td>{_fate(row)}"
        for row in story.releases
    )
    head = "<tr><th>photos<th>what they are<th>judged by people nobody trained on<th>retraining<th>what became of it"
    return f"<table class=words>{head}{rows}</table>"


def _fate(row: ReleaseStory) -> str:
    said = "".join(f"<br>{html.escape(line)}" for line in (*row.reasons, *row.decisions))
    said += f"<br><code>{html.escape(row.report)}</code>" if row.report else ""
    if row.release is None:
        return f"<b class=bad>no release</b>: the gates stopped it{said}"
    if row.withdrawn:
        return f"release {row.release}, <b class=bad>withdrawn</b>{said}"
    return f"release {row.release}, <b class=good>for {row.percent:g} % of the devices</b>{said}"


def _accuracy(story: Story) -> str:
    scripts = list(dict.fromkeys(device.script for device in story.devices))
    numbers = sorted({number for device in story.devices for number in device.right})
    head = "".join(f"<th>{script}<th>photos" for script in scripts)
    rows = ""
    for number in numbers:
        cells = (story.share_right(number, [script]) for script in scripts)
        columns = (f"<td>{share:.0%}<td>{photos}" if photos else "<td>–<td>0" for photos, share in cells)
        rows += f"<tr><td>release {number}{''.join(columns)}"
    return f"<table><tr><th>{head}{rows}</table>"


def _reasons(story: Story) -> str:
    ends = [(end, device) for device in story.devices for end in device.ends if end.outcome in _MARKS]
    if not ends:
        return "<p>All kept what they took."
    rows = "".join(
        f"<tr><td>{device.name}<td>{device.script}<td>{end.at:.0f} s<td>{end.release}<td>{end.outcome}"
        f"<td>{html.escape(end.why)}"
        for end, device in sorted(ends, key=lambda pair: pair[0].at)
    )
    return f"<table class=words><tr><th>device<th>writes<th>at<th>release<th>end<th>why{rows}</table>"


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#111827}
h1{font-size:1.7rem}h2{font-size:1.2rem;margin-top:2.2rem}.lead{font-size:1.1rem}.note{font-size:.85rem;color:#6b7280}
svg{width:100%}table{border-collapse:collapse;font-size:.85rem}
td,th{padding:.25rem .6rem;border-bottom:1px solid #e5e7eb;text-align:right;vertical-align:top}
.words td,.words th,td:first-child,th:first-child{text-align:left}.good{color:#15803d}.bad{color:#be123c}
"""
