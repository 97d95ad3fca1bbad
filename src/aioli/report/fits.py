"""A fitted law and its best mixture as pages with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from aioli.export.systems import block
from aioli.fits.fit import Fit
from aioli.fits.named import FORMULAS
from aioli.fits.solution import Solution
from aioli.report import page as pages
from aioli.report.plots import Cloud, Share, clouds, heat, shares, simplex
from aioli.simplex import Array

MOVE = 0.1
"""Share that is moved to a group to show what it does."""


def write_fit(fit: Fit, path: Path) -> Path:
    """A page on a law: how well it predicts, what each group does, what speaks against it."""
    runs = fit.runs
    lead = (
        f"{FORMULAS[fit.name.partition(':')[0]]}, fitted to {len(runs.P)} runs of {len(runs.groups)} groups and "
        f"{len(runs.targets)} targets"
    )
    parts = [*_troubles(fit), pages.heading("How well it predicts runs it has not seen"), pages.wide(_scores(fit))]
    if fit.choices:
        rows = [
            [
                c.name,
                f"{c.error:.4f}",
                "smallest" if c.worse == 0 else f"+{c.worse:.4f} ± {c.stderr:.4f}",
                f"{c.spearman:.4f}",
            ]
            for c in fit.choices
        ]
        best = next(k for k, c in enumerate(fit.choices) if c.chosen)
        parts += [pages.heading("Laws that were compared")]
        parts += [pages.table(["law", "held-out error / variance", "more than the smallest", "Spearman"], rows, best)]
    parts += _predictions(fit)
    parts += _effects(fit)
    return pages.write(path, f"Mixing law: {fit.name}", lead, parts, broad=True)


def _scores(fit: Fit) -> str:
    measured = [each for each in (fit.scores, fit.test) if each is not None]
    header = ["target", *(f"{name}, {each.how}" for each in measured for name in ("MSE", "R²", "Spearman"))]
    rows = [
        [t, *(w for each in measured for w in (f"{each.mse[i]:.3g}", f"{each.r2[i]:.4f}", f"{each.spearman[i]:.4f}"))]
        for i, t in enumerate(fit.runs.targets)
    ]
    if len(rows) > 1:
        means = (w for each in measured for w in (each.mse.mean(), each.r2.mean(), each.spearman.mean()))
        rows.append(["mean", *(f"{value:.4g}" for value in means)])
    return pages.table(header, rows)


def _predictions(fit: Fit) -> list[str]:
    if fit.predicted is None:
        return []
    panels = [
        Cloud(target, fit.predicted[:, i].tolist(), fit.runs.L[:, i].tolist(), note=f"R² {fit.scores.r2[i]:.3f}")
        for i, target in enumerate(fit.runs.targets)
    ]
    chart = clouds(panels, "predicted loss", "measured loss", diagonal=True)
    return [
        pages.figure(
            chart, "Each point is a run, predicted by a law that was fitted without it; on the line both agree."
        )
    ]


def effects(law: Any, centre: Array) -> Array:
    """What moving a tenth of the data to each group does to each predicted loss, (n, m)."""
    moved = (1.0 - MOVE) * centre + MOVE * np.eye(centre.size)
    return np.asarray((law.predict(moved) - law.predict(centre[None])).T)


def _effects(fit: Fit) -> list[str]:
    groups, targets = fit.runs.groups, fit.runs.targets
    table = effects(fit.law, fit.runs.P.mean(0))
    chart = heat(targets, groups, table.tolist(), "change of each target's loss by group")
    words = (
        f"Change of each target's loss (rows) when {MOVE:.0%} of the data is given to a group (columns) and the others "
        "shrink alike, from the mean mixture of the runs. Blue, negative: it helps. Orange, positive: it harms."
    )
    return [pages.heading("What each group does"), pages.wide(pages.figure(chart, words))]


def _troubles(fit: Fit) -> list[str]:
    if not fit.troubles:
        return [pages.paragraph("No test has found anything that speaks against it.")]
    lines = [f"{each.target}: {each.words}" for each in fit.troubles]
    return [pages.heading("What speaks against it"), pages.listed(lines)]


def write_solution(found: Solution, path: Path) -> Path:
    """A page on the best mixture: its shares, how sure they are, and what else would do."""
    fit, best = found.fit, found.best
    groups = fit.runs.groups
    rows = [
        Share(
            group,
            float(best.proportions[j]),
            None if found.interval is None else (float(found.interval[j, 0]), float(found.interval[j, 1])),
            None if found.near is None else (float(found.near[j, 0]), float(found.near[j, 1])),
        )
        for j, group in enumerate(groups)
    ]
    words = "Dots: the best mixture."
    if found.interval is not None:
        words += (
            f" Lines: 95% intervals over {found.resamples} resampled tables. Bands: how far a share can go, the others "
            "following, before the predicted loss rises by one standard error; wide bands mean that it hardly matters."
        )
    parts = [pages.figure(shares(rows), words)]
    if len(groups) == 3 and hasattr(fit.law, "A_"):
        parts.append(_triangle(found))
    if len(groups) == 2:
        parts.append(_line(found))
    parts += [pages.heading("Instead of it"), pages.wide(pages.table(*_instead(found)))]
    parts += [pages.paragraph(f"Worth knowing: {note}.", "note") for note in found.notes]
    pasted = dict(zip(groups, best.proportions.tolist(), strict=True))
    parts += [
        pages.heading("To paste"),
        pages.pasted([block("json", pasted), block("megatron", pasted), block("hf", pasted)]),
    ]
    interval = ""
    if found.loss_interval is not None:
        interval = f" (95% interval {found.loss_interval[0]:.4f} to {found.loss_interval[1]:.4f})"
    gap = "" if best.gap is None else f"; no allowed mixture is better by more than {best.gap:.1g} under this law"
    lead = f"Predicted loss {best.value:.4f}{interval} by {fit.name}, fitted to {len(fit.runs.P)} runs{gap}."
    return pages.write(path, "The best mixture", lead, parts)


def _instead(found: Solution) -> tuple[list[str], list[list[str]]]:
    header = ["mixture", "predicted loss", "difference", "95% interval", "allowed"]
    rows = [
        [
            each.titled(name),
            f"{each.loss:.4f}",
            f"{each.worse:+.4f}",
            "" if each.interval is None else f"{each.interval[0]:+.4f} to {each.interval[1]:+.4f}",
            "yes" if each.within else "no",
        ]
        for name, each in found.compared.items()
    ]
    return header, rows


def _triangle(found: Solution) -> str:
    fit, weights = found.fit, found.wish.target_weights

    def value(p: Any) -> float:
        return float(fit.law.predict(np.array([p]))[0] @ weights / weights.size)

    points = [(row.tolist(), 1.0) for row in fit.runs.P]
    chart = simplex(fit.runs.groups, value, points, found.best.proportions.tolist(), "predicted loss over mixtures")
    return pages.figure(
        chart, "Predicted loss over all mixtures: the bluer, the higher. Dots: runs. Cross: the best mixture."
    )


def _line(found: Solution) -> str:
    fit, weights = found.fit, found.wish.target_weights
    grid = np.linspace(0.0, 1.0, 101)
    curve = fit.law.predict(np.stack([grid, 1 - grid], 1)) @ weights / weights.size
    seen = fit.runs.L @ weights / weights.size
    cloud = Cloud("", fit.runs.P[:, 0].tolist(), seen.tolist(), list(zip(grid.tolist(), curve.tolist(), strict=True)))
    chart = clouds([cloud], f"share of {fit.runs.groups[0]}", "loss")
    return pages.figure(chart, "The objective: measured (dots) and by the law (line).")
