"""Charts as SVG text: lines and stacked areas over steps. Every word that comes from data is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#2a86c1", "#e08a00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6d3b", "#7d5ba6", "#7a7a7a", "#b5a400")
"""Told apart with any colour vision (after Okabe and Ito), and on light and dark paper."""
WIDTH, HEIGHT, BROAD = 640, 300, 400
"""Of charts, and the width beyond which they do not fit on a phone."""
LEFT, RIGHT, TOP, BOTTOM = 52, 118, 14, 36
"""Room for the numbers of the axes, and on the right for the names."""


def colour(k: int) -> str:
    """The colour of the k-th series."""
    return COLOURS[k % len(COLOURS)]


@dataclass(frozen=True)
class Series:
    """A named curve."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    dashed: bool = False


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two values."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(k * size for k in (1, 2, 2.5, 5, 10) if k * size >= rough)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def lines(series: Sequence[Series], x_label: str, y_label: str, end: float = 0.0) -> str:
    """Curves over a common axis, each named where it ends; the axis goes to `end` at least."""
    points = [(x, y) for s in series for x, y in zip(s.x, s.y, strict=True) if math.isfinite(y)]
    if not points:
        return ""
    high_x = max(end, *(x for x, _ in points))
    low, high = min(y for _, y in points), max(y for _, y in points)
    pad = 0.05 * (high - low) or 0.5
    frame = _Frame(high_x, low - pad, high + pad)
    body = [frame.axes(x_label, y_label, number)]
    for k, s in enumerate(series):
        shown = [(x, y) for x, y in zip(s.x, s.y, strict=True) if math.isfinite(y)]
        where = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in shown)
        dash = ' stroke-dasharray="5 4"' if s.dashed else ""
        look = f'fill="none" stroke="{s.colour}" stroke-width="2"{dash}'
        body.append(f'<polyline data-series="{k}" points="{where}" {look}/>')
    body.append(_names([(s.name, frame.y(_last(s)), s.colour) for s in series]))
    return svg("".join(body), f"{y_label} over {x_label}")


def areas(names: Sequence[str], steps: Sequence[float], shares: Sequence[Sequence[float]], x_label: str) -> str:
    """Shares stacked to 1; each row of `shares` holds from the step before it up to its own."""
    if not steps:
        return ""
    frame = _Frame(max(steps), 0.0, 1.0)
    body, below = [], [0.0] * len(steps)
    middles = []
    for j, name in enumerate(names):
        above = [b + row[j] for b, row in zip(below, shares, strict=True)]
        top, bottom = _stairs(frame, steps, above), _stairs(frame, steps, below)
        outline = " ".join([*top, *reversed(bottom)])
        shape = f'data-series="{j}" points="{outline}" fill="{colour(j)}" fill-opacity="0.85"'
        body.append(f"<polygon {shape}><title>{escape(name)}</title></polygon>")
        middles.append((name, frame.y((above[-1] + below[-1]) / 2), colour(j)))
        below = above
    body.append(frame.axes(x_label, "share", lambda v: f"{v:.0%}"))
    body.append(_names(middles))
    return svg("".join(body), f"shares over {x_label}")


def _stairs(frame: _Frame, steps: Sequence[float], values: Sequence[float]) -> list[str]:
    found, before = [], 0.0
    for step, value in zip(steps, values, strict=True):
        found += [f"{frame.x(before):.1f},{frame.y(value):.1f}", f"{frame.x(step):.1f},{frame.y(value):.1f}"]
        before = step
    return found


def _last(series: Series) -> float:
    return next((y for y in reversed(series.y) if math.isfinite(y)), 0.0)


def number(value: float) -> str:
    """A number on an axis."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _names(places: Sequence[tuple[str, float, str]]) -> str:
    """Names at the right edge, moved apart where they would overlap."""
    found, at = [], list[float]()
    order = sorted(enumerate(places), key=lambda place: place[1][1])
    for _, (_, y, _) in order:
        at.append(max(y, at[-1] + 14) if at else y)
    for k in range(len(at) - 1, -1, -1):  # what has been moved below the axis moves up again
        at[k] = min(at[k], at[k + 1] - 14 if k + 1 < len(at) else HEIGHT - BOTTOM)
    for (k, (name, _, ink)), y in zip(order, at, strict=True):
        short = name if len(name) <= 16 else name[:15] + "…"
        found.append(
            f'<text data-legend="{k}" x="{WIDTH - RIGHT + 8}" y="{y + 4:.1f}" fill="{ink}" '
            f'font-weight="600">'
            f"{escape(short)}<title>{escape(name)}</title></text>"
        )
    return "".join(found)


@dataclass(frozen=True)
class _Frame:
    """From values to places."""

    high_x: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value / self.high_x if self.high_x else 0.0)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.low) / (self.high - self.low)

    def axes(self, x_label: str, y_label: str, words: Callable[[float], str]) -> str:
        found = []
        for value in ticks(self.low, self.high):
            y = self.y(value)
            found.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>')
            found.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{words(value)}</text>')
        for value in ticks(0, self.high_x):
            place = f'x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 16}"'
            found.append(f'<text {place} text-anchor="middle">{number(value)}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        found.append(f'<text x="{middle:.0f}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x_label)}</text>')
        turn = f"rotate(-90 11 {HEIGHT / 2:.0f})"
        found.append(
            f'<text x="11" y="{HEIGHT / 2:.0f}" transform="{turn}" text-anchor="middle">{escape(y_label)}</text>'
        )
        return "".join(found)


def svg(body: str, title: str, width: float = WIDTH, height: float = HEIGHT) -> str:
    """A picture of so many units, with words for those who do not see it."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {1.1 * width:.0f}px; --units: {width:.0f}"'
    broad = ' class="broad"' if width > BROAD else ""
    return f'<svg{broad} {size} role="img" aria-label="{escape(title)}">{body}</svg>'
