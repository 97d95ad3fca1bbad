"""The fit of the log-linear law `L = c + exp(-A p)`, all targets at once.

For a given direction `u = P·alpha` the law is linear in (c, b): `L = c + b·exp(-u)`. So (c, b) are profiled out
(variable projection) and only alpha is searched, by Levenberg-Marquardt steps with an analytic Jacobian under a Huber
loss. The start comes from the one-dimensional family `log(L - c) = -A p`, which is linear for every fixed c; hence
no multi-start. On the simplex b and a constant shift of A are the same thing; the result has b = 1 (E22).
"""

from __future__ import annotations

import numpy as np

from aioli.simplex import Array

Fit = tuple[Array, Array, Array]
"""alpha (n, m), level c (n,), scale b (n,) of every target."""

_OFFSETS = np.geomspace(1e-3, 1e3, 13)
"""Trial distances of c below the smallest loss, in units of the loss range; the last is as good as linear."""
_MAX_SCALE = 3e3
"""Largest b in units of the loss range. Beyond it the law is a straight line to four digits, and digits get lost."""
_MAX_CONTRAST = 50.0
"""Largest difference between two entries of A_i: no mixture changes a loss by more than e^50."""


def fit_loglinear(P: Array, L: Array, huber: float | None, ridge: float, iterations: int = 200) -> tuple[Array, Array]:
    """Fit `L[:, i] = c_i + exp(-A_i · P)` for every column; return A (n, m) and c (n,).

    `huber` is the residual (in units of the loss) beyond which errors count linearly; None estimates it from the
    spread of the residuals (1.345 standard deviations). `ridge` is the weight of one made-up run per group, on that
    group alone, that saw the average loss.
    """
    runs, m = P.shape
    fenced = _fenced(L)
    low, span = fenced.min(0), np.ptp(fenced, axis=0)
    A = np.zeros((L.shape[1], m))
    c = np.median(L, axis=0) - 1.0  # a target that never changes: c + exp(-0·p), exactly its value
    moving = span > 1e-12 * np.abs(L).max(0)
    if not moving.any():
        return A, c
    Y, inside = (((table - low) / np.where(moving, span, 1.0)).T[moving] for table in (L, fenced))
    base = np.ones(runs)
    if ridge > 0:
        average = np.repeat(inside.mean(1, keepdims=True), m, axis=1)
        Y, inside = (np.concatenate([table, average], axis=1) for table in (Y, inside))
        P, base = np.concatenate([P, np.eye(m)]), np.concatenate([base, np.full(m, ridge)])
    fit = _start(P, inside, base)
    if huber is None:
        fit, delta = _robust(P, Y, base, fit, runs)
    else:
        delta = huber / span[moving]
    alpha, level, scale = _polish(P, Y, base, fit, _per_row(delta, runs, len(P)), iterations)
    slopes = scale > 0  # not so where the mixtures explain nothing: the level alone is the fit
    found = alpha - np.log(np.where(slopes, scale * span[moving], 1.0))[:, None]
    A[moving] = np.where(slopes[:, None], found, 0.0)
    c[moving] = np.where(slopes, low[moving] + span[moving] * level, c[moving])
    return A, c


def _fenced(L: Array) -> Array:
    """Losses without outliers, for scale and start: cut off at three interquartile ranges beyond the quartiles."""
    first, third = np.quantile(L, (0.25, 0.75), axis=0)
    reach = 3.0 * (third - first)
    return np.where(reach > 0, np.clip(L, first - reach, third + reach), L)


def _spread(residual: Array, runs: int, m: int) -> Array:
    """Robust standard deviation of the residuals of the real runs."""
    return np.asarray(1.4826 * np.median(np.abs(residual[:, :runs]), axis=1) * np.sqrt(runs / max(runs - m - 1, 1)))


def _robust(P: Array, Y: Array, base: Array, fit: Fit, runs: int) -> tuple[Fit, Array]:
    """A start and a Huber threshold that outliers have not bent: short fits with ever smaller thresholds."""
    m = P.shape[1]
    spread = np.maximum(_spread(_residual(P, Y, fit), runs, m), 1e-9)
    for _ in range(8):
        before = spread
        fit = _polish(P, Y, base, fit, _per_row(0.5 * spread, runs, len(P)), 30)
        spread = np.clip(_spread(_residual(P, Y, fit), runs, m), 1e-9, before)
        if (spread > 0.9 * before).all():
            break
    return fit, 1.345 * spread


def _per_row(delta: Array, runs: int, rows: int) -> Array:
    """The Huber threshold of every row: made-up runs are no outliers."""
    return np.where(np.arange(rows) < runs, delta[:, None], np.inf)


def _start(P: Array, Y: Array, base: Array) -> Fit:
    """For each target (row of Y, scaled to [0, 1]) the best direction over the trial offsets of c."""
    best = np.full(len(Y), np.inf)
    alpha, level, scale = np.zeros((len(Y), P.shape[1])), np.median(Y, axis=1), np.zeros(len(Y))
    damp = 1e-9 * np.eye(P.shape[1])
    for offset in _OFFSETS:
        shifted = Y + offset
        weight = base * shifted**2  # the error of log(L - c) is that of L divided by (L - c)
        gram = np.einsum("in,nj,nk->ijk", weight, P, P, optimize=True)
        gram += damp * np.trace(gram, axis1=1, axis2=2)[:, None, None]
        trial = np.linalg.solve(gram, -np.einsum("in,nj->ij", weight * np.log(shifted), P)[..., None])[..., 0]
        trial *= np.minimum(1.0, 0.9 * _MAX_CONTRAST / np.maximum(np.ptp(trial, axis=1), 1e-300))[:, None]
        new_level, new_scale, _, residual = _profile(P, Y, trial, np.broadcast_to(base, Y.shape))
        allowed = (new_scale > 0) & (new_scale <= _MAX_SCALE)
        error = np.where(allowed, (base * np.abs(residual)).sum(1), np.inf)  # absolute: one outlier must not decide
        better = error < best
        for old, new in ((best, error), (alpha, trial), (level, new_level), (scale, new_scale)):
            old[better] = new[better]
    return _centred(P, alpha), level, scale


def _centred(P: Array, alpha: Array) -> Array:
    """alpha with a mean of P·alpha of 0, which is what `_profile` takes its exponential of (the rows of P sum to 1)."""
    return np.asarray(alpha - (alpha @ P.T).mean(1, keepdims=True))


def _residual(P: Array, Y: Array, fit: Fit) -> Array:
    alpha, level, scale = fit
    return Y - level[:, None] - scale[:, None] * np.exp(-(alpha @ P.T))


def _profile(P: Array, Y: Array, alpha: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
    """Weighted least squares of each row of Y on [1, exp(-P alpha)]: level c, scale b, the exponential, residuals."""
    u = alpha @ P.T
    u -= u.mean(1, keepdims=True)
    e = np.exp(-u)
    total = weight.sum(1)
    e_mean = (weight * e).sum(1) / total
    y_mean = (weight * Y).sum(1) / total
    e_c, y_c = e - e_mean[:, None], Y - y_mean[:, None]
    variance = (weight * e_c**2).sum(1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.where(variance > 0, (weight * e_c * y_c).sum(1) / variance, 0.0)
    level = y_mean - scale * e_mean
    return level, scale, e, y_c - scale[:, None] * e_c


def _huber(residual: Array, base: Array, delta: Array) -> Array:
    size = np.abs(residual)
    with np.errstate(invalid="ignore"):
        return np.asarray((base * np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta))).sum(1))


def _polish(P: Array, Y: Array, base: Array, fit: Fit, delta: Array, iterations: int) -> Fit:
    """Levenberg-Marquardt on alpha, with (c, b) projected out and Huber weights renewed every step."""
    alpha, level, scale = (part.copy() for part in fit)
    e, residual = np.exp(-(alpha @ P.T)), _residual(P, Y, fit)
    cost = _huber(residual, base, delta)
    damping = np.full(len(Y), 1e-3)
    active = np.ones(len(Y), dtype=bool)
    for _ in range(iterations):
        weight = base * np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300))
        trial = _centred(P, alpha + _step(P, e, scale, weight, residual, damping))
        new_level, new_scale, new_e, new_residual = _profile(P, Y, trial, weight)
        with np.errstate(invalid="ignore", over="ignore"):
            new_cost = _huber(new_residual, base, delta)
        allowed = (new_scale > 0) & (new_scale <= _MAX_SCALE) & (np.ptp(trial, axis=1) <= _MAX_CONTRAST)
        good = active & allowed & (new_cost <= cost)
        small = cost - new_cost <= 1e-13 * cost + 1e-30
        news = (trial, new_level, new_scale, new_e, new_residual, new_cost)
        for old, new in zip((alpha, level, scale, e, residual, cost), news, strict=True):
            old[good] = new[good]
        active &= ~(good & small) & (damping < 1e12)
        damping = np.clip(np.where(good, damping * 0.2, damping * 5.0), 1e-12, 1e13)
        if not active.any():
            break
    return alpha, level, scale


def _step(P: Array, e: Array, scale: Array, weight: Array, residual: Array, damping: Array) -> Array:
    """The damped Gauss-Newton step of every target, in the space that (c, b) cannot explain (Kaufman's Jacobian)."""
    m = P.shape[1]
    root = np.sqrt(weight)
    J = (root * e * scale[:, None])[..., None] * P  # (n, runs, m): minus the derivative of b·exp(-P alpha), weighted
    q, _ = np.linalg.qr(np.stack([root, root * e], axis=2))
    J -= q @ (np.swapaxes(q, 1, 2) @ J)
    gram = np.swapaxes(J, 1, 2) @ J
    slope = np.einsum("inj,in->ij", J, root * residual)
    bump = np.maximum(np.einsum("ijj->ij", gram), 1e-12 * np.trace(gram, axis1=1, axis2=2)[:, None])
    gram += (damping[:, None] * bump + 1e-300)[:, None, :] * np.eye(m)
    step = np.linalg.solve(gram, -slope[..., None])[..., 0]
    return np.asarray(step * np.minimum(1.0, _MAX_CONTRAST / np.maximum(np.ptp(step, axis=1), 1e-300))[:, None])
