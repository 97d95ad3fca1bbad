"""Tables of runs as laws take them: mixtures P (runs, m), losses L (runs, n), and how much each counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from aioli.simplex import Array, Places

ROUNDING = 0.006
"""How far from 1 the rows of a table of runs may sum: published tables are rounded; they are renormalised."""


def as_design(P: ArrayLike) -> Array:
    """Check a table of mixtures: one finite mixture per row."""
    design = np.array(P, dtype=np.float64)
    if design.ndim != 2 or 0 in design.shape:
        raise ValueError(f"mixtures must be a table of shape (runs, groups), got shape {design.shape}")
    bad = ~np.isfinite(design).all(1) | (design < 0).any(1) | (np.abs(design.sum(1) - 1.0) > ROUNDING)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"the mixture in row {row}, {design[row].tolist()}, sums to {design[row].sum():g}; shares must be finite, "
            "not negative, and sum to 1 (percent: divide by 100)"
        )
    return np.asarray(design / design.sum(1, keepdims=True))


def as_losses(L: ArrayLike, runs: int, name: str = "losses") -> Array:
    """Check a table of losses: finite, one row per mixture; a vector is one target."""
    table = _as_table(L, runs, name)
    if not np.isfinite(table).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(table))[0])
        raise ValueError(f"{name}[{row}, {column}]={table[row, column]} is not finite; drop that run or that target")
    return table


def as_counted(L: ArrayLike, runs: int, weights: ArrayLike | None) -> tuple[Array, Array]:
    """Losses (runs, n) and how much each counts (runs, n); a loss that does not count may be missing."""
    if weights is None:
        losses = as_losses(L, runs)
        return losses, np.ones_like(losses)
    table, w = _as_table(L, runs, "losses"), np.array(weights, dtype=np.float64)
    if w.shape == (runs,):
        w = np.repeat(w[:, None], table.shape[1], axis=1)
    if w.shape != table.shape or not np.isfinite(w).all() or (w < 0).any():
        raise ValueError(
            f"weights have shape {w.shape}; give one finite weight that is not negative for each of {runs} runs, or "
            f"for each loss {table.shape}"
        )
    if not (w > 0).any(0).all():
        raise ValueError(f"no run counts for target {int(np.argmin((w > 0).any(0)))}; give at least one a weight")
    as_losses(np.where(w > 0, table, 0.0), runs)
    typical = np.array([np.median(column[counted > 0]) for column, counted in zip(table.T, w.T, strict=True)])
    return np.where(w > 0, table, typical), w


def _as_table(L: ArrayLike, runs: int, name: str) -> Array:
    table = np.array(L, dtype=np.float64)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or len(table) != runs:
        raise ValueError(f"{name} have shape {table.shape} but there are {runs} mixtures; give one row per mixture")
    return table


def patterns(weights: Array) -> list[tuple[Array, Places]]:
    """The distinct columns of a table of weights, each with the targets that have it."""
    if (weights == weights[:, :1]).all():
        return [(weights[:, 0], np.arange(weights.shape[1]))]
    distinct, place = np.unique(weights.T, axis=0, return_inverse=True)
    return [(column, np.flatnonzero(place.reshape(-1) == k)) for k, column in enumerate(distinct)]


def check_rank(P: Array) -> None:
    """Refuse a design from which the law's parameters cannot be told apart, and say why."""
    m = P.shape[1]
    squares = np.linalg.eigvalsh(P.T @ P)
    if squares[0] > 1e-10 * squares[-1]:
        return  # without doubt
    _, singular, directions = np.linalg.svd(P, full_matrices=len(P) < m)
    rank = int((singular > 1e-10 * singular[0]).sum())
    if rank == m:
        return
    distinct = len(np.unique(P.round(12), axis=0))
    unused = np.flatnonzero(P.max(0) == 0)
    if distinct < m:
        cause = f"there are {distinct} distinct mixtures for {m} groups, and at least {m} are needed"
    elif unused.size:
        cause = f"group {unused[0]} is 0 in every mixture, so its effect was never seen"
    else:
        tied = np.flatnonzero(np.abs(directions[-1]) > 1e-6)
        cause = f"the shares of groups {', '.join(map(str, tied))} are tied to each other in every mixture"
    raise ValueError(f"the mixtures do not determine the law (rank {rank} of {m}): {cause}; add runs or set ridge > 0")


def least_squares(P: Array, Y: Array, ridge: float = 0.0, weights: Array | None = None) -> Array:
    """Exact least squares of `P a = y` for every column of Y, as (n, m).

    `ridge` is the weight of one made-up run per group, on that group alone, that saw the average.
    """
    m = P.shape[1]
    found = np.empty((Y.shape[1], m))
    for w, columns in patterns(np.ones_like(Y) if weights is None else weights):
        rows = np.flatnonzero(w > 0)
        if ridge == 0.0:
            check_rank(P[rows])
        root, y = np.sqrt(w[rows])[:, None], Y[np.ix_(rows, columns)]
        average = (w[rows] @ y / w[rows].sum())[None]
        left = np.concatenate([root * P[rows], np.sqrt(ridge) * np.eye(m)])
        right = np.concatenate([root * y, np.sqrt(ridge) * np.repeat(average, m, axis=0)])
        found[columns] = np.linalg.lstsq(left, right, rcond=None)[0].T
    return found


def scores(L: Array, predicted: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Mean squared error and R² per target; a target that never changes has R² 1 if it is met and 0 otherwise."""
    w = np.ones_like(L) if weights is None else weights
    w = w / w.sum(0)
    error = (w * (L - predicted) ** 2).sum(0)
    spread = (w * (L - (w * L).sum(0)) ** 2).sum(0)
    size = (w * L**2).sum(0)
    r2 = np.where(error <= 1e-24 * np.maximum(1.0, size), 1.0, 0.0)
    moving = spread > 1e-30 * size
    r2[moving] = 1.0 - error[moving] / spread[moving]
    return error, r2
