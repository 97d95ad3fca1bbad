"""The fit of the log-linear law `L = c + exp(-A p)`, all targets at once.

For a given direction `u = P·alpha` the law is linear in (c, b): `L = c + b·exp(-u)`. So (c, b) are profiled out
(variable projection) and only alpha is searched, by Levenberg-Marquardt steps with an analytic Jacobian under a Huber
loss. The start comes from the one-dimensional family `log(L - c) = -A p`, which is linear for every fixed c; hence
no multi-start. On the simplex b and a constant shift of A are the same thing; the result has b = 1 (E22).
"""

from __future__ import annotations

import numpy as np

from aioli.simplex import Array

_OFFSETS = np.geomspace(1e-3, 1e3, 13)
"""Trial distances of c below the smallest loss, in units of the loss range; the last is as good as linear."""
_MAX_EXPONENT = 300.0


def fit_loglinear(P: Array, L: Array, huber: float | None, ridge: float, iterations: int = 200) -> tuple[Array, Array]:
    """Fit `L[:, i] = c_i + exp(-A_i · P)` for every column; return A (n, m) and c (n,).

    `huber` is the residual (in units of the loss) beyond which errors count linearly; None estimates it from the
    spread of the residuals (1.345 standard deviations). `ridge` penalises the spread of each A_i.
    """
    low, span = L.min(0), np.ptp(L, axis=0)
    m = P.shape[1]
    A = np.zeros((L.shape[1], m))
    c = low - 1.0  # a target that never changes: c + exp(-0·p), exactly its value
    moving = span > 0
    if moving.any():
        Y = ((L - low) / np.where(moving, span, 1.0)).T[moving]
        alpha = _start(P, Y)
        delta = np.full(len(Y), np.inf) if huber is None else huber / span[moving]
        alpha, level, scale, residual = _polish(P, Y, alpha, delta, ridge, iterations)
        for _ in range(5 if huber is None else 0):
            spread = 1.4826 * np.median(np.abs(residual), axis=1) * np.sqrt(len(P) / max(len(P) - m - 1, 1))
            settled = 1.345 * spread > 0.8 * delta  # outliers inflate the first spreads; stop when it shrinks no more
            delta = np.where(settled, delta, np.maximum(1.345 * spread, 1e-9))
            if settled.all():
                break
            alpha, level, scale, residual = _polish(P, Y, alpha, delta, ridge, iterations)
        c[moving] = low[moving] + span[moving] * level
        slopes = scale > 0  # not so where the mixtures explain nothing: the level alone is the fit
        c[moving] -= ~slopes
        A[moving] = np.where(slopes, 1.0, 0.0)[:, None] * alpha
        A[moving] -= np.log(np.where(slopes, scale * span[moving], 1.0))[:, None]
    return A, c


def _start(P: Array, Y: Array) -> Array:
    """For each target (row of Y, scaled to [0, 1]) the best direction over the trial offsets of c."""
    best = np.full(len(Y), np.inf)
    alpha = np.zeros((len(Y), P.shape[1]))
    damp = 1e-9 * np.eye(P.shape[1])
    for offset in _OFFSETS:
        shifted = Y + offset
        weight = shifted**2  # the error of log(L - c) is that of L divided by (L - c)
        gram = np.einsum("in,nj,nk->ijk", weight, P, P, optimize=True)
        gram += damp * np.trace(gram, axis1=1, axis2=2)[:, None, None]
        trial = np.linalg.solve(gram, -np.einsum("in,nj->ij", weight * np.log(shifted), P)[..., None])[..., 0]
        _, scale, _, residual = _profile(P, Y, trial, np.ones_like(Y))
        error = np.where(scale > 0, (residual**2).sum(1), np.inf)
        better = error < best
        best[better], alpha[better] = error[better], trial[better]
    return alpha


def _profile(P: Array, Y: Array, alpha: Array, weight: Array) -> tuple[Array, Array, Array, Array]:
    """Weighted least squares of each row of Y on [1, exp(-P alpha)]: level c, scale b, the exponential, residuals."""
    u = alpha @ P.T
    u -= u.mean(1, keepdims=True)
    e = np.exp(-np.clip(u, -_MAX_EXPONENT, _MAX_EXPONENT))
    total = weight.sum(1)
    e_mean = (weight * e).sum(1) / total
    y_mean = (weight * Y).sum(1) / total
    e_c, y_c = e - e_mean[:, None], Y - y_mean[:, None]
    variance = (weight * e_c**2).sum(1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.where(variance > 0, (weight * e_c * y_c).sum(1) / variance, 0.0)
    level = y_mean - scale * e_mean
    return level, scale, e, y_c - scale[:, None] * e_c


def _huber(residual: Array, delta: Array) -> Array:
    size = np.abs(residual)
    d = delta[:, None]
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(size <= d, 0.5 * size**2, d * (size - 0.5 * d)).sum(1))


def _polish(
    P: Array, Y: Array, alpha: Array, delta: Array, ridge: float, iterations: int
) -> tuple[Array, Array, Array, Array]:
    """Levenberg-Marquardt on alpha, with (c, b) projected out and Huber weights renewed every step."""
    m = P.shape[1]
    centre = np.eye(m) - 1.0 / m

    def weights(residual: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.minimum(1.0, delta[:, None] / np.maximum(np.abs(residual), 1e-300))

    def cost_of(alpha: Array, residual: Array) -> Array:
        return np.asarray(_huber(residual, delta) + 0.5 * ridge * ((alpha @ centre) ** 2).sum(1))

    weight = np.ones_like(Y)
    level, scale, e, residual = _profile(P, Y, alpha, weight)
    cost = cost_of(alpha, residual)
    damping = np.full(len(Y), 1e-3)
    active = np.ones(len(Y), dtype=bool)
    for _ in range(iterations):
        weight = weights(residual)
        root = np.sqrt(weight)
        J = (root * e * scale[:, None])[..., None] * P  # (n, N, m): derivative of -b·exp(-P alpha), row-weighted
        basis = np.stack([root, root * e], axis=2)
        q, _ = np.linalg.qr(basis)
        J -= q @ (np.swapaxes(q, 1, 2) @ J)
        gram = np.swapaxes(J, 1, 2) @ J + ridge * centre
        # residual = Y - fit and d fit / d alpha = -J, so the descent step solves (J'J) s = -J' r
        slope = np.einsum("inj,in->ij", J, root * residual) + ridge * (alpha @ centre)
        bump = damping[:, None] * np.maximum(
            np.einsum("ijj->ij", gram), 1e-12 * np.trace(gram, axis1=1, axis2=2)[:, None]
        )
        gram += (bump + 1e-300)[:, None, :] * np.eye(m)
        step = np.linalg.solve(gram, -slope[..., None])[..., 0]
        trial = alpha + step
        new_level, new_scale, new_e, new_residual = _profile(P, Y, trial, weight)
        with np.errstate(invalid="ignore", over="ignore"):
            new_cost = cost_of(trial, new_residual)
        good = active & (new_scale > 0) & (new_cost <= cost)
        gain = np.where(good, cost - new_cost, 0.0)
        for old, new in ((alpha, trial), (level, new_level), (scale, new_scale), (e, new_e), (residual, new_residual)):
            old[good] = new[good]
        small = gain <= 1e-13 * cost + 1e-30
        cost = np.where(good, new_cost, cost)
        active &= ~(good & small) & (damping < 1e12)
        damping = np.clip(np.where(good, damping * 0.2, damping * 5.0), 1e-12, 1e13)
        if not active.any():
            break
    shift = (alpha @ P.T).mean(1)  # _profile centred u; move its mean back into alpha (the rows of P sum to 1)
    return alpha - shift[:, None], level, scale, residual
