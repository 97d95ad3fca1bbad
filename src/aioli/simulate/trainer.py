"""A trainer of the protocol without a model: the state of a world, advanced by segments and observed with noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aioli.data.counts import plan
from aioli.protocol import KINDS, Observation, Segment
from aioli.simplex import Array, uniform

COSTS: dict[str, float] = {
    "val_loss": 0.5,
    "train_loss": 0.0,
    "excess_loss": 1 / 3,
    "token_excess_loss": 1 / 3,
    "grad_inner": 1.5,
    "grad_norm": 1.0,
    "lr": 0.0,
}
"""What an observation costs in units of one training step (forward and backward of a batch): one look at the validation
subset half a step, a reference model's forward a third, gradients of validation data and a forward-mode pass 1.5."""


@dataclass(frozen=True)
class Noise:
    """How far what is measured lies from the truth."""

    train: float = 0.0
    """Relative noise of what one step teaches; it lasts."""
    val: float = 0.0
    """Standard deviation of each validation reading; it passes."""
    batch: int | None = None
    """Samples per step; None: fractions of samples, so that requested proportions are realised exactly."""


QUIET = Noise()


@dataclass
class SimTrainer:
    """A model being trained in a world. Supports everything a policy may ask for."""

    m: int
    n: int
    seed: int
    noise: Noise
    state: Array
    learn: Callable[[Array, int, int, Array, Array], Array]
    losses: Callable[[Array], Array]
    train_losses: Callable[[Array], Array]
    slopes: Callable[[Array, int], Array]
    reference: SimTrainer | None = None
    rate: Callable[[int], float] = lambda step: 1.0
    shaken: int | None = None
    """How many entries of the state training noise acts on; None: all."""
    step: int = 0
    probing: float = 0.0
    """What observations have cost so far, in training steps."""
    supports: frozenset[str] = frozenset(KINDS)
    weightings: frozenset[str] = frozenset({"sample", "loss"})
    _owed: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng([self.seed, 7])
        self._owed = np.zeros(self.m)
        if self.reference is None:
            self.supports = self.supports - {"excess_loss", "token_excess_loss"}

    def advance(self, segment: Segment) -> Observation:
        """Train the segment and observe what it asks for."""
        p = segment.proportions
        if p.size != self.m:
            raise ValueError(f"the segment mixes {p.size} groups, but this world has {self.m}")
        drawn = p if segment.weighting == "sample" else uniform(self.m)
        tokens = self._draw(drawn, segment.steps)
        before, begin = self.state, self.step
        if segment.steps:
            q = p if segment.weighting == "loss" else tokens / tokens.sum()
            size = before.size if self.shaken is None else self.shaken
            spread = self.noise.train / np.sqrt(segment.steps)
            shake = self._rng.normal(1.0, spread, size) if spread > 0 else np.ones(size)
            self.state = self.learn(before, begin, begin + segment.steps, q, shake)
            self.step = begin + segment.steps
        kinds = sorted(segment.observe - {"fork_loss"})
        seen: dict[str, Any] = {kind: self._observe(kind, tokens, before, begin) for kind in kinds}
        if "fork_loss" in segment.observe:
            seen |= self._fork(segment)
        return Observation(tokens, **seen)

    def _fork(self, segment: Segment) -> dict[str, Array]:
        """Losses after each fork and what it consumed; its steps are paid for like any others."""
        assert segment.forks is not None
        before, losses, tokens = (self.state, self.step, self._owed), [], []
        own, self._rng = self._rng, np.random.default_rng([self.seed, 8, self.step])  # the run's noise stays as it was
        for p in segment.forks:
            told = self.advance(Segment(p, segment.fork_steps, frozenset({"val_loss"})))
            assert told.val_loss is not None
            self.probing += segment.fork_steps
            losses.append(told.val_loss)
            tokens.append(told.tokens)
            self.state, self.step, self._owed = before
        self._rng = own
        return {"fork_loss": np.stack(losses), "fork_tokens": np.stack(tokens)}

    def _draw(self, p: Array, steps: int) -> Array:
        """Samples per group: whole ones, with remainders carried over so that no group is rounded away."""
        if self.noise.batch is None:
            return p * steps
        samples = self.noise.batch * steps
        counts = (
            plan(self._owed, p, samples, 0, np.zeros(self.m, dtype=np.int64), 1)[0] if samples else np.zeros(self.m)
        )
        self._owed = self._owed + p * samples - counts
        return counts.astype(np.float64)

    def _observe(self, kind: str, tokens: Array, before: Array, begin: int) -> Array | float:
        self.probing += COSTS[kind]
        rng, val = self._rng, self.noise.val
        if kind == "val_loss":
            return self.losses(self.state) + val * rng.normal(size=self.n)
        if kind == "lr":
            return self.rate(self.step)
        if kind in {"grad_inner", "grad_norm"}:
            slopes = self.slopes(before, begin)
            return (
                slopes * rng.normal(1.0, self.noise.train, slopes.shape)
                if kind == "grad_inner"
                else self._norms(slopes)
            )
        seen = self.train_losses(before) + 10.0 * val * rng.normal(size=self.m)
        if kind != "train_loss":
            assert self.reference is not None
            seen = seen - self.reference.train_losses(self.reference.state)
        if kind == "token_excess_loss":
            seen = np.maximum(seen, 0.0)
        return np.where(tokens > 0, seen, np.nan)

    def _norms(self, slopes: Array) -> Array:
        return np.sqrt(np.abs(np.diag(slopes))) if self.n == self.m else np.full(self.m, np.sqrt(np.abs(slopes).mean()))
