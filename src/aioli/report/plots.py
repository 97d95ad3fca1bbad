"""Charts of tables of runs as SVG text: scatter panels, shares with intervals, heat maps, simplices.

Readable with any colour vision and on light and dark paper: blue and orange, told apart by shape or sign as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

from aioli.report.svg import COLOURS, number, svg, ticks
from aioli.report.text import columns_of

Pair = tuple[float, float]
BLUE, ORANGE = COLOURS[0], COLOURS[1]
UNKNOWN = "–"
"""In the place of a number that is not known; `live.js` has it too."""


@dataclass(frozen=True)
class Cloud:
    """Points of one panel, with lines drawn over them."""

    title: str
    x: Sequence[float]
    y: Sequence[float]
    curve: Sequence[Pair] = ()
    curves: Sequence[tuple[str, Sequence[Pair]]] = ()
    """More lines, each with its colour."""
    colours: Sequence[str] = ()
    """One for each point; blue if there are none."""
    flats: Sequence[float] = ()
    """Dotted horizontal lines."""
    note: str = ""
    names: Sequence[str] = field(default=())
    """Of the points, shown beside them."""


def clouds(
    panels: Sequence[Cloud], x_label: str, y_label: str, columns: int = 4, diagonal: bool = False, share: bool = False
) -> str:
    """Panels side by side; `diagonal` draws y = x and gives both axes one scale; `share`: one scale for all panels."""
    shown = [panel for panel in panels if any(map(math.isfinite, panel.y))]
    if not shown:
        return ""
    columns = min(columns, len(shown))
    width = 960 if columns > 1 else 640
    size = width / columns
    height = min(size, 320.0) if columns > 1 else 400.0
    body = []
    common = _limits([v for p in shown for v in p.x]), _limits([v for p in shown for v in (*p.y, *p.flats)])
    for k, panel in enumerate(shown):
        x = _limits([*panel.x, *(c[0] for c in panel.curve)])
        y = _limits([*panel.y, *panel.flats, *(c[1] for c in panel.curve)])
        if share:
            x, y = common
        if diagonal:
            x = y = (min(x[0], y[0]), max(x[1], y[1]))
        area = _Area(k % columns * size + 52, k // columns * height + 26, size - 66, height - 74, x, y)
        body.append(_panel(panel, area, diagonal, x_label, y_label if k % columns == 0 else ""))
    rows = -(-len(shown) // columns)
    return svg("".join(body), f"{y_label} against {x_label}", width, rows * height)


@dataclass(frozen=True)
class _Area:
    """Where a panel is, and from values to places in it."""

    left: float
    top: float
    width: float
    height: float
    xs: Pair
    ys: Pair

    def x(self, value: float) -> float:
        return self.left + self.width * (value - self.xs[0]) / (self.xs[1] - self.xs[0])

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - (value - self.ys[0]) / (self.ys[1] - self.ys[0]))

    def axes(self, title: str, x_label: str, y_label: str) -> str:
        found = [f'<text x="{self.left:.0f}" y="{self.top - 9:.0f}" font-weight="600">{escape(title)}</text>']
        bottom, middle = self.top + self.height, self.left + self.width / 2
        for value in ticks(*self.ys, 4):
            y = self.y(value)
            found.append(f'<path d="M{self.left:.1f} {y:.1f}h{self.width:.1f}" class="grid"/>')
            found.append(f'<text x="{self.left - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
        for value in ticks(*self.xs, 3):
            x = self.x(value)
            found.append(f'<path d="M{x:.1f} {self.top:.1f}v{self.height:.1f}" class="grid"/>')
            found.append(f'<text x="{x:.1f}" y="{bottom + 15:.1f}" text-anchor="middle">{number(value)}</text>')
        found.append(f'<text x="{middle:.0f}" y="{bottom + 31:.0f}" text-anchor="middle">{escape(x_label)}</text>')
        if y_label:
            at = f"{self.left - 40:.0f} {self.top + self.height / 2:.0f}"
            found.append(f'<text transform="translate({at}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
        return "".join(found)


def _limits(values: Sequence[float]) -> Pair:
    known = [v for v in values if math.isfinite(v)] or [0.0]
    pad = 0.06 * (max(known) - min(known)) or max(1e-3 * abs(known[0]), 1e-6)
    return min(known) - pad, max(known) + pad


def _panel(panel: Cloud, area: _Area, diagonal: bool, x_label: str, y_label: str) -> str:
    body = [area.axes(panel.title, x_label, y_label)]
    if diagonal:
        ends = f"{area.x(area.xs[0]):.1f},{area.y(area.xs[0]):.1f} {area.x(area.xs[1]):.1f},{area.y(area.xs[1]):.1f}"
        body.append(f'<polyline points="{ends}" fill="none" stroke="{ORANGE}" stroke-width="1.5"/>')
    for value in panel.flats:
        line = f'd="M{area.left:.1f} {area.y(value):.1f}h{area.width:.1f}"'
        body.append(f'<path {line} stroke="#888" stroke-dasharray="2 4" fill="none"/>')
    if panel.curve:
        body.append(_line(area, panel.curve, ORANGE))
    body += [_line(area, curve, ink) for ink, curve in panel.curves]
    small = 2.2 if len(panel.x) > 100 else 3.5
    for k, (x, y) in enumerate(zip(panel.x, panel.y, strict=True)):
        if math.isfinite(x) and math.isfinite(y):
            ink = panel.colours[k] if panel.colours else BLUE
            body.append(f'<circle cx="{area.x(x):.1f}" cy="{area.y(y):.1f}" r="{small}" fill="{ink}" opacity=".75"/>')
    body.append(_beside(panel, area))
    if panel.note:
        place = f'x="{area.left + area.width - 4:.0f}" y="{area.top + area.height - 7:.0f}"'
        body.append(f'<text {place} text-anchor="end">{escape(panel.note)}</text>')
    return "".join(body)


def _line(area: _Area, points: Sequence[Pair], ink: str) -> str:
    where = " ".join(f"{area.x(x):.1f},{area.y(y):.1f}" for x, y in points)
    return f'<polyline points="{where}" fill="none" stroke="{ink}" stroke-width="2"/>'


def _beside(panel: Cloud, area: _Area) -> str:
    """Names next to points, on the side that has room, moved apart where they would overlap."""
    found, taken = [], list[Pair]()
    places = sorted(zip(panel.names, panel.x, panel.y, strict=False), key=lambda each: -each[2])
    for name, x, y in places:
        if not (math.isfinite(x) and math.isfinite(y)):
            continue
        right = area.x(x) > area.left + 0.75 * area.width
        at_x, at_y = area.x(x) + (-7 if right else 7), area.y(y) + 4
        while any(abs(at_x - a) < 60 and abs(at_y - b) < 12 for a, b in taken):
            at_y += 12
        taken.append((at_x, at_y))
        anchor = "end" if right else "start"
        found.append(f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}">{escape(name)}</text>')
    return "".join(found)


@dataclass(frozen=True)
class Share:
    """The share of a group: its value, its interval, and how far it can go at little cost."""

    name: str
    value: float
    interval: Pair | None = None
    band: Pair | None = None


def shares(rows: Sequence[Share], x_label: str = "share") -> str:
    """Shares as dots with intervals (lines) over what is as good (bands), a row for each group."""
    high = max(
        [r.value for r in rows] + [r.interval[1] for r in rows if r.interval] + [r.band[1] for r in rows if r.band]
    )
    left, right, step, top = 170.0, 70.0, 26.0, 10.0
    width, scale = 640.0, 640.0 - left - right
    high = max(high, 1e-6) * 1.03
    bottom = top + step * len(rows)

    def x(value: float) -> float:
        return left + scale * value / high

    body = []
    for value in ticks(0.0, high):
        body.append(f'<path d="M{x(value):.1f} {top}V{bottom:.0f}" class="grid"/>')
        body.append(f'<text x="{x(value):.1f}" y="{bottom + 16:.0f}" text-anchor="middle">{100 * value:g}%</text>')
    for k, row in enumerate(rows):
        y = top + step * (k + 0.5)
        short = row.name if len(row.name) <= 24 else row.name[:23] + "…"
        body.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(short)}</text>')
        if row.band:
            start, end = x(row.band[0]), x(row.band[1])
            shape = f'x="{start:.1f}" y="{y - 8:.1f}" width="{max(end - start, 1):.1f}" height="16" rx="3"'
            body.append(f'<rect {shape} fill="{ORANGE}" opacity=".28"/>')
        if row.interval:
            line = f'd="M{x(row.interval[0]):.1f} {y:.1f}H{x(row.interval[1]):.1f}"'
            body.append(f'<path {line} stroke="{BLUE}" stroke-width="2.5"/>')
        body.append(f'<circle cx="{x(row.value):.1f}" cy="{y:.1f}" r="5" fill="{BLUE}"/>')
        body.append(f'<text x="{width - right + 8}" y="{y + 4:.1f}">{row.value:.1%}</text>')
    body.append(f'<text x="{left + scale / 2:.0f}" y="{bottom + 33:.0f}" text-anchor="middle">{escape(x_label)}</text>')
    return svg("".join(body), f"{x_label} of each group", width, bottom + 42)


def heat(rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], label: str) -> str:
    """A table of numbers as colours: blue below zero, orange above, with the numbers written in; a dash is none."""
    left, cell = 150.0, max(34.0, min(64.0, 760.0 / max(len(columns), 1)))
    deep = 14 + max((min(columns_of(name), 22) for name in columns), default=0) * 5.3
    tall = 26.0
    most = max((abs(v) for row in values for v in row if math.isfinite(v)), default=0.0) or 1.0
    body = []
    for j, name in enumerate(columns):
        short = name if len(name) <= 22 else name[:21] + "…"
        at = f"{left + cell * (j + 0.5):.1f} {deep - 4:.1f}"
        body.append(f'<text transform="translate({at}) rotate(-45)">{escape(short)}</text>')
    for i, name in enumerate(rows):
        short = name if len(name) <= 22 else name[:21] + "…"
        y = deep + tall * i
        body.append(f'<text x="{left - 8}" y="{y + 17:.1f}" text-anchor="end">{escape(short)}</text>')
        for j, value in enumerate(values[i]):
            known = math.isfinite(value)
            ink = BLUE if value < 0 else ORANGE
            shape = f'x="{left + cell * j:.1f}" y="{y:.1f}" width="{cell - 2:.1f}" height="{tall - 2:.1f}" rx="2"'
            at = f'data-cell="{i * len(columns) + j}"'
            depth = 0.06 + 0.7 * abs(value) / most if known else 0.0
            body.append(f'<rect {at} {shape} fill="{ink}" fill-opacity="{depth:.2f}"/>')
            middle = f'{at} x="{left + cell * (j + 0.5) - 1:.1f}" y="{y + 16:.1f}"'
            words = _short(value, most) if known else UNKNOWN
            body.append(f'<text {middle} text-anchor="middle" class="ink" font-size="10">{words}</text>')
    width = left + cell * len(columns) + 0.75 * deep
    return svg("".join(body), label, width, deep + tall * len(rows) + 6)


def _short(value: float, most: float) -> str:
    digits = max(0, min(3, 2 - math.floor(math.log10(most))))
    return f"{value:+.{digits}f}".replace("+0.", "+.").replace("-0.", "-.")


def simplex(
    names: Sequence[str],
    value: Callable[[Sequence[float]], float] | None,
    points: Sequence[tuple[Sequence[float], float]],
    best: Sequence[float] | None,
    label: str,
    side: float = 420.0,
) -> str:
    """Three groups as a triangle: a field (pale blue is low), points coloured by sign or size, and the best mixture."""
    left, top = 110.0, 34.0
    tall = side * math.sqrt(3) / 2

    def place(p: Sequence[float]) -> Pair:
        return left + side * (p[1] + 0.5 * p[2]), top + tall * (1 - p[2])

    body = []
    if value is not None:
        body.append(_field(value, place))
    edge = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(corner) for corner in ((1, 0, 0), (0, 1, 0), (0, 0, 1))))
    body.append(f'<polygon points="{edge}" fill="none" stroke="#888"/>')
    most = max((abs(v) for _, v in points), default=0.0) or 1.0
    for p, v in points:
        x, y = place(p)
        ink = BLUE if v < 0 else ORANGE
        size = 3.0 + (5.0 * abs(v) / most if value is None else 0.0)
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" fill="{ink}" opacity=".8"/>')
    if best is not None:
        x, y = place(best)
        body.append(f'<path d="M{x - 7:.1f} {y:.1f}h14M{x:.1f} {y - 7:.1f}v14" class="ink-line" stroke-width="3"/>')
    for corner, name, anchor, dy in (
        ((1, 0, 0), names[0], "end", 18),
        ((0, 1, 0), names[1], "start", 18),
        ((0, 0, 1), names[2], "middle", -10),
    ):
        x, y = place(corner)
        body.append(
            f'<text x="{x:.1f}" y="{y + dy:.1f}" text-anchor="{anchor}" font-weight="600">{escape(name)}</text>'
        )
    return svg("".join(body), label, side + 2 * left, top + tall + 28)


def _field(value: Callable[[Sequence[float]], float], place: Callable[[Sequence[float]], Pair], parts: int = 40) -> str:
    """Small triangles coloured by the value in their middle."""
    cells = []
    for i in range(parts):
        for j in range(parts - i):
            k = parts - i - j
            for corners in (
                [(i + 1, j, k - 1), (i, j + 1, k - 1), (i, j, k)],
                [(i + 1, j, k - 1), (i, j + 1, k - 1), (i + 1, j + 1, k - 2)],
            ):
                if min(c for corner in corners for c in corner) >= 0:
                    shares = [[c / parts for c in corner] for corner in corners]
                    middle = [sum(column) / 3 for column in zip(*shares, strict=True)]
                    cells.append((shares, value(middle)))
    low, high = min(v for _, v in cells), max(v for _, v in cells)
    found = []
    for shares, v in cells:
        outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, shares))
        depth = 0.04 + 0.75 * (v - low) / (high - low or 1.0)
        found.append(f'<polygon points="{outline}" fill="{BLUE}" fill-opacity="{depth:.3f}"/>')
    return "".join(found)
