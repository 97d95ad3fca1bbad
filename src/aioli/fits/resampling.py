"""Tables that might have been: a law fitted again to each says how sure it is.

The mixtures are kept, and noise as large as what the law leaves over, with the same correlation between targets, is
added to what it predicts (parametric bootstrap): that needs no more runs than the fit. For trees, which take the noise
for their own, runs are drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aioli.fits.fit import Fit
from aioli.fits.scoring import fit_anyhow
from aioli.lmo.laws import StaticLaw
from aioli.simplex import Array

RESAMPLES, SLOW, TREES = 200, 100, 20
"""Tables by default, for laws of several terms and for trees, which take longer."""
MANY = 20
"""Degrees of freedom from which on the typical size of residuals can be told from the largest."""
BATCH = 400
"""Targets that are fitted at once."""


def default_count(law: Any) -> int:
    """How many tables by default."""
    if not isinstance(law, StaticLaw):
        return TREES
    return RESAMPLES if law.terms == 1 else SLOW


def freedom_left(fit: Fit) -> Array:
    """Runs beyond the parameters that they determine, for each target: what is left to judge the noise by."""
    runs, law = fit.runs, fit.law
    used = getattr(law, "freedom_", None)
    if used is None:  # every parameter counts
        used = np.full(
            len(runs.targets), float(law.tangent(runs.P[:1], 0).shape[1]) if isinstance(law, StaticLaw) else 0.0
        )
    return np.asarray(runs.weights.sum(0) - used)


def resampled(fit: Fit, count: int, seed: int) -> Iterator[Any]:
    """The law, fitted again to resampled tables, several at a time."""
    rng, runs, n = np.random.default_rng(seed), fit.runs, len(fit.runs.targets)
    convex = isinstance(fit.law, StaticLaw)
    noise = _noise(fit) if convex else np.zeros((n, n))
    expected = fit.predict(runs.P)
    size = max(1, BATCH // n)
    for first in range(0, count, size):
        many = min(size, count - first)
        if convex:
            drawn = expected + rng.standard_normal((many, len(runs.P), n)) @ noise
            L, weights = np.concatenate(list(drawn), axis=1), np.tile(runs.weights, many)
        else:
            draws = rng.multinomial(len(runs.P), np.full(len(runs.P), 1.0 / len(runs.P)), many)
            L = np.tile(runs.L, many)
            weights = np.concatenate([runs.weights * draw[:, None] for draw in draws], axis=1)
            bare = ~weights.any(0)  # a target whose few runs were not drawn keeps them all
            weights[:, bare] = np.tile(runs.weights, many)[:, bare]
        law = fit_anyhow(fit.law, runs.P, L, weights, fit.law.part(np.tile(np.arange(n), many)))
        for k in range(many):
            yield law.part(np.arange(k * n, (k + 1) * n))


def _noise(fit: Fit) -> Array:
    """A square root (n, n) of the covariance of the noise of the targets, as what the law leaves over shows it."""
    runs, freedom = fit.runs, np.maximum(freedom_left(fit), 1.0)
    left = np.where(runs.weights > 0, runs.L - fit.predict(runs.P), 0.0)
    for column, there, free in zip(left.T, runs.weights.T > 0, freedom, strict=True):
        if free >= MANY:  # then a few that are far off must not speak for all
            typical = 1.4826 * np.median(np.abs(column[there])) * np.sqrt(there.sum() / free)
            np.clip(column, -3 * typical, 3 * typical, out=column)
    left /= np.sqrt(freedom)
    squares, directions = np.linalg.eigh(left.T @ left)
    return np.asarray(np.sqrt(np.maximum(squares, 0.0))[:, None] * directions.T)
