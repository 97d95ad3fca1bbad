"""What a method will train, before anything is trained: its plan, carried out on made-up losses.

Stages and lengths of runs are right; which mixtures later stages ask for depends on real losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aioli.registry import Carrying, Method
from aioli.runs.job import Job, Setup, kind
from aioli.runs.spec import Problem, Result, Run
from aioli.simplex import uniform

if TYPE_CHECKING:
    from aioli.runs.conducting import Asked


@dataclass(frozen=True)
class Rehearsal:
    """The runs of a method, stage by stage; the last stage is the final run."""

    stages: tuple[tuple[Job, ...], ...]

    @property
    def extra(self) -> list[Job]:
        """Extra runs, each once."""
        return list({job.key: job for stage in self.stages[:-1] for job in stage}.values())

    @property
    def jobs(self) -> dict[str, Job]:
        """All runs, each once."""
        return {job.key: job for stage in self.stages for job in stage}


def rehearse(method: Method, problem: Problem, final: Setup, proxy: Setup) -> Rehearsal:
    """Carry out a plan on made-up losses."""
    carrying, stages = Carrying(method, problem), []
    while carrying.final is None:
        stages.append(tuple(Job(run, proxy) for run in carrying.stage))
        carrying.tell([_made_up(run, problem) for run in carrying.stage])
    return Rehearsal((*stages, (Job(carrying.final, final),)))


def _made_up(run: Run, problem: Problem) -> Result:
    """Losses that fall with the share of a target's own group, or of some group."""
    p = np.array(getattr(run.rules, "proportions", uniform(problem.m)))
    own = p[np.arange(problem.n) % problem.m]
    return Result(2.0 + np.exp(-2.0 * own), np.full(problem.n, 5.0), p)


def purpose(stage: tuple[Job, ...], last: bool) -> str:
    """What a stage is, in words."""
    kinds = list(dict.fromkeys(kind(job.run.rules) for job in stage))
    if last:
        return f"final run ({kinds[0]})"
    return f"{', '.join(kinds)}{' sweep' if len(stage) > 1 and kinds == ['static'] else ''}"


@dataclass(frozen=True)
class Expected:
    """What many methods will take, as far as can be told before."""

    runs: int
    steps: int
    refused: dict[str, str]
    """Methods that cannot work here, and why."""


def expected(asked: Sequence[Asked], final: Setup, proxy: Setup) -> Expected:
    """Rehearse each method once, for its first problem: other seeds take as much."""
    first: dict[str, Asked] = {}
    for each in asked:
        first.setdefault(each.label, each)
    jobs: dict[str, Job] = {}
    refused = {}
    for each in first.values():
        try:
            plan = rehearse(each.method, each.problem, final, proxy)
        except ValueError as error:
            refused[each.label] = str(error)
            continue
        extra = {job.key: job for job in plan.extra}
        jobs |= extra
        last = plan.stages[-1][0]
        if each.final and last.key not in extra:  # with real losses, final mixtures of two methods are not the same
            jobs[f"{each.label} {last.key}" if extra else last.key] = last
    seeds = len({each.problem.seed for each in asked})
    return Expected(seeds * len(jobs), seeds * sum(job.run.task.steps for job in jobs.values()), refused)
