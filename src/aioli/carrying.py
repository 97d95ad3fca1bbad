"""Methods carried out: stage by stage to the final run, with any function that trains runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aioli.registry import Method, create
from aioli.runs.spec import Planned, Problem, Result, Run, closure


@dataclass(frozen=True)
class Outcome:
    """A method carried out: its final run and result, and every extra run it took."""

    final: Run
    result: Result
    extra: tuple[Run, ...]
    extra_results: tuple[Result, ...]

    @property
    def extra_runs(self) -> int:
        """Counted, never typed."""
        return len({run.key for run in self.extra})


class Carrying:
    """A plan that is being carried out: `stage` is to be trained next, until there is the `final` run."""

    def __init__(self, method: Planned, problem: Problem) -> None:
        self.method, self.problem = method, problem
        self.extra: list[Run] = []
        self.results: list[Result] = []
        self.stage: list[Run] = []
        self.final: Run | None = None
        self._plan = method.plan(problem)
        self._go_on(None)

    def tell(self, results: list[Result]) -> None:
        """What came of the stage."""
        self.extra += self.stage
        self.results += results
        self._go_on(results)

    def _go_on(self, results: list[Result] | None) -> None:
        try:
            stage = next(self._plan) if results is None else self._plan.send(results)
        except StopIteration as end:
            final, self.stage = end.value, []
            if not isinstance(final, Run) or final.task.steps != self.problem.steps:
                raise ValueError(
                    f"{self.method.name} must return the final run, of {self.problem.steps} steps (problem.final), not "
                    f"{final!r}"
                ) from None
            final.policy()  # refuses, now, rules that cannot work for this task
            self.final = final
            return
        if not isinstance(stage, list) or not all(isinstance(run, Run) for run in stage):
            raise ValueError(f"{self.method.name} must yield lists of runs, not {stage!r}")
        for run in stage:
            run.policy()
        self._within_budget(stage)
        self.stage = stage

    def _within_budget(self, stage: list[Run]) -> None:
        steps = sum(run.task.steps for run in {run.key: run for run in closure([*self.extra, *stage])}.values())
        if steps > self.problem.allowed_steps + 1e-9:
            raise ValueError(
                f"{self.method.name} plans {steps} extra steps, but the budget is {self.problem.allowed_steps:g} "
                f"({self.problem.budget}); problem.extra_steps(runs) says how long each may be"
            )

    def outcome(self, result: Result) -> Outcome:
        """With the result of the final run."""
        assert self.final is not None
        return Outcome(self.final, result, tuple(self.extra), tuple(self.results))


def conduct(
    method: Method | str,
    problem: Problem,
    train: Callable[[list[Run]], list[Result]],
    train_final: Callable[[Run], Result] | None = None,
) -> Outcome:
    """Carry out a method, with `train` doing the runs of a stage: it maps a list of runs to their results.

    `train_final` does the final run, where that is to be done otherwise.
    """
    method = create(method) if isinstance(method, str) else method
    carrying = Carrying(method, problem)
    while (final := carrying.final) is None:
        carrying.tell(train(carrying.stage))
    return carrying.outcome(train([final])[0] if train_final is None else train_final(final))
