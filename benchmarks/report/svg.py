"""Charts as SVG text: enough for a report that opens without a network and without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 44
# Distinguishable without colour vision too (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")


@dataclass(frozen=True)
class Line:
    """One line, or with ``marks`` points alone.

    Attributes:
        xs, ys: of its points.
        lows, highs: of an interval at each point; empty for none.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()
    marks: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis; ``labels`` stand in the place of numbers where given."""

    name: str
    logarithmic: bool = False
    labels: tuple[str, ...] = ()
    from_zero: bool = False


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    axis: Axis = field(default_factory=lambda: Axis(""))

    def __call__(self, value: float) -> float:
        low, high = self._of(self.low), self._of(self.high)
        return self.start + (self._of(value) - low) / (high - low) * (self.end - self.start)

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-9)) if self.axis.logarithmic else value

    def ticks(self) -> list[tuple[float, str]]:
        if self.axis.labels:
            return [(float(number), label) for number, label in enumerate(self.axis.labels)]
        if self.axis.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        else:
            step = _nice((self.high - self.low) / 5)
            found = [step * number for number in range(math.floor(self.low / step), math.ceil(self.high / step) + 1)]
        return [
            (value, f"{value:g}") for value in found if self.low <= value * 1.0000001 and value <= self.high * 1.0000001
        ]


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= step)


def chart(lines: Sequence[Line], across: Axis, up: Axis, title: str) -> str:
    """One chart with its legend as an ``svg`` element.

    Raises:
        ValueError: no points.
    """
    xs = [x for line in lines for x in line.xs]
    ys = [y for line in lines for y in (*line.ys, *line.lows, *line.highs)]
    if not xs:
        raise ValueError(f"the chart '{title}' has no points")
    wide = _scale(xs, across, _LEFT, WIDTH - _RIGHT)
    high = _scale(ys, up, HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 18 * math.ceil(len(lines) / 2)}" role="img"'
        f' aria-label="{escape(title, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
    ]
    for value, label in wide.ticks():
        x = wide(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{escape(label)}</text>')
    for value, label in high.ticks():
        y = high(value)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across.name)}</text>'
        f'<text transform="translate(14 {(HEIGHT - _BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(up.name)}</text>"
    )
    for number, line in enumerate(lines):
        parts += _drawn(line, COLOURS[number % len(COLOURS)], wide, high)
        parts.append(_legend(line, number))
    return "".join([*parts, "</svg>"])


def _scale(values: Sequence[float], axis: Axis, start: float, end: float) -> _Scale:
    if axis.labels:
        return _Scale(-0.5, len(axis.labels) - 0.5, start, end, axis)
    low, high = min(values), max(values)
    if axis.logarithmic:
        low = max(low, 1e-6)
        pad = 1.15 if high > 5 * low else 2.0  # else there may be no tick in it
        return _Scale(low / pad, max(high, low) * pad, start, end, axis)
    low = min(0.0, low) if axis.from_zero else low
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return _Scale(low if axis.from_zero else low - margin, high + margin, start, end, axis)


def _drawn(line: Line, colour: str, wide: _Scale, high: _Scale) -> list[str]:
    points = [(wide(x), high(y)) for x, y in zip(line.xs, line.ys, strict=True)]
    parts = []
    if not line.marks:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.8" points="{path}"/>')
    for (x, _), low, top in zip(points, line.lows, line.highs, strict=False):
        parts.append(f'<line stroke="{colour}" x1="{x:.1f}" y1="{high(low):.1f}" x2="{x:.1f}" y2="{high(top):.1f}"/>')
    if line.marks or len(points) <= 24:
        parts += [f'<circle fill="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>' for x, y in points]
    return parts


def _legend(line: Line, number: int) -> str:
    x, y = _LEFT + (number % 2) * (WIDTH - _LEFT) / 2, HEIGHT + 10 + 18 * (number // 2)
    colour = COLOURS[number % len(COLOURS)]
    return (
        f'<rect x="{x}" y="{y - 8}" width="14" height="4" fill="{colour}"/>'
        f'<text x="{x + 20}" y="{y - 2}">{escape(line.name)}</text>'
    )
