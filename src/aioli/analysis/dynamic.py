"""Dynamic sweeps: train to t on p⁰, fork, and sweep the mixture of the next steps; A^{t*} by fitting (Section 4.2)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from aioli.analysis.study import Lab
from aioli.lmo import LinearDynamic, LogLinearDynamic
from aioli.policies import Static
from aioli.runs.spec import Problem, Result, Run
from aioli.simplex import Array


@dataclass(frozen=True)
class Fork:
    """A dynamic sweep from one parent: what came of each mixture."""

    p0: Array | None
    """The parent's mixture, if it had one."""
    t: int
    P: Array
    start: Array
    """Losses before, (n,)."""
    L: Array
    """Losses after so many steps of each mixture, (runs, n)."""

    def linear(self, diagonal: bool = False) -> LinearDynamic:
        """`L^{t+1} = L^t - A p`."""
        return LinearDynamic(diagonal=diagonal).fit(self.P, self.L, self.start)

    def loglinear(self) -> LogLinearDynamic:
        """`log L^{t+1} = log L^t - A p`."""
        return LogLinearDynamic().fit(self.P, self.L, self.start)

    @property
    def A_star(self) -> Array:
        """The A that explains the sweep."""
        return self.linear().A_

    @property
    def name(self) -> str:
        """In a few characters."""
        start = "" if self.p0 is None else f"p⁰ = {', '.join(f'{v:.2g}' for v in self.p0)}, "
        return f"{start}t = {self.t}"


def forks_of(lab: Lab, parents: list[Run], problem: Problem) -> list[list[Run]]:
    """For each parent, a run for each mixture of the sweep that goes on from it."""
    P = lab.mixtures()
    return [[problem.run(Static(tuple(p.tolist())), lab.steps_ahead, parent=parent) for p in P] for parent in parents]


def swept(
    lab: Lab, parents: list[Run], problem: Problem, t: int, origins: Array | None = None
) -> Generator[list[Run], list[Result], list[Fork]]:
    """Train forks of all parents, and see what came of them."""
    every = forks_of(lab, parents, problem)
    # parents are asked for with their forks: a run that others go on from keeps its checkpoint
    results = yield [*parents, *(run for forks in every for run in forks)]
    P, k = lab.mixtures(), len(parents)
    found = []
    for i in range(k):
        mine = results[k + i * len(P) : k + (i + 1) * len(P)]
        origin = None if origins is None else origins[i]
        found.append(Fork(origin, t, P, results[i].val_loss, np.stack([r.val_loss for r in mine])))
    return found


def dynamic_sweeps(lab: Lab) -> Generator[list[Run], list[Result], list[Fork]]:
    """The paper's dynamic sweeps: from every p⁰, at every time."""
    origins, problem = lab.origins(), lab.problem
    found: list[Fork] = []
    times = [lab.time(share) for share in lab.at]
    for t in times:
        if t + lab.steps_ahead > problem.steps:
            raise ValueError(
                f"a fork at step {t} of {lab.steps_ahead} steps ends beyond the run's {problem.steps}; use a smaller "
                "--at or --ahead"
            )
        parents = [problem.static(p, t) for p in origins]
        found += yield from swept(lab, parents, problem, t, origins)
    return found
