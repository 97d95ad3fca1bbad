"""ForkedSweep (ours): A^t as the paper defines A*, from a sweep of forks instead of intervals of the run itself.

Every sweep mixture is tried out from the same weights, on a copy that is forgotten, at a learning rate that ends at
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
SEVERAL = 0.5
"""Steps are half as large where there are several targets. Each mostly wants a group of its own and gains less from it
the more it has of it, which a sweep of single groups does not show."""
OBSERVED = frozenset({"val_loss", "fork_loss"})


@dataclass(frozen=True)
class ForkedSweep:
    """A from forks at the beginning of rounds between `after` and `until`."""

    eps: float = 0.25
    """One-hot smoothing: the share of the mixture in force in each sweep mixture (E32)."""
    delta: float = 0.6
    """Steps of all forks together, as a share of the run's; forks have at most a hundred steps each."""
    after: float = 0.1
    """Share of the run before the first forks."""
    until: float = 0.4
    """Share of the run in which rounds begin with forks; after it the mixture stays."""
    doubt: float = 0.7
    """How many times the standard error over targets their summed contrasts must amount to: where each target wants its
    own group, what is left of the sum is mostly noise and no reason to move. Then there are no more forks either."""
    cooling: float = 0.25
    """The last share of a fork's steps, in which the learning rate falls to zero: the shorter that is, the further
    forks come; the rate of the last steps decides how much of what is seen is their noise."""
    start: Start = field(default="never", init=False, repr=False)
    needs: frozenset[str] = field(default=OBSERVED, init=False, repr=False)
    weighting: Weighting = field(default="sample", init=False, repr=False)

    def __post_init__(self) -> None:
        smoothed_one_hot(2, self.eps)
        if not 0.0 < self.delta <= 1.0:
            raise ValueError(f"delta={self.delta} is not a share of the run; use 0 < delta <= 1")
        if not 0.0 < self.cooling <= 1.0:
            raise ValueError(f"cooling={self.cooling} is not a share of a fork's steps; use 0 < cooling <= 1")
        if not 0.0 <= self.after < self.until <= 1.0:
            raise ValueError(f"after={self.after}, until={self.until}: use shares of the run, 0 <= after < until <= 1")
        if not self.doubt >= 0.0:
            raise ValueError(f"doubt={self.doubt} must not be negative")

    def begin(self, task: Task) -> State:
        """The largest size of A so far, and whether it is settled that p stays."""
        if task.m > 1 and self.delta * task.steps < task.m - 1e-9:
            raise ValueError(
                f"delta={self.delta} of {task.steps} steps is {self.delta * task.steps:.3g} steps, too few to try out "
                f"{task.m} mixtures; use delta >= {task.m / task.steps:.3g}, if the run has as many steps as groups"
            )
        return {"size": 0.0, "settled": False}

    def swept(self, task: Task, rounds: int) -> range:
        """The rounds, of so many, that begin with forks: those from `after` to `until`, at least one, and fewer where
        there are not steps for all."""
        first = min(math.ceil(self.after * rounds - 1e-9), rounds - 1)
        last = max(first + 1, math.ceil(self.until * rounds - 1e-9))
        return range(first, min(last, first + max(1, int(self.delta * task.steps / task.m + 1e-9))))

    def steps(self, round: Round) -> int:
        """Of each fork."""
        forks = len(self.swept(round.task, round.rounds)) * round.task.m
        return min(LONGEST, int(self.delta * round.task.steps / forks + 1e-9))

    def _consumed(self, round: Round, tokens: Array | None) -> Array:
        """The mixtures that forks were really trained on (E5), where that is known."""
        return self.mixtures(round) if tokens is None else tokens / tokens.sum(1, keepdims=True)

    def mixtures(self, round: Round) -> Array:
        """The mixtures that are tried out, one per row; floors and caps hold for them too."""
        P = smoothed_one_hot(round.task.m, self.eps, round.p)
        return P if round.bounds is None else np.stack([within(row, *round.bounds) for row in P])

    def probes(self, state: State, round: Round) -> list[Segment]:
        """One segment without steps, which asks for the forks."""
        if round.task.m == 1 or state["settled"] or round.t not in self.swept(round.task, round.rounds):
            return []
        forks, steps = self.mixtures(round), self.steps(round)
        return [Segment(round.p, 0, OBSERVED, tag="forks", forks=forks, fork_steps=steps, fork_cooling=self.cooling)]

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate | None]:
        """A solves `P A_i = beta_i` (E4); pulls are its column sums relative to the size of each target's row."""
        if not log:
            return state, None
        before, after = log[0].val_loss, log[0].fork_loss
        assert before is not None
        assert after is not None
        A = solve_drops(self._consumed(round, log[0].fork_tokens), before - after)
        weights = round.task.weights
        size = max(state["size"], size_of(A, weights))
        pull = pulls(A, weights, self.doubt) / (size or 1.0) * (SEVERAL if len(weights) > 1 else 1.0)
        return {"size": size, "settled": size > 0.0 and not pull.any()}, Estimate(A, pull)


def size_of(A: Array, weights: Array) -> float:
    """The typical size of a row of A, summed over targets.

    Pulls are told in units of the largest so far: where each target wants its own group rows are large and what is left
    of their sum is small, and differences that have become small late in a run are mostly noise."""
    return float(weights @ np.sqrt(np.mean(A**2, axis=1)))


def pulls(A: Array, weights: Array, doubt: float = 0.0) -> Array:
    """How much better than the average group each is for all targets together, shrunk by how far they disagree."""
    contrasts = A - A.mean(1, keepdims=True)
    theta = weights @ contrasts
    length = float(theta @ theta)
    apart = doubt**2 * disagreement(contrasts, weights, np.zeros(len(A)))
    return np.asarray(theta * (max(0.0, 1.0 - apart / length) if length > 0.0 else 0.0))
