"""Rounds of: probe, estimate A^t, solve for p^t, train on it (Alg. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from aioli.config import register
from aioli.lmo.estimators import ExcessLoss, GradientInner, SkillGraph
from aioli.lmo.forks import ForkedSweep
from aioli.lmo.pooled import PooledSweep
from aioli.lmo.slopes import ScalingSlope, TimeAverage
from aioli.lmo.solvers import EGD
from aioli.lmo.sweep import InterleavedSweep
from aioli.lmo.task import Estimate, Estimator, Round, Task
from aioli.protocol import Observation, Segment, State
from aioli.simplex import Array, as_mixture, box, uniform, whole, within

Normalise = Literal["shift-sum", "l1", "none"]

for _cls in (EGD, TimeAverage, InterleavedSweep, PooledSweep, ForkedSweep, SkillGraph, ExcessLoss, GradientInner):
    register(_cls)
register(ScalingSlope)


class Solver(Protocol):
    """How p follows from the pulls of an online method."""

    def start(self, p0: ArrayLike | int) -> State:
        """The state before any step."""
        ...

    def step(self, state: State, pull: ArrayLike) -> tuple[State, Array]:
        """The new state and mixture."""
        ...


def normalise(A: Array, how: Normalise) -> Array:
    """A with entries of a size that does not depend on the stage of training (E1)."""
    if how == "none":
        return A
    if how == "l1":
        size = np.abs(A).sum()
        return A / size if size > 0 else np.zeros_like(A)
    shifted = A - min(float(A.min()), 0.0)
    size = shifted.sum()
    if size > 0 and np.isfinite(size):
        return np.asarray(shifted / size)
    return np.full_like(A, 1.0 / A.size)


@register
@dataclass(frozen=True)
class Online:
    """Rounds of: probe, estimate A^t, solve for p^t, train on p^t for the rest of the round (Alg. 1)."""

    estimator: Estimator
    solver: Solver
    rounds: int | Literal["every step"] | None = None
    """T; None is the paper's 20, or fewer where rounds would be too short for the probes."""
    normalise: Normalise = "none"
    p0: tuple[float, ...] | None = None
    """Where the solver starts; None is uniform, also after an initial phase (E3)."""

    def __post_init__(self) -> None:
        if self.normalise not in {"shift-sum", "l1", "none"}:
            raise ValueError(f"normalise={self.normalise!r} is not one of shift-sum, l1, none")
        if self.rounds is not None and self.rounds != "every step":
            object.__setattr__(self, "rounds", whole(self.rounds, "rounds"))
        if isinstance(self.rounds, int) and self.rounds < 1:
            raise ValueError(f"rounds={self.rounds} must be at least 1")

    def needs(self, task: Task) -> frozenset[str]:
        return self.estimator.needs

    def weightings(self) -> frozenset[str]:
        return frozenset({self.estimator.weighting})

    @property
    def _sweep(self) -> InterleavedSweep | None:
        """The sweep inside the estimator, pooled or not, if there is one."""
        sweep = getattr(self.estimator, "sweep", self.estimator)
        return sweep if isinstance(sweep, InterleavedSweep) else None

    def count(self, task: Task) -> int:
        """T for this task."""
        if self.rounds == "every step":
            return task.steps
        if self.rounds is None:
            if (sweep := self._sweep) is None:
                return min(20, task.steps)
            share = 0.5 if sweep.delta is None else sweep.delta
            shortest = math.ceil(task.m * sweep.sweeps(task.m) / share - 1e-9)
            return max(1, min(20, task.steps // shortest))
        if self.rounds > task.steps:
            raise ValueError(f"rounds={self.rounds} is more than the {task.steps} steps there are; use fewer rounds")
        return self.rounds

    def _round(self, task: Task, state: State) -> Round | None:
        T, t = state["rounds"], state["round"]
        if t >= T:
            return None
        steps = (t + 1) * task.steps // T - t * task.steps // T
        return Round(task, t, steps, np.asarray(state["opening"], dtype=np.float64), self._bounds(task), T)

    def _bounds(self, task: Task) -> tuple[Array, Array] | None:
        floors, caps = getattr(self.solver, "floors", None), getattr(self.solver, "caps", None)
        return None if floors is None and caps is None else box(task.m, floors, caps)

    def begin(self, task: Task) -> State:
        p0 = uniform(task.m) if self.p0 is None else as_mixture(self.p0, task.m, "p0")
        solver = self.solver.start(p0)
        if (bounds := self._bounds(task)) is not None:
            p0 = within(p0, *bounds)
        state: State = {
            "rounds": self.count(task),
            "round": 0,
            "index": 0,
            "start": None,
            "log": [],
            "left": None,
            "opening": p0,
            "p": p0,
            "solver": solver,
            "estimator": self.estimator.begin(task),
            "A": None,
            "pull": None,
            "stderr": None,
        }
        if (sweep := self._sweep) is not None:
            sweep.interval(task.m, task.steps // state["rounds"])  # refuses, now, rounds too short for the sweep
        return self._open(task, state)

    def _looks(self, state: State) -> bool:
        """Whether the round must begin by looking at the losses."""
        return self.estimator.start == "always" and state["start"] is None

    def _probes(self, state: State, round: Round) -> list[Segment]:
        """The round's probes, which are asked for at every interval; the state carries them as a memo.

        Only until A is estimated: then the estimator's state is another one, and `left` says what is left to train."""
        memo = state.get("_probes")
        if memo is None or memo[0] != round.t:
            memo = state["_probes"] = (round.t, self.estimator.probes(state["estimator"], round))
        probes: list[Segment] = memo[1]
        return probes

    def segment(self, task: Task, state: State) -> Segment | None:
        round = self._round(task, state)
        if round is None:
            return None
        if self._looks(state):
            return Segment(round.p, 0, frozenset({"val_loss"}), tag="look")
        if state["left"] is None:
            return self._probes(state, round)[state["index"]]
        last = round.t == state["rounds"] - 1
        observe = frozenset() if self.estimator.start == "never" or last else frozenset({"val_loss"})
        return Segment(np.asarray(state["p"]), state["left"], observe, tag="train")

    def advance(self, task: Task, state: State, segment: Segment, observation: Observation) -> State:
        round = self._round(task, state)
        assert round is not None
        if self._looks(state):
            return self._open(task, {**state, "start": observation.val_loss})
        if state["left"] is not None:
            return self._close(task, state, observation.val_loss)
        probes = self._probes(state, round)
        new = {**state, "log": [*state["log"], _only(observation, segment.observe)], "index": state["index"] + 1}
        if new["index"] < len(probes):
            return new
        new = {**self._update(task, round, new), "left": round.steps - sum(s.steps for s in probes)}
        return new if new["left"] > 0 else self._close(task, new, observation.val_loss)

    def _open(self, task: Task, state: State) -> State:
        """Begin a round; one without probes knows its A at once."""
        round = self._round(task, state)
        if round is None or self._looks(state) or self._probes(state, round):
            return state
        return {**self._update(task, round, state), "left": round.steps}

    def _close(self, task: Task, state: State, val_loss: Array | None) -> State:
        new = {**state, "round": state["round"] + 1, "index": 0, "log": [], "left": None, "start": val_loss}
        return self._open(task, {**new, "opening": state["p"]})

    def _update(self, task: Task, round: Round, state: State) -> State:
        """LearnParams and the solver's step: A^t, then p^t."""
        log = [entry if isinstance(entry, Observation) else Observation(**entry) for entry in state["log"]]
        start = None if state["start"] is None else np.asarray(state["start"], dtype=np.float64)
        remembered, estimate = self.estimator.estimate(state["estimator"], round, start, log)
        if estimate is None:
            return {**state, "log": [], "estimator": remembered}
        pull = estimate.pull if estimate.pull is not None else self.pull(task, estimate)
        solver, p = self.solver.step(state["solver"], pull)
        return {
            **state,
            "log": [],
            "estimator": remembered,
            "solver": solver,
            "p": p,
            "A": _told(estimate.A),
            "pull": pull,
            "stderr": estimate.stderr,
        }

    def pull(self, task: Task, estimate: Estimate) -> Array:
        """The column sums of the normalised A, each target counting by its weight (Lemma 1)."""
        # the diagonal A of DoReMi and ADO has a row per group, which is no target where the targets are others
        by_group = "val_loss" not in self.estimator.needs and task.n is not None
        rows = np.ones(len(estimate.A)) if by_group else task.weights
        weighted = rows[:, None] * estimate.A
        return np.asarray(normalise(weighted, self.normalise).sum(0))

    def report(self, task: Task, state: State) -> State:
        told = {k: state[k] for k in ("round", "p", "A", "pull", "stderr") if state[k] is not None}
        round = self._round(task, state)
        if round is not None and self._sweep is not None:
            left = state["left"]
            probed = sum(s.steps for s in self._probes(state, round)) if left is None else round.steps - left
            told["delta"] = probed / round.steps  # as realised (E7)
        return told


def _only(observation: Observation, kinds: frozenset[str]) -> Observation:
    """The observation without what was not asked for, which nobody has checked."""
    kept = kinds | {"tokens"} | ({"fork_tokens"} if "fork_loss" in kinds else set())
    seen = vars(observation)
    if all(value is None or name in kept for name, value in seen.items()):
        return observation
    return Observation(**{name: value for name, value in seen.items() if name in kept})


def _told(A: Array) -> Any:
    """A for people, who are told nothing of what was not tried out."""
    return [[None if np.isnan(value) else value for value in row] for row in A.tolist()] if np.isnan(A).any() else A
