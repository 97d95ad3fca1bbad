"""One mixture for the whole run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aioli.config import register
from aioli.lmo.task import Task
from aioli.protocol import Observation, Segment, State
from aioli.simplex import as_mixture


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
