"""ForkedSweep (ours): A^t as the paper defines A*, from a sweep of forks instead of intervals of the run itself.

Every sweep mixture is tried out from the same weights, on a copy that is forgotten, while the learning rate falls to
zero. So the intervals do not follow one another, nothing that one group taught is left over in the next, and the run
itself is not disturbed; the price is steps that are thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aioli.lmo.pooled import disagreement
from aioli.lmo.sweep import solve_drops
from aioli.lmo.task import Estimate, Round, Start, Task
from aioli.protocol import Observation, Segment, State, Weighting
from aioli.simplex import Array, smoothed_one_hot, within

LONGEST = 100
"""Steps of a fork that are enough however long the run is."""
PRIOR = 2.0
"""How many sweeps' worth of evidence about their noise `noise` is."""
OBSERVED = frozenset({"val_loss", "fork_loss"})


@dataclass(frozen=True)
class ForkedSweep:
    """A from forks at the beginning of rounds between `after` and `until`."""

    eps: float = 0.25
    """One-hot smoothing: the share of the mixture in force in each sweep mixture (E32)."""
    delta: float = 0.2
    """Steps of all forks together, as a share of the run's; forks have at most a hundred steps each."""
    after: float = 0.1
    """Share of the run before the first forks."""
    until: float = 0.4
    """Share of the run in which rounds begin with forks; after it the mixture stays."""
    doubt: float = 0.5
    """How many times the standard error over targets their summed contrasts must amount to: where each target wants its
    own group, what is left of the sum is mostly noise and no reason to move. Then there are no more forks either."""
    expected: float = 0.7
    """How large contrasts are expected to be, relative to A: pulls are their posterior mean over all sweeps."""
    noise: float = 0.5
    """How large the noise of one sweep's contrasts is expected to be; how they differ between sweeps counts as well."""
    start: Start = field(default="never", init=False, repr=False)
    needs: frozenset[str] = field(default=OBSERVED, init=False, repr=False)
    weighting: Weighting = field(default="sample", init=False, repr=False)

    def __post_init__(self) -> None:
        smoothed_one_hot(2, self.eps)
        if not 0.0 < self.delta <= 1.0:
            raise ValueError(f"delta={self.delta} is not a share of the run; use 0 < delta <= 1")
        if not 0.0 <= self.after < self.until <= 1.0:
            raise ValueError(f"after={self.after}, until={self.until}: use shares of the run, 0 <= after < until <= 1")
        for name in ("doubt", "noise"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        if not self.expected > 0.0:
            raise ValueError(f"expected={self.expected} must be positive")

    def begin(self, task: Task) -> State:
        """The contrasts of all sweeps so far, and whether it is settled that p stays."""
        return {"contrasts": [], "settled": False}

    def swept(self, rounds: int) -> range:
        """The rounds, of so many, that begin with forks: those from `after` to `until`, at least one."""
        first = min(math.ceil(self.after * rounds - 1e-9), rounds - 1)
        return range(first, max(first + 1, math.ceil(self.until * rounds - 1e-9)))

    def steps(self, round: Round) -> int:
        """Of each fork."""
        forks = len(self.swept(round.rounds)) * round.task.m
        return max(1, min(LONGEST, int(self.delta * round.task.steps / forks + 1e-9)))

    def mixtures(self, round: Round) -> Array:
        """The mixtures that are tried out, one per row; floors and caps hold for them too."""
        P = smoothed_one_hot(round.task.m, self.eps, round.p)
        return P if round.bounds is None else np.stack([within(row, *round.bounds) for row in P])

    def probes(self, state: State, round: Round) -> list[Segment]:
        """One segment without steps, which asks for the forks."""
        if round.task.m == 1 or state["settled"] or round.t not in self.swept(round.rounds):
            return []
        forks = self.mixtures(round)
        return [Segment(round.p, 0, OBSERVED, tag="forks", forks=forks, fork_steps=self.steps(round))]

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate | None]:
        """A solves `P A_i = beta_i` (E4); the pull is what all sweeps say of the contrasts of its column sums."""
        if not log:
            return state, None
        before, after = log[0].val_loss, log[0].fork_loss
        assert before is not None
        assert after is not None
        A = solve_drops(self.mixtures(round), before - after)
        new = contrasts_of(A, round.task.weights, self.doubt)
        every = [*state["contrasts"], new]
        settled = bool(A.any()) and not new.any()
        return {"contrasts": every, "settled": settled}, Estimate(A, self.posterior(np.asarray(every)))

    def posterior(self, contrasts: Array) -> Array:
        """The posterior mean of contrasts that were seen in several sweeps, (sweeps, groups).

        The variance of their noise is that between sweeps, which `PRIOR` sweeps' worth of `noise` is added to."""
        sweeps, m = contrasts.shape
        mean = contrasts.mean(0)
        between = float(((contrasts - mean) ** 2).sum()) / (m - 1)
        V = (PRIOR * self.noise**2 + between) / (PRIOR + sweeps - 1) / sweeps
        return np.asarray(self.expected**2 / (self.expected**2 + V) * mean)


def contrasts_of(A: Array, weights: Array, doubt: float) -> Array:
    """How much better than the average group each is for all targets together, relative to the size of A.

    The size is that of a typical row, summed over targets. Where each target wants its own group rows are large, what
    is left of their sum is small, and it is shrunk by how far targets disagree, which a single one cannot."""
    each = A - A.mean(1, keepdims=True)
    theta, size = weights @ each, float(weights @ np.sqrt(np.mean(A**2, axis=1)))
    length = float(theta @ theta)
    if not (size > 0.0 and length > 0.0):
        return np.zeros(len(theta))
    apart = doubt**2 * disagreement(each, weights, np.zeros(len(A)))
    return np.asarray(theta * max(0.0, 1.0 - apart / length) / size)
