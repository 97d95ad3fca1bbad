"""Studies: runs that are trained to look at something, and what is seen in them.

A study is a generator like a method's plan: it yields stages (lists of runs), receives their results, and returns an
`Analysis` instead of a final run. Runs go through the run store, so that studies share their sweeps with each other and
with methods, and an interrupted study goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from aioli.registry import Plan
from aioli.runs.spec import Problem, Result, Run
from aioli.simplex import Array, dirichlet_cover, pair_grid

Staged = Generator[list[Run], list[Result], "Analysis"]
AMPLE = 1e9
"""A budget, in final runs, that no study exceeds."""


@dataclass(frozen=True)
class Table:
    """A table for people."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A picture with what it shows."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Analysis:
    """What came of a study: words, tables and figures for people, and plain data."""

    name: str
    title: str
    words: tuple[str, ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    data: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"kind": "aioli analysis", "schema": 1, "name": self.name, "title": self.title, **self.data}


@dataclass(frozen=True)
class Lab:
    """What a study works with."""

    problem: Problem
    """Its first seed; `seeded` gives the others."""
    seeds: tuple[int, ...]
    journal: Callable[[Run], Path]
    """Where a run's journal is, once it is trained."""
    sweep: int | None = None
    """Mixtures of a sweep; None is the paper's: 9 for two groups, 10 for three, 40 beyond."""
    at: tuple[float, ...] = ()
    """When forks leave their parents, as shares of S; nothing is the paper's: 0.4, or 0.25 beyond three groups."""
    ahead: int | None = None
    """Steps of a fork; None is the paper's: S/50 but at least 25, or S/8 beyond three groups."""
    starts: int | None = None
    """Initial mixtures p⁰ of dynamic sweeps; None is the paper's: all for up to three groups, one (uniform) beyond."""
    alpha: float | None = None
    """Concentration of the Dirichlet draws; None is the paper's: 1 for up to three groups, 1.5 beyond."""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.at:
            object.__setattr__(self, "at", (0.4,) if self.problem.m <= 3 else (0.25,))
        if self.alpha is not None and not self.alpha > 0:
            raise ValueError(f"--alpha {self.alpha} must be positive")
        for share in self.at:
            if not 0 < share < 1:
                raise ValueError(f"--at {share} is not a share of the run; use one between 0 and 1, such as 0.4")
        for name in ("sweep", "ahead", "starts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} {value} must be at least 1")

    def seeded(self, seed: int) -> Problem:
        """The problem with another seed."""
        return replace(self.problem, seed=seed)

    @property
    def targets(self) -> tuple[str, ...]:
        """What is judged."""
        return self.problem.targets or self.problem.groups

    @property
    def setting(self) -> str:
        """The data in words."""
        towards = "" if self.problem.targets is None else f" → {', '.join(self.targets)}"
        return f"{'/'.join(self.problem.groups)}{towards}"

    def mixtures(self) -> Array:
        """The sweep P of the paper's Section 4.1."""
        m = self.problem.m
        if m == 1:
            raise ValueError("one group leaves nothing to mix")
        if m == 2:
            if self.sweep is None or self.sweep == 9:
                return pair_grid()
            if self.sweep < 3:
                raise ValueError(f"--sweep {self.sweep}: a law of two groups needs at least 3 mixtures")
            first = np.linspace(0.0, 1.0, self.sweep + 2)[1:-1]
            return np.stack([first, 1.0 - first], axis=1)
        count = self.sweep if self.sweep is not None else (10 if m == 3 else 40)
        if count < m + 1:
            raise ValueError(f"--sweep {count}: a law of {m} groups needs at least {m + 1} mixtures")
        alpha = self.alpha if self.alpha is not None else (1.0 if m == 3 else 1.5)
        return dirichlet_cover(m, count, alpha, self.problem.seed)

    def origins(self) -> Array:
        """The initial mixtures p⁰ of dynamic sweeps."""
        P, m = self.mixtures(), self.problem.m
        count = self.starts if self.starts is not None else (len(P) if m <= 3 else 1)
        if count == 1:
            return np.full((1, m), 1.0 / m)
        return np.asarray(P[np.linspace(0, len(P) - 1, min(count, len(P))).round().astype(int)])

    def time(self, share: float) -> int:
        """The step at which forks leave."""
        return max(1, round(share * self.problem.steps))

    @property
    def steps_ahead(self) -> int:
        """Steps of a fork."""
        if self.ahead is not None:
            return self.ahead
        return max(25, self.problem.steps // 50) if self.problem.m <= 3 else max(25, self.problem.steps // 8)


class AsMethod:
    """A study in the form of a method, so that it is conducted like one; its final run is never trained."""

    own = False

    def __init__(self, name: str, study: Callable[[Lab], Staged], lab: Lab) -> None:
        self.name, self.study, self.lab = name, study, lab
        self.found: Analysis | None = None

    def plan(self, problem: Problem) -> Plan:
        """Carry out the study."""
        self.found = yield from self.study(self.lab)
        return self.lab.problem.final_static(np.full(self.lab.problem.m, 1.0 / self.lab.problem.m))


def perplexity(results: Sequence[Result]) -> Array:
    """Mean perplexity over targets of each result, on test data, or on validation data if there is none (E29)."""
    losses = [r.val_loss if r.test_loss is None else r.test_loss for r in results]
    return np.asarray(np.exp(np.stack(losses)).mean(1))


def names(p: Array) -> str:
    """A mixture in a few characters."""
    return ", ".join(f"{v:.2g}" for v in p)
