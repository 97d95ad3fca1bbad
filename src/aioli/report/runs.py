"""A report on runs, one, a sweep or a comparison: proportions, losses, A over time, the law, intervals, recipes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from aioli.report import page as pages
from aioli.report.compare import whiskers
from aioli.report.costs import costs
from aioli.report.law import law
from aioli.report.plots import BLUE, ORANGE, heat
from aioli.report.seen import Problem, Seen
from aioli.report.svg import Series, areas, colour, lines
from aioli.report.text import looking
from aioli.report.trace import Curve
from aioli.runs.comparison import BASE, Row, Score, score_of

MANY, STATICS = 12, 8
"""Runs of which all is shown, and fixed mixtures that stand in the table."""
NAMES, CELLS = 16, 1000
"""Names that a chart has room for, and entries of a matrix."""
FEW_POINTS = 100
"""Points of a curve where there are many runs."""

Report = tuple[str, str, list[str]]
"""Title, lead, parts."""


def report(problems: Sequence[Problem], troubles: Sequence[str] = ()) -> Report:
    """What stands on the page; `troubles` says which runs could not be read."""
    title, lead, parts = _report(problems)
    if troubles:
        parts += [pages.heading("Runs that cannot be read"), pages.listed(troubles)]
    return title, lead, parts


def _report(problems: Sequence[Problem]) -> Report:
    runs = [run for problem in problems for run in problem.runs]
    if len(runs) == 1:
        run = runs[0]
        return (
            f"{run.label}: {problems[0].title}",
            _facts(run),
            [*_one(run, 1000), _recipe(run)],
        )
    parts: list[str] = []
    for k, problem in enumerate(problems):
        if len(problems) > 1:
            parts.append(pages.heading(f"{k + 1}. {problem.title}, {problem.steps:,} steps", "part"))
        parts += _problem(problem, FEW_POINTS if len(runs) > MANY else 1000, len(runs) <= MANY)
    title = problems[0].title if len(problems) == 1 else f"{len(runs)} runs in {len(problems)} settings"
    return title, _lead(problems), parts


def _lead(problems: Sequence[Problem]) -> str:
    runs = [run for problem in problems for run in problem.runs]
    done = sum(run.trace.result is not None for run in runs)
    models = ", ".join(dict.fromkeys(problem.model for problem in problems))
    steps = ", ".join(dict.fromkeys(f"{problem.steps:,}" for problem in problems))
    rest = "" if done == len(runs) else f", {done} of them finished"
    return f"{len(runs)} runs{rest}; {models}; {steps} steps."


def _problem(problem: Problem, points: int, opened: bool) -> list[str]:
    scores = scored(problem)
    parts = _comparison(problem, scores)
    parts += law(problem)
    parts += _together(problem, points)
    parts += costs(problem)
    parts.append(pages.heading("Run by run"))
    shown = [run for run in problem.runs if run.mixture is None] or problem.runs * (len(problem.runs) <= MANY)
    rest = [run for run in problem.runs if run not in shown]
    for k, run in enumerate(shown):
        inside = "".join([*_one(run, points), _recipe(run)])
        parts.append(pages.folded(f"{run.label}, seed {run.seed} ({run.name})", inside, opened and k == 0))
    if rest:
        header = ["run", "mixture", "seed", "state", *(f"loss of {t}" for t in problem.targets)]
        rows = [_row(run, problem.targets) for run in rest]
        words = f"{len(rest)} run{'s' * (len(rest) != 1)} with a fixed mixture"
        parts.append(pages.folded(words, pages.wide(pages.table(header, rows))))
    return parts


def _row(run: Seen, targets: Sequence[str]) -> list[str]:
    losses = run.losses()
    state = "finished" if losses is not None else f"step {run.trace.step:,} of {run.about['steps']:,}"
    ends = [""] * len(targets) if losses is None else [f"{losses[t]:.4f}" for t in targets]
    return [run.name, run.label, str(run.seed), state, *ends]


# ---------------------------------------------------------------- methods side by side


def scored(problem: Problem) -> list[Score]:
    """Every method over its seeds, against stratified with the same seeds; the best first.

    Seeds differ by more than methods do, so a mean over other seeds says nothing: those without a pair come last."""
    rows: dict[str, dict[int, Row | str]] = {}
    for label, some in problem.labels().items():
        for run in some:
            row = _judged(run, problem.weights)
            if row is not None and not run.proxy:
                rows.setdefault(label, {})[run.seed] = row
    base = {seed: row for seed, row in rows.get(BASE, {}).items() if isinstance(row, Row)}
    found = [score_of(label, by_seed, base) for label, by_seed in rows.items()]
    return _ordered(found)


def _paired(scores: Sequence[Score]) -> bool:
    """Whether any has stratified beside it."""
    return any(s.difference is not None for s in scores if s.method != BASE)


def _ordered(scores: Sequence[Score]) -> list[Score]:
    def rank(score: Score) -> tuple[bool, float]:
        if score.difference is None or not paired:
            return paired, math.inf if score.perplexity is None else score.perplexity
        return False, score.difference

    paired = _paired(scores)
    return sorted(scores, key=rank)


def _judged(run: Seen, told: Mapping[str, float]) -> Row | None:
    losses, result = run.losses(), run.trace.result
    if losses is None or result is None:
        return None
    weights = np.array([float(told.get(t, 1.0)) for t in losses])
    values = np.array(list(losses.values()))
    share = weights / weights.sum()
    return Row(
        run.seed,
        run.name,
        float(share @ np.exp(values)),
        float(share @ values),
        losses,
        {str(k): float(v) for k, v in result["realised"].items()},
        0,
        0.0,
        {name: float(value) for name, value in result["seconds"].items() if isinstance(value, float)},
    )


def _comparison(problem: Problem, scores: Sequence[Score]) -> list[str]:
    if len(scores) < 2:
        return []
    fixed = {run.label for run in problem.runs if run.mixture is not None} - {BASE}
    kept = [s for s in scores if s.method not in fixed]
    statics = [s for s in scores if s.method in fixed]
    kept = _ordered([*kept, *statics[:STATICS]])
    header = ["run", "seeds", "perplexity", "vs stratified", "95% interval", "mean loss", "probing"]
    rows = [
        [
            s.method,
            str(len(s.rows)),
            f"{s.perplexity:.3f}",
            "" if s.method == BASE or s.difference is None else f"{s.difference:+.3f}",
            "" if s.interval is None else f"[{s.interval[0]:+.3f}, {s.interval[1]:+.3f}]",
            f"{s.loss:.4f}",
            f"{s.probing:.1%}",
        ]
        for s in kept
    ]
    split = "test" if any("test" in (run.trace.result or {}) for run in problem.runs) else "validation"
    told = ", ".join(f"{name} {value:g}" for name, value in problem.weights.items())
    counts = f", weighted ({told})" if told else ""
    words = (
        f"{split.capitalize()} perplexity and loss, means over targets{counts}. Methods that end with a fixed mixture "
        "stand under that mixture."
    )
    fair = _paired(kept) or len({tuple(sorted(row.seed for row in s.rows)) for s in kept}) == 1
    if not fair:
        words += " Not all have the same seeds, nor stratified beside them: their order may be that of the seeds."
    elif _paired(kept):
        words += " Ordered by the difference from stratified with the same seeds; those without it come last."
    best = 0 if fair else None
    parts = [pages.heading("Side by side"), pages.wide(pages.table(header, rows, best)), pages.paragraph(words, "note")]
    if len(statics) > STATICS:
        parts.append(
            pages.paragraph(f"Of {len(statics)} fixed mixtures the first {STATICS} in this order are shown.", "note")
        )
    if chart := whiskers(kept):
        words = (
            "Difference in perplexity from stratified: mean over paired seeds with a 95% interval where there are "
            "several, and single seeds as small circles. Left of 0 is better."
        )
        parts.append(pages.figure(chart, words))
    return parts


def _together(problem: Problem, points: int) -> list[str]:
    """Mean validation loss over targets, one curve for each method, of the seed that most of them have: other seeds
    look at other validation data."""
    moving = [run for run in problem.runs if not run.label.startswith("static ") and not run.proxy]
    moving = [run for run in moving if run.trace.looks.steps]
    known = {run.seed for run in moving if run.label == BASE} or {run.seed for run in moving}
    seeds = Counter(run.seed for run in moving if run.seed in known)
    seed = min(seeds, key=lambda each: (-seeds[each], each), default=0)
    others = sorted({run.label for run in moving} - {run.label for run in moving if run.seed == seed})
    series: list[Series] = []
    for run in moving:
        if run.seed == seed:
            steps, values = _thin(run.trace.looks, points)
            means = [float(np.mean(each)) for each in values]
            series.append(Series(run.label, steps, means, colour(len(series)), dashed=run.label == BASE))
    if len(series) < 2:
        return []
    words = f"Mean validation loss on the way, all with seed {seed}; click a name to hide or show it."
    words += f" Without a run of that seed: {', '.join(others)}." if others else ""
    chart = lines(series[:10], "step", "validation loss", problem.steps)
    return [pages.heading("How the loss fell"), pages.figure(chart, words)]


# ---------------------------------------------------------------- one run


def _one(run: Seen, points: int) -> list[str]:
    trace, groups, targets = run.trace, run.groups, run.targets
    parts = []
    if trace.result is not None:
        header = ["", *targets, "mean"]
        rows = [
            [
                f"{split} loss",
                *(f"{v:.4f}" for v in trace.result[split]["loss"].values()),
                f"{trace.result[split]['mean_loss']:.4f}",
            ]
            for split in ("val", "test")
            if split in trace.result
        ]
        parts.append(pages.wide(pages.table(header, rows)))
    else:
        parts.append(pages.paragraph(f"At step {trace.step:,} of {run.about['steps']:,}; not finished."))
    steps, shares = _thin(trace.mixed if run.mixture is not None else trace.proportions, points)
    if steps:
        words = "Share of each group over time, sweeps left out. Click a name to hide or show it."
        parts.append(pages.figure(areas(*_largest(groups, steps, shares), "step"), words))
    steps, values = _thin(trace.way, points)
    if len(steps) > 1:
        begin = next((k for k, step in enumerate(steps) if step >= 0.02 * run.about["steps"]), 0)
        series = [
            Series(name, steps[begin:], [row[i] for row in values[begin:]], colour(i))
            for i, name in enumerate(targets[:NAMES])
        ]
        rest = f" The first {NAMES} of {len(targets)}." if len(targets) > NAMES else ""
        chart = lines(series, "step", "validation loss", trace.step)
        parts.append(pages.figure(chart, f"Validation loss of each target.{rest}"))
    return parts + _matrices(run)


def _largest(
    groups: list[str], steps: list[int], shares: list[list[float]]
) -> tuple[list[str], list[int], list[list[float]]]:
    """At most as many groups as have room for their names: the largest, and the others together."""
    if len(groups) <= NAMES:
        return groups, steps, shares
    kept = sorted(np.argsort(-np.array(shares).mean(0))[: NAMES - 1].tolist())
    told = [[*(row[k] for k in kept), 1.0 - sum(row[k] for k in kept)] for row in shares]
    return [*(groups[k] for k in kept), f"{len(groups) - len(kept)} others"], steps, told


def _thin(curve: Curve, points: int) -> tuple[list[int], list[list[float]]]:
    """At most so many points, evenly, with the last one."""
    count = len(curve.steps)
    if count <= points:
        return curve.steps, curve.values
    kept = sorted({round(k * (count - 1) / (points - 1)) for k in range(points)})
    return [curve.steps[k] for k in kept], [curve.values[k] for k in kept]


def _matrices(run: Seen) -> list[str]:
    """A^t with a slider over rounds."""
    groups, frames = run.groups, run.trace.A
    if not frames.steps:
        return []
    rows = run.targets if len(frames.values[0]) == len(groups) * len(run.targets) else ["all targets"]
    if len(frames.values[0]) != len(rows) * len(groups):
        return []
    cells = len(rows) * len(groups)
    if cells > CELLS:
        return [pages.paragraph(f"A has {len(rows)} × {len(groups)} entries, too many to be shown.", "note")]
    steps, found = _thin(frames, max(2, 20 * CELLS // cells))
    values = [[None if v is None else -v for v in frame] for frame in found]
    names = [f"step {step:,} ({k + 1} of {len(values)})" for k, step in enumerate(steps)]
    last = [math.nan if v is None else v for v in values[-1]]
    table = [last[k * len(groups) : (k + 1) * len(groups)] for k in range(len(rows))]
    words = (
        "−A^t: what a round's probes say each group (columns) does to the loss of each target (rows). Blue, negative: "
        "it falls. A dash: that group was not tried out. Move the slider through the rounds."
    )
    data = {"values": values, "names": names, "low": BLUE, "high": ORANGE}
    return [pages.wide(pages.frames(heat(rows, groups, table, "A over rounds"), words, data))]


def _facts(run: Seen) -> str:
    about = run.about
    seconds = run.trace.seconds
    took = f"{looking(run.trace)} took {seconds['probe'] / seconds['train']:.1%}" if seconds["train"] else ""
    share = f"; {took} of the time of training" if took else ""
    return (
        f"{about['model']}, {about['parameters']:,} parameters; {about['steps']:,} steps of {about['batch']} sequences "
        f"of {about['context']} tokens, seed {run.seed}{share}."
    )


def _recipe(run: Seen) -> str:
    about = run.about
    made = f"aioli {about['aioli']}; data {str(about['data'])[:12]}; {run.name}"
    text = run.text or "its recipe is not there"
    return pages.folded("Recipe and environment", pages.paragraph(made, "note") + pages.pasted([text.rstrip()]))
