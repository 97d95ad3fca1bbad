"""How good a law is on runs it has not seen: folds, measures, and the choice between laws."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioli.fits.named import candidates, create_law
from aioli.fits.table import Runs
from aioli.lmo.similarity import spearman
from aioli.simplex import Array

FOLDS, SMALL, STACK = 5, 20, 8
"""Folds by default; with up to so many mixtures each is a fold of its own; folds that are fitted together."""
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
        spread = float(y.var()) if there.any() else np.nan
        r2 = 1.0 - error / spread if spread > 0 else float(error <= 1e-24)
        columns.append((error, r2, spearman(y, z) if there.sum() > 1 else 0.0, int(there.sum())))
    table = np.array(columns)
    return Scores(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.int64), how)


def split(P: Array, folds: int | None, seed: int) -> tuple[NDArray[np.int64], str]:
    """The fold of each run; runs of one mixture stay together, so that none is predicted from its twin."""
    _, place = np.unique(P.round(9), axis=0, return_inverse=True)
    place = place.reshape(-1)
    distinct = int(place.max()) + 1
    if distinct < 2:
        raise ValueError("all runs have the same mixture, so there is nothing to learn from them")
    count = min(folds or (distinct if distinct <= SMALL else FOLDS), distinct)
    if count < 2:
        raise ValueError(f"--folds {folds} leaves nothing to test on; use at least 2")
    order = np.random.default_rng(seed).permutation(distinct)
    return order[place] % count, "leave-one-out" if count == distinct else f"{count}-fold"


def held_out(law: Any, runs: Runs, fold: NDArray[np.int64], step: Callable[[], None] = lambda: None) -> Array:
    """What the law says of each run when it is fitted without that run's fold, (runs, n)."""
    n, predicted = len(runs.targets), np.full(runs.L.shape, np.nan)
    count = int(fold.max()) + 1
    for first in range(0, count, STACK):
        some = list(range(first, min(first + STACK, count)))
        # all folds of all targets as one fit of many targets: the same losses, but others count
        weights = np.concatenate([runs.weights * (fold != k)[:, None] for k in some], axis=1)
        there = weights.any(0)  # a target with a single run cannot be predicted without it
        fitted = fit_anyhow(law, runs.P, np.tile(runs.L, len(some))[:, there], weights[:, there])
        table = np.full((len(runs.P), n * len(some)), np.nan)
        table[:, there] = fitted.predict(runs.P)
        for place, k in enumerate(some):
            predicted[fold == k] = table[fold == k, place * n : (place + 1) * n]
        step()
    return predicted


def fit_anyhow(law: Any, P: Array, L: Array, weights: Array, like: Any = None) -> Any:
    """Fit a copy of a law; where these runs do not determine it, with a little ridge."""
    try:
        return copy.copy(law).fit(P, L, weights, like)
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
) -> tuple[str, list[Choice], dict[str, Array]]:
    """The simplest law whose held-out error is within one standard error of the smallest, and how all did."""
    predicted: dict[str, Array] = {}
    for name in candidates():
        try:
            predicted[name] = held_out(create_law(name, ridge=ridge), runs, fold, step)
        except ValueError:  # too few runs for this law
            continue
    if not predicted:
        raise ValueError("no law can be fitted to these runs")
    spread = np.nanvar(runs.L, axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    errors = {name: np.nanmean((runs.L - table) ** 2 / scale, axis=1) for name, table in predicted.items()}
    best = min(errors, key=lambda name: float(errors[name].mean()))
    found, chosen = [], None
    for name, each in errors.items():
        more = each - errors[best]
        stderr = float(more.std(ddof=1) / np.sqrt(len(more))) if len(more) > 1 else 0.0
        if chosen is None and more.mean() <= stderr:
            chosen = name
        rank = float(measure(runs.L, predicted[name], how).spearman.mean())
        found.append(Choice(name, float(each.mean()), float(more.mean()), stderr, rank, chosen == name))
    assert chosen is not None
    return chosen, found, predicted
