"""The probability simplex: where mixtures live.

Comes in: numbers of groups, weights, caps. Goes out: mixtures (float64 arrays that sum to 1), sets of mixtures
to sweep, and exact splits of whole steps. Everything here is pure; nothing knows about training.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Places = NDArray[np.intp]
"""Indices."""

SUM_TOLERANCE = 1e-6
"""How far from 1 a user's proportions may sum before they are refused rather than renormalised."""


def uniform(m: int) -> Array:
    """The stratified mixture: 1/m of each of the m groups."""
    check_groups(m)
    return np.full(m, 1.0 / m)


def check_groups(m: int) -> None:
    """Refuse a number of groups that cannot be mixed."""
    if not isinstance(m, (int, np.integer)) or m < 1:
        raise ValueError(f"m={m} groups cannot be mixed; there must be at least one group")


def whole(value: Any, name: str) -> int:
    """A whole number as an int; 10.5 and "10" are refused by name."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r} must be a whole number") from None


def as_mixture(p: ArrayLike, m: int | None = None, name: str = "proportions") -> Array:
    """Check that `p` is a mixture (finite, not negative, sums to 1) and return it as a float64 array that sums to 1."""
    try:
        q = np.array(p, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={p!r} must be numbers, one per group") from None
    if q.ndim != 1:
        raise ValueError(f"{name} must be a vector with one entry per group, got shape {q.shape}")
    check_groups(q.size)
    if m is not None and q.size != m:
        raise ValueError(f"{name} has {q.size} entries but there are {m} groups")
    total = float(q.sum())
    low = q.min()
    if not np.isfinite(total) or low < 0.0:
        j = int(np.flatnonzero(~np.isfinite(q) | (q < 0))[0])
        raise ValueError(f"{name}[{j}]={q[j]} is not a share; entries must be finite and at least 0")
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise ValueError(f"{name} sum to {total:.10g}, not 1; divide them by their sum")
    # not again and again: what was written out and read back must stay the same to the last bit
    return q if abs(total - 1.0) <= 1e-15 * max(q.size, 4) else q / total


def smoothed_one_hot(m: int, eps: float, around: ArrayLike | None = None) -> Array:
    """The sweep mixtures `p^{t,i} = (1-eps)·1_i + eps·around`, one per row (Alg. 2, line 4).

    `around` defaults to uniform, as in the paper; the current mixture is the option of E32.
    """
    check_groups(m)
    if not 0.0 <= eps < 1.0:
        raise ValueError(f"eps={eps} makes the sweep mixtures identical or negative (P is singular); use 0 <= eps < 1")
    centre = uniform(m) if around is None else as_mixture(around, m, "around")
    return (1.0 - eps) * np.eye(m) + eps * centre


def pair_grid() -> Array:
    """The sweep of the paper for two groups: [0.1, 0.9] … [0.9, 0.1]."""
    first = np.arange(1, 10) / 10.0
    return np.stack([first, 1.0 - first], axis=1)


def dirichlet_cover(m: int, n: int, alpha: float, seed: int, oversample: int = 16) -> Array:
    """`n` well-spread mixtures of `m` groups (E26).

    `oversample·n` Dirichlet(alpha) draws from `RandomState(seed)`; then the closest two points are replaced by
    their midpoint, which goes to the end of the list, until n remain. This is the order of the published point sets.
    """
    check_groups(m)
    if n < 1 or oversample < 1 or not alpha > 0:
        raise ValueError(
            f"need n >= 1, oversample >= 1 and alpha > 0; got n={n}, oversample={oversample}, alpha={alpha}"
        )
    draws = np.random.RandomState(seed).dirichlet([alpha] * m, n * oversample)
    merges = len(draws) - n
    points = np.concatenate([draws, np.zeros((merges, m))])
    alive = np.zeros(len(points), dtype=bool)
    alive[: len(draws)] = True
    nearest = np.full(len(points), np.inf)  # distance to the nearest living point further down the list
    partner = np.zeros(len(points), dtype=np.intp)

    def look_down(i: int, end: int) -> None:
        gap = np.sqrt(((points[i + 1 : end] - points[i]) ** 2).sum(1))
        gap[~alive[i + 1 : end]] = np.inf
        if gap.size:
            partner[i] = i + 1 + int(np.argmin(gap))
            nearest[i] = gap[partner[i] - i - 1]

    for i in range(len(draws)):
        look_down(i, len(draws))
    for new in range(len(draws), len(points)):
        i = int(np.argmin(nearest))
        j = int(partner[i])
        points[new] = (points[i] + points[j]) / 2
        alive[[i, j]] = False
        nearest[[i, j]] = np.inf
        for k in np.flatnonzero(alive[:new] & np.isin(partner[:new], (i, j)) & np.isfinite(nearest[:new])):
            nearest[k] = np.inf
            look_down(int(k), new)
        gap = np.sqrt(((points[:new] - points[new]) ** 2).sum(1))
        closer = alive[:new] & (gap < nearest[:new])
        nearest[:new][closer] = gap[closer]
        partner[:new][closer] = new
        alive[new] = True
    return points[alive]


def split_evenly(total: int, parts: int) -> list[int]:
    """`total` steps in `parts` pieces that differ by at most one and add up exactly (E9)."""
    if parts < 1 or total < 0:
        raise ValueError(f"cannot split {total} steps into {parts} parts")
    edges = [i * total // parts for i in range(parts + 1)]
    return [b - a for a, b in itertools.pairwise(edges)]


def apportion(total: int, shares: ArrayLike) -> NDArray[np.int64]:
    """Whole numbers that add up to `total` and follow `shares` (largest remainder)."""
    exact = as_mixture(shares, name="shares") * total
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def box(m: int, floors: ArrayLike | None = None, caps: ArrayLike | None = None) -> tuple[Array, Array]:
    """Per-group lower and upper bounds, checked so that at least one mixture satisfies them."""
    check_groups(m)
    low = np.zeros(m) if floors is None else _bounds(floors, m, "floors")
    high = np.ones(m) if caps is None else _bounds(caps, m, "caps")
    for j in range(m):
        if low[j] > high[j]:
            raise ValueError(f"group {j} has floor {low[j]:g} above its cap {high[j]:g}")
    if high.sum() < 1.0 - 1e-12:
        raise ValueError(f"caps sum to {high.sum():g} < 1, so no mixture satisfies them; raise a cap")
    if low.sum() > 1.0 + 1e-12:
        raise ValueError(f"floors sum to {low.sum():g} > 1, so no mixture satisfies them; lower a floor")
    return low, high


def _bounds(values: ArrayLike, m: int, name: str) -> Array:
    v = np.array(values, dtype=np.float64)
    if v.shape != (m,):
        raise ValueError(f"{name} must have one entry for each of the {m} groups, got shape {v.shape}")
    if not np.isfinite(v).all() or (v < 0).any() or (v > 1).any():
        raise ValueError(f"{name}={v.tolist()} must be shares between 0 and 1 (percent: divide by 100)")
    return v


def project(logits: Array, low: Array, high: Array) -> Array:
    """Bregman (KL) projection of `exp(logits)` onto the capped simplex, returned as logits.

    The minimiser of KL(p ‖ softmax(logits)) has the form `clip(logits + v, log low, log high)` for one number v,
    found exactly between two breakpoints, in logarithms throughout so that no group is lost to underflow.
    """
    with np.errstate(divide="ignore"):
        log_low, log_high = np.log(low), np.log(high)

    def clipped(shift: float) -> Array:
        return np.clip(logits + shift, log_low, log_high)

    breaks = np.concatenate([log_low - logits, log_high - logits])
    breaks = np.unique(breaks[np.isfinite(breaks)])
    below, above = -1, len(breaks)  # sum(p) at breaks[below] <= 1 <= sum(p) at breaks[above]
    while above - below > 1:
        middle = (below + above) // 2
        if np.exp(clipped(float(breaks[middle]))).sum() <= 1.0:
            below = middle
        else:
            above = middle
    if below >= 0 and above < len(breaks):
        inside = (breaks[below] + breaks[above]) / 2
    elif below >= 0:
        inside = breaks[below] + 1.0
    else:
        inside = breaks[0] - 1.0
    at = logits + inside
    free = (at > log_low) & (at < log_high)
    if not free.any():
        return clipped(float(inside))
    fixed = low[at <= log_low].sum() + high[at >= log_high].sum()
    top = logits[free].max()
    mass = max(1.0 - float(fixed), np.finfo(float).tiny)
    shift = np.log(mass) - top - np.log(np.exp(logits[free] - top).sum())
    return np.where(free, logits + shift, clipped(float(inside)))


def within(p: Array, low: Array, high: Array) -> Array:
    """The mixture within bounds that is closest to p (Bregman projection)."""
    with np.errstate(divide="ignore"):
        return softmax(project(np.maximum(np.log(p), -1e4), low, high))


def softmax(logits: Array) -> Array:
    """exp(logits) on the simplex, without overflow."""
    p = np.exp(logits - logits.max())
    return np.asarray(p / p.sum())


def cheapest(cost: Array, low: Array, high: Array) -> Array:
    """The mixture within bounds that minimises `cost · p`: fill the cheapest group first."""
    p = low.copy()
    left = 1.0 - float(p.sum())
    for j in np.argsort(cost, kind="stable"):
        take = min(high[j] - low[j], left)
        p[j] += take
        left -= take
        if left <= 0:
            break
    return p


def as_weights(weights: ArrayLike | None, n: int, names: Sequence[str] | None = None) -> Array:
    """How much each of the n targets counts, scaled to mean 1 so that the default is the paper's plain sum."""
    if weights is None:
        return np.ones(n)
    w = np.array(weights, dtype=np.float64)
    if w.shape != (n,):
        raise ValueError(f"target_weights must have one entry for each of the {n} targets, got shape {w.shape}")
    if not np.isfinite(w).all() or (w < 0).any() or not w.sum() > 0:
        label = f" for {list(names)}" if names else ""
        raise ValueError(f"target_weights={w.tolist()}{label} must be finite, not negative, and not all zero")
    return np.asarray(w * (n / w.sum()))
