"""Direct: the global optimum of a fitted law over the (capped) simplex, with a certificate (E23).

The objective `sum_i w_i·phi_i(A_i p)`, over all terms of all targets, is convex in p. A primal-dual interior-point
method comes close, groups that sit on a bound are put exactly there, Newton steps finish the rest, and the duality gap
at the returned mixture, which bounds how much better any other mixture could be, is computed from scratch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aioli.lmo.laws import Law
from aioli.lmo.solvers import Bounds, Optimum
from aioli.simplex import Array, as_weights, box, cheapest

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class _Objective:
    """Value, gradient and curvature of the weighted mean loss."""

    law: Law
    weights: Array
    """Of every term of every target."""
    contrast: Array
    """A without the mean of each row, which no mixture can change: gradients keep their digits."""

    @classmethod
    def of(cls, law: Law, weights: Array) -> _Objective:
        return cls(law, weights, law.A_ - law.A_.mean(1, keepdims=True))

    def losses(self, p: Array) -> Array:
        """Of every term of every target."""
        return self.law.link(self.law.A_ @ p)[0]

    def gradient(self, p: Array) -> Array:
        return np.asarray((self.weights * self.law.link(self.law.A_ @ p)[1]) @ self.contrast)

    def size(self, p: Array) -> float:
        """What a gradient could be if its terms did not cancel: the scale of its rounding errors."""
        return float(((self.weights * np.abs(self.law.link(self.law.A_ @ p)[1])) @ np.abs(self.contrast)).max()) or 1.0

    def curvature(self, p: Array) -> Array:
        """Square-root factor B (n, m) of the Hessian B'B."""
        return np.sqrt(np.maximum(self.weights * self.law.link(self.law.A_ @ p)[2], 0.0))[:, None] * self.contrast

    def gap(self, p: Array, low: Array, high: Array) -> float:
        """gradient·(p - s) for the worst s within bounds: how much lower a convex objective can be anywhere."""
        g = self.gradient(p)
        return max(0.0, float(g @ (p - cheapest(g, low, high))))


def _solve(diagonal: Array, factor: Array, right: Array) -> Array:
    """(diag + B'B)^-1 · right, by whichever of the two sizes is smaller."""
    n, m = factor.shape
    # where the optimum is not unique the path leaves directions without curvature: a trace of it keeps them finite
    diagonal = np.maximum(diagonal, 1e-13 * float((factor**2).sum()))
    if m <= max(2 * n, 200):
        return np.asarray(np.linalg.solve(np.diag(diagonal) + factor.T @ factor, right))
    scaled = factor / diagonal
    inner = np.eye(n) + scaled @ factor.T
    plain = right / diagonal[:, None]
    return np.asarray(plain - scaled.T @ np.linalg.solve(inner, factor @ plain))


def _newton(diagonal: Array, factor: Array, gradient: Array) -> Array:
    """The Newton step that keeps the sum of p."""
    both = _solve(diagonal, factor, np.stack([-gradient, np.ones_like(gradient)], axis=1))
    return np.asarray(both[:, 0] - both[:, 1] * (both[:, 0].sum() / both[:, 1].sum()))


def _interior(f: _Objective, low: Array, high: Array) -> Array:
    """Primal-dual path following inside the bounds, with a line search on the barrier function."""
    width = high - low
    p = low + width * ((1.0 - low.sum()) / width.sum())
    size = f.size(p)
    z_low, z_high = np.full(p.size, size), np.full(p.size, size)
    for _ in range(300):
        g = f.gradient(p)
        below, above = p - low, high - p
        slack = float(z_low @ below + z_high @ above)
        if f.gap(p, low, high) <= 1e-13 * f.size(p) or slack < 1e-280:
            break
        mu = 0.1 * slack / (2 * p.size)
        pull = g - mu / below + mu / above
        dp = _newton(z_low / below + z_high / above, f.curvature(p), pull)
        dz_low = mu / below - z_low - z_low / below * dp
        dz_high = mu / above - z_high + z_high / above * dp
        primal = min(1.0, _reach(below, dp), _reach(above, -dp))
        dual = min(1.0, _reach(z_low, dz_low), _reach(z_high, dz_high))

        def barrier(q: Array, mu: float = mu) -> float:
            return float(f.weights @ f.losses(q)) - mu * float(np.log(q - low).sum() + np.log(high - q).sum())

        now, descent = barrier(p), float(pull @ dp)
        for _ in range(30):
            trial = p + primal * dp
            inside = bool((trial > low).all() and (trial < high).all())
            if inside and barrier(trial) <= now + 1e-4 * primal * min(descent, 0.0) + 1e-14 * abs(now):
                break
            primal *= 0.5
        else:
            break
        p = trial
        z_low, z_high = z_low + dual * dz_low, z_high + dual * dz_high
    return np.asarray(p)


def _reach(now: Array, change: Array) -> float:
    """How far along `change` all of `now` stays positive, with a little left."""
    shrinking = change < 0
    return 0.99 * float((-now[shrinking] / change[shrinking]).min()) if shrinking.any() else 1.0


def _snap(f: _Objective, p: Array, low: Array, high: Array) -> Array:
    """Put groups that want to be on a bound exactly there, and finish the others with Newton steps."""
    scale = f.size(p)
    at_low, at_high = p - low < 1e-7, high - p < 1e-7
    free = ~(at_low | at_high)
    if not free.any():  # a vertex: one group takes what is left
        free[np.argmax(p - low)] = True
    q = np.where(at_low, low, np.where(at_high, high, p))
    q[free] += (1.0 - q.sum()) / free.sum()
    for _ in range(5):
        step = _newton(np.full(int(free.sum()), 1e-14 * scale), f.curvature(q)[:, free], f.gradient(q)[free])
        trial = q.copy()
        trial[free] += step
        if not np.isfinite(trial).all() or (trial < low - 1e-15).any() or (trial > high + 1e-15).any():
            break
        q = np.clip(trial, low, high)
    return np.asarray(q)


@dataclass(frozen=True)
class Direct:
    """The mixture that minimises a fitted law, anywhere on the simplex within floors and caps."""

    target_weights: Bounds = None
    floors: Bounds = None
    caps: Bounds = None

    def solve(self, law: Law) -> Optimum:
        """The global optimum of the law's (weighted) mean loss, with its duality gap."""
        if not hasattr(law, "A_"):
            raise ValueError(f"this {type(law).__name__} is not fitted yet; call fit(P, L) first")
        terms = getattr(law, "terms", 1)
        n, m = len(law.A_) // terms, law.A_.shape[1]
        low, high = box(m, self.floors, self.caps)
        f = _Objective.of(law, np.repeat(as_weights(self.target_weights, n) / n, terms))
        best = self._best(f, low, high)
        losses = f.losses(best)
        value = float(f.weights @ losses)
        return Optimum(best, losses.reshape(n, -1).sum(1), value, f.gap(best, low, high))

    def _best(self, f: _Objective, low: Array, high: Array) -> Array:
        room = high - low
        if room.sum() <= 1e-15 or abs(1.0 - low.sum()) < 1e-15:
            return np.asarray(low / low.sum())
        start = low + room * ((1.0 - low.sum()) / room.sum())
        if f.gap(start, low, high) <= 1e-14 * f.size(start):
            return np.asarray(start)  # nothing matters: stay in the middle instead of running into a corner
        if not f.curvature(start).any():
            return cheapest(f.gradient(start), low, high)
        if high.sum() - 1.0 < 1e-12:
            return np.asarray(high / high.sum())
        loose: Mask = room > 0
        if not loose.all():
            return self._with_fixed(f, low, high, loose)
        inner = _interior(f, low, high)
        scale = f.size(inner)
        candidates = [start, inner, _snap(f, inner, low, high)]
        candidates = [c / c.sum() for c in candidates]
        gaps = [f.gap(c, low, high) for c in candidates]
        # exact zeros are worth a rounding error in the gap
        pick = 2 if gaps[2] <= max(2.0 * gaps[1], 1e-12 * scale) else int(np.argmin(gaps))
        return np.asarray(candidates[pick])

    def _with_fixed(self, f: _Objective, low: Array, high: Array, loose: Mask) -> Array:
        """Groups whose floor equals their cap are constants; solve for the others on a smaller simplex."""
        left = 1.0 - low[~loose].sum()
        inner = _Shifted(f.law, loose, low, left)
        p = low.copy()
        p[loose] = left * self._best(_Objective.of(inner, f.weights), low[loose] / left, high[loose] / left)
        return p


@dataclass(frozen=True)
class _Shifted:
    """A law with some groups held fixed, as a law of the others' shares of what is left."""

    law: Law
    loose: Mask
    fixed: Array
    left: float

    @property
    def A_(self) -> Array:
        return np.asarray(self.left * self.law.A_[:, self.loose])

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        return self.law.link(u + self.law.A_[:, ~self.loose] @ self.fixed[~self.loose])
