"""Worlds with known truth that behave like training: a trainer of the protocol without a model.

    LinearWorld     the linear dynamic law holds exactly; A may drift in time
    PowerLawWorld   per-target power laws in what was learned, with transfer between groups, an irreducible part,
                    a lean towards what was seen last, learning-rate warm-up and decay, noise in training and validation
    uniform_world   a power-law world in which uniform is optimal but losses and noise tempt away from it

A world is frozen data. It makes trainers and knows its oracle: the best static mixture and the best greedy schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aioli.lmo.direct import Direct
from aioli.protocol import Segment
from aioli.simplex import Array, as_weights, cheapest, split_evenly, uniform, whole
from aioli.simulate.trainer import QUIET, Noise, SimTrainer


@dataclass(frozen=True)
class LinearWorld:
    """`L^{s+1} = L^s - A(s)·p` at every step s, with A going in a straight line from `A` to `A_end`."""

    A: Array
    """Drop of each target's loss per step on each group, (n, m)."""
    start: Array
    """Losses before training, (n,)."""
    steps: int
    A_end: Array | None = None
    noise: Noise = QUIET
    sizes: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("A", "start", "A_end"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.A.ndim != 2 or self.start.shape != (len(self.A),) or whole(self.steps, "steps") < 1:
            raise ValueError(
                f"A {self.A.shape} must be (n, m), start {self.start.shape} (n,), steps={self.steps} positive"
            )
        if self.A_end is not None and self.A_end.shape != self.A.shape:
            raise ValueError(f"A_end {self.A_end.shape} must have the shape of A {self.A.shape}")

    @property
    def m(self) -> int:
        """Number of groups."""
        return int(self.A.shape[1])

    @property
    def n(self) -> int:
        """Number of targets."""
        return int(self.A.shape[0])

    @classmethod
    def random(cls, m: int, n: int | None = None, seed: int = 0, steps: int = 1000, drift: bool = True) -> LinearWorld:
        """Groups that help themselves most and others a little; the order of their usefulness changes with time."""
        rng = np.random.default_rng([seed, 1])
        n = m if n is None else n

        def matrix() -> Array:
            helps = rng.uniform(0.0, 0.3, (n, m)) + rng.uniform(0.5, 1.5, (n, m)) * (np.eye(n, m) > 0)
            return np.asarray(helps / steps)

        noise = Noise(train=0.1, val=0.002, batch=16)
        return cls(matrix(), rng.uniform(3.0, 5.0, n), steps, matrix() if drift else None, noise, _sizes(rng, m))

    def teach(self, begin: int, end: int) -> Array:
        """The sum of A over steps begin … end."""
        last = self.A if self.A_end is None else self.A_end
        middle = (begin + end - 1) / 2 / max(self.steps - 1, 1)
        return (end - begin) * (self.A + (last - self.A) * min(middle, 1.0))

    def trainer(self, seed: int = 0, steps: int | None = None, reference: SimTrainer | None = None) -> SimTrainer:
        """A fresh model to train. The law is in absolute steps, so a shorter run is the beginning of a longer one."""

        def learn(state: Array, begin: int, end: int, q: Array, shake: Array) -> Array:
            return np.asarray(state + shake * (self.teach(begin, end) @ q))

        def losses(state: Array) -> Array:
            return np.asarray(self.start - state)

        def slopes(state: Array, step: int) -> Array:
            return self.teach(step, step + 1)

        def train_losses(state: Array) -> Array:
            own = losses(state)
            return own if self.n == self.m else np.full(self.m, own.mean())

        return SimTrainer(
            self.m, self.n, seed, self.noise, np.zeros(self.n), learn, losses, train_losses, slopes, reference
        )

    def value(self, path: list[tuple[int, Array]], weights: Array) -> float:
        """The true (weighted) mean loss after a schedule of (steps, mixture)."""
        return _value(self.trainer(), path, weights)

    def best_static(self, weights: Array) -> Array:
        """The best single mixture."""
        return cheapest(-(weights @ self.teach(0, self.steps)), np.zeros(self.m), np.ones(self.m))

    def best_greedy(self, weights: Array, rounds: int = 20) -> list[tuple[int, Array]]:
        """The schedule that lowers the loss most in each round."""
        path, begin = [], 0
        for length in split_evenly(self.steps, rounds):
            pull = weights @ self.teach(begin, begin + length)
            path.append((length, cheapest(-pull, np.zeros(self.m), np.ones(self.m))))
            begin += length
        return path


@dataclass(frozen=True)
class PowerLawWorld:
    """`L_i = E_i + B_i·(1 + e_i/scale_i)^-alpha_i + recency·exp(-focus·(T r)_i)`.

    `e = T n`, where n_j is what was trained on group j, weighted by the learning rate; r is the mixture of the last
    `memory` steps: a model leans towards what it saw last, which is why short sweeps show contrasts between groups so
    clearly and partly mislead. Rows 0 … m-1 of E, B, alpha, scale and T are the groups; further rows are targets that
    are never trained on.
    """

    E: Array
    B: Array
    alpha: Array
    scale: Array
    T: Array
    steps: int
    targets: tuple[int, ...] | None = None
    """The rows that count; None: the groups."""
    noise: Noise = QUIET
    recency: float = 0.0
    focus: float = 3.0
    memory: float = 50.0
    warmup: float = 0.05
    floor: float = 0.1
    sizes: tuple[float, ...] | None = None

    @property
    def m(self) -> int:
        """Number of groups."""
        return int(self.T.shape[1])

    @property
    def rows(self) -> list[int]:
        """The rows that count."""
        return list(range(self.m)) if self.targets is None else list(self.targets)

    @property
    def n(self) -> int:
        """Number of targets."""
        return len(self.rows)

    @classmethod
    def random(cls, m: int, n: int | None = None, seed: int = 0, steps: int = 1000) -> PowerLawWorld:
        """Groups as points in a plane: near ones teach each other. With n, that many further points are the targets."""
        rng = np.random.default_rng([seed, 2])
        count = m + (n or 0)
        place = rng.normal(0.0, 1.0, (count, 2))
        distance = ((place[:, None] - place[None, :m]) ** 2).sum(-1)
        T = 0.6 * np.exp(-distance)
        T[np.arange(m), np.arange(m)] = 1.0
        return cls(
            E=rng.uniform(1.2, 2.2, count),
            B=rng.uniform(2.0, 5.0, count),
            alpha=rng.uniform(0.2, 0.6, count),
            scale=steps * np.exp(rng.uniform(np.log(0.002), np.log(0.05), count)),
            T=T,
            steps=steps,
            targets=None if n is None else tuple(range(m, count)),
            noise=Noise(train=0.3, val=0.003, batch=16),
            recency=0.5,
            sizes=_sizes(rng, m),
        )

    def rate(self, steps: int) -> Array:
        """The learning rate of each step relative to its peak: linear warm-up, cosine to a floor."""
        rise = max(1, int(self.warmup * steps))
        s = np.arange(steps)
        fall = self.floor + (1 - self.floor) * 0.5 * (1 + np.cos(np.pi * (s - rise) / max(1, steps - rise)))
        return np.where(s < rise, (s + 1) / rise, fall)

    def _losses(self, state: Array, rows: list[int]) -> Array:
        """State: what every row has learned, then the recent mixture."""
        e, r = state[: len(self.E)], state[len(self.E) :]
        power = self.B[rows] * (1.0 + e[rows] / self.scale[rows]) ** -self.alpha[rows]
        return np.asarray(self.E[rows] + power + self.recency * np.exp(-self.focus * (self.T[rows] @ r)))

    def trainer(self, seed: int = 0, steps: int | None = None, reference: SimTrainer | None = None) -> SimTrainer:
        """A fresh model to train for so many steps, with a learning-rate schedule of that length."""
        total = self.steps if steps is None else steps
        rate = self.rate(total)
        learned = np.concatenate([[0.0], np.cumsum(rate)])
        rows, groups, count = self.rows, list(range(self.m)), len(self.E)

        def learn(state: Array, begin: int, end: int, q: Array, shake: Array) -> Array:
            amount = learned[min(end, total)] - learned[min(begin, total)]
            kept = np.exp(-(end - begin) / self.memory)
            return np.concatenate(
                [state[:count] + amount * shake * (self.T @ q), kept * state[count:] + (1.0 - kept) * q]
            )

        def slopes(state: Array, step: int) -> Array:
            e, r = state[:count], state[count:]
            inner = 1.0 + e[rows] / self.scale[rows]
            gain = self.B[rows] * self.alpha[rows] / self.scale[rows] * inner ** (-self.alpha[rows] - 1.0)
            seen = self.T[rows] @ r
            lean = self.recency * self.focus / self.memory * np.exp(-self.focus * seen)
            return np.asarray(gain[:, None] * self.T[rows] + lean[:, None] * (self.T[rows] - seen[:, None]))

        return SimTrainer(
            self.m,
            self.n,
            seed,
            self.noise,
            np.concatenate([np.zeros(count), uniform(self.m)]),
            learn,
            lambda state: self._losses(state, rows),
            lambda state: self._losses(state, groups),
            slopes,
            reference,
            lambda step: float(rate[min(step, total - 1)]),
            shaken=count,
        )

    def value(self, path: list[tuple[int, Array]], weights: Array) -> float:
        """The true (weighted) mean loss after a schedule of (steps, mixture)."""
        return _value(self.trainer(), path, weights)

    def best_static(self, weights: Array) -> Array:
        """The best single mixture: the law is convex in p, so this is the global optimum."""
        start = np.zeros(len(self.E)), uniform(self.m)
        return self._best(*start, float(self.rate(self.steps).sum()), self.steps, weights)

    def best_greedy(self, weights: Array, rounds: int = 20) -> list[tuple[int, Array]]:
        """The schedule that lowers the loss most in each round."""
        rate = self.rate(self.steps)
        e, r, path, begin = np.zeros(len(self.E)), uniform(self.m), [], 0
        for length in split_evenly(self.steps, rounds):
            amount = float(rate[begin : begin + length].sum())
            p = self._best(e, r, amount, length, weights)
            kept = np.exp(-length / self.memory)
            e, r = e + amount * (self.T @ p), kept * r + (1.0 - kept) * p
            path.append((length, p))
            begin += length
        return path

    def _best(self, e: Array, r: Array, amount: float, steps: int, weights: Array) -> Array:
        rows = self.rows
        kept = np.exp(-steps / self.memory)
        law = _Ahead(self, amount, e[rows], kept * (self.T[rows] @ r), float(1.0 - kept))
        return Direct(tuple(weights.tolist())).solve(law).proportions


def uniform_world(m: int, seed: int = 0, steps: int = 1000) -> PowerLawWorld:
    """Every group learns alike and helps the others alike, so that uniform is optimal by symmetry and convexity.

    What differs is what tempts: the irreducible loss (a group that looks bad for ever) and loud validation noise.
    """
    rng = np.random.default_rng([seed, 3])
    ones = np.ones(m)
    return PowerLawWorld(
        E=rng.uniform(0.5, 3.5, m),
        B=3.0 * ones,
        alpha=0.4 * ones,
        scale=0.01 * steps * ones,
        T=0.9 * np.eye(m) + 0.1,
        steps=steps,
        noise=Noise(train=0.5, val=0.01, batch=16),
        sizes=_sizes(rng, m),
    )


@dataclass(frozen=True)
class _Ahead:
    """The losses after the next `amount` of training, as a law of its mixture."""

    world: PowerLawWorld
    amount: float
    e: Array
    seen: Array
    fresh: float

    @property
    def A_(self) -> Array:
        return np.asarray(self.world.T[self.world.rows])

    def link(self, u: Array) -> tuple[Array, Array, Array]:
        w, rows = self.world, self.world.rows
        per = self.amount / w.scale[rows]
        inner = 1.0 + self.e / w.scale[rows] + per * u
        power = w.B[rows] * inner ** -w.alpha[rows]
        slope = w.alpha[rows] * power / inner * per
        lean = w.recency * np.exp(-w.focus * (self.seen + self.fresh * u))
        steep = w.focus * self.fresh
        return (
            w.E[rows] + power + lean,
            -slope - steep * lean,
            slope * (w.alpha[rows] + 1.0) / inner * per + steep**2 * lean,
        )


World = LinearWorld | PowerLawWorld


def _value(trainer: SimTrainer, path: list[tuple[int, Array]], weights: Array) -> float:
    quiet = replace(trainer, noise=QUIET)
    for steps, p in path:
        quiet.advance(Segment(p, steps))
    return float(as_weights(weights, trainer.n) @ quiet.losses(quiet.state)) / trainer.n


def _sizes(rng: np.random.Generator, m: int) -> tuple[float, ...]:
    sizes: NDArray[np.float64] = np.exp(rng.normal(0.0, 1.0, m)) * 1e9
    return tuple(float(v) for v in sizes)


WORLDS: dict[str, Callable[[int, int | None, int, int], World]] = {
    "powerlaw": lambda m, n, seed, steps: PowerLawWorld.random(m, n, seed, steps),
    "linear": lambda m, n, seed, steps: LinearWorld.random(m, n, seed, steps),
    "uniform": lambda m, n, seed, steps: uniform_world(m, seed, steps),
}
"""Worlds by name, drawn from (groups, targets or None, seed, steps)."""
