"""Estimators: where the law's parameters A^t come from in an online method (the second LMO component).

For every round an estimator names the segments it wants trained (`probes`) and turns what was observed in them into
A^t (`estimate`). It is frozen data; what it must remember goes in and out as a plain state, so that a run can stop
and go on anywhere. `PooledSweep` is in `pooled`, ADO's `ScalingSlope` in `slopes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from aioli.protocol import Observation, Segment, State, Weighting
from aioli.simplex import Array, as_weights, project, smoothed_one_hot, whole

Start = Literal["never", "later", "always"]
NONE: frozenset[str] = frozenset()
VAL = frozenset({"val_loss"})


@dataclass(frozen=True)
class Task:
    """What one run is about: m groups, n targets, its steps, its seed, and how much each target counts."""

    m: int
    steps: int
    n: int | None = None
    """Number of targets; None means the groups themselves (in-domain)."""
    seed: int = 0
    target_weights: tuple[float, ...] | None = None
    groups: tuple[str, ...] | None = None
    """The groups' names, where known: a state is not resumed with groups in another order."""
    weights: Array = field(init=False, repr=False, compare=False)
    """The target weights, scaled to mean 1."""

    def __post_init__(self) -> None:
        for name in ("m", "steps", "n", "seed"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole(value, name))
        if self.m < 1:
            raise ValueError(f"m={self.m} groups cannot be mixed; there must be at least one group")
        if self.steps < 1:
            raise ValueError(f"steps={self.steps} leaves nothing to train; use at least 1")
        if self.targets < 1:
            raise ValueError(f"n={self.n} targets: there must be at least one")
        if self.groups is not None and len(self.groups) != self.m:
            raise ValueError(f"groups={list(self.groups)} must be {self.m} names")
        if self.target_weights is not None:
            object.__setattr__(self, "target_weights", tuple(float(w) for w in self.target_weights))
        weights = as_weights(self.target_weights, self.targets)
        weights.setflags(write=False)
        object.__setattr__(self, "weights", weights)

    @property
    def targets(self) -> int:
        """The number of targets, n."""
        return self.m if self.n is None else self.n


@dataclass(frozen=True)
class Round:
    """Round t of an online method: its number (from 0), its steps, and the mixture in force when it starts."""

    task: Task
    t: int
    steps: int
    p: Array
    bounds: tuple[Array, Array] | None = None
    """Floors and caps that every mixture must keep."""


@dataclass(frozen=True)
class Estimate:
    """A^t, and, from estimators that know better than its column sums, the pull on each group."""

    A: Array
    pull: Array | None = None
    stderr: Array | None = None
    """Standard error of each group's pull, where known."""


class Estimator(Protocol):
    """Where A^t comes from."""

    @property
    def start(self) -> Start:
        """When the losses at the start of a round are needed: never, in all rounds but the first, always."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """The kinds it observes."""
        ...

    @property
    def weighting(self) -> Weighting:
        """How its probes use the mixture."""
        ...

    def begin(self, task: Task) -> State:
        """What it remembers before the first round; refuses settings that cannot work for this task."""
        ...

    def probes(self, round: Round) -> list[Segment]:
        """The segments to train before A^t is known, taken out of the round's steps."""
        ...

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate]:
        """A^t from the losses at the start of the round and the observations of its probes, in order."""
        ...


def realised(observation: Observation, requested: Array) -> Array:
    """The proportions that were consumed (E5), or the requested ones if nothing was."""
    total = observation.tokens.sum()
    return observation.tokens / total if total > 0 else requested


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

    def interval(self, m: int, steps: int) -> int:
        """Steps of one interval in a round of so many steps (E7)."""
        count = m * self.sweeps(m)
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

    def indices(self, round: Round) -> list[int]:
        """Which sweep mixture each interval trains on."""
        m, k = round.task.m, self.sweeps(round.task.m)
        rng = np.random.default_rng([round.task.seed, round.t])
        if self.order == "shuffle":
            return [int(i) for i in rng.permutation(np.repeat(np.arange(m), k))]
        blocks: list[int] = []
        for b in range(k):
            mirrored = self.order == "mirrored" and b % 2 == 1
            blocks += blocks[-m:][::-1] if mirrored else [int(i) for i in rng.permutation(m)]
        return blocks

    def mixtures(self, round: Round) -> Array:
        """The sweep mixtures, one per row; floors and caps hold for them too."""
        P = smoothed_one_hot(round.task.m, self.eps, round.p if self.around == "current" else None)
        if round.bounds is None:
            return P
        with np.errstate(divide="ignore"):
            return np.exp([project(np.maximum(np.log(row), -1e4), *round.bounds) for row in P])

    def probes(self, round: Round) -> list[Segment]:
        """m·k intervals of equal length."""
        m = round.task.m
        length = self.interval(m, round.steps)
        P = self.mixtures(round)
        return [Segment(P[j], length, VAL, tag=f"sweep {j}") for j in self.indices(round)]

    def drops(self, round: Round, start: Array, log: Sequence[Observation]) -> tuple[list[int], Array, Array]:
        """Per interval: the sweep mixture's index, the proportions (K, m), the drop of each target's loss (K, n)."""
        order = self.indices(round)
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
        return state, Estimate(solve_drops(Q, drop))


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


@dataclass(frozen=True)
class SkillGraph:
    """Skill-It: `A^t = diag(L^t) · A^SG` with a graph learned beforehand (E12, E13). The first mixture uses L = 1."""

    graph: tuple[tuple[float, ...], ...]
    """A^SG, (n, m): the relative decrease of target i's loss when training on group j alone."""
    start: Start = field(default="later", init=False, repr=False)
    needs: frozenset[str] = field(default=VAL, init=False, repr=False)
    weighting: Weighting = field(default="sample", init=False, repr=False)

    def __post_init__(self) -> None:
        rows = tuple(tuple(float(v) for v in row) for row in self.graph)
        if not rows or len({len(row) for row in rows}) != 1 or not np.isfinite(np.array(rows)).all():
            raise ValueError(f"graph={rows} must be a finite table with one row per target and one column per group")
        object.__setattr__(self, "graph", rows)

    @staticmethod
    def learn(before: Array, after: Array) -> tuple[tuple[float, ...], ...]:
        """A^SG from m one-hot runs: losses before (m, n) and after (m, n), run j in row j."""
        with np.errstate(divide="ignore", invalid="ignore"):
            graph = np.where(before != 0, (before - after) / before, 0.0).T
        return tuple(tuple(float(v) for v in row) for row in graph)

    def begin(self, task: Task) -> State:
        """Nothing to remember."""
        shape = (len(self.graph), len(self.graph[0]))
        if shape != (task.targets, task.m):
            raise ValueError(f"graph has shape {shape} but there are {task.targets} targets and {task.m} groups")
        return {}

    def probes(self, round: Round) -> list[Segment]:
        """None: the graph and the losses are enough."""
        return []

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate]:
        """The graph, each row times its target's loss."""
        graph = np.array(self.graph)
        return state, Estimate(graph if start is None else start[:, None] * graph)


def _one_step(
    round: Round, observe: frozenset[str], weighting: Weighting, val_share: float | None = None
) -> list[Segment]:
    weights = round.task.weights if "grad_inner" in observe and round.task.target_weights is not None else None
    return [Segment(round.p, round.steps, observe, weighting, "train", weights, val_share)]


@dataclass(frozen=True)
class ExcessLoss:
    """DoReMi: a diagonal A of clipped excess losses over a reference model, `max(L_train - L_ref, 0)` (E14-E16)."""

    clip: Literal["group", "token"] = "group"
    """Clip the group's mean excess (this paper) or every token's (the original)."""
    start: Start = field(default="never", init=False, repr=False)
    weighting: Weighting = field(default="loss", init=False, repr=False)

    def __post_init__(self) -> None:
        if self.clip not in {"group", "token"}:
            raise ValueError(f"clip={self.clip!r} is not one of group, token")

    @property
    def kind(self) -> str:
        """The kind it observes."""
        return "excess_loss" if self.clip == "group" else "token_excess_loss"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.kind})

    def begin(self, task: Task) -> State:
        """The last excess loss of each group: none yet."""
        return {"last": np.zeros(task.m)}

    def probes(self, round: Round) -> list[Segment]:
        """The round itself, loss-weighted."""
        return _one_step(round, self.needs, "loss")

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate]:
        """A group that was absent keeps its last excess loss."""
        seen = getattr(log[0], self.kind)
        last = np.where(np.isfinite(seen), seen, np.asarray(state["last"]))
        return {"last": last}, Estimate(np.diag(np.maximum(last, 0.0)))


@dataclass(frozen=True)
class GradientInner:
    """DoGE: `A_ij = ⟨∇L_val,i, ∇L_train,j⟩` (E17). A trainer may give the matrix or, cheaper, its column sums."""

    rule: Literal["paper", "normalised"] = "paper"
    """`normalised` is the authors' code: times the learning rate, over the mean gradient norm, clipped to [0, 5·lr]."""
    r: float | None = None
    """Share of the batch taken from validation data; None is the paper's, 0.25 for two groups and 0.5 beyond (E18)."""
    start: Start = field(default="never", init=False, repr=False)
    weighting: Weighting = field(default="loss", init=False, repr=False)

    def __post_init__(self) -> None:
        if self.rule not in {"paper", "normalised"}:
            raise ValueError(f"rule={self.rule!r} is not one of paper, normalised")
        if self.r is not None and not 0.0 < self.r < 1.0:
            raise ValueError(f"r={self.r} is not a share of the batch; use 0 < r < 1")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"grad_inner"} if self.rule == "paper" else {"grad_inner", "grad_norm", "lr"})

    def begin(self, task: Task) -> State:
        """Nothing to remember."""
        return {}

    def probes(self, round: Round) -> list[Segment]:
        """The round itself, loss-weighted."""
        r = self.r if self.r is not None else (0.25 if round.task.m <= 2 else 0.5)
        return _one_step(round, self.needs, "loss", r)

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate]:
        """The inner products as they are, or normalised."""
        seen = log[0]
        assert seen.grad_inner is not None
        A = np.atleast_2d(seen.grad_inner)
        pull = A[0] if seen.grad_inner.ndim == 1 else round.task.weights @ A
        if self.rule == "normalised":
            assert seen.grad_norm is not None
            assert seen.lr is not None
            norm = float(seen.grad_norm.mean())
            pull = np.clip(seen.lr * pull / norm if norm > 0 else 0.0 * pull, 0.0, 5.0 * seen.lr)
        return state, Estimate(A, pull=pull)
