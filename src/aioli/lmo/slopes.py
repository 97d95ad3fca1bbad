"""ADO (E21): groups whose loss is still falling get more. A diagonal A of scaling-law slopes times a credit score.

Each group's training loss is fitted by `E + B·N^-alpha` in the tokens N trained so far; its slope, times the share of
recent data that was the group's own (the credit), is A_jj. `TimeAverage` turns that preference into a mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from aioli.lmo.task import Estimate, Round, Start, Task, realised
from aioli.protocol import Observation, Segment, State, Weighting
from aioli.simplex import Array, as_mixture, uniform

_EXPONENTS = np.linspace(0.05, 0.8, 24)
_POINTS = 256


def fit_slopes(N: Array, losses: Array) -> Array:
    """alpha·(L - E)/N of each group at the last N, from its losses (T, m) at N (T,); never negative."""
    best = np.full(losses.shape[1], np.inf)
    slope = np.zeros(losses.shape[1])
    level = losses.mean(0)
    yc = losses - level
    for alpha in _EXPONENTS:
        x = (N / N[-1]) ** -alpha
        middle = x.mean()
        xc = x - middle
        B = np.maximum(xc @ yc / max(float(xc @ xc), 1e-300), 0.0)
        B = np.where(level - B * middle >= 0, B, level / middle)  # E >= 0
        E = level - B * middle
        error = ((losses - E - B * x[:, None]) ** 2).sum(0)
        better = error < best
        best[better], slope[better] = error[better], (alpha * B / N[-1])[better]
    return slope


@dataclass(frozen=True)
class ScalingSlope:
    """ADO's A: diagonal, slope of the group's scaling law times its credit."""

    s: float = 0.5
    """Exponent of the credit: how much a group's own recent share explains its progress."""
    keep: float = 0.9
    """Weight of the past in the recent share."""
    warmup: float = 0.1
    """Share of the run during which nothing is fitted and the prior is used."""
    start: Start = field(default="never", init=False, repr=False)
    needs: frozenset[str] = field(default=frozenset({"train_loss"}), init=False, repr=False)
    weighting: Weighting = field(default="sample", init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.s <= 2.0 or not 0.0 <= self.keep < 1.0 or not 0.0 <= self.warmup < 1.0:
            raise ValueError(f"s={self.s} must be in [0, 2], keep={self.keep} and warmup={self.warmup} in [0, 1)")

    def begin(self, task: Task) -> State:
        """Tokens so far, the loss curve so far, each group's recent share."""
        return {
            "tokens": 0.0,
            "steps": 0,
            "N": np.zeros(0),
            "losses": np.zeros((0, task.m)),
            "last": None,
            "share": uniform(task.m),
        }

    def probes(self, state: State, round: Round) -> list[Segment]:
        """The round itself."""
        return [Segment(round.p, round.steps, self.needs, tag="train")]

    def estimate(
        self, state: State, round: Round, start: Array | None, log: Sequence[Observation]
    ) -> tuple[State, Estimate]:
        """Extend the loss curves and fit them; flat until the warm-up is over."""
        seen = log[0].train_loss
        assert seen is not None
        m = round.task.m
        share = self.keep * np.asarray(state["share"]) + (1.0 - self.keep) * realised(log[0], round.p)
        if state["last"] is None and not np.isfinite(seen).any():  # nothing has carried a loss yet
            return {**state, "share": share, "steps": state["steps"] + round.steps}, Estimate(np.eye(m))
        last = np.full(m, np.nanmean(seen)) if state["last"] is None else np.asarray(state["last"])
        last = np.where(np.isfinite(seen), seen, last)
        new = {**state, "share": share, "last": last, "steps": state["steps"] + round.steps}
        new["tokens"] = state["tokens"] + (float(log[0].tokens.sum()) or float(round.steps))
        if new["steps"] <= self.warmup * round.task.steps:
            return new, Estimate(np.eye(m))
        N = np.append(np.asarray(state["N"], dtype=np.float64), new["tokens"])
        losses = np.concatenate([np.asarray(state["losses"], dtype=np.float64).reshape(-1, m), last[None]])
        if len(N) > _POINTS:  # halve the resolution, keep the span
            half = len(N) // 2 * 2
            N = np.append(N[:half].reshape(-1, 2).mean(1), N[half:])
            losses = np.concatenate([losses[:half].reshape(-1, 2, m).mean(1), losses[half:]])
        new["N"], new["losses"] = N, losses
        if len(N) < 4:
            return new, Estimate(np.eye(m))
        return new, Estimate(np.diag(fit_slopes(N, losses) * share**self.s))


@dataclass(frozen=True)
class TimeAverage:
    """ADO's solver: `p = (1-gamma)·mean of past preferences + gamma·preference`, preference ∝ p⁰·pull, floored."""

    gamma: float = 0.1
    floor: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.gamma <= 1.0 or not 0.0 <= self.floor < 1.0:
            raise ValueError(f"gamma={self.gamma} must be in (0, 1] and floor={self.floor} in [0, 1)")

    def start(self, p0: ArrayLike | int) -> State:
        """From the prior p⁰."""
        p = uniform(p0) if isinstance(p0, int) else as_mixture(p0, name="p0")
        return {"origin": p, "mean": p, "count": 1}

    def step(self, state: State, pull: ArrayLike) -> tuple[State, Array]:
        """One update. Pulls that are all zero (every group has converged) leave the prior."""
        origin = np.asarray(state["origin"], dtype=np.float64)
        g = np.asarray(pull, dtype=np.float64)
        if g.shape != origin.shape or not np.isfinite(g).all():
            raise ValueError(f"pull={g.tolist()} must be {origin.size} finite numbers, one per group")
        wish = origin * np.maximum(g, 0.0)
        wish = wish / wish.sum() if wish.sum() > 0 else origin
        wish = np.maximum(wish, min(self.floor, 1.0 / origin.size))
        wish /= wish.sum()
        count = int(state["count"]) + 1
        mean = np.asarray(state["mean"], dtype=np.float64)
        p = (1.0 - self.gamma) * mean + self.gamma * wish
        return {"origin": state["origin"], "mean": mean + (wish - mean) / count, "count": count}, p / p.sum()
