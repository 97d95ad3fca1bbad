"""How many samples of each group go into each batch: whole numbers that follow the mixture exactly.

After every batch the samples drawn from a group are within one of what its share adds up to, a share of 0 draws none,
and every batch is full. Where all groups have samples in every batch, running totals are rounded. Otherwise, what is
left after whole shares are given goes first to groups that are owed at least half a sample, then to others, and among
these to the one whose next sample falls due first. What a group is owed carries over when the mixture changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def plan(owed: Array, p: Array, batch: int, begin: int, drawn: Counts, batches: int) -> Counts:
    """Counts (batches, m) of the batches number begin, begin+1, … since the mixture p came into force.

    `owed` is what every group was owed at that moment, `drawn` what it was given since. The result depends on nothing
    else, so that planning in one go or in pieces gives the same batches.
    """
    active = np.flatnonzero(p > 0)
    counts = np.zeros((batches, p.size), dtype=np.int64)
    if active.size == 1:
        counts[:, active] = batch
    elif p[active].min() * batch >= 2 and abs(owed[active].sum()) < 1e-6:
        counts[:, active] = _rounded(owed[active], p[active], batch, begin, batches)
    else:
        counts[:, active] = _scheduled(owed[active], p[active], batch, begin, drawn[active], batches)
    return counts


def _rounded(owed: Array, p: Array, batch: int, begin: int, batches: int) -> Counts:
    """Round what the first 1, 2, … groups together are due. Each rounding is off by half a sample at most, so each
    group is off by less than one; with two samples or more in every batch, no count is ever negative."""
    time = np.arange(begin, begin + batches + 1)
    due = np.cumsum(owed)[:-1] + np.cumsum(p)[:-1] * batch * time[:, None]
    edges = np.zeros((batches + 1, p.size + 1), dtype=np.int64)
    edges[:, 1:-1] = np.floor(due + 0.5)
    edges[:, -1] = batch * time
    if begin == 0:
        edges[0] = 0
    samples = edges[:, 1:] - edges[:, :-1]
    return samples[1:] - samples[:-1]


def _scheduled(owed: Array, p: Array, batch: int, begin: int, drawn: Counts, batches: int) -> Counts:
    """One batch after the other: whole shares first, the rest to whoever is due first."""
    time = np.arange(begin + 1, begin + batches + 1)
    due = owed + (p * batch) * time[:, None]
    floor = np.floor(due + 1e-9)
    spare = due - floor
    urgency = (1.0 - spare) / p + np.where(spare < 0.5, 1e12, 0.0)
    order: list[list[int]] = np.argsort(urgency, axis=1, kind="stable").tolist()
    floors: list[list[int]] = floor.astype(np.int64).tolist()
    given: list[int] = drawn.tolist()
    total = batch * begin
    path = [given]
    for t in range(batches):
        total += batch
        least = floors[t]
        new = [f if f > g else g for f, g in zip(least, given, strict=True)]
        left = total - sum(new)
        if left > 0:
            for j in order[t]:
                if new[j] == least[j]:
                    new[j] += 1
                    left -= 1
                    if left == 0:
                        break
        if left:
            _settle(new, given, due[t], left)
        path.append(new)
        given = new
    found = np.array(path, dtype=np.int64)
    return found[1:] - found[:-1]


def _settle(new: list[int], given: list[int], due: Array, left: int) -> None:
    """After a change of mixture that no schedule can follow within one sample: the smallest deviation there is."""
    while left > 0:
        j = max(range(len(new)), key=lambda j: due[j] - new[j])
        new[j] += 1
        left -= 1
    while left < 0:
        j = min((j for j in range(len(new)) if new[j] > given[j]), key=lambda j: due[j] - new[j])
        new[j] -= 1
        left += 1
