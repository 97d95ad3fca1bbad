"""The fit of the log-linear law `L = c + exp(-A p)`, all targets at once.

For a given direction `u = P·alpha` the law is linear in (c, b): `L = c + b·exp(-u)`. So (c, b) are profiled out
(variable projection) and only alpha is searched, by Levenberg-Marquardt steps with an analytic Jacobian under a Huber
loss. The start comes from the one-dimensional family `log(L - c) = -A p`, which is linear for every fixed c; hence
no multi-start. On the simplex b and a constant shift of A are the same thing; the result has b = 1 (E22).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from aioli.simplex import Array, Places

Fit = tuple[Array, Array, Array]
"""alpha (n, m), level c (n,), scale b (n,) of every target."""

_OFFSETS = np.geomspace(1e-3, 1e3, 13)
"""Trial distances of c below the smallest loss, in units of the loss range; the last is as good as linear."""
_MAX_SCALE = 3e3
"""Largest b in units of the loss range. Beyond it the law is a straight line to four digits, and digits get lost."""
_MAX_CONTRAST, _MAX_HELP, _MAX_HARM = 50.0, 1e3, 1e2
"""Largest change of alpha in one step; and how far an entry may lie above and below the mean mixture's: a trace of a
group may be all that a target needs, but no mixture makes a loss larger by more than e^100."""
_WIDE = 80
"""With more groups than this the products of all pairs of shares take too much memory to be kept."""


def fit_loglinear(
    P: Array,
    L: Array,
    huber: float | None,
    ridge: float,
    weights: Array,
    start: tuple[Array, Array, Array] | None = None,
    iterations: int = 200,
) -> tuple[Array, Array, Array]:
    """Fit `L[:, i] = c_i + exp(-A_i · P)` for every column; return A (n, m), c (n,) and the Huber thresholds (n,).

    `huber` is the residual (in units of the loss) beyond which errors count linearly; None estimates it from the
    spread of the residuals (1.345 standard deviations). `ridge` is the weight of one made-up run per group, on that
    group alone, that saw the average loss. `weights` (runs, n) is how much each loss counts. `start` is what a fit to
    much the same runs has returned.
    """
    runs, m = P.shape
    fenced = _fenced(L, weights)
    seen = weights > 0
    low = np.where(seen, fenced, np.inf).min(0)
    span = np.where(seen, fenced, -np.inf).max(0) - low
    A = np.zeros((L.shape[1], m))
    c = _median(L, weights) - 1.0  # a target that never changes: c + exp(-0·p), exactly its value
    thresholds = np.ones(L.shape[1])
    moving = span > 1e-12 * np.abs(np.where(seen, L, 0.0)).max(0)
    if not moving.any():
        return A, c, thresholds
    size = span[moving]
    Y, inside = (((table - low) / np.where(moving, span, 1.0)).T[moving] for table in (L, fenced))
    base = np.ascontiguousarray(weights.T[moving])
    if ridge > 0:
        average = ((base * inside).sum(1) / base.sum(1))[:, None].repeat(m, axis=1)
        Y, inside = (np.concatenate([table, average], axis=1) for table in (Y, inside))
        P, base = np.concatenate([P, np.eye(m)]), np.concatenate([base, np.full((len(Y), m), ridge)], axis=1)
    data = _Data(P, Y, base, runs)
    if start is None:
        fit = _start(data, inside)
        fit, delta = _robust(data, fit)
    else:
        fit, delta = _resumed(data, start, low, span, moving)
    if huber is not None:
        delta = huber / size
    alpha, level, scale = _polish(data, fit, data.per_row(delta), iterations)
    slopes = scale > 0  # not so where the mixtures explain nothing: the level alone is the fit
    found = alpha - np.log(np.where(slopes, scale * size, 1.0))[:, None]
    A[moving] = np.where(slopes[:, None], found, 0.0)
    c[moving] = np.where(slopes, low[moving] + size * level, c[moving])
    thresholds[moving] = delta * size
    return A, c, thresholds


@dataclass(frozen=True)
class _Data:
    """Mixtures (rows, m), scaled losses (n, rows) and how much they count (n, rows); made-up runs come last."""

    P: Array
    Y: Array
    base: Array
    runs: int

    @cached_property
    def centred(self) -> Array:
        """P without its mean, which is as good (a constant shift of alpha changes nothing) and keeps more digits."""
        return np.asarray(self.P - self.P[: self.runs].mean(0))

    @cached_property
    def pairs(self) -> tuple[Array, tuple[Places, Places]]:
        """Products of all pairs of columns, so that all Gram matrices are one matrix product."""
        upper = np.triu_indices(self.P.shape[1])
        return self.centred[:, upper[0]] * self.centred[:, upper[1]], upper

    def grams(self, weight: Array) -> Array:
        """P' diag(weight_i) P of every target, (n, m, m)."""
        m = self.P.shape[1]
        if m > _WIDE:
            return np.asarray((self.centred.T * weight[:, None]) @ self.centred)
        products, (row, column) = self.pairs
        found = np.empty((len(weight), m, m))
        found[:, row, column] = found[:, column, row] = weight @ products
        return found

    def per_row(self, delta: Array) -> Array:
        """The Huber threshold of every row: made-up runs are no outliers."""
        return np.where(np.arange(len(self.P)) < self.runs, delta[:, None], np.inf)

    def part(self, chosen: Places) -> _Data:
        """The same mixtures for some of the targets."""
        found = _Data(self.P, self.Y[chosen], self.base[chosen], self.runs)
        found.__dict__.update({name: vars(self)[name] for name in ("centred", "pairs") if name in vars(self)})
        return found


def _median(L: Array, weights: Array) -> Array:
    return np.array([np.median(column[w > 0]) for column, w in zip(L.T, weights.T, strict=True)])


def _fenced(L: Array, weights: Array) -> Array:
    """Losses without outliers, for scale and start: cut off at three interquartile ranges beyond the quartiles."""
    quartiles = [np.quantile(column[w > 0], (0.25, 0.75)) for column, w in zip(L.T, weights.T, strict=True)]
    first, third = np.array(quartiles).T
    reach = 3.0 * (third - first)
    return np.where(reach > 0, np.clip(L, first - reach, third + reach), L)


def _spread(data: _Data, residual: Array) -> Array:
    """Robust standard deviation of the residuals of the real runs."""
    found = np.empty(len(residual))
    for i, (row, base) in enumerate(zip(residual[:, : data.runs], data.base[:, : data.runs], strict=True)):
        there = np.abs(row[base > 0])
        found[i] = np.median(there) * np.sqrt(there.size / max(there.size - data.P.shape[1] - 1, 1))
    return 1.4826 * found


def _robust(data: _Data, fit: Fit) -> tuple[Fit, Array]:
    """A start and a Huber threshold that outliers have not bent: short fits with ever smaller thresholds."""
    spread = np.maximum(_spread(data, _residual(data, fit)), 1e-9)
    for _ in range(8):
        before = spread
        fit = _polish(data, fit, data.per_row(0.5 * spread), 30)
        spread = np.clip(_spread(data, _residual(data, fit)), 1e-9, before)
        if (spread > 0.9 * before).all():
            break
    return fit, 1.345 * spread


def _resumed(
    data: _Data, start: tuple[Array, Array, Array], low: Array, span: Array, moving: Array
) -> tuple[Fit, Array]:
    """Where another fit has ended, in this one's units."""
    A, c, thresholds = (each[moving] for each in start)
    shift = (A @ data.P.T).mean(1)
    size = span[moving]
    return (A - shift[:, None], (c - low[moving]) / size, np.exp(-shift) / size), thresholds / size


def _start(data: _Data, Y: Array) -> Fit:
    """For each target (row of Y, scaled to [0, 1]) the best direction over the trial offsets of c."""
    best = np.full(len(Y), np.inf)
    P, base = data.P, data.base
    alpha, level, scale = np.zeros((len(Y), P.shape[1])), np.median(Y, axis=1), np.zeros(len(Y))
    damp = 1e-9 * np.eye(P.shape[1])
    for offset in _OFFSETS:
        shifted = np.maximum(Y, 0.0) + offset
        weight = base * shifted**2  # the error of log(L - c) is that of L divided by (L - c)
        total = weight.sum(1, keepdims=True)
        log = np.log(shifted)
        centre, log_mean = (weight @ data.centred) / total, (weight * log).sum(1, keepdims=True) / total
        gram = data.grams(weight) - total[..., None] * centre[:, :, None] * centre[:, None, :]
        gram += damp * np.trace(gram, axis1=1, axis2=2)[:, None, None]
        trial = np.linalg.solve(gram, -((weight * (log - log_mean)) @ data.centred)[..., None])[..., 0]
        trial *= np.minimum(1.0, 0.9 * _MAX_CONTRAST / np.maximum(np.ptp(trial, axis=1), 1e-300))[:, None]
        new_level, new_scale, _, residual = _profile(data, trial, base, Y)
        allowed = (new_scale > 0) & (new_scale <= _MAX_SCALE)
        error = np.where(allowed, (base * np.abs(residual)).sum(1), np.inf)  # absolute: one outlier must not decide
        better = error < best
        for old, new in ((best, error), (alpha, trial), (level, new_level), (scale, new_scale)):
            old[better] = new[better]
    return _centred(P, alpha), level, scale


def _centred(P: Array, alpha: Array) -> Array:
    """alpha with a mean of P·alpha of 0, which is what `_profile` takes its exponential of (the rows of P sum to 1)."""
    return np.asarray(alpha - (alpha @ P.mean(0))[:, None])


def _residual(data: _Data, fit: Fit) -> Array:
    alpha, level, scale = fit
    return np.asarray(data.Y - level[:, None] - scale[:, None] * np.exp(-(alpha @ data.P.T)))


def _profile(data: _Data, alpha: Array, weight: Array, Y: Array) -> tuple[Array, Array, Array, Array]:
    """Weighted least squares of each row of Y on [1, exp(-P alpha)]: level c, scale b, the exponential, residuals."""
    u = alpha @ data.P.T
    e = np.exp(-(u - u.mean(1, keepdims=True)))
    total = weight.sum(1)
    e_mean = np.einsum("in,in->i", weight, e) / total
    y_mean = np.einsum("in,in->i", weight, Y) / total
    e_c, y_c = e - e_mean[:, None], Y - y_mean[:, None]
    weighted = weight * e_c
    variance = np.einsum("in,in->i", weighted, e_c)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.where(variance > 0, np.einsum("in,in->i", weighted, y_c) / variance, 0.0)
    level = y_mean - scale * e_mean
    return level, scale, e, y_c - scale[:, None] * e_c


def _huber(residual: Array, base: Array, delta: Array) -> Array:
    inside = np.minimum(np.abs(residual), delta)  # r²/2 up to delta, straight on from there
    return np.asarray(np.einsum("in,in,in->i", base, inside, np.abs(residual) - 0.5 * inside))


def _polish(data: _Data, fit: Fit, delta: Array, iterations: int) -> Fit:
    """Levenberg-Marquardt on alpha, with (c, b) projected out and Huber weights renewed every step."""
    result: Fit = (fit[0].copy(), fit[1].copy(), fit[2].copy())
    left = np.arange(len(data.Y))
    alpha, level, scale = fit
    e, residual = np.exp(-(alpha @ data.P.T)), _residual(data, fit)
    cost = _huber(residual, data.base, delta)
    damping = np.full(len(left), 1e-3)
    for _ in range(iterations):
        weight = data.base * np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300))
        trial = _centred(data.P, alpha + _step(data, e, scale, weight, residual, damping))
        new_level, new_scale, new_e, new_residual = _profile(data, trial, weight, data.Y)
        with np.errstate(invalid="ignore", over="ignore"):
            new_cost = _huber(new_residual, data.base, delta)
        allowed = (
            (new_scale > 0) & (new_scale <= _MAX_SCALE) & (trial.max(1) <= _MAX_HELP) & (trial.min(1) >= -_MAX_HARM)
        )
        good = allowed & (new_cost <= cost)
        small = cost - new_cost <= 1e-10 * cost + 1e-30
        alpha, e, residual = (
            np.where(good[:, None], new, old) for new, old in ((trial, alpha), (new_e, e), (new_residual, residual))
        )
        level, scale = np.where(good, new_level, level), np.where(good, new_scale, scale)
        cost = np.where(good, new_cost, cost)
        going = ~(good & small) & (damping < 1e12)
        damping = np.clip(np.where(good, damping * 0.2, damping * 5.0), 1e-12, 1e13)
        for whole, part in zip(result, (alpha, level, scale), strict=True):
            whole[left] = part
        if not going.any():
            break
        if not going.all():  # the others have arrived
            left, data = left[going], data.part(np.flatnonzero(going))
            alpha, e, residual, delta = alpha[going], e[going], residual[going], delta[going]
            level, scale, cost, damping = level[going], scale[going], cost[going], damping[going]
    return result


def _step(data: _Data, e: Array, scale: Array, weight: Array, residual: Array, damping: Array) -> Array:
    """The damped Gauss-Newton step of every target, in the space that (c, b) cannot explain (Kaufman's Jacobian)."""
    P = data.centred
    root = np.sqrt(weight)
    steep = root * e * scale[:, None]  # minus the derivative of b·exp(-P alpha) is steep·P, weighted
    level = root / np.sqrt(weight.sum(1, keepdims=True))
    bend = root * e
    bend = bend - np.einsum("in,in->i", level, bend)[:, None] * level
    bend /= np.maximum(np.sqrt(np.einsum("in,in->i", bend, bend)), 1e-300)[:, None]
    left = root * residual
    gram = data.grams(steep**2)
    for basis in (level, bend):
        explained = (basis * steep) @ P
        gram -= explained[:, :, None] * explained[:, None, :]
        left = left - np.einsum("in,in->i", basis, left)[:, None] * basis
    slope = (steep * left) @ P
    diagonal = np.einsum("ijj->ij", gram)
    size = np.trace(gram, axis1=1, axis2=2)[:, None]
    bump = np.maximum(diagonal, 1e-12 * size) + 1e-13 * size / damping[:, None]
    gram[:, np.arange(P.shape[1]), np.arange(P.shape[1])] += damping[:, None] * bump + 1e-300
    step = np.linalg.solve(gram, -slope[..., None])[..., 0]
    return np.asarray(step * np.minimum(1.0, _MAX_CONTRAST / np.maximum(np.ptp(step, axis=1), 1e-300))[:, None])
