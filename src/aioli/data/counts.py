"""How many samples of each group go into each batch: whole numbers that follow the mixture exactly.

After every batch the samples drawn from a group are within one of what its share adds up to, a share of 0 draws none,
and every batch is full. What is left after whole shares are given goes first to groups that are owed at least half a
sample, then to others, and among these to the one whose next sample falls due first. What a group is owed carries
over when the mixture changes.
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
        return counts
    time = np.arange(begin + 1, begin + batches + 1)
    due = owed[active] + (p[active] * batch) * time[:, None]
    floor = np.floor(due + 1e-9)
    spare = due - floor
    urgency = (1.0 - spare) / p[active] + np.where(spare < 0.5, 1e12, 0.0)
    order: list[list[int]] = np.argsort(urgency, axis=1, kind="stable").tolist()
    floors: list[list[int]] = floor.astype(np.int64).tolist()
    given: list[int] = drawn[active].tolist()
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
    counts[:, active] = np.diff(np.array(path, dtype=np.int64), axis=0)
    return counts


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
