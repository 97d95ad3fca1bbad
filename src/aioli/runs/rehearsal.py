"""What a method will train, before anything is trained: its plan, carried out on made-up losses.

Stages and lengths of runs are right; which mixtures later stages ask for depends on real losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aioli.carrying import Carrying
from aioli.registry import where_from
from aioli.runs.job import Job, Setup, kind
from aioli.runs.spec import Planned, Problem, Result, Run, closure
from aioli.simplex import uniform

if TYPE_CHECKING:
    from aioli.runs.conducting import Asked


STAGES = 100


class LateError(Exception):
    """A method could not be rehearsed to its end, which says nothing about real losses."""


@dataclass(frozen=True)
class Rehearsal:
    """The runs of a method, stage by stage; the last stage is the final run."""

    stages: tuple[tuple[Job, ...], ...]

    @property
    def extra(self) -> list[Job]:
        """Extra runs, each once, with what they stand on."""
        found: dict[str, Job] = {}
        for stage in self.stages[:-1]:
            for job in stage:
                found |= {each.key: each for run in closure([job.run]) for each in [Job(run, job.setup)]}
        return list(found.values())

    @property
    def jobs(self) -> dict[str, Job]:
        """All runs, each once."""
        return {job.key: job for job in (*self.extra, *self.stages[-1])}

    def counted(self, label: str, final: bool = True) -> dict[str, Job]:
        """All runs, to be counted with those of others; on made-up losses two methods may end up with one mixture,
        on real ones they do not."""
        found, last = {job.key: job for job in self.extra}, self.stages[-1][0]
        swept = {job.key for stage in self.stages[:-1] for job in stage if len(stage) > 1}  # one of which may be kept
        if final and last.key not in swept:
            found[f"{label} {last.key}" if found else last.key] = last
        return found


def rehearse(method: Planned, problem: Problem, final: Setup, proxy: Setup) -> Rehearsal:
    """Carry out a plan on made-up losses."""
    carrying = Carrying(method, problem)
    stages: list[tuple[Job, ...]] = []
    while carrying.final is None:
        if len(stages) == STAGES:
            raise LateError(f"{method.name} plans more than {STAGES} stages on made-up losses")
        stages.append(tuple(Job(run, proxy) for run in carrying.stage))
        try:
            carrying.tell([made_up(run, problem) for run in carrying.stage])
        except Exception as error:
            if method.own and isinstance(error, ValueError):
                raise
            raise LateError(f"{method.name} does not work on made-up losses: {error}") from error
    return Rehearsal((*stages, (Job(carrying.final, final),)))


def made_up(run: Run, problem: Problem) -> Result:
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
    shortest: int = 0
    """Steps of the shortest extra run; 0 if there are none."""


def expected(asked: Sequence[Asked], final: Setup, proxy: Setup) -> Expected:
    """Rehearse each method once, for its first problem: other seeds take as much."""
    first: dict[str, Asked] = {}
    for each in asked:
        first.setdefault(each.label, each)
    jobs: dict[str, Job] = {}
    refused = {}
    lengths: set[int] = set()
    for each in first.values():
        try:
            plan = rehearse(each.method, each.problem, final, proxy)
            jobs |= plan.counted(each.label, each.final)
            lengths |= {job.run.task.steps for job in plan.extra}
        except LateError:
            continue
        except Exception as error:  # a mistake in a method of the user's must not stop the others
            refused[each.label] = where_from(error)
    seeds = len({each.problem.seed for each in asked})
    return Expected(
        seeds * len(jobs), seeds * sum(job.run.task.steps for job in jobs.values()), refused, min(lengths, default=0)
    )
