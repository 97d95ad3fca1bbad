"""The mixing law of a sweep in a report: a curve for two groups, a triangle for three, and how well it predicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aioli.fits import Runs, fit_runs
from aioli.fits.fit import Fit
from aioli.report import page as pages
from aioli.report.plots import Cloud, clouds, simplex
from aioli.report.seen import Problem
from aioli.report.svg import colour
from aioli.simplex import Array

APART = 0.01
"""By how much some share must differ for two mixtures: a law is not learnt from many runs of one mixture."""


def law(problem: Problem) -> list[str]:
    """What the runs with fixed mixtures say about all mixtures; nothing if they are too few."""
    runs = [(run.mixture, run.losses()) for run in problem.runs]
    known = [(p, losses) for p, losses in runs if p is not None and losses is not None]
    if _distinct([p for p, _ in known]) < len(problem.groups) + 2:
        return []
    P = np.array([p for p, _ in known])
    L = np.array([[losses[t] for t in problem.targets] for _, losses in known])
    weights = np.array([problem.weights.get(t, 1.0) for t in problem.targets])
    weights = weights / weights.sum()
    try:
        fit = fit_runs(Runs(tuple(problem.groups), tuple(problem.targets), P, L), "log-linear")
    except ValueError as error:  # a law may have nothing to say of these mixtures
        return [pages.heading("The mixing law"), pages.paragraph(f"No law could be fitted: {error}.", "note")]
    parts = [pages.heading("The mixing law")]
    parts += [pages.paragraph(f"The log-linear law, fitted to {len(P)} runs with a fixed mixture.", "note")]
    if fit.troubles:
        parts += [
            pages.paragraph("What speaks against it:"),
            pages.listed([f"{t.target}: {t.words}" for t in fit.troubles]),
        ]
    if len(problem.groups) == 2:
        parts.append(_curves(problem, fit, weights))
    elif len(problem.groups) == 3:
        parts.append(_triangle(problem, fit, weights))
    return [*parts, _predicted(problem, fit)]


def _distinct(mixtures: Sequence[Sequence[float]]) -> int:
    """How many there are, those that are near each other counted once."""
    found: list[Array] = []
    for p in map(np.array, mixtures):
        if all(np.abs(p - other).max() >= APART for other in found):
            found.append(p)
    return len(found)


def _curves(problem: Problem, fit: Fit, weights: Array) -> str:
    grid = np.linspace(0.01, 0.99, 99)
    curves = fit.predict(np.stack([grid, 1 - grid], 1))
    share = fit.runs.P[:, 0].tolist()
    panels = [
        Cloud(target, share, fit.runs.L[:, i].tolist(), _pairs(grid, curves[:, i]), colours=[colour(i)] * len(share))
        for i, target in enumerate(problem.targets)
    ]
    if len(panels) > 1:
        panels.append(Cloud("mean", share, (fit.runs.L @ weights).tolist(), _pairs(grid, curves @ weights)))
    chart = clouds(panels, f"share of {problem.groups[0]}", "loss")
    return pages.figure(chart, "Loss against the share of the first group: runs (dots) and the law (line).")


def _pairs(x: Array, y: Array) -> list[tuple[float, float]]:
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _triangle(problem: Problem, fit: Fit, weights: Array) -> str:
    best = fit.runs.P[int(np.argmin(fit.runs.L @ weights))]
    points = [(p.tolist(), 1.0) for p in fit.runs.P]
    chart = simplex(
        problem.groups,
        lambda p: float((fit.predict(np.array([p])) @ weights)[0]),
        points,
        best.tolist(),
        "mean loss over mixtures",
    )
    return pages.figure(
        chart, "Mean loss over all mixtures by the law: the bluer, the higher. Dots: runs. Cross: the best run."
    )


def _predicted(problem: Problem, fit: Fit) -> str:
    assert fit.predicted is not None
    panels = [
        Cloud(target, fit.predicted[:, i].tolist(), fit.runs.L[:, i].tolist(), note=f"R² {fit.scores.r2[i]:.3f}")
        for i, target in enumerate(problem.targets)
    ]
    chart = clouds(panels, "predicted loss", "measured loss", diagonal=True)
    return pages.figure(chart, "Each run, predicted by a law that was fitted without it; on the line both agree.")
