"""Problem, Run, Result: what a method is asked, what it wants trained, and what came of it.

A `Run` is frozen data with a content hash, so that equal runs are recognised however they were asked for: grid search,
DML and RegMix share one sweep, and DoReMi's full-length reference is the stratified run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from aioli.config import content_hash, to_config, to_plain
from aioli.lmo.task import Task
from aioli.policies import RulePolicy, Rules, Static
from aioli.simplex import Array, as_mixture, box, dirichlet_cover, uniform, whole

BUDGETS: dict[str, float] = {"unrestricted": 10.0, "restricted": 0.5}
"""Extra training a method may use to learn its proportions, in units of the final run's steps (Section 6, E27)."""


@dataclass(frozen=True)
class Run:
    """One training run: the rules that drive it, its task, and the runs it stands on."""

    rules: Rules
    task: Task
    reference: Run | None = None
    """The run whose final model gives the reference losses (DoReMi)."""
    parent: Run | None = None
    """The run that this one goes on from: its steps come after the parent's."""
    expected: tuple[float, ...] | None = field(default=None, compare=False)
    """What the method's law predicts of it, by target, at the length of the runs it was fitted to; not its content."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run as plain JSON."""
        task = {k: v for k, v in vars(self.task).items() if k != "weights"}
        if isinstance(self.rules, Static):
            task["target_weights"] = None  # what targets count does not change a run with a fixed mixture
        reference = None if self.reference is None else self.reference.key
        plain: dict[str, Any] = {
            "schema": 1,
            "rules": to_config(self.rules),
            "task": to_plain(task),
            "reference": reference,
            "parent": None if self.parent is None else self.parent.key,
        }
        return plain

    @cached_property
    def key(self) -> str:
        """SHA-256 of the run's content."""
        return content_hash(self.config)

    def policy(self) -> RulePolicy:
        """A fresh policy that drives this run."""
        return RulePolicy(self.rules, self.task)


@dataclass(frozen=True)
class Result:
    """What a finished run tells the method that planned it."""

    val_loss: Array
    """Validation loss of each target at the end, (n,)."""
    start_loss: Array
    """Validation loss of each target before the first step, (n,)."""
    mean_proportions: Array
    """The mean over steps of the mixture that was asked for, (m,)."""
    test_loss: Array | None = None
    """Test loss of each target at the end, where there is test data, (n,)."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None and name == "test_loss":
                continue
            array = np.asarray(value, dtype=np.float64)
            if array.ndim != 1 or not np.isfinite(array).all():
                raise ValueError(f"a run ended with {name}={array.tolist()}, which is not a finite vector")
            object.__setattr__(self, name, array)


@dataclass(frozen=True)
class Problem:
    """What is to be mixed, for how long, judged by what, and at what extra cost."""

    groups: tuple[str, ...]
    steps: int
    """S: optimizer steps of the final run."""
    targets: tuple[str, ...] | None = None
    """What the model is judged on; None: the groups themselves."""
    seed: int = 0
    budget: str | float = "unrestricted"
    """`unrestricted`, `restricted`, or the extra steps allowed as a multiple of `steps`."""
    target_weights: tuple[float, ...] | None = None
    sizes: tuple[float, ...] | None = None
    """How much there is of each group (tokens); needed by `proportional`."""
    proxy_steps: int | None = None
    """Steps of every extra run; None: as many as the budget allows, and no more than the final run has."""

    def __post_init__(self) -> None:
        for name in ("groups", "targets"):
            names = getattr(self, name)
            if names is not None:
                if isinstance(names, str) or not isinstance(names, Iterable):
                    raise ValueError(f"{name}={names!r} must be a list of names")
                names = tuple(str(each) for each in names)
                object.__setattr__(self, name, names)
                if len(set(names)) != len(names):
                    raise ValueError(f"{name} {list(names)} are not distinct")
        for name, labels, rest in (("sizes", self.groups, None), ("target_weights", self.targets or self.groups, 1.0)):
            object.__setattr__(self, name, by_name(getattr(self, name), labels, name, rest))
        _ = self.task(self.steps)
        if self.proxy_steps is not None:
            object.__setattr__(self, "proxy_steps", whole(self.proxy_steps, "proxy_steps"))
            _ = self.task(self.proxy_steps)
        if isinstance(self.budget, str) and self.budget not in BUDGETS:
            raise ValueError(f"budget={self.budget!r} is not one of {', '.join(BUDGETS)}, nor a number of runs")
        if not isinstance(self.budget, str) and not (isinstance(self.budget, (int, float)) and self.budget > 0):
            raise ValueError(f"budget={self.budget} must be positive")
        if self.sizes is not None and (
            len(self.sizes) != self.m or not min(self.sizes) >= 0 or not sum(self.sizes) > 0
        ):
            raise ValueError(f"sizes={list(self.sizes)} must be {self.m} numbers, not negative and not all zero")

    @property
    def m(self) -> int:
        """Number of groups."""
        return len(self.groups)

    @property
    def n(self) -> int:
        """Number of targets."""
        return self.m if self.targets is None else len(self.targets)

    @property
    def natural(self) -> Array:
        """The groups in proportion to their sizes."""
        if self.sizes is None:
            raise ValueError("the groups' sizes are not known; give sizes=(tokens of each group)")
        sizes = np.array(self.sizes, dtype=np.float64)
        return as_mixture(sizes / sizes.sum())

    def task(self, steps: int, seed: int | None = None) -> Task:
        """The task of one run."""
        n = None if self.targets is None else self.n
        return Task(self.m, steps, n, self.seed if seed is None else seed, self.target_weights, self.groups)

    @property
    def allowed_steps(self) -> float:
        """Steps of all extra runs that the budget allows."""
        return self.steps * (BUDGETS[self.budget] if isinstance(self.budget, str) else float(self.budget))

    def extra_steps(self, runs: int) -> int:
        """How long each of so many extra runs may be: never longer than the final run (E27)."""
        allowed = BUDGETS[self.budget] if isinstance(self.budget, str) else float(self.budget)
        if self.proxy_steps is not None:
            if self.proxy_steps * runs > allowed * self.steps + 1e-9:
                raise ValueError(
                    f"{runs} extra runs of {self.proxy_steps} steps (proxy.steps) are more than the budget of "
                    f"{allowed:g}·{self.steps} extra steps; lower proxy.steps, or raise the budget to "
                    f"{self.proxy_steps * runs / self.steps:g}"
                )
            return self.proxy_steps
        steps = min(self.steps, int(allowed * self.steps / runs + 1e-9))
        if steps < 1:
            raise ValueError(f"a budget of {allowed}·{self.steps} extra steps leaves none for each of {runs} runs")
        return steps

    def run(
        self,
        rules: Rules,
        steps: int,
        reference: Run | None = None,
        seed: int | None = None,
        parent: Run | None = None,
    ) -> Run:
        """An extra run; with a `parent`, so many steps more of that one."""
        return Run(rules, self.task(steps, seed), reference, parent)

    def static(self, p: ArrayLike, steps: int, seed: int | None = None) -> Run:
        """An extra run with one mixture."""
        return self.run(_static(p), steps, seed=seed)

    def final(self, rules: Rules, expected: ArrayLike | None = None) -> Run:
        """The run that the method is for, and the losses that are expected of it, where there is a law to tell."""
        losses = None if expected is None else tuple(np.asarray(expected, dtype=np.float64).tolist())
        return Run(rules, self.task(self.steps), expected=losses)

    def final_static(self, p: ArrayLike, expected: ArrayLike | None = None) -> Run:
        """The final run with one mixture."""
        return self.final(_static(p), expected)

    def sweep(self, runs: int, alpha: float) -> list[tuple[Array, int]]:
        """Mixtures to try, each with the seed to try it with.

        Two groups: the paper's grid 0.1 … 0.9 and, for its tenth run, the centre again with another seed. More groups:
        a Dirichlet cover.
        """
        if runs < 1:
            raise ValueError(f"runs={runs} must be at least 1")
        if self.m == 1:
            return [(uniform(1), self.seed)]
        if self.m > 2:
            return [(p, self.seed) for p in dirichlet_cover(self.m, runs, alpha, self.seed)]
        points = 9 if runs == 10 else runs
        grid = [np.array([i / (points + 1), 1.0 - i / (points + 1)]) for i in range(1, points + 1)]
        return [(p, self.seed) for p in grid] + [(uniform(2), self.seed + 1)] * (runs - points)


class Planned(Protocol):
    """What can be carried out: a method, or a study."""

    @property
    def name(self) -> str: ...

    @property
    def own(self) -> bool:
        """Whether it is one of aioli's methods, whose mistakes are the user's settings."""
        ...

    def plan(self, problem: Problem) -> Generator[list[Run], list[Result], Run]:
        """Yields stages of runs, receives their results, returns the final run."""
        ...


def closure(runs: Iterable[Run]) -> list[Run]:
    """Runs with all that they stand on, each once, what is stood on first."""
    found: dict[str, Run] = {}

    def add(run: Run) -> None:
        for other in (run.reference, run.parent):
            if other is not None:
                add(other)
        found.setdefault(run.key, run)

    for run in runs:
        add(run)
    return list(found.values())


Numbers = Mapping[str, float] | Iterable[float] | None


def by_name(values: Numbers, labels: tuple[str, ...], name: str, rest: float | None) -> tuple[float, ...] | None:
    """Numbers in the order of the labels, from a list or a dict by name; `rest` stands for names left out."""
    if values is None:
        return None
    if isinstance(values, Mapping):
        unknown = sorted(set(values) - set(labels))
        if unknown:
            raise ValueError(f"{name} names {unknown[0]!r}, which is not one of {', '.join(labels)}")
        missing = [label for label in labels if label not in values]
        if missing and rest is None:
            raise ValueError(f"{name} does not say {missing[0]!r}; give a number for each of {', '.join(labels)}")
        given = dict(values)
        values = [given[label] if label in given else float(rest or 0.0) for label in labels]
    if isinstance(values, (str, int, float)):
        raise ValueError(f"{name}={values!r} must be a list with a number for each of {', '.join(labels)}, or a dict")
    try:
        return tuple(float(v) for v in values)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={values!r} must be numbers") from None


def _static(p: ArrayLike) -> Static:
    return Static(tuple(np.asarray(p, dtype=np.float64).tolist()))


def bounds(problem: Problem, floors: Numbers, caps: Numbers) -> list[tuple[float, ...] | None]:
    """Floors and caps in the order of the groups; a group left out of a dict has none."""
    found = [by_name(floors, problem.groups, "floors", 0.0), by_name(caps, problem.groups, "caps", 1.0)]
    box(problem.m, *found)
    return found
