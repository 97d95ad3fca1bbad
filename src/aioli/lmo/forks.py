"""ForkedSweep (ours): A^t as the paper defines A*, from a sweep of forks instead of intervals of the run itself.

Every sweep mixture is tried out from the same weights, on a copy that is forgotten, while the learning rate falls to
zero. So the intervals do not follow one another, nothing that one group taught is left over in the next, and the run
itself is not disturbed; the price is steps that are thrown away.

The mixture in force is tried out beside them. What it gains over what the others promise for it, were drops linear,
shows how fast returns diminish, and that says how far p is to go: drops are taken to be `A p + kappa sum(log p)`, whose
best p is known. Groups that can stand in for each other have a small kappa and p goes far; where each teaches something
of its own kappa is large, and p stays.
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
FIRST = 0.01
"""A share that is little: returns diminish like the logarithm of a group's share beside it."""
ENOUGH = 1.0
"""Squared distance, in `variety`, of the mixture in force from what the others promise for it that tells kappa well."""
USUAL = 0.2
"""kappa over the size of contrasts, where it is not told: about what it was towards single targets."""
FARTHEST = 6.0
"""Largest pull between two groups: shares that are e^-6 of another are none."""
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
        """The sums of the regression, which do not grow with the sweeps, and whether it is settled that p stays."""
        forks = task.m + 1
        if task.m > 1 and self.delta * task.steps < forks - 1e-9:
            raise ValueError(
                f"delta={self.delta} of {task.steps} steps is {self.delta * task.steps:.3g} steps, too few to try out "
                f"{forks} mixtures; use delta >= {forks / task.steps:.3g}, if the run has more steps than groups"
            )
        return {"gram": np.zeros((forks, forks)), "cross": np.zeros((forks, task.targets)), "settled": False}

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
        """A and kappa by least squares over the forks of all sweeps, each of which has its own level."""
        if not log:
            return state, None
        before, after = log[0].val_loss, log[0].fork_loss
        assert before is not None
        assert after is not None
        Q, drop = self._consumed(round, log[0].fork_tokens), before - after
        X, level = np.column_stack([Q, variety(Q)]), drop.mean(0)
        x = X.mean(0)
        gram = np.asarray(state["gram"]) + (X - x).T @ (X - x)
        cross = np.asarray(state["cross"]) + (X - x).T @ (drop - level)
        contrasts, kappa = solve_bent(gram, cross)
        weights = round.task.weights
        theta = agreed(contrasts, weights, self.doubt)
        p = best(theta, float(weights @ kappa))
        pull = np.maximum(np.log(p / p.max(), where=p > 0.0, out=np.full(p.size, -np.inf)), -FARTHEST)
        A = contrasts + (level - x[:-1] @ contrasts.T - x[-1] * kappa)[:, None]
        settled = bool(contrasts.any()) and not theta.any()
        return {"gram": gram, "cross": cross, "settled": settled}, Estimate(A, pull - pull.mean())


def agreed(contrasts: Array, weights: Array, doubt: float) -> Array:
    """How much better than the average group each is for all targets together, shrunk by how far they disagree.

    Once because what is left of the sum may be chance. And once more by the square root of how many targets speak for
    themselves: each mostly wants a group of its own, and a model that has had its share of it so far does not show,
    within a fork, what it would be without."""
    theta = weights @ contrasts
    length = float(theta @ theta)
    if length == 0.0:
        return np.zeros_like(theta)
    apart = disagreement(contrasts, weights, np.zeros(len(weights))) / length
    count = float(weights.sum() ** 2 / (weights @ weights))
    speak = 1.0 + (count - 1.0) * min(1.0, apart)
    return np.asarray(theta * max(0.0, 1.0 - doubt**2 * apart) / math.sqrt(speak))


def variety(P: Array) -> Array:
    """The sum over groups of the logarithm of their share, for each row; finite also where a group is left out."""
    return np.asarray(np.log(P + FIRST).sum(-1))


def best(theta: Array, kappa: float) -> Array:
    """The mixture p that has the largest `theta p + kappa variety(p)`: shares are `kappa / (mu - theta) - FIRST`."""
    m, top = theta.size, float(theta.max())
    size = max(float(np.ptp(theta)), abs(kappa))
    if size == 0.0:
        return np.full(m, 1.0 / m)
    kappa = max(kappa, 1e-6 * size)
    low, high = 0.0, kappa / FIRST  # of mu - top: all shares are 0 at the upper end, at the lower one is infinite
    for _ in range(200):
        middle = 0.5 * (low + high)
        if np.maximum(kappa / (middle + top - theta) - FIRST, 0.0).sum() > 1.0:
            low = middle
        else:
            high = middle
    p = np.maximum(kappa / (high + top - theta) - FIRST, 0.0)
    return np.asarray(p / p.sum())


def solve_bent(gram: Array, cross: Array) -> tuple[Array, Array]:
    """Contrasts of A (n, m) and kappa (n) that explain drops as `A q + kappa variety(q)`, from the sums of squares of
    (q, variety) and of their products with the drops.

    Contrasts that the mixtures do not determine are taken to be zero. Where they hardly determine kappa, because caps
    or tiny batches leave no mixture in the midst of the others, it is taken to be as large as usual.
    """
    inverse = np.linalg.pinv(gram[:-1, :-1], rcond=1e-8, hermitian=True)
    along = inverse @ gram[:-1, -1]
    straight = inverse @ cross[:-1]
    told = float(gram[-1, -1] - gram[:-1, -1] @ along)  # what is left of variety beside q
    lent = max(0.0, ENOUGH - told)
    usual = USUAL * np.sqrt(np.mean((straight - straight.mean(0)) ** 2, axis=0))
    kappa = (cross[-1] - along @ cross[:-1] + lent * usual) / (told + lent)
    contrasts = straight - np.outer(along, kappa)
    return np.asarray((contrasts - contrasts.mean(0)).T), np.asarray(kappa)
