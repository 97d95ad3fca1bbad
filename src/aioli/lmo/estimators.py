"""Estimators: where the law's parameters A^t come from in an online method (the second LMO component).

For every round an estimator names the segments it wants trained (`probes`) and turns what was observed in them into
A^t (`estimate`). It is frozen data; what it must remember goes in and out as a plain state, so that a run can stop
and go on anywhere. Here are those of Skill-It, DoReMi and DoGE; Aioli's is in `sweep`, its pooled form in `pooled`,
ADO's in `slopes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from aioli.lmo.task import VAL, Estimate, Round, Start, Task
from aioli.protocol import Observation, Segment, State, Weighting
from aioli.simplex import Array


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

    def probes(self, state: State, round: Round) -> list[Segment]:
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

    def probes(self, state: State, round: Round) -> list[Segment]:
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

    def probes(self, state: State, round: Round) -> list[Segment]:
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
            present = seen.grad_norm > 0  # a group that is absent from the batch has no gradient
            norm = float(seen.grad_norm[present].mean()) if present.any() else 0.0
            pull = np.clip(seen.lr * pull / norm if norm > 0 else 0.0 * pull, 0.0, 5.0 * seen.lr)
        return state, Estimate(A, pull=pull)
