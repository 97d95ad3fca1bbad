"""The transfer power law: each group helps each target by some amount, and what helps has diminishing returns.

    L_i = c_i + Σ_k b_ik · (1 + Σ_j T_ikj p_j)^(-alpha_ik),     T, b, alpha > 0

A target is taken as a sum of `terms` kinds of text, each learned by a power law of the data that helps it; one term is
the law `c + b·(T p + d)^(-alpha)` in the gauge d = 1. Every term is convex in p, so `Direct` still finds the global
optimum. It is fitted by Levenberg-Marquardt steps on the logarithms, all targets at once, under a Huber loss and a
broad normal prior on the logarithms whose weight follows from the noise: with many precise runs it vanishes, with few
it keeps the law from running away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from aioli.lmo.design import as_counted, as_design, scores
from aioli.lmo.laws import StaticLaw
from aioli.simplex import Array, Places
from aioli.threads import one_thread

_GOLDEN = 0.5 * (5**0.5 - 1)
_TRANSFER, _ALPHA, _HEIGHT, _LEVEL = (1.0, None), (np.log(0.5), 0.5), (np.log(2.0), 0.7), (-1.0, 5.0)
"""Prior mean and standard deviation of log T, log alpha, log(b·terms) and c, for losses of mean 0 and variance 1."""
_NOISE = (1e-8, 0.05)
"""Least and first guess of the variance of the noise, in units of the variance of the losses."""
_CHUNK = 4_000_000
"""Entries of the Jacobians that are held at once."""


@dataclass
class TransferPowerLaw(StaticLaw):
    """`L = c + Σ_k b_k·(1 + T_k p)^(-alpha_k)` with T >= 0. `A_` is T, with a row for each term of each target."""

    terms: int = 1
    """How many power laws add up to the loss of a target: 1 is smooth and needs few runs, 4 follows hundreds."""
    spread: float = 1.5
    """How far the logarithms of T may lie apart before the runs must insist (prior standard deviation)."""
    alpha_: Array = field(init=False, repr=False)
    noise_: Array = field(init=False, repr=False)
    """Standard deviation of the noise of each target, as estimated."""
    freedom_: Array = field(init=False, repr=False)
    """How many parameters of each target the runs determine; the prior does the rest."""
    BY_TERM: ClassVar[tuple[str, ...]] = (*StaticLaw.BY_TERM, "alpha_")
    BY_TARGET: ClassVar[tuple[str, ...]] = (*StaticLaw.BY_TARGET, "noise_", "freedom_")

    def __post_init__(self) -> None:
        if isinstance(self.terms, bool) or self.terms != int(self.terms) or not 1 <= self.terms <= 20:
            raise ValueError(f"terms={self.terms} must be a whole number from 1 to 20")
        if not 0 < self.spread < np.inf:
            raise ValueError(f"spread={self.spread} must be a positive number")
        self.terms = int(self.terms)

    def fit(
        self, P: ArrayLike, L: ArrayLike, weights: ArrayLike | None = None, like: TransferPowerLaw | None = None
    ) -> TransferPowerLaw:
        """Fit all targets; any number of runs will do, the prior stands in for what they do not say.

        `weights` is how much each run counts, (runs,), or each loss, (runs, n). `like` is a law fitted to much the same
        runs, to start from.
        """
        design = as_design(P)
        losses, w = as_counted(L, len(design), weights)
        w = w * ((w > 0).sum(0) / w.sum(0))  # the prior is weighed against runs, whatever the weights are measured in
        mean, size = _scale(losses, w)
        moving = size > 1e-12 * np.abs(losses).max(0)
        n, m, K = losses.shape[1], design.shape[1], self.terms
        found, noise = np.tile(_prior(m, K, self.spread)[0], (n, 1)), np.zeros(n)
        freedom = np.ones(n)
        chunk = max(1, _CHUNK // (design.shape[0] * found.shape[1]))
        for some in np.array_split(np.flatnonzero(moving), max(1, -(-int(moving.sum()) // chunk))):
            if some.size:
                Z = ((losses - mean) / np.where(moving, size, 1.0)).T[some]
                fit = _Fit(design, Z, np.ascontiguousarray(w.T[some]), K, self.spread)
                start = None if like is None else (_logs(like, some, mean, size), (like.noise_ / size)[some] ** 2)
                with one_thread():
                    found[some], noise[some], freedom[some] = fit.run(start)
        self._take(found, mean, np.where(moving, size, 0.0), m)
        self.noise_, self.freedom_ = np.sqrt(noise) * size, freedom
        self._vector = np.ndim(L) == 1
        self.mse_, self.r2_ = scores(losses, self._table(design), w)
        return self

    def _take(self, x: Array, mean: Array, size: Array, m: int) -> None:
        """Parameters from the logarithms that were searched, in units of the losses."""
        each = np.exp(x[:, :-1].reshape(-1, m + 2))
        self.A_, self.alpha_ = each[:, :m], each[:, m]
        self.b_ = each[:, m + 1] * np.repeat(size, self.terms)
        self.c_ = mean + size * x[:, -1]

    def predict(self, P: ArrayLike) -> Array:
        """Losses of every target for every mixture."""
        self._projected(P)
        return self._shape(self._table(as_design(np.atleast_2d(np.asarray(P, dtype=np.float64)))))

    def _table(self, design: Array) -> Array:
        each = self.b_ * (1.0 + design @ self.A_.T) ** -self.alpha_
        return np.asarray(self.c_ + each.reshape(len(design), -1, self.terms).sum(2))

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        """phi(u) = c/terms + b·(1 + u)^(-alpha)."""
        v = 1.0 + u
        e = self.b_ * v**-self.alpha_
        slope = -self.alpha_ * e / v
        return np.repeat(self.c_ / self.terms, self.terms) + e, slope, -(self.alpha_ + 1.0) * slope / v

    def tangent(self, P: ArrayLike, target: int) -> Array:
        """How the predictions of one target change with its parameters, (runs, parameters)."""
        one = self.part([target])
        x = _logs(one, np.array([0]), np.zeros(1), np.ones(1))
        return np.asarray(_jacobian(x, as_design(P), self.terms)[0][0].T)


def _scale(losses: Array, weights: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each target, outliers cut off."""
    mean, size = np.empty(losses.shape[1]), np.empty(losses.shape[1])
    for i, (column, w) in enumerate(zip(losses.T, weights.T, strict=True)):
        seen, counted = column[w > 0], w[w > 0]
        first, third = np.quantile(seen, (0.25, 0.75))
        reach = 3.0 * (third - first)
        seen = np.clip(seen, first - reach, third + reach) if reach > 0 else seen
        mean[i] = counted @ seen / counted.sum()
        size[i] = np.sqrt(counted @ (seen - mean[i]) ** 2 / counted.sum())
    return mean, size


def _prior(m: int, terms: int, spread: float) -> tuple[Array, Array]:
    """Mean and standard deviation of the logarithms, in the order in which they are searched."""
    mean, sd = np.empty((terms, m + 2)), np.empty((terms, m + 2))
    mean[:, :m], sd[:, :m] = _TRANSFER[0], spread
    mean[:, m], sd[:, m] = _ALPHA
    mean[:, m + 1], sd[:, m + 1] = _HEIGHT[0] - np.log(terms), _HEIGHT[1]
    return np.append(mean.ravel(), _LEVEL[0]), np.append(sd.ravel(), _LEVEL[1])


def _logs(law: TransferPowerLaw, targets: Places, mean: Array, size: Array) -> Array:
    """A fitted law as the logarithms that are searched, for losses scaled by mean and size."""
    one = law.part(targets)
    with np.errstate(divide="ignore"):
        height = np.log(one.b_ / np.repeat(size[targets], law.terms))
    each = np.concatenate([np.log(one.A_), np.log(one.alpha_)[:, None], np.maximum(height, -30.0)[:, None]], axis=1)
    level = (one.c_ - mean[targets]) / size[targets]
    return np.concatenate([each.reshape(len(targets), -1), level[:, None]], axis=1)


def _terms(x: Array, P: Array, terms: int) -> tuple[Array, Array, Array, Array]:
    """T (n, K, m), alpha (n, K), 1 + T p (n, K, runs) and the terms themselves."""
    each = np.exp(np.clip(x[:, :-1].reshape(len(x), terms, -1), -35.0, 35.0))
    T, alpha, height = each[..., :-2], each[..., -2], each[..., -1]
    v = 1.0 + T @ P.T
    return T, alpha, v, height[..., None] * np.exp(-alpha[..., None] * np.log(v))


def _jacobian(x: Array, P: Array, terms: int) -> tuple[Array, Array]:
    """Derivatives of the predictions by the searched logarithms, (n, parameters, runs), and the predictions."""
    T, alpha, v, e = _terms(x, P, terms)
    m, runs = P.shape[1], len(P)
    J = np.empty((len(x), x.shape[1], runs))
    by_term = J[:, :-1].reshape(len(x), terms, m + 2, runs)  # a view
    slope = -alpha[..., None] * e
    np.multiply(T[..., None], P.T, out=by_term[:, :, :m])
    by_term[:, :, :m] *= (slope / v)[:, :, None]
    by_term[:, :, m] = slope * np.log(v)
    by_term[:, :, m + 1] = e
    J[:, -1] = 1.0
    return J, x[:, -1:] + e.sum(1)


@dataclass(frozen=True)
class _Fit:
    """The search for one batch of targets, whose losses Z (n, runs) have mean 0 and variance 1."""

    P: Array
    Z: Array
    weights: Array
    terms: int
    spread: float

    def run(self, start: tuple[Array, Array] | None) -> tuple[Array, Array, Array]:
        """The logarithms (n, q), the variance of the noise (n,), from which the prior's weight follows, and how many
        parameters the runs determine (n,)."""
        if start is not None:
            x, noise = start[0], np.maximum(start[1], _NOISE[0])
            return self._search(x, noise, 15)[0], noise, np.ones(len(x))
        x, noise = self._first(), np.full(len(self.Z), _NOISE[1])
        for _ in range(4):
            x, residual = self._search(x, noise, 60)
            freedom = self._freedom(x, residual, noise)
            fresh = np.array([_variance(*each) for each in zip(residual, self.weights, freedom, strict=True)])
            settled = bool((np.abs(fresh - noise) <= 0.1 * noise).all())
            noise = fresh
            if settled:
                break
        return x, noise, freedom

    def _first(self) -> Array:
        """The prior's mean; several terms begin apart, spread over the groups by the order of what one term says."""
        m = self.P.shape[1]
        x = np.tile(_prior(m, self.terms, self.spread)[0], (len(self.Z), 1))
        if self.terms > 1:
            single = _Fit(self.P, self.Z, self.weights, 1, self.spread).run(None)[0]
            rank = np.argsort(np.argsort(-single[:, :m], axis=1), axis=1)
            apart = ((rank[:, None] + 0.5) * _GOLDEN * np.arange(1, self.terms + 1)[:, None]) % 1.0
            x[:, :-1].reshape(len(x), self.terms, m + 2)[..., :m] += 2.0 * self.spread * (apart - 0.5)
        return x

    def _cost(self, x: Array, noise: Array, chosen: Places) -> tuple[Array, Array]:
        """Huber loss with the prior, and residuals."""
        mean, sd = _prior(self.P.shape[1], self.terms, self.spread)
        residual = self.Z[chosen] - x[:, -1:] - _terms(x, self.P, self.terms)[3].sum(1)
        inside = np.minimum(np.abs(residual), 2.0 * np.sqrt(noise)[:, None])
        error = np.einsum("in,in,in->i", self.weights[chosen], inside, np.abs(residual) - 0.5 * inside)
        return error + 0.5 * noise * (((x - mean) / sd) ** 2).sum(1), residual

    def _search(self, x: Array, noise: Array, iterations: int) -> tuple[Array, Array]:
        """Levenberg-Marquardt from x; returns where it ends and what is left over there, (n, runs)."""
        result, seen = x.copy(), np.empty_like(self.Z)
        left, damping = np.arange(len(x)), np.full(len(x), 1e-2)
        x, noise = x.copy(), noise.copy()
        cost, residual = self._cost(x, noise, left)
        for turn in range(iterations):
            step = self._step(x, residual, noise, damping, left)
            trial = x + np.clip(step, -2.0, 2.0)
            new_cost, new_residual = self._cost(trial, noise, left)
            good = new_cost <= cost
            small = good & (cost - new_cost <= 1e-6 * cost)
            x = np.where(good[:, None], trial, x)
            residual = np.where(good[:, None], new_residual, residual)
            cost = np.where(good, new_cost, cost)
            damping = np.where(good, np.maximum(0.3 * damping, 1e-9), 4.0 * damping)
            going = ~small & (damping < 1e8) & (turn < iterations - 1)
            result[left[~going]], seen[left[~going]] = x[~going], residual[~going]
            if not going.any():
                break
            left, x, residual, cost = left[going], x[going], residual[going], cost[going]
            noise, damping = noise[going], damping[going]
        return result, seen

    def _normal(self, x: Array, residual: Array, noise: Array, chosen: Places) -> tuple[Array, Array, Array]:
        """J'WJ and J'W·residual of every target, and the weight of the prior on each parameter."""
        _, sd = _prior(self.P.shape[1], self.terms, self.spread)
        J, _ = _jacobian(x, self.P, self.terms)
        reach = 2.0 * np.sqrt(noise)[:, None]
        root = np.sqrt(self.weights[chosen] * np.minimum(1.0, reach / np.maximum(np.abs(residual), 1e-300)))
        J *= root[:, None]
        return J @ np.swapaxes(J, 1, 2), (J @ (root * residual)[..., None])[..., 0], noise[:, None] / sd**2

    def _step(self, x: Array, residual: Array, noise: Array, damping: Array, chosen: Places) -> Array:
        """A damped Gauss-Newton step of every target."""
        mean, _ = _prior(self.P.shape[1], self.terms, self.spread)
        gram, slope, prior = self._normal(x, residual, noise, chosen)
        diagonal = np.arange(x.shape[1])
        gram[:, diagonal, diagonal] += prior + damping[:, None] * (gram[:, diagonal, diagonal] + prior)
        return np.asarray(np.linalg.solve(gram, (slope - prior * (x - mean))[..., None])[..., 0])

    def _freedom(self, x: Array, residual: Array, noise: Array) -> Array:
        """How many parameters of each target the runs determine: the trace of the hat matrix."""
        gram, _, prior = self._normal(x, residual, noise, np.arange(len(x)))
        whole, diagonal = gram.copy(), np.arange(x.shape[1])
        whole[:, diagonal, diagonal] += prior
        return np.asarray(np.trace(np.linalg.solve(whole, gram), axis1=1, axis2=2))


def _variance(residual: Array, weights: Array, freedom: float) -> float:
    """Robust variance of the noise behind residuals of a fit that used up so many degrees of freedom."""
    there = np.abs(residual[weights > 0])
    left = max(there.size - freedom, 0.25 * there.size)
    return float(max((1.4826 * np.median(there)) ** 2 * there.size / left, _NOISE[0]))
