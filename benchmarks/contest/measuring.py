"""From what was recorded to numbers: how exact the mixture was, what was stale, whether a resumed run is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def counts(consumed: np.ndarray, groups: int) -> np.ndarray:
    """Sequences of each group in each step: (steps, groups), from (steps, batch, group and row)."""
    return np.stack([np.bincount(batch[:, 0], minlength=groups) for batch in consumed])


def largest_deviation(consumed: np.ndarray, asked: np.ndarray) -> float:
    """max over steps t and groups j of |Σ_{s≤t} (sequences of j in step s - batch · p_j in force at s)|."""
    drawn = counts(consumed, asked.shape[1])
    return float(np.abs(np.cumsum(drawn - consumed.shape[1] * asked, axis=0)).max())


def stale(consumed: np.ndarray, switch: int) -> dict[str, int]:
    """After all weight was moved from the first group to the second: what still came from the first.

    `repeated`: sequences that came more than once, though no group was gone through.
    """
    drawn = counts(consumed, 2)[switch:, 0]
    rows = consumed.reshape(-1, 2)
    return {
        "after": len(drawn),
        "batches": int((drawn > 0).sum()),
        "sequences": int(drawn.sum()),
        "repeated": len(rows) - len(np.unique(rows, axis=0)),
    }


def resumed(whole: Mapping[str, np.ndarray], rest: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """A run that was killed and gone on with, beside one that was not: remaining batches, and weights at the end."""
    left = len(rest["consumed"])
    mine, its = whole["consumed"][-left:], rest["consumed"]
    same = int(sum(np.array_equal(a, b) for a, b in zip(mine, its, strict=True)))
    apart = float(np.abs(whole["weights"] - rest["weights"]).max())
    return {"left": left, "same_batches": same, "weights_apart": apart, "exact": same == left and apart == 0.0}


def relative(mine: Sequence[Sequence[float]], loops: Sequence[Sequence[Sequence[float]]]) -> dict[str, float]:
    """Seconds of all runs (each a list of its pieces) over the mean of those of some bare loops.

    `ratio`: for every piece the median over the runs, added up, so that what disturbs one run does not count.
    `least` and `most`: of single runs.
    """
    both = np.array(mine), np.array(loops).mean(0)
    runs = both[0].sum(1) / both[1].sum(1)
    a, b = (np.median(seconds, axis=0).sum() for seconds in both)
    return {"ratio": float(a / b), "least": float(runs.min()), "most": float(runs.max())}
