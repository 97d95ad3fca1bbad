"""Where the time of runs went: training, looking at validation losses, judging."""

from __future__ import annotations

from html import escape

from aioli.report import page as pages
from aioli.report.seen import Problem
from aioli.report.svg import colour, svg
from aioli.report.text import clock

PARTS = (("train", "training"), ("probe", "probing"), ("evaluation", "judging"))
ROWS = 20


def costs(problem: Problem) -> list[str]:
    """Mean seconds of a finished run, by method."""
    rows: list[tuple[str, list[float]]] = []
    for label, some in problem.labels().items():
        done = [run.trace.result["seconds"] for run in some if run.trace.result is not None]
        if done:
            rows.append((label, [sum(float(each.get(name, 0.0)) for each in done) / len(done) for name, _ in PARTS]))
    if not rows:
        return []
    fixed = [row for row in rows if row[0].startswith("static ")]
    if len(fixed) > 1:  # sweeps cost what any of their runs costs
        mean = [sum(values[k] for _, values in fixed) / len(fixed) for k in range(len(PARTS))]
        rows = [*(row for row in rows if row not in fixed), (f"{len(fixed)} fixed mixtures, mean", mean)]
    words = "Mean time of a run, by what it was spent on. Click a name to hide or show it."
    return [pages.heading("What it cost"), pages.figure(_bars(rows[:ROWS]), words)]


def _bars(rows: list[tuple[str, list[float]]]) -> str:
    left, width, tall = 190, 640, 24
    most = max(sum(values) for _, values in rows) or 1.0
    body = []
    for k, (label, values) in enumerate(rows):
        y, x = 28 + tall * k, float(left)
        short = label if len(label) <= 27 else label[:26] + "…"
        body.append(
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(short)}<title>{escape(label)}</title></text>'
        )
        for j, value in enumerate(values):
            length = (width - left - 70) * value / most
            shape = f'x="{x:.1f}" y="{y}" width="{max(length, 0.0):.1f}" height="16"'
            body.append(f'<rect data-series="{j}" {shape} fill="{colour(j)}"/>')
            x += length
        body.append(f'<text x="{x + 6:.1f}" y="{y + 12}">{clock(sum(values))}</text>')
    for j, (_, name) in enumerate(PARTS):
        body.append(
            f'<text data-legend="{j}" x="{left + 90 * j}" y="14" fill="{colour(j)}" font-weight="600">{name}</text>'
        )
    return svg("".join(body), "time by method", width, 34 + tall * len(rows))
