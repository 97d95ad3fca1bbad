"""Rules, how a run is driven without any state, and RulePolicy, the one object that has it."""

from __future__ import annotations

import copy
import math
from typing import Any, Protocol

import numpy as np

from aioli.config import from_config, to_config, to_plain
from aioli.lmo.task import Task
from aioli.protocol import Observation, Segment, State


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


def check_observation(segment: Segment, observation: Observation, m: int, n: int) -> None:
    """Refuse an observation that lacks what was asked for, has the wrong shape, or is not finite where it must be."""
    tokens = observation.tokens
    if tokens.shape != (m,) or not (tokens.min() >= 0 and math.isfinite(tokens.max())):
        raise ValueError(f"tokens={tokens.tolist()} must be {m} finite numbers, one per group, not negative")
    for kind in segment.observe:
        value = getattr(observation, kind)
        if value is None:
            raise ValueError(f"{kind} was asked for and is missing from the observation")
        allowed: tuple[tuple[int, ...], ...] = ((n,),) if kind == "val_loss" else ((m,),)
        if kind == "grad_inner":
            allowed = ((n, m), (m,))
        elif kind == "lr":
            allowed = ((),)
        elif kind == "fork_loss":
            allowed = ((0 if segment.forks is None else len(segment.forks), n),)
        if np.shape(value) not in allowed:
            raise ValueError(f"{kind} has shape {np.shape(value)}, expected {' or '.join(map(str, allowed))}")
        if kind == "fork_loss":
            _check_fork_tokens(segment, observation.fork_tokens, m)
        if np.abs(value).max() <= LARGEST:
            continue
        finite = np.abs(value) <= LARGEST
        if kind in {"train_loss", "excess_loss", "token_excess_loss"}:
            finite |= np.isnan(value) & (tokens == 0)  # an absent group has no loss
        if not np.all(finite):
            where = "" if np.ndim(value) == 0 else f"{[int(i) for i in np.argwhere(~finite)[0]]}"
            raise ValueError(
                f"{kind}{where}={np.asarray(value)[~finite].ravel()[0]} is not finite; the run has diverged or the "
                "measurement failed"
            )


def _check_fork_tokens(segment: Segment, tokens: Any, m: int) -> None:
    if tokens is None:
        return
    assert segment.forks is not None
    sound = np.shape(tokens) == (len(segment.forks), m) and bool(np.isfinite(tokens).all() and (tokens >= 0).all())
    if not sound or not (np.sum(tokens, axis=1) > 0).all():
        raise ValueError(f"fork_tokens must be tokens of each of the {len(segment.forks)} forks by group, not negative")


LARGEST = 1e100
"""A loss or gradient beyond this is none, and sums of squares of it would not be finite."""
ENTRIES = 250_000
"""Entries of the largest A that a journal is told."""


class RulePolicy:
    """A policy of the protocol, from rules and a task."""

    def __init__(self, rules: Rules, task: Task) -> None:
        self.rules, self.task = rules, task
        self._state = rules.begin(task)
        self._before: State = self._state
        """As it was before the last observation."""
        self._asked: Segment | None = None
        self.groups: tuple[str, ...] | None = None
        """Names of the groups, where they are known: loaders check that they mix the same ones in the same order."""
        self.targets: tuple[str, ...] | None = None
        """Names of the targets, where they are known and are not the groups: adapters look them up in the data."""
        self.method = ""
        """The method that it is of, where that is known: journals are told."""

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
        self._before = self._state
        self._state = self.rules.advance(self.task, self._state, segment, observation)
        self._asked = None

    def report(self) -> State:
        """What a journal should know of the last update, as plain JSON."""
        plain: State = to_plain(self.rules.report(self.task, self._state))
        return plain

    def news(self) -> State:
        """The report, with A only when the last observation has changed it, and only if it is not too large: a journal
        has a line for every segment, and A has a row for every target."""
        told, before = (self.rules.report(self.task, state) for state in (self._state, self._before))
        old = {key for key in ("A", "stderr") if key in told and told[key] is before.get(key)}
        large = {key for key in ("A", "stderr") if np.size(told.get(key, 0.0)) > ENTRIES}
        plain: State = to_plain({key: value for key, value in told.items() if key not in old | large})
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
        self._state = self._before = copy.deepcopy(state["state"])
        self._asked = None


def _first_difference(theirs: Any, mine: Any, path: str = "") -> tuple[str, Any, Any]:
    """Where two configs first differ, and how."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in sorted(theirs.keys() | mine.keys(), key=lambda key: (key != "type", key)):  # another kind says most
            if theirs.get(key) != mine.get(key):
                return _first_difference(theirs.get(key), mine.get(key), f"{path}.{key}" if path else key)
    return path, theirs, mine


def _plain_task(task: Task) -> State:
    plain: State = to_plain({k: v for k, v in vars(task).items() if k != "weights"})
    return plain


def build(rules: Rules | dict[str, Any], task: Task) -> RulePolicy:
    """A policy from rules or their config."""
    return RulePolicy(from_config(rules) if isinstance(rules, dict) else rules, task)
