"""One set of rules after another: the initial phase of Alg. 1, and Aioli + any method."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aioli.config import register
from aioli.lmo.task import Task
from aioli.policies.rules import Rules
from aioli.protocol import Observation, Segment, State
from aioli.simplex import whole


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
