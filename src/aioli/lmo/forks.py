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
    trail: float | None = None
    """How far a group must trail the best in the sum of pulls, towards a single target, to be tried out no more. The
    others have its steps then: what hides a lead does not grow with the length of forks, the lead does. Two groups are
    left at least, as one unlucky fork must not decide alone; the first sweep counts whole for this. It wants a solver
    that remembers all pulls, and no floors or caps. None: all are tried out in every sweep."""
    first: float = 1.0
    """How much the first sweep counts, where others follow: what teaches a young model most is not yet what teaches it
    most in the end, and its drops are the largest of the run."""
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
        if self.trail is not None and not self.trail > 0.0:
            raise ValueError(f"trail={self.trail} must be positive, or None")
        if not 0.0 <= self.first <= 1.0:
            raise ValueError(f"first={self.first} is not a share of a sweep's pulls; use 0 <= first <= 1")

    def begin(self, task: Task) -> State:
        """The largest size of A so far, whether it is settled that p stays, the sum of pulls, and who is tried out."""
        if task.m > 1 and self.delta * task.steps < task.m - 1e-9:
            raise ValueError(
                f"delta={self.delta} of {task.steps} steps is {self.delta * task.steps:.3g} steps, too few to try out "
                f"{task.m} mixtures; use delta >= {task.m / task.steps:.3g}, if the run has as many steps as groups"
            )
        return {"size": 0.0, "settled": False, "pulls": np.zeros(task.m), "tried": list(range(task.m))}

    def swept(self, task: Task, rounds: int) -> range:
        """The rounds, of so many, that begin with forks: those from `after` to `until`, at least one, and fewer where
        there are not steps for all."""
        first = min(math.ceil(self.after * rounds - 1e-9), rounds - 1)
        last = max(first + 1, math.ceil(self.until * rounds - 1e-9))
        return range(first, min(last, first + max(1, int(self.delta * task.steps / task.m + 1e-9))))

    def steps(self, round: Round, tried: int) -> int:
        """Of each fork, where so many groups are tried out: sweeps have the same steps, shared by their forks."""
        forks = len(self.swept(round.task, round.rounds)) * tried
        return min(LONGEST, int(self.delta * round.task.steps / forks + 1e-9))

    def mixtures(self, round: Round) -> Array:
        """The mixture that tries each group out, one per row; floors and caps hold for them too."""
        P = smoothed_one_hot(round.task.m, self.eps, round.p)
        return P if round.bounds is None else np.stack([within(row, *round.bounds) for row in P])

    def probes(self, state: State, round: Round) -> list[Segment]:
        """One segment without steps, which asks for the forks."""
        if round.task.m == 1 or state["settled"] or round.t not in self.swept(round.task, round.rounds):
            return []
        forks, steps = self.mixtures(round)[state["tried"]], self.steps(round, len(state["tried"]))
        return [Segment(round.p, 0, OBSERVED, tag="forks", forks=forks, fork_steps=steps, fork_cooling=self.cooling)]

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate | None]:
        """A solves `P A_i = beta_i` (E4); pulls are its column sums relative to the size of each target's row.

        A group that is tried out no more is taken to be as good as the worst that is."""
        if not log:
            return state, None
        before, after = log[0].val_loss, log[0].fork_loss
        assert before is not None
        assert after is not None
        tokens, tried = log[0].fork_tokens, state["tried"]
        # what forks were really trained on (E5), where that is known
        consumed = self.mixtures(round)[tried] if tokens is None else tokens / tokens.sum(1, keepdims=True)
        A = solve_drops(consumed, before - after)
        weights, rest = round.task.weights, [j for j in range(round.task.m) if j not in tried]
        A[:, rest] = A[:, tried].min(1, keepdims=True)  # they trail at least
        size = max(state["size"], size_of(A, weights))
        pull = pulls(A, weights, self.doubt) / (size or 1.0) * (SEVERAL if len(weights) > 1 else 1.0)
        total = np.asarray(state["pulls"]) + pull
        new = {"size": size, "settled": size > 0.0 and not pull.any(), "pulls": total}
        sweeps = self.swept(round.task, round.rounds)
        counts = self.first if round.t == sweeps[0] and len(sweeps) > 1 else 1.0
        A[:, rest] = np.nan  # nothing was seen of them
        return {**new, "tried": self._race(round, total, tried)}, Estimate(A, counts * pull)

    def _race(self, round: Round, total: Array, tried: list[int]) -> list[int]:
        """Of the groups that were tried out, those that do not trail far behind, and the two best in any case.

        With floors and caps all stay: what a group at its cap may not have goes to those behind it, and forks of few
        groups could not tell the effect of a capped one from theirs."""
        if self.trail is None or round.task.targets > 1 or round.bounds is not None:
            return tried
        best = sorted(tried, key=lambda j: -float(total[j]))
        trailing = {j for j in best[2:] if total[best[0]] - total[j] > self.trail}
        return [j for j in tried if j not in trailing]


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
