"""Solvers: how the mixture follows from a law or its parameters (the third LMO component).

`EGD` turns a stream of pulls (the column sums of A^t) into a stream of mixtures; `BestOf` takes the best run that was
made; `BestSimulated` the best of many predicted mixtures. `Direct`, the exact optimum of a fitted law, is in `direct`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from aioli.lmo.design import as_design, as_losses
from aioli.protocol import State
from aioli.simplex import Array, as_mixture, as_weights, box, project, softmax, uniform, within

Bounds = tuple[float, ...] | None


@dataclass(frozen=True)
class EGD:
    """Exponentiated gradient descent, `p ∝ p·exp(eta·pull)` (Lemma 1), with a choice of memory.

    `sum`: every step starts from the last mixture, so that pulls accumulate. `ema`: `p ∝ p⁰·exp(eta·ema)`, where ema is
    the moving average of the pulls; nothing accumulates (E2). `window`: `p ∝ p⁰·exp(eta·(sum of the last w))` (E13).
    """

    eta: float = 0.2
    memory: str = "sum"
    """`sum`, `ema` or `window`; also written `ema(0.1)` and `window(3)`."""
    gamma: float | None = None
    """For `ema`: the weight of the past, 0 <= gamma < 1."""
    window: int | None = None
    """For `window`: how many pulls count."""
    smoothing: float = 0.0
    """After each step `p ← (1-smoothing)·p + smoothing/m` (E16)."""
    floors: Bounds = None
    caps: Bounds = None
    target_weights: Bounds = None
    """How much each target counts where a whole A (n, m) is given as the pull; a vector is taken as already summed."""

    def __post_init__(self) -> None:
        if written := re.fullmatch(r"(ema|window)\((.+)\)", self.memory.replace(" ", "")):
            object.__setattr__(self, "memory", written[1])
            name, value = ("gamma", float(written[2])) if written[1] == "ema" else ("window", int(written[2]))
            object.__setattr__(self, name, value)
        if not (np.isfinite(self.eta) and self.eta > 0):
            raise ValueError(f"eta={self.eta} must be a positive number")
        if self.memory not in {"sum", "ema", "window"}:
            raise ValueError(f"memory={self.memory!r} is not one of 'sum', 'ema', 'window'")
        if self.memory == "ema" and not (self.gamma is not None and 0.0 <= self.gamma < 1.0):
            raise ValueError(f"gamma={self.gamma} must be at least 0 and below 1 for memory='ema'")
        if self.memory == "window" and not (self.window is not None and self.window >= 1):
            raise ValueError(f"window={self.window} must be at least 1 for memory='window'")
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"smoothing={self.smoothing} must be at least 0 and below 1")
        for name in ("floors", "caps", "target_weights"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(float(v) for v in getattr(self, name)))

    def start(self, p0: ArrayLike | int) -> State:
        """The state before any step: from the mixture p⁰, or uniform over so many groups."""
        p = uniform(p0) if isinstance(p0, int) else as_mixture(p0, name="p0")
        low, high = box(p.size, self.floors, self.caps)
        with np.errstate(divide="ignore"):
            logits = np.maximum(np.log(p), -1e4)  # a share of exactly 0 stays at 0 to every digit, yet is plain JSON
        if self.floors or self.caps:
            logits = np.maximum(project(logits, low, high), -1e4)
        return {"origin": logits, "logits": logits, "pulls": []}

    def step(self, state: State, pull: ArrayLike) -> tuple[State, Array]:
        """One update; returns the new state and mixture, and leaves the old state as it is.

        `pull` is (m,), or A itself, (n, m), whose rows are then summed by `target_weights` (Lemma 1).
        """
        origin = np.asarray(state["origin"], dtype=np.float64)
        g = np.asarray(pull, dtype=np.float64)
        if g.ndim == 2:
            g = as_weights(self.target_weights, len(g)) @ g
        m = origin.size
        if g.shape != (m,) or not (math.isfinite(g.sum()) or np.isfinite(g).all()):
            raise ValueError(f"pull={g.tolist()} must be {m} finite numbers, one per group")
        pulls = state["pulls"]
        if self.memory == "sum":
            logits = np.asarray(state["logits"], dtype=np.float64) + self.eta * g
        else:
            pulls = self._remember(pulls, g)
            logits = origin + self.eta * np.sum(np.asarray(pulls, dtype=np.float64), axis=0)
        if self.floors or self.caps:
            logits = project(self._smooth(logits)[0], *box(m, self.floors, self.caps))
            p = softmax(logits)
        else:
            logits, p = self._smooth(logits)
        return {"origin": state["origin"], "logits": np.maximum(logits, -1e4), "pulls": pulls}, p

    def _smooth(self, logits: Array) -> tuple[Array, Array]:
        logits = logits - logits.max()
        p = softmax(logits)
        if self.smoothing > 0.0:
            p = (1.0 - self.smoothing) * p + self.smoothing / p.size
            logits = np.log(p)
        return logits, p

    def _remember(self, pulls: list[ArrayLike], g: Array) -> list[ArrayLike]:
        """The pulls that count: the moving average alone, or the last w."""
        if self.memory == "window":
            assert self.window is not None
            return [*pulls, g][-self.window :]
        assert self.gamma is not None
        return [g if not pulls else (1.0 - self.gamma) * g + self.gamma * np.asarray(pulls[0])]


@dataclass(frozen=True)
class Optimum:
    """A mixture, what it is predicted or was measured to give, and how far from the best it can be."""

    proportions: Array
    losses: Array
    """Loss of each target, (n,)."""
    value: float
    """The objective: the mean of the losses, weighted by `target_weights`."""
    gap: float | None
    """Upper bound on `value` minus the best possible value (a certificate); None where there is no bound."""


@dataclass(frozen=True)
class BestOf:
    """Grid search: the mixture with the lowest (weighted) mean loss among those that were run."""

    target_weights: Bounds = None

    def solve(self, P: ArrayLike, L: ArrayLike) -> Optimum:
        """The best mixture in P by its losses L; a mixture that was run several times counts by its mean."""
        design = as_design(P)
        losses = as_losses(L, len(design))
        _, first, place = np.unique(design, axis=0, return_index=True, return_inverse=True)
        place = place.reshape(-1)
        total = np.zeros((len(first), losses.shape[1]))
        np.add.at(total, place, losses)
        order = np.argsort(first)  # ties go to the mixture that was run first
        design, losses = design[first[order]], (total / np.bincount(place)[:, None])[order]
        value = losses @ as_weights(self.target_weights, losses.shape[1]) / losses.shape[1]
        best = int(np.argmin(value))
        return Optimum(design[best], losses[best], float(value[best]), None)


@dataclass(frozen=True)
class BestSimulated:
    """RegMix (E20): the average of the `top` best of `candidates` Dirichlet mixtures, by predicted loss."""

    candidates: int = 100_000
    top: int = 100
    alpha: float = 1.0
    seed: int = 0
    target_weights: Bounds = None
    floors: Bounds = None
    caps: Bounds = None

    def __post_init__(self) -> None:
        if not 1 <= self.top <= self.candidates:
            raise ValueError(f"top={self.top} must be between 1 and candidates={self.candidates}")

    def solve(self, predict: Callable[[Array], Array], m: int) -> Optimum:
        """The average of the best mixtures of m groups under `predict`, which maps (N, m) to (N, n)."""
        draws = self.draws(m)
        losses = predict(draws)
        value = losses @ as_weights(self.target_weights, losses.shape[1])
        best = np.argsort(value, kind="stable")[: self.top]
        p = as_mixture(draws[best].mean(0))
        at = predict(p[None])[0]
        return Optimum(p, at, float(at @ as_weights(self.target_weights, at.size) / at.size), None)

    def draws(self, m: int) -> Array:
        """The mixtures that are tried, within floors and caps."""
        low, high = box(m, self.floors, self.caps)
        rng, left = np.random.default_rng(self.seed), 1.0 - float(low.sum())
        tried = low + left * rng.dirichlet(np.full(m, self.alpha), self.candidates)
        inside = (tried <= high).all(1)
        if inside.sum() >= max(self.top, self.candidates // 100):
            return np.asarray(tried[inside])
        some = tried[: max(self.top, min(self.candidates, 2000))]  # tight caps: move some onto what is allowed
        return np.stack([within(row, low, high) for row in some])
