"""A comparison for people: as text, Markdown and a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from aioli.report import page as pages
from aioli.report.markdown import safe, table
from aioli.report.svg import COLOURS, svg, ticks
from aioli.runs.comparison import BASE, Comparison, Score

HEADER = (
    "method",
    "perplexity",
    "vs stratified",
    "95% interval",
    "# < stratified",
    "mean loss",
    "extra runs",
    "extra steps",
    "probing",
)


def title(found: Comparison) -> str:
    """What was compared, in a line."""
    towards = "" if found.targets == found.groups else f" → {', '.join(found.targets)}"
    groups = ", ".join(found.groups) if len(found.groups) <= 8 else f"{len(found.groups)} groups"
    return f"{groups}{towards}"


def setting(found: Comparison) -> str:
    """How, in a line."""
    seeds = f"{len(found.seeds)} seed{'s' * (len(found.seeds) != 1)}"
    proxy = "" if found.proxy == found.model else f", extra runs with {found.proxy}"
    weighted = "" if len(set(found.weights.values())) == 1 else ", weighted by data.weights"
    return (
        f"{found.model}{proxy}, {found.steps:,} steps, {seeds}, budget {found.budget}; {found.split} perplexity, mean "
        f"over {len(found.targets)} target{'s' * (len(found.targets) != 1)}{weighted}"
    )


def ordered(found: Comparison) -> list[Score]:
    """From the best to the worst; those without a result last."""
    return sorted(found.scores, key=lambda s: (s.perplexity is None, s.difference or 0.0))


def cells(score: Score) -> list[str]:
    """A row of the table."""
    if score.perplexity is None:
        return [score.method, "none", *[""] * (len(HEADER) - 2)]
    base = score.method == BASE
    alone = score.difference is None
    difference = "" if base or alone else f"{score.difference:+.3f}{f' {score.verdict}' if score.verdict else ''}"
    return [
        score.method,
        f"{score.perplexity:.3f}",
        difference,
        "" if score.interval is None else f"[{score.interval[0]:+.3f}, {score.interval[1]:+.3f}]",
        "" if base else f"{score.wins}/{score.pairs}",
        "" if score.loss is None else f"{score.loss:.4f}",
        f"{score.extra_runs:g}",
        f"{score.extra_steps:.2g} S" if score.extra_steps else "0",
        f"{score.probing:.1%}",
    ]


def failures(found: Comparison) -> list[str]:
    """What could not be done, and why."""
    lines = []
    for s in found.scores:
        for why in dict.fromkeys(s.failed.values()):
            seeds = [str(seed) for seed, each in s.failed.items() if each == why]
            where = "" if len(seeds) == len(found.seeds) else f", seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
            lines.append(f"{s.method}{where}: {why}")
    return lines


def remarks(found: Comparison) -> list[str]:
    """How to read it."""
    lines = []
    if len(found.seeds) == 1:
        lines.append("One seed cannot tell a gain from luck; --seeds 5 gives intervals.")
    else:
        sure = [s.method for s in found.scores if s.verdict == "better"]
        lines.append(
            "Differences are paired by seed; an interval that covers 0 means that stratified may be as good. "
            + (f"It lies below 0 for {', '.join(sure)}." if sure else "No interval lies below 0.")
        )
        if len([s for s in found.scores if s.interval is not None]) > 5:
            lines.append(
                "Intervals are for one method at a time: of twenty that are no better, about one would still seem so."
            )
    return lines


def markdown(found: Comparison) -> str:
    """A table for a report."""
    rows = [cells(score) for score in ordered(found)]
    lines = [f"**{safe(title(found))}**: {safe(setting(found))}", "", *table(HEADER, rows)]
    lines += ["", *(safe(line) for line in remarks(found))]
    if failed := failures(found):
        lines += ["", "Without a result:", "", *(f"- {safe(line)}" for line in failed)]
    return "\n".join(lines) + "\n"


def page(found: Comparison, path: Path) -> Path:
    """The comparison as a page."""
    scores = ordered(found)
    rows = [cells(score) for score in scores]
    best = next((k for k, s in enumerate(scores) if s.verdict == "better"), None)
    parts = [
        pages.heading("Against even shares"),
        pages.figure(
            whiskers(scores),
            "Difference in perplexity from stratified: mean over paired seeds with a 95% interval, and single seeds as "
            "small circles. Left of 0 is better.",
        ),
        pages.wide(pages.table(HEADER, rows, best)),
        *(pages.paragraph(line) for line in remarks(found)),
        pages.heading(f"{found.split.capitalize()} loss by target"),
        pages.wide(pages.table(["method", *found.targets], [_by_target(s, found.targets) for s in scores if s.rows])),
        pages.heading("What each was trained on"),
        pages.wide(pages.table(["method", *found.groups], [_mixture(s, found.groups) for s in scores if s.rows])),
    ]
    if failed := failures(found):
        parts += [pages.heading("Without a result"), *(pages.paragraph(line) for line in failed)]
    return pages.write(path, f"Data mixing on {title(found)}", setting(found), parts, broad=True)


def _by_target(score: Score, targets: Sequence[str]) -> list[str]:
    means = [sum(row.losses[t] for row in score.rows) / len(score.rows) for t in targets]
    return [score.method, *(f"{mean:.4f}" for mean in means)]


def _mixture(score: Score, groups: Sequence[str]) -> list[str]:
    means = [sum(row.proportions[g] for row in score.rows) / len(score.rows) for g in groups]
    return [score.method, *(f"{mean:.1%}" for mean in means)]


def whiskers(scores: Sequence[Score]) -> str:
    """Each method's difference from stratified with its interval, and the single seeds."""
    base = {row.seed: row.perplexity for s in scores if s.method == BASE for row in s.rows}
    shown = []
    for s in scores:
        dots = [row.perplexity - base[row.seed] for row in s.rows if row.seed in base]
        if s.method != BASE and s.difference is not None and dots:
            shown.append((s, dots))
    if not shown:
        return ""
    values = [v for s, dots in shown for v in (*dots, *(s.interval or ()))] + [0.0]
    low, high = float(min(values)), float(max(values))
    pad = 0.04 * (high - low) or 1.0
    longest = min(44, max(len(s.method) for s, _ in shown))
    low, high, left, width, row = low - pad, high + pad, max(110, 7 * longest + 16), 640, 24
    height = row * len(shown) + 40

    def x(value: float) -> float:
        return left + (width - left - 16) * (value - low) / (high - low)

    body = []
    for tick in ticks(low, high):
        body.append(f'<line x1="{x(tick):.1f}" y1="6" x2="{x(tick):.1f}" y2="{height - 28}" class="grid"/>')
        body.append(
            f'<text x="{x(tick):.1f}" y="{height - 12}" text-anchor="middle">{f"{tick:+.3g}" if tick else 0}</text>'
        )
    body.append(
        f'<line x1="{x(0):.1f}" y1="6" x2="{x(0):.1f}" y2="{height - 28}" stroke="#7a7a7a" stroke-width="1.5"/>'
    )
    for k, (s, dots) in enumerate(shown):
        y = 18 + row * k
        ink = COLOURS[2] if s.verdict == "better" else COLOURS[3] if s.verdict == "worse" else COLOURS[0]
        name = s.method if len(s.method) <= longest else s.method[: longest - 1] + "…"
        title = f"<title>{escape(s.method)}</title>"
        body.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{escape(name)}{title}</text>')
        if s.interval is not None:
            a, b = x(s.interval[0]), x(s.interval[1])
            body.append(f'<line x1="{a:.1f}" y1="{y}" x2="{b:.1f}" y2="{y}" stroke="{ink}" stroke-width="2"/>')
        body += [f'<circle cx="{x(d):.1f}" cy="{y + 6}" r="2" fill="none" stroke="{ink}"/>' for d in dots]
        body.append(f'<circle cx="{x(s.difference or 0.0):.1f}" cy="{y}" r="4.5" fill="{ink}"/>')
    return svg("".join(body), "differences", width, height)
