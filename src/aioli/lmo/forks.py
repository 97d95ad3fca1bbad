"""ForkedSweep (ours): A^t as the paper defines A*, from a sweep of forks instead of intervals of the run itself.

Every sweep mixture is tried out from the same weights, on a copy that is forgotten, while the learning rate falls to
zero. So the intervals do not follow one another, nothing that one group taught is left over in the next, and the run
itself is not disturbed; the price is steps that are thrown away.

The mixture in force is tried out beside them. What it gains over what the others promise for it, were drops linear,
shows how fast returns diminish, and that says how far p is to go: where drops are `A p + kappa H(p)`, H the entropy,
the best p is proportional to `exp(A / kappa)`, EGD's step with `eta = 1 / kappa`. Targets that want groups of their own
gain most from a mixture: there kappa is large, and p stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aioli.lmo.pooled import disagreement
from aioli.lmo.task import Estimate, Round, Start, Task
from aioli.protocol import Observation, Segment, State, Weighting
from aioli.simplex import Array, smoothed_one_hot, within

LONGEST = 100
"""Steps of a fork that are enough however long the run is."""
STEEPEST = 6.0
"""Largest pull between two groups, also where returns do not seem to diminish at all."""
OBSERVED = frozenset({"val_loss", "fork_loss"})


@dataclass(frozen=True)
class ForkedSweep:
    """A from forks at the beginning of rounds between `after` and `until`."""

    eps: float = 0.1
    """One-hot smoothing: the share of the mixture in force in each sweep mixture (E32)."""
    delta: float = 0.6
    """Steps of all forks together, as a share of the run's; forks have at most a hundred steps each."""
    after: float = 0.1
    """Share of the run before the first forks."""
    until: float = 0.3
    """Share of the run in which rounds begin with forks; after it the mixture stays."""
    doubt: float = 0.7
    """How many times the standard error over targets their summed contrasts must amount to: where each target wants its
    own group, what is left of the sum is mostly noise and no reason to move. Then there are no more forks either."""
    start: Start = field(default="never", init=False, repr=False)
    needs: frozenset[str] = field(default=OBSERVED, init=False, repr=False)
    weighting: Weighting = field(default="sample", init=False, repr=False)

    def __post_init__(self) -> None:
        smoothed_one_hot(2, self.eps)
        if not 0.0 < self.delta <= 1.0:
            raise ValueError(f"delta={self.delta} is not a share of the run; use 0 < delta <= 1")
        if not 0.0 <= self.after < self.until <= 1.0:
            raise ValueError(f"after={self.after}, until={self.until}: use shares of the run, 0 <= after < until <= 1")
        if not self.doubt >= 0.0:
            raise ValueError(f"doubt={self.doubt} must not be negative")

    def begin(self, task: Task) -> State:
        """Contrasts and curvature, summed over sweeps, and whether it is settled that p stays."""
        forks = task.m + 1
        if task.m > 1 and self.delta * task.steps < forks:
            raise ValueError(
                f"delta={self.delta} of {task.steps} steps is {self.delta * task.steps:.3g} steps, too few to try out "
                f"{forks} mixtures; use delta >= {forks / task.steps:.3g}, if the run has more steps than groups"
            )
        return {"contrasts": np.zeros((task.targets, task.m)), "kappa": 0.0, "settled": False}

    def swept(self, task: Task, rounds: int) -> range:
        """The rounds, of so many, that begin with forks: those from `after` to `until`, at least one, and fewer where
        there are not steps for all."""
        first = min(math.ceil(self.after * rounds - 1e-9), rounds - 1)
        last = max(first + 1, math.ceil(self.until * rounds - 1e-9))
        return range(first, min(last, first + max(1, int(self.delta * task.steps / (task.m + 1) + 1e-9))))

    def steps(self, round: Round) -> int:
        """Of each fork."""
        forks = len(self.swept(round.task, round.rounds)) * (round.task.m + 1)
        return min(LONGEST, int(self.delta * round.task.steps / forks + 1e-9))

    def _consumed(self, round: Round, tokens: Array | None) -> Array:
        """The mixtures that forks were really trained on (E5), where that is known."""
        return self.mixtures(round) if tokens is None else tokens / tokens.sum(1, keepdims=True)

    def mixtures(self, round: Round) -> Array:
        """The mixtures that are tried out, one per row, the one in force last; floors and caps hold for all."""
        P = np.vstack([smoothed_one_hot(round.task.m, self.eps, round.p), round.p])
        return P if round.bounds is None else np.stack([within(row, *round.bounds) for row in P])

    def probes(self, state: State, round: Round) -> list[Segment]:
        """One segment without steps, which asks for the forks."""
        if round.task.m == 1 or state["settled"] or round.t not in self.swept(round.task, round.rounds):
            return []
        forks = self.mixtures(round)
        return [Segment(round.p, 0, OBSERVED, tag="forks", forks=forks, fork_steps=self.steps(round))]

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate | None]:
        """A and kappa by least squares over the forks of this sweep; the pull from the sums over all sweeps."""
        if not log:
            return state, None
        before, after = log[0].val_loss, log[0].fork_loss
        assert before is not None
        assert after is not None
        A, kappa = solve_bent(self._consumed(round, log[0].fork_tokens), before - after)
        weights = round.task.weights
        contrasts = np.asarray(state["contrasts"]) + A - A.mean(1, keepdims=True)
        bend = state["kappa"] + float(weights @ kappa)
        theta = agreed(contrasts, weights, self.doubt) * alone(weights)
        pull = theta / max(bend, float(np.ptp(theta)) / STEEPEST, 1e-300)
        settled = bool(contrasts.any()) and not theta.any()
        return {"contrasts": contrasts, "kappa": bend, "settled": settled}, Estimate(A, pull)


def alone(weights: Array) -> float:
    """1 for a single target, less the more of them count: one over the square root of how many do, in effect.

    Each mostly wants a group of its own, and a model that has had its share of it so far does not show, within a fork,
    what it would be without; so returns diminish faster than is seen."""
    return float(np.sqrt(weights @ weights) / weights.sum())


def agreed(contrasts: Array, weights: Array, doubt: float) -> Array:
    """How much better than the average group each is for all targets together, shrunk by how far they disagree."""
    theta = weights @ contrasts
    length = float(theta @ theta)
    apart = doubt**2 * disagreement(contrasts, weights, np.zeros(len(weights)))
    return np.asarray(theta * (max(0.0, 1.0 - apart / length) if length > 0.0 else 0.0))


def entropy(P: Array) -> Array:
    """H of each row."""
    return np.asarray(-(P * np.log(np.where(P > 0.0, P, 1.0))).sum(-1))


def solve_bent(Q: Array, drop: Array) -> tuple[Array, Array]:
    """A (n, m) and kappa (n) that explain drops (K, n) after mixtures Q (K, m) as `A q + kappa H(q)`.

    As in `solve_drops`, contrasts that the mixtures do not determine are taken to be zero."""
    X = np.column_stack([Q, entropy(Q)])
    x, d = X.mean(0), drop.mean(0)
    found = np.linalg.lstsq(X - x, drop - d, rcond=1e-4)[0]
    contrast, kappa = found[:-1] - found[:-1].mean(0), found[-1]
    return np.asarray((contrast + (d - x[:-1] @ contrast - x[-1] * kappa)).T), np.asarray(kappa)
