"""Policies: what drives one training run, as pure rules behind one stateful object.

    Static    one mixture for the whole run
    Online    rounds of: probe, estimate A^t, solve for p^t, train on it  (Aioli, Skill-It, DoReMi, DoGE, ADO)
    Bandit    one group per batch by EXP3 (ODM; outside LMO)
    Then      one set of rules for the first steps, another for the rest  (Aioli + any method)

Rules are frozen data with three pure functions: the first state, the segment that a state asks for, and the state
after an observation. `RulePolicy` adds what the protocol promises: `ask` is idempotent, a refused `tell` changes
nothing, and the state is plain JSON that can be dumped and reloaded between any two calls.
"""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from aioli.config import from_config, register, to_config, to_plain
from aioli.lmo.estimators import (
    Estimate,
    Estimator,
    ExcessLoss,
    GradientInner,
    InterleavedSweep,
    Round,
    SkillGraph,
    Task,
)
from aioli.lmo.pooled import PooledSweep
from aioli.lmo.slopes import ScalingSlope, TimeAverage
from aioli.lmo.solvers import EGD
from aioli.protocol import Observation, Segment, State
from aioli.simplex import Array, as_mixture, box, project, softmax, uniform, whole

Normalise = Literal["shift-sum", "l1", "none"]
TRAIN = frozenset({"train_loss"})

for _cls in (EGD, TimeAverage, InterleavedSweep, PooledSweep, SkillGraph, ExcessLoss, GradientInner, ScalingSlope):
    register(_cls)


class Rules(Protocol):
    """How one run is driven, without any state of its own."""

    def needs(self, task: Task) -> frozenset[str]:
        """The kinds that will be observed."""
        ...

    def weightings(self) -> frozenset[str]:
        """Which weightings its segments use."""
        ...

    def begin(self, task: Task) -> State:
        """The state before the first segment; refuses settings that cannot work for this task."""
        ...

    def segment(self, task: Task, state: State) -> Segment | None:
        """What to train next; None at the end."""
        ...

    def advance(self, task: Task, state: State, segment: Segment, observation: Observation) -> State:
        """The state after the observation; the old state is left as it is."""
        ...

    def report(self, task: Task, state: State) -> State:
        """What a journal should know of the last update: round, A, p…"""
        ...


class Solver(Protocol):
    """How p follows from the pulls of an online method."""

    def start(self, p0: ArrayLike | int) -> State:
        """The state before any step."""
        ...

    def step(self, state: State, pull: ArrayLike) -> tuple[State, Array]:
        """The new state and mixture."""
        ...


def check_observation(segment: Segment, observation: Observation, m: int, n: int) -> None:
    """Refuse an observation that lacks what was asked for, has the wrong shape, or is not finite where it must be."""
    tokens = observation.tokens
    if tokens.shape != (m,) or not (tokens >= 0).all() or not np.isfinite(tokens.sum()):
        raise ValueError(f"tokens={tokens.tolist()} must be {m} finite numbers, one per group, not negative")
    shapes = {"val_loss": ((n,),), "grad_inner": ((n, m), (m,)), "lr": ((),)}
    for kind in segment.observe:
        value = getattr(observation, kind)
        if value is None:
            raise ValueError(f"{kind} was asked for and is missing from the observation")
        allowed = shapes.get(kind, ((m,),))
        if np.shape(value) not in allowed:
            raise ValueError(f"{kind} has shape {np.shape(value)}, expected {' or '.join(map(str, allowed))}")
        if math.isfinite(value if kind == "lr" else value.sum()):
            continue
        finite = np.isfinite(value)
        if kind in {"train_loss", "excess_loss", "token_excess_loss"}:
            finite |= np.isnan(value) & (tokens == 0)  # an absent group has no loss
        if not np.all(finite):
            where = "" if np.ndim(value) == 0 else f"{[int(i) for i in np.argwhere(~finite)[0]]}"
            raise ValueError(
                f"{kind}{where}={np.asarray(value)[~finite].ravel()[0]} is not finite; the run has diverged or the "
                "measurement failed"
            )


class RulePolicy:
    """A policy of the protocol, from rules and a task."""

    def __init__(self, rules: Rules, task: Task) -> None:
        self.rules, self.task = rules, task
        self._state = rules.begin(task)
        self._asked: Segment | None = None

    @property
    def needs(self) -> frozenset[str]:
        """The kinds it will ask a trainer to observe."""
        return self.rules.needs(self.task)

    @property
    def weightings(self) -> frozenset[str]:
        """Which of `sample` and `loss` its segments use."""
        return self.rules.weightings()

    def ask(self) -> Segment | None:
        """The next segment, the same one until `tell`; None when the run is over."""
        if self._asked is None:
            self._asked = self.rules.segment(self.task, self._state)
        return self._asked

    def tell(self, observation: Observation) -> None:
        """Take in what came of the segment; a refused observation changes nothing."""
        segment = self.ask()
        if segment is None:
            raise ValueError("the run is over; there is no segment to tell about")
        check_observation(segment, observation, self.task.m, self.task.targets)
        self._state = self.rules.advance(self.task, self._state, segment, observation)
        self._asked = None

    def report(self) -> State:
        """What a journal should know of the last update, as plain JSON."""
        plain: State = to_plain(self.rules.report(self.task, self._state))
        return plain

    def state_dict(self) -> State:
        """Everything that decides what follows, as plain JSON."""
        return {
            "version": 1,
            "rules": to_config(self.rules),
            "task": _plain_task(self.task),
            "state": to_plain(self._state),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a `state_dict` of the same rules and task."""
        if not isinstance(state, dict) or not {"version", "rules", "task", "state"} <= state.keys():
            raise ValueError("this is not the state of a policy; load what policy.state_dict() returned")
        if state["version"] != 1:
            raise ValueError(f"policy state version {state['version']!r} is not known; this is version 1")
        for name, mine in (("rules", to_config(self.rules)), ("task", _plain_task(self.task))):
            if state[name] != mine:
                where, theirs, ours = _first_difference(state[name], mine)
                raise ValueError(
                    f"this state belongs to another run: {where or name} was {theirs}, now {ours}; resume with the "
                    "settings the run was started with"
                )
        self._state = copy.deepcopy(state["state"])
        self._asked = None


def _first_difference(theirs: Any, mine: Any, path: str = "") -> tuple[str, Any, Any]:
    """Where two configs first differ, and how."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in sorted(theirs.keys() | mine.keys()):
            if theirs.get(key) != mine.get(key):
                return _first_difference(theirs.get(key), mine.get(key), f"{path}.{key}" if path else key)
    return path, theirs, mine


def _plain_task(task: Task) -> State:
    plain: State = to_plain({k: v for k, v in vars(task).items() if k != "weights"})
    return plain


def build(rules: Rules | dict[str, Any], task: Task) -> RulePolicy:
    """A policy from rules or their config."""
    return RulePolicy(from_config(rules) if isinstance(rules, dict) else rules, task)


@register
@dataclass(frozen=True)
class Static:
    """One mixture for the whole run."""

    proportions: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "proportions", tuple(as_mixture(self.proportions).tolist()))

    def needs(self, task: Task) -> frozenset[str]:
        return frozenset()

    def weightings(self) -> frozenset[str]:
        return frozenset({"sample"})

    def begin(self, task: Task) -> State:
        as_mixture(self.proportions, task.m)
        return {"done": False}

    def segment(self, task: Task, state: State) -> Segment | None:
        return None if state["done"] else Segment(np.array(self.proportions), task.steps, tag="train")

    def advance(self, task: Task, state: State, segment: Segment, observation: Observation) -> State:
        return {"done": True}

    def report(self, task: Task, state: State) -> State:
        return {"p": self.proportions}


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

    def count(self, task: Task) -> int:
        """T for this task."""
        if self.rounds == "every step":
            return task.steps
        if self.rounds is None:
            sweep = getattr(self.estimator, "sweep", self.estimator)
            if not isinstance(sweep, InterleavedSweep):
                return min(20, task.steps)
            share = 0.5 if sweep.delta is None else sweep.delta
            return max(1, min(20, int(share * task.steps / (task.m * sweep.sweeps(task.m)) + 1e-9)))
        if self.rounds > task.steps:
            raise ValueError(f"rounds={self.rounds} is more than the {task.steps} steps there are; use fewer rounds")
        return self.rounds

    def _round(self, task: Task, state: State) -> Round | None:
        T, t = state["rounds"], state["round"]
        if t >= T:
            return None
        steps = (t + 1) * task.steps // T - t * task.steps // T
        return Round(task, t, steps, np.asarray(state["opening"], dtype=np.float64), self._bounds(task))

    def _bounds(self, task: Task) -> tuple[Array, Array] | None:
        floors, caps = getattr(self.solver, "floors", None), getattr(self.solver, "caps", None)
        return None if floors is None and caps is None else box(task.m, floors, caps)

    def begin(self, task: Task) -> State:
        p0 = uniform(task.m) if self.p0 is None else as_mixture(self.p0, task.m, "p0")
        solver = self.solver.start(p0)
        if (bounds := self._bounds(task)) is not None:
            with np.errstate(divide="ignore"):
                p0 = softmax(project(np.maximum(np.log(p0), -1e4), *bounds))
        state: State = {
            "rounds": self.count(task),
            "round": 0,
            "index": 0,
            "start": None,
            "log": [],
            "opening": p0,
            "p": p0,
            "solver": solver,
            "estimator": self.estimator.begin(task),
            "A": None,
            "pull": None,
            "stderr": None,
        }
        shortest = self._round(task, state)
        assert shortest is not None
        self.estimator.probes(replace(shortest, steps=task.steps // state["rounds"]))
        return self._open(task, state)

    def _looks(self, state: State) -> bool:
        """Whether the round must begin by looking at the losses."""
        return self.estimator.start == "always" and state["start"] is None

    def _probes(self, state: State, round: Round) -> list[Segment]:
        """The round's probes, which are asked for at every interval; the state carries them as a memo."""
        memo = state.get("_probes")
        if memo is None or memo[0] != round.t:
            memo = state["_probes"] = (round.t, self.estimator.probes(round))
        probes: list[Segment] = memo[1]
        return probes

    def segment(self, task: Task, state: State) -> Segment | None:
        round = self._round(task, state)
        if round is None:
            return None
        if self._looks(state):
            return Segment(round.p, 0, frozenset({"val_loss"}), tag="look")
        probes = self._probes(state, round)
        if state["index"] < len(probes):
            return probes[state["index"]]
        left = round.steps - sum(s.steps for s in probes)
        last = round.t == state["rounds"] - 1
        observe = frozenset() if self.estimator.start == "never" or last else frozenset({"val_loss"})
        return Segment(np.asarray(state["p"]), left, observe, tag="train")

    def advance(self, task: Task, state: State, segment: Segment, observation: Observation) -> State:
        round = self._round(task, state)
        assert round is not None
        if self._looks(state):
            return {**state, "start": observation.val_loss}
        probes = self._probes(state, round)
        if state["index"] >= len(probes):
            return self._close(task, state, observation.val_loss)
        new = {**state, "log": [*state["log"], _only(observation, segment.observe)], "index": state["index"] + 1}
        if new["index"] < len(probes):
            return new
        new = self._update(task, round, new)
        left = round.steps - sum(s.steps for s in probes)
        return new if left > 0 else self._close(task, new, observation.val_loss)

    def _open(self, task: Task, state: State) -> State:
        """Begin a round; one without probes knows its A at once."""
        round = self._round(task, state)
        if round is None or self._looks(state) or self._probes(state, round):
            return state
        return self._update(task, round, state)

    def _close(self, task: Task, state: State, val_loss: Array | None) -> State:
        new = {**state, "round": state["round"] + 1, "index": 0, "log": [], "start": val_loss, "opening": state["p"]}
        return self._open(task, new)

    def _update(self, task: Task, round: Round, state: State) -> State:
        """LearnParams and the solver's step: A^t, then p^t."""
        log = [entry if isinstance(entry, Observation) else Observation(**entry) for entry in state["log"]]
        start = None if state["start"] is None else np.asarray(state["start"], dtype=np.float64)
        remembered, estimate = self.estimator.estimate(state["estimator"], round, start, log)
        pull = estimate.pull if estimate.pull is not None else self.pull(task, estimate)
        solver, p = self.solver.step(state["solver"], pull)
        return {
            **state,
            "log": [],
            "estimator": remembered,
            "solver": solver,
            "p": p,
            "A": estimate.A,
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
        sweep = getattr(self.estimator, "sweep", self.estimator)
        round = self._round(task, state)
        if round is not None and isinstance(sweep, InterleavedSweep):
            count = task.m * sweep.sweeps(task.m)
            told["delta"] = count * sweep.interval(task.m, round.steps) / round.steps  # as realised (E7)
        return told


def _only(observation: Observation, kinds: frozenset[str]) -> Observation:
    """The observation without what was not asked for, which nobody has checked."""
    seen = vars(observation)
    if all(value is None or name == "tokens" or name in kinds for name, value in seen.items()):
        return observation
    return Observation(**{name: value for name, value in seen.items() if name == "tokens" or name in kinds})


@register
@dataclass(frozen=True)
class Bandit:
    """ODM (E19): EXP3 over groups, one group per batch, rewarded by its loss. Not an LMO instance."""

    alpha: float = 0.9
    """Moving average of the rewards."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha < 1.0:
            raise ValueError(f"alpha={self.alpha} must be at least 0 and below 1")

    def needs(self, task: Task) -> frozenset[str]:
        return TRAIN

    def weightings(self) -> frozenset[str]:
        return frozenset({"sample"})

    def begin(self, task: Task) -> State:
        return {"t": 1, "reward": np.zeros(task.m), "p": uniform(task.m)}

    @staticmethod
    def exploration(m: int, t: int) -> float:
        """eps_t = min{1/m, sqrt(ln m / (m t))}; eps_0 = 1/m."""
        return 1.0 / m if t < 1 else min(1.0 / m, math.sqrt(math.log(m) / (m * t)))

    def arm(self, task: Task, state: State) -> int:
        """The group of batch t, a function of (seed, t) and p alone."""
        digest = hashlib.blake2b(f"{task.seed}:{state['t']}".encode(), digest_size=8).digest()
        draw = int.from_bytes(digest, "big") / 2**64
        p = np.asarray(state["p"], dtype=np.float64)
        return min(int(p.cumsum().searchsorted(draw, side="right")), task.m - 1)

    def segment(self, task: Task, state: State) -> Segment | None:
        if state["t"] > task.steps:
            return None
        arm = self.arm(task, state)
        only = np.zeros(task.m)
        only[arm] = 1.0
        return Segment(only, 1, TRAIN, tag=f"arm {arm}")

    def advance(self, task: Task, state: State, segment: Segment, observation: Observation) -> State:
        assert observation.train_loss is not None
        t, arm = int(state["t"]), int(np.argmax(segment.proportions))
        loss = float(observation.train_loss[arm])
        if not math.isfinite(loss):
            raise ValueError(f"train_loss[{arm}]={loss} is missing for the group that the batch was drawn from")
        reward = np.array(state["reward"], dtype=np.float64)
        reward[arm] = self.alpha * reward[arm] + (1.0 - self.alpha) * loss / float(state["p"][arm])
        return {"t": t + 1, "reward": reward, "p": self.update(reward, t)}

    def update(self, reward: Array, t: int) -> Array:
        """p^{t+1} = (1 - m·eps_t)·softmax(eps_{t-1}·R) + eps_t."""
        m = reward.size
        now, before = self.exploration(m, t), self.exploration(m, t - 1)
        logits = before * reward
        weight = np.exp(logits - logits.max())
        p = (1.0 - m * now) * weight / weight.sum() + now
        return np.asarray(p / p.sum())

    def report(self, task: Task, state: State) -> State:
        return {"p": state["p"], "reward": state["reward"]}


@register
@dataclass(frozen=True)
class Then:
    """The first `steps` steps of `first`, then `second` for the rest: S_init and p_init of Alg. 1."""

    first: Rules
    steps: int
    second: Rules

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", whole(self.steps, "S_init"))
        if self.steps < 0:
            raise ValueError(f"S_init={self.steps} must not be negative")

    def _rest(self, task: Task) -> Task | None:
        if self.steps > task.steps:
            raise ValueError(f"S_init={self.steps} is more than the {task.steps} steps there are")
        return None if self.steps == task.steps else replace(task, steps=task.steps - self.steps)

    def needs(self, task: Task) -> frozenset[str]:
        rest = self._rest(task)
        return self.first.needs(task) | (frozenset() if rest is None else self.second.needs(rest))

    def weightings(self) -> frozenset[str]:
        return self.first.weightings() | self.second.weightings()

    def begin(self, task: Task) -> State:
        rest = self._rest(task)
        second = None if rest is None else self.second.begin(rest)  # now, so that bad settings show at once
        if self.steps == 0:
            return {"phase": 1, "done": 0, "inner": second}
        return {"phase": 0, "done": 0, "inner": self.first.begin(task)}

    def segment(self, task: Task, state: State) -> Segment | None:
        if state["phase"] == 1:
            rest = self._rest(task)
            return None if rest is None else self.second.segment(rest, state["inner"])
        segment = self.first.segment(task, state["inner"])
        left = self.steps - state["done"]
        if segment is None or segment.steps < left:
            return segment
        return replace(segment, steps=left, observe=frozenset())  # cut short: nobody asks what came of it

    def advance(self, task: Task, state: State, segment: Segment, observation: Observation) -> State:
        rest = self._rest(task)
        if state["phase"] == 1:
            assert rest is not None
            return {**state, "inner": self.second.advance(rest, state["inner"], segment, observation)}
        done = state["done"] + segment.steps
        if done == self.steps:
            return {"phase": 1, "done": done, "inner": None if rest is None else self.second.begin(rest)}
        return {"phase": 0, "done": done, "inner": self.first.advance(task, state["inner"], segment, observation)}

    def report(self, task: Task, state: State) -> State:
        rest = self._rest(task)
        if state["phase"] == 0 or rest is None:
            return {"phase": state["phase"], **(self.first.report(task, state["inner"]) if state["inner"] else {})}
        return {"phase": 1, **self.second.report(rest, state["inner"])}
