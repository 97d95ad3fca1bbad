"""k-means over vectors of documents, and how many clusters there are to find.

There are as many groups as come out the same twice: k-means is fitted to several halves of the sample, and the largest
k for which these agree on all of it is taken.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioli.simplex import Array

TRIED = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20)
HALVES, AGREE, LOOKED = 8, 0.8, 4000
"""Halves that are compared; how far they must agree (adjusted Rand index); documents that this is looked at on."""
MOST, FEWEST = 200, 10
"""Clusters, and documents."""

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Clusters:
    """Centres in a space, and how surely there are so many."""

    centres: Array
    labels: Labels
    """Of the sample."""
    stability: float
    """Agreement of clusterings of other halves of the sample, 1 at most."""

    @property
    def k(self) -> int:
        """How many."""
        return len(self.centres)

    def nearest(self, Z: Array) -> Labels:
        """The cluster of each row: rows and centres have lengths, so it is the distance that counts."""
        return np.asarray(((self.centres**2).sum(1) - 2 * Z @ self.centres.T).argmin(1))


def cluster(Z: Array, k: int | None, seed: int) -> Clusters:
    """k clusters of rows; None: as many as are found again."""
    distinct = len(np.unique(Z.round(9), axis=0))
    if k is not None and not 2 <= k <= MOST:
        raise ValueError(f"-k {k}: there can be 2 to {MOST} groups")
    if k is not None and k > distinct:
        raise ValueError(f"-k {k}: there are only {distinct} documents that differ; ask for fewer groups")
    if k is None and distinct < FEWEST:
        raise ValueError(
            f"{distinct} documents that differ are too few to find groups in; give more, or say how many with -k"
        )
    rng = np.random.default_rng(seed)
    some = Z[rng.permutation(len(Z))[:LOOKED]]
    tried = [k] if k is not None else [each for each in TRIED if each <= distinct // 4]
    agree = {each: _stability(some, each, seed) for each in tried}
    sure = [each for each in tried if agree[each] >= AGREE]
    best = max(sure) if sure else max(tried, key=lambda each: agree[each])
    found = _means(Z, best, 10, seed)
    return Clusters(np.asarray(found.cluster_centers_), np.asarray(found.labels_, dtype=np.int64), agree[best])


def _stability(Z: Array, k: int, seed: int) -> float:
    """How far k-means on halves of the rows agree on all of them."""
    from sklearn.metrics import adjusted_rand_score

    rng = np.random.default_rng([seed, k])
    half = max(k, len(Z) // 2)
    found = [_means(Z[rng.permutation(len(Z))[:half]], k, 3, seed + n).predict(Z) for n in range(HALVES)]
    return float(np.mean([adjusted_rand_score(a, b) for a, b in combinations(found, 2)]))


def _means(Z: Array, k: int, starts: int, seed: int) -> Any:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a half may have fewer rows that differ than k
        return KMeans(k, n_init=starts, random_state=seed).fit(Z)
