"""How good a law is on runs it has not seen: folds, measures, and the choice between laws."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioli.fits.diagnose import moves
from aioli.fits.named import candidates, create_law
from aioli.fits.table import Runs
from aioli.lmo.similarity import spearman
from aioli.simplex import Array

FOLDS, SMALL, STACK = 5, 20, 8
"""Folds by default; with up to so many mixtures each is a fold of its own; folds that are fitted together."""
LARGEST = 4.0
"""Largest squared error that counts, in variances: a fold that runs away must not hide in its own spread."""
HELP = 1e-3
"""Ridge for folds from which the law is not determined although it is from all runs."""


@dataclass(frozen=True)
class Scores:
    """Measures per target, on runs that were not used for fitting."""

    mse: Array
    r2: Array
    spearman: Array
    runs: NDArray[np.int64]
    how: str
    """Which runs: `5-fold`, `leave-one-out` or `test table`."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"how": self.how} | {k: getattr(self, k).tolist() for k in ("mse", "r2", "spearman", "runs")}


def measure(L: Array, predicted: Array, how: str) -> Scores:
    """Measures of predictions; missing losses do not count."""
    columns: list[tuple[float, float, float, int]] = []
    for seen, guess in zip(L.T, predicted.T, strict=True):
        there = np.isfinite(seen) & np.isfinite(guess)
        y, z = seen[there], guess[there]
        error = float(((y - z) ** 2).mean()) if there.any() else np.nan
        variance = float(y.var()) if there.any() else 0.0  # 0 also for losses so small that their squares are 0
        r2 = (
            1.0 - error / variance
            if variance > 0.0 and moves(y)
            else float(there.any() and np.abs(y - z).max() <= 1e-6 * np.abs(y).max())
        )
        columns.append((error, r2, spearman(y, z) if there.sum() > 1 else 0.0, int(there.sum())))
    table = np.array(columns)
    return Scores(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.int64), how)


def split(P: Array, folds: int | None, seed: int) -> tuple[NDArray[np.int64], str]:
    """The fold of each run; runs of one mixture stay together, so that none is predicted from its twin."""
    _, place = np.unique(P.round(9), axis=0, return_inverse=True)
    place = place.reshape(-1)
    distinct = int(place.max()) + 1
    if distinct < 2:
        alone = "there is one run" if len(P) == 1 else "all runs have the same mixture"
        raise ValueError(f"{alone}, so there is nothing to learn from")
    if seed < 0:
        raise ValueError(f"--seed {seed} must not be negative")
    if folds is not None and folds < 2:
        raise ValueError(f"--folds {folds} leaves nothing to test on; use at least 2")
    count = min(folds or (distinct if distinct <= SMALL else FOLDS), distinct)
    order = np.random.default_rng(seed).permutation(distinct)
    return order[place] % count, "leave-one-out" if count == distinct else f"{count}-fold"


def held_out(
    law: Any,
    runs: Runs,
    fold: NDArray[np.int64],
    step: Callable[[], None] = lambda: None,
    notes: list[str] | None = None,
) -> Array:
    """What the law says of each run when it is fitted without that run's fold, (runs, n)."""
    predicted, count = np.full(runs.L.shape, np.nan), int(fold.max()) + 1
    for first in range(0, count, STACK):
        some = list(range(first, min(first + STACK, count)))
        try:
            tables = _without(law, runs, [fold == k for k in some])
        except ValueError:  # some fold alone does not determine the law: one by one, with help where it is needed
            tables = [_without(law, runs, [fold == k], helped=True)[0] for k in some]
            words = "held-out measures are rough: without a fold too few runs are left, and a little ridge stands in"
            if notes is not None and words not in notes:
                notes.append(words)
        for k, table in zip(some, tables, strict=True):
            predicted[fold == k] = table[fold == k]
        step()
    return predicted


def _without(law: Any, runs: Runs, held: list[NDArray[np.bool_]], helped: bool = False) -> list[Array]:
    """Predictions of laws that are fitted without some runs: all of them as one fit of many targets, which have the
    same losses but count otherwise."""
    n = len(runs.targets)
    weights = np.concatenate([runs.weights * ~each[:, None] for each in held], axis=1)
    there = weights.any(0)  # a target with a single run cannot be predicted without it
    fit = fit_anyhow if helped else fit_copy
    table = np.full((len(runs.P), n * len(held)), np.nan)
    if there.any():
        fitted = fit(law, runs.P, np.tile(runs.L, len(held))[:, there], weights[:, there])
        table[:, there] = fitted.predict(runs.P)
    return [table[:, k * n : (k + 1) * n] for k in range(len(held))]


def fit_copy(law: Any, P: Array, L: Array, weights: Array, like: Any = None) -> Any:
    """Fit a copy of a law."""
    return copy.copy(law).fit(P, L, weights, like)


def fit_anyhow(law: Any, P: Array, L: Array, weights: Array, like: Any = None) -> Any:
    """Fit a copy of a law; where these runs do not determine it, with a little ridge."""
    try:
        return fit_copy(law, P, L, weights, like)
    except ValueError:
        if not hasattr(law, "ridge") or law.ridge > 0:
            raise
        helped = copy.copy(law)
        helped.ridge = HELP
        return helped.fit(P, L, weights, like)


@dataclass(frozen=True)
class Choice:
    """One law of those that `auto` compared."""

    name: str
    error: float
    """Mean over targets of the squared error on held-out runs, as a share of the variance."""
    worse: float
    """How much more that is than of the law with the smallest."""
    stderr: float
    """Standard error of that difference, over runs."""
    spearman: float
    chosen: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return vars(self).copy()


def choose(
    runs: Runs, fold: NDArray[np.int64], how: str, step: Callable[[], None] = lambda: None, ridge: float = 0.0
) -> tuple[str, list[Choice], Array, list[str]]:
    """The simplest law whose held-out error is within one standard error of the smallest, how all did, what it says of
    runs it has not seen, and what is to be noted of that."""
    predicted: dict[str, Array] = {}
    notes: dict[str, list[str]] = {}
    for name in candidates():
        law = create_law(name, ridge=ridge)
        try:
            fit_copy(law, runs.P, runs.L, runs.weights)  # one that these runs do not determine is no candidate
            notes[name] = []
            predicted[name] = held_out(law, runs, fold, step, notes[name])
        except ValueError:
            continue
    if not predicted:
        raise ValueError("no law can be fitted to these runs")
    moving = [i for i, column in enumerate(runs.L.T) if moves(column[np.isfinite(column)])]
    if not moving:
        raise ValueError("no loss changes from run to run, so there is nothing to choose a law by")
    L = runs.L[:, moving]
    useful = np.isfinite(L).any(1) & np.all([np.isfinite(t[:, moving]).any(1) for t in predicted.values()], axis=0)
    scale, L = np.nanvar(L, axis=0), L[useful]
    errors = {}
    for name, table in predicted.items():
        squares = np.minimum((L - table[np.ix_(useful, moving)]) ** 2 / scale, LARGEST)
        there = np.isfinite(squares)
        errors[name] = np.where(there, squares, 0.0).sum(1) / np.maximum(there.sum(1), 1)
    best = min(errors, key=lambda name: float(errors[name].mean()))
    found, chosen = [], None
    for name, each in errors.items():
        more = each - errors[best]
        stderr = float(more.std(ddof=1) / np.sqrt(len(more))) if len(more) > 1 else 0.0
        if chosen is None and more.mean() <= stderr and (name == best or each.mean() < 1.0):
            chosen = name
        rank = float(measure(runs.L, predicted[name], how).spearman.mean())
        found.append(Choice(name, float(each.mean()), float(more.mean()), stderr, rank, chosen == name))
    assert chosen is not None
    return chosen, found, predicted[chosen], notes[chosen]
