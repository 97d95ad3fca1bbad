"""ODM: a bandit that picks one group per batch."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from aioli.config import register
from aioli.lmo.task import Task
from aioli.protocol import Observation, Segment, State
from aioli.simplex import Array, uniform

TRAIN = frozenset({"train_loss"})


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
            if observation.tokens[arm] == 0:  # a batch of prompts alone teaches nothing
                return {**state, "t": t + 1}
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
