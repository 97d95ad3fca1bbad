"""Many methods at once: their plans are carried out together, equal runs are trained once.

In: methods and problems, a run store, an executor. Out: for each what came of it, or why it failed. A method whose run
fails is given up, the others go on. Nothing is remembered but the store: run again, a plan is replayed over the results
that are there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from aioli.carrying import Carrying, Outcome
from aioli.registry import where_from
from aioli.runs.job import Job, Setup
from aioli.runs.spec import Planned, Problem, closure
from aioli.runs.store import RunStore
from aioli.train.layout import CHECKPOINTS, MODEL, tidy

AGAIN = 2.0
"""Seconds until a job that somebody else works on is asked for again."""


class Executor(Protocol):
    """Where jobs are done."""

    workers: int
    """How many at once."""

    def submit(self, orders: Sequence[Mapping[str, Any]]) -> list[Future[str]]:
        """Have jobs done, known all at once: each `done`, `failed`, `busy` (somebody else has it) or `stopped`."""
        ...

    def close(self) -> None:
        """Stop everything; a second time there is nothing to stop."""
        ...


@dataclass(frozen=True)
class Asked:
    """A method that is to be carried out for a problem."""

    label: str
    method: Planned
    problem: Problem
    final: bool = True
    """Whether the final run is trained as well, or only what it takes to know it."""


@dataclass
class Carried:
    """What came of it."""

    asked: Asked
    final: Job | None = None
    result: dict[str, Any] | None = None
    """The final run's result."""
    outcome: Outcome | None = None
    extra: list[Job] = field(default_factory=list)
    """Extra runs, each once."""
    error: str | None = None
    """Why there is no result."""
    failed: tuple[Job, ...] = ()
    """Runs that failed."""
    refused: bool = False
    """Whether the method was not even begun, because it cannot work here."""
    over: bool = False


@dataclass
class Progress:
    """How far everything has got."""

    done: int = 0
    """Jobs that are finished, found or trained."""
    failed: int = 0
    running: tuple[Job, ...] = ()
    finished: tuple[Job, ...] = ()


class _Plan:
    """One method on its way."""

    def __init__(self, asked: Asked) -> None:
        self.asked, self.carried = asked, Carried(asked)
        self.carrying: Carrying | None = None
        self.jobs: list[Job] = []
        """What it waits for."""

    @property
    def over(self) -> bool:
        return self.carried.over

    def fail(self, why: str) -> None:
        """Give it up."""
        self.carried.error, self.carried.over = why, True


class Conductor:
    """Carries out plans."""

    def __init__(
        self,
        store: RunStore,
        executor: Executor,
        final: Setup,
        proxy: Setup,
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        self.store, self.executor, self.final, self.proxy = store, executor, final, proxy
        self.report = report or (lambda progress: None)
        self.progress = Progress()
        self._futures: dict[Future[str], Job] = {}
        self._ready: list[Job] = []
        """Jobs that can be handed to the executor."""
        self._wanted: dict[str, Job] = {}
        """Jobs that were asked for in this session and are not over."""
        self._over: dict[str, Job] = {}
        self._parents: set[str] = set()
        """Jobs that others go on from."""
        self._repeated: set[tuple[str, str]] = set()
        """Runs that were trained again for their model or checkpoint."""
        self._failed: dict[str, str] = {}
        self._again: list[tuple[float, Job]] = []

    def conduct(self, asked: Sequence[Asked]) -> list[Carried]:
        """Carry out all methods; raises KeyboardInterrupt when it is stopped from elsewhere."""
        plans = [_Plan(each) for each in asked]
        for plan in plans:
            self._begin(plan)
        while any(not plan.over for plan in plans):
            self._wait()
            for plan in plans:
                self._advance(plan)
            self.report(self._now())
        return [plan.carried for plan in plans]

    # ------------------------------------------------------------------ plans

    def _begin(self, plan: _Plan) -> None:
        try:
            plan.carrying = Carrying(plan.asked.method, plan.asked.problem)
        except Exception as error:  # also mistakes in a method of the user's: the others go on
            plan.fail(where_from(error))
            return
        self._ask(plan)
        self._advance(plan)

    def _ask(self, plan: _Plan) -> None:
        """Have the runs done that a plan waits for."""
        assert plan.carrying is not None
        final = plan.carrying.final
        plan.jobs = [Job(run, self.proxy) for run in plan.carrying.stage] if final is None else [Job(final, self.final)]
        if final is None:
            known = {job.key for job in plan.carried.extra}
            needed = [Job(run, self.proxy) for run in closure(plan.carrying.stage)]
            plan.carried.extra += [job for job in needed if job.key not in known]
        else:
            plan.carried.final = plan.jobs[0]
            if not plan.asked.final:
                plan.carried.over = True
                return
        self._parents |= {job.parent.key for job in plan.jobs if job.parent is not None}  # before any is trained
        for job in _distinct(plan.jobs):
            self._submit(job)

    def _advance(self, plan: _Plan) -> None:
        """Go on with a plan as far as the runs it waits for are over."""
        while not plan.over and all(job.key in self._over or job.key in self._failed for job in plan.jobs):
            failed = [job for job in plan.jobs if job.key in self._failed]
            if failed:
                more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
                plan.carried.failed = tuple(failed)
                plan.fail(f"run {failed[0].key[:8]}{more} failed: {self._failed[failed[0].key]}")
                return
            self._take_in(plan)

    def _take_in(self, plan: _Plan) -> None:
        carrying = plan.carrying
        assert carrying is not None
        found = {job.key: self.store.outcome(job) for job in plan.jobs}
        for job in _distinct(plan.jobs):
            if found[job.key] is None:  # removed since by somebody else
                self._over.pop(job.key, None)
                self._submit(job)
        results = [each for each in (found[job.key] for job in plan.jobs) if each is not None]
        if len(results) < len(plan.jobs):
            return
        if carrying.final is not None:
            plan.carried.result = self.store.result(plan.jobs[0].key)
            plan.carried.outcome = carrying.outcome(results[0])
            plan.carried.over = True
            return
        try:
            carrying.tell(results)
        except Exception as error:
            plan.fail(where_from(error))
            return
        self._ask(plan)

    # ------------------------------------------------------------------ jobs

    def _submit(self, job: Job) -> None:
        """Have a job done, unless it is or will be; what it stands on first."""
        key = job.key
        if key in self._over or key in self._wanted or key in self._failed:
            return
        if self.store.outcome(job) is not None:
            tidy(self.store.run_folder(key))
            self._over[key] = job
            return
        self.store.add(job)
        self._wanted[key] = job
        self._start(job)

    def _start(self, job: Job) -> None:
        """Make a job ready for the executor, or wait for what it stands on."""
        waits = False
        for other, what in ((job.reference, MODEL), (job.parent, CHECKPOINTS)):
            if other is not None and not self._there(other, what):
                waits = True
                if other.key in self._failed:
                    del self._wanted[job.key]
                    why = self._failed[other.key]
                    self._failed[job.key] = f"run {other.key[:8]}, which it stands on, failed: {why}"
                    return
        if waits:
            self._again.append((0.0, job))
            return
        self._ready.append(job)

    def _there(self, job: Job, what: str) -> bool:
        """Whether a run is finished and has its model or checkpoint; if that is gone, it is trained again."""
        if what == CHECKPOINTS:
            self._parents.add(job.key)
        self._submit(job)
        if job.key not in self._over:
            return False
        if self.store.has(job.key, what):
            return True
        del self._over[job.key]
        if (job.key, what) in self._repeated:
            self._failed[job.key] = f"it was trained again and still left no {what} ({self.store.folder(job.key)})"
            return False
        self._repeated.add((job.key, what))
        self.store.forget_result(job.key)
        return False  # asked for again the next time

    def _wait(self) -> None:
        """Hand over what is ready and wait until something is over, but not for long."""
        jobs, self._ready = self._ready, []
        if jobs:
            orders = [job.order(self.store, keep=job.key in self._parents) for job in jobs]
            self._futures |= dict(zip(self.executor.submit(orders), jobs, strict=True))
        if self._futures:
            wait(self._futures, timeout=0.5, return_when=FIRST_COMPLETED)
        elif self._again:
            time.sleep(0.1)
        for future in [future for future in self._futures if future.done()]:
            self._ended(self._futures.pop(future), future.result())
        now, waiting, self._again = time.monotonic(), self._again, []
        for when, job in waiting:
            if when > now:
                self._again.append((when, job))
            else:
                self._start(job)

    def _ended(self, job: Job, ending: str) -> None:
        if ending == "busy":
            self._again.append((time.monotonic() + AGAIN, job))
            return
        if ending == "stopped":
            raise KeyboardInterrupt
        del self._wanted[job.key]
        if ending == "done":
            self._over[job.key] = job
            return
        error = self.store.error(job.key) or {}
        why = error.get("error", "why could not be written; is the disk full?")
        self._failed[job.key] = f"{why} ({self.store.folder(job.key)}/log.txt)"

    def _now(self) -> Progress:
        now = self.progress
        now.done, now.failed = len(self._over), len(self._failed)
        now.running = tuple(self._futures.values())
        now.finished = tuple(self._over.values())
        return now


def _distinct(jobs: Iterable[Job]) -> list[Job]:
    return list({job.key: job for job in jobs}.values())
