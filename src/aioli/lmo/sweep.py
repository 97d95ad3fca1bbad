"""InterleavedSweep: Aioli's LearnParams (Alg. 2). Short sweeps inside the run, and the A that explains their drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from aioli.lmo.task import VAL, Estimate, Round, Start, Task
from aioli.protocol import Observation, Segment, State, Weighting
from aioli.simplex import Array, smoothed_one_hot, within

# What the paper used: delta by number of groups; 0.07 for m = 7 (E7).
_PAPER_DELTA = {1: 0.064, 2: 0.128, 3: 0.288}


@dataclass(frozen=True)
class InterleavedSweep:
    """LearnParams (Alg. 2): train k times on each sweep mixture in turn, and solve `P A_i = beta_i`."""

    k: int | None = None
    """Sweeps per group; None is the paper's choice, 4 for up to 3 groups and 2 beyond."""
    eps: float = 0.75
    """One-hot smoothing: the share of `around` in each sweep mixture."""
    delta: float | None = None
    """Share of the round spent on the sweep; None is the paper's, raised where rounds are too short for it."""
    order: Literal["shuffle", "blocks", "mirrored"] = "shuffle"
    """Order of the intervals (E6)."""
    around: Literal["uniform", "current"] = "uniform"
    """What the sweep mixtures are smoothed towards (E32)."""
    fit: Literal["realised", "requested"] = "realised"
    """Which proportions to solve with (E5)."""
    diagonal: bool = False
    """Keep only `A_ii = beta_ii / p_i` (E10)."""
    start: Start = field(default="always", init=False, repr=False)
    needs: frozenset[str] = field(default=VAL, init=False, repr=False)
    weighting: Weighting = field(default="sample", init=False, repr=False)

    def __post_init__(self) -> None:
        smoothed_one_hot(2, self.eps)
        if self.k is not None and self.k < 1:
            raise ValueError(f"k={self.k} sweeps cannot be averaged; use at least 1")
        if self.delta is not None and not 0.0 < self.delta <= 1.0:
            raise ValueError(f"delta={self.delta} is not a share of the round; use 0 < delta <= 1")
        for name, allowed in (
            ("order", ("shuffle", "blocks", "mirrored")),
            ("around", ("uniform", "current")),
            ("fit", ("realised", "requested")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {', '.join(allowed)}")

    def sweeps(self, m: int) -> int:
        """k for m groups."""
        return self.k if self.k is not None else (4 if m <= 3 else 2)

    def interval(self, m: int, steps: int, swept: int | None = None) -> int:
        """Steps of one interval in a round of so many steps (E7); `swept`: of how many groups, where not of all."""
        count = (m if swept is None else swept) * self.sweeps(m)
        if self.delta is None:
            wanted = max(_PAPER_DELTA.get(m, 0.07), min(0.3, 4 * count / steps), count / steps)
            if wanted > 0.5 and count > 1:
                raise ValueError(
                    f"rounds of {steps} steps cannot hold {count} sweep intervals (m={m}, k={self.sweeps(m)}) and "
                    f"leave half the round to train on; use fewer rounds, of at least {2 * count} steps, or a smaller k"
                )
            return max(1, int(wanted * steps / count + 1e-9))
        length = int(self.delta * steps / count + 1e-9)
        if length < 1:
            raise ValueError(
                f"delta={self.delta} of a round of {steps} steps is {self.delta * steps:.3g} steps, too few for "
                f"{count} sweep intervals (m={m}, k={self.sweeps(m)}); use delta >= {count / steps:.3g}, fewer "
                "rounds or a smaller k"
            )
        return length

    def begin(self, task: Task) -> State:
        """Nothing to remember."""
        if self.diagonal and task.n is not None:
            raise ValueError(
                "a diagonal A needs the groups themselves as targets; leave targets out, or use another method"
            )
        return {}

    def indices(self, round: Round, among: Sequence[int] | None = None) -> list[int]:
        """Which sweep mixture each interval trains on; `among`: the groups that are swept, where not all are."""
        groups = np.arange(round.task.m) if among is None else np.asarray(among)
        k = self.sweeps(round.task.m)
        rng = np.random.default_rng([round.task.seed, round.t])
        if self.order == "shuffle":
            return [int(i) for i in rng.permutation(np.repeat(groups, k))]
        blocks: list[int] = []
        for b in range(k):
            mirrored = self.order == "mirrored" and b % 2 == 1
            blocks += blocks[-len(groups) :][::-1] if mirrored else [int(i) for i in rng.permutation(groups)]
        return blocks

    def mixtures(self, round: Round) -> Array:
        """The sweep mixtures, one per row; floors and caps hold for them too."""
        P = smoothed_one_hot(round.task.m, self.eps, round.p if self.around == "current" else None)
        if round.bounds is None:
            return P
        return np.stack([within(row, *round.bounds) for row in P])

    def probes(self, state: State, round: Round, among: Sequence[int] | None = None) -> list[Segment]:
        """k intervals of equal length for each group, or for each of those `among` them that are swept."""
        m = round.task.m
        length = self.interval(m, round.steps, None if among is None else len(among))
        each = [Segment(p, length, VAL, tag=f"sweep {j}") for j, p in enumerate(self.mixtures(round))]
        return [each[j] for j in self.indices(round, among)]

    def drops(
        self, round: Round, start: Array, log: Sequence[Observation], among: Sequence[int] | None = None
    ) -> tuple[list[int], Array, Array]:
        """Per interval: the sweep mixture's index, the proportions (K, m), the drop of each target's loss (K, n)."""
        order = self.indices(round, among)
        Q = np.stack([o.tokens for o in log])
        total = Q.sum(1, keepdims=True)
        if self.fit == "realised" and (total > 0).all():
            Q /= total
        else:
            Q = self.mixtures(round)[order]
        losses = np.stack([start, *(_val(o) for o in log)])
        return order, Q, -np.diff(losses, axis=0)

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate]:
        """Average proportions and drops over the k intervals of each mixture, then solve (E4)."""
        assert start is not None
        m = round.task.m
        order, Q, drop = self.drops(round, start, log)
        place = np.argsort(np.asarray(order), kind="stable").reshape(m, -1)
        if self.diagonal:
            own, beta = np.diag(Q[place].mean(1)), np.diag(drop[place].mean(1))
            return state, Estimate(np.diag(np.divide(beta, own, out=np.zeros(m), where=own > 0)))
        centre = round.p if self.around == "current" else np.full(m, 1.0 / m)
        P = Q[place].mean(1)
        if round.bounds is None and np.abs(P - smoothed_one_hot(m, self.eps, centre)).max() < 1e-13:
            # (1-eps)·I + eps·1·centreᵀ has this inverse, because the centre sums to 1
            beta = drop[place].mean(1)
            return state, Estimate(((beta - self.eps * (centre @ beta)) / (1.0 - self.eps)).T)
        if m > 200 and (A := _solve_square(P, drop[place].mean(1), 100.0 / (1.0 - self.eps))) is not None:
            return state, Estimate(A)
        return state, Estimate(solve_drops(Q, drop))


def _solve_square(P: Array, beta: Array, largest: float) -> Array | None:
    """P^-1 beta, which is faster for many groups; None where P is so nearly singular that contrasts would blow up."""
    try:
        A = np.linalg.solve(P, beta)
    except np.linalg.LinAlgError:
        return None
    blown = np.abs(A - A.mean(0)).max() > largest * np.abs(beta - beta.mean(0)).max()
    return None if blown or not np.isfinite(A).all() else np.asarray(A.T)


def solve_drops(Q: Array, drop: Array) -> Array:
    """The A (n, m) that explains the drops (K, n) of intervals with proportions Q (K, m), by least squares.

    Effects are split into a mean and contrasts between groups. Contrasts that the intervals do not determine, because
    tiny batches made the realised mixtures nearly dependent or left a group out, are taken to be zero: such a group is
    as good as the average. Where they are determined this is `P^-1 beta`.
    """
    q, d = Q.mean(0), drop.mean(0)
    if Q.shape[1] <= 200:
        contrast = np.linalg.lstsq(Q - q, drop - d, rcond=1e-4)[0]
    else:  # the normal equations are much faster, and their loss of digits is within the same tolerance
        centred = Q - q
        gram = centred.T @ centred
        gram[np.diag_indices_from(gram)] += 1e-10 * np.trace(gram) / len(gram)
        contrast = np.linalg.solve(gram, centred.T @ (drop - d))
    contrast = contrast - contrast.mean(0)
    return np.asarray((contrast + (d - q @ contrast)).T)


def _val(observation: Observation) -> Array:
    assert observation.val_loss is not None
    return observation.val_loss
