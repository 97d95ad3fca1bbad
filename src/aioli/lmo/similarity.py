"""How close a method's parameters are to the true ones (Section 4.3, E24)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from aioli.simplex import Array


def column_sums(A: ArrayLike) -> Array:
    """The pull of each group, 1ᵀA; a vector is taken as already summed."""
    a = np.asarray(A, dtype=np.float64)
    return a.sum(0) if a.ndim == 2 else a


def _cosine(a: Array, b: Array) -> float:
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length > 0 else 0.0


def _ranks(values: ArrayLike) -> Array:
    """Centred ranks, ties sharing their mean rank."""
    _, place, count = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2.0)[place]
    return np.asarray(rank - rank.mean())


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation; 0 where one side is constant instead of NaN."""
    return _cosine(_ranks(a), _ranks(b))


def similarity(A: ArrayLike, A_star: ArrayLike) -> float:
    """sim(A, A*) = ½·cosine + ½·Spearman of the column sums, between -1 and 1."""
    a, star = column_sums(A), column_sums(A_star)
    if a.shape != star.shape:
        raise ValueError(f"cannot compare pulls on {a.size} groups with pulls on {star.size}")
    if not (np.isfinite(a).all() and np.isfinite(star).all()):
        raise ValueError("cannot compare parameters that are not finite")
    # scaled first, so that parameters of 1e-200 or 1e200 still have a direction
    top, top_star = np.abs(a).max(initial=0.0) or 1.0, np.abs(star).max(initial=0.0) or 1.0
    return 0.5 * _cosine(a / top, star / top_star) + 0.5 * spearman(a, star)


def scale(A: ArrayLike, P: ArrayLike, drop: ArrayLike) -> float:
    """b^t (E25): the one number that fits `drop = b·A p` over all groups and runs by least squares."""
    predicted = np.asarray(P, dtype=np.float64) @ np.asarray(A, dtype=np.float64).T
    power = float((predicted**2).sum())
    return float((predicted * np.asarray(drop, dtype=np.float64)).sum()) / power if power > 0 else 0.0
